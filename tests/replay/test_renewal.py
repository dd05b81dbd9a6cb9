"""`--replay-update` and `--replay-live`: a marked test runs live, and its fixture is changed only on request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agentobs.recording.wire.provider_server import ServedProvider, ServeOptions
from agentobs.records.exchanges import Answer
from replay import Fixture, load
from replay.freeze.conversion import freeze
from tests.provider_script import call, script, streamed, text
from tests.replay.agents import Agent, answers, recorded, weather

DRY = [*answers()[:2], streamed(text("Oslo is dry."), number=3)]
USE = "import pytest\nfrom tests.replay.agents import Agent\n"
MARK = '@pytest.mark.replay("fixtures/weather")\n'


@pytest.fixture(scope="module")
def fixture(tmp_path_factory: pytest.TempPathFactory) -> Fixture:
    return weather(tmp_path_factory.mktemp("renewing"))


@pytest.fixture
def project(
    pytester: pytest.Pytester,
    fixture: Fixture,
    monkeypatch: pytest.MonkeyPatch,
    warm_process: None,
) -> pytest.Pytester:
    """A project with one fixture."""
    monkeypatch.setenv("COLUMNS", "200")
    folder = pytester.path / "fixtures" / "weather"
    folder.mkdir(parents=True)
    (folder / "recording.jsonl").write_bytes(fixture.path.read_bytes())
    return pytester


@pytest.fixture
def recording(project: pytest.Pytester) -> Path:
    return project.path / "fixtures" / "weather" / "recording.jsonl"


@pytest.fixture
def provider() -> Iterator[ServedProvider]:
    """A provider whose last response differs from the recorded one."""
    with serve(DRY * 2) as provider:
        yield provider


def serve(responses: list[Answer]) -> ServedProvider:
    return ServedProvider(script(*responses), ServeOptions(match="order"))


def run(
    project: pytest.Pytester, provider: ServedProvider, test: str, *arguments: str
) -> pytest.RunResult:
    project.makepyfile(USE + test.replace("Agent()", f"Agent({provider.url!r})"))
    return project.runpytest_inprocess("-p", "no:xdist", *arguments)


def marked(body: str) -> str:
    return f"{MARK}def test_it(replay):\n    {body}\n"


TALK = marked('assert Agent().answer("How is it?").startswith("Oslo is ")')


@pytest.mark.slow
def test_an_update_is_shown_and_then_written(project: pytest.Pytester, recording: Path) -> None:
    """The first run shows the changed steps and writes nothing; the second run writes the changes without a request to
    the provider.
    """
    before = recording.read_bytes()
    with serve(DRY) as provider:
        shown = run(project, provider, TALK, "--replay-update")
    shown.assert_outcomes(passed=1)
    shown.stdout.fnmatch_lines(
        [
            "*fixtures/weather: 2 lines of steps changed:",
            "*  -    says Oslo is wet.",
            "*  +    says Oslo is dry.",
            "not written: pass --replay-update=write",
        ]
    )
    assert recording.read_bytes() == before
    written = run(project, provider, TALK, "--replay-update=write")
    written.assert_outcomes(passed=1)
    written.stdout.fnmatch_lines(["*says Oslo is dry."])
    assert b"Oslo is dry." in recording.read_bytes()
    assert load(recording).name == "weather-agent"
    assert not list((project.path / ".pytest_cache").rglob("*.jsonl"))
    run(project, provider, TALK).assert_outcomes(passed=1)


@pytest.mark.slow
def test_an_update_updates_the_generated_readme(
    project: pytest.Pytester, recording: Path, provider: ServedProvider
) -> None:
    """An update of the fixture updates the generated README of its folder, but never a README that the user wrote."""
    readme = recording.with_name("README.md")
    run(project, provider, TALK, "--replay-update=write").assert_outcomes(passed=1)
    assert "    says Oslo is dry." in readme.read_text()
    readme.write_text("Mine.")
    with serve(answers()) as other:
        run(project, other, TALK, "--replay-update=write").assert_outcomes(passed=1)
    assert b"Oslo is wet." in recording.read_bytes()
    assert readme.read_text() == "Mine."


@pytest.mark.slow
def test_a_failed_test_overwrites_nothing(
    project: pytest.Pytester, recording: Path, provider: ServedProvider
) -> None:
    """The recording of a failed test is neither written into the fixture nor kept for a later run."""
    before = recording.read_bytes()
    failing = marked('assert Agent().answer("How is it?") == "Oslo is wet."')
    run(project, provider, failing, "--replay-update=write").assert_outcomes(failed=1)
    assert recording.read_bytes() == before
    assert not list((project.path / ".pytest_cache").rglob("*.jsonl"))


@pytest.mark.slow
def test_two_tests_that_record_one_fixture_are_reported(
    project: pytest.Pytester, recording: Path, provider: ServedProvider
) -> None:
    """If two tests record the same fixture, the first recording is written, and the second test fails with the names of
    both tests.
    """
    both = TALK + TALK.replace("def test_it", "def test_other")
    result = run(project, provider, both, "--replay-update=write")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*fixtures/weather: *::test_it has already recorded this fixture in this run; *::test_other*"
        ]
    )
    assert "Traceback" not in result.stdout.str()
    assert b"Oslo is dry." in recording.read_bytes()
    load(recording)


@pytest.mark.slow
def test_a_missing_fixture_is_recorded(project: pytest.Pytester, provider: ServedProvider) -> None:
    """A test creates its fixture if the fixture does not exist, and is replayed when it runs again without options."""
    new = TALK.replace("fixtures/weather", "fixtures/new")
    run(project, provider, new).assert_outcomes(errors=1)
    result = run(project, provider, new, "--replay-update=write")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*fixtures/new: a new fixture:", "*+ lane main"])
    assert load(project.path / "fixtures" / "new").name == "weather-agent"
    run(project, provider, new).assert_outcomes(passed=1)


@pytest.mark.slow
def test_an_identical_recording_changes_nothing(project: pytest.Pytester, recording: Path) -> None:
    """Identical responses result in an identical fixture, whatever their chunks and times are."""
    before = recording.read_bytes()
    with serve(answers()) as provider:
        result = run(project, provider, TALK, "--replay-update=write")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*fixtures/weather: unchanged"])
    assert recording.read_bytes() == before


@pytest.mark.slow
def test_the_options_of_freeze_are_kept(
    project: pytest.Pytester, recording: Path, tmp_path: Path
) -> None:
    """An updated fixture is cut at the same turn and uses the same normalizers as before."""
    session = recorded(tmp_path, lambda url: Agent(url).answer("How is it?"), answers())
    frozen = freeze(session, tmp_path / "part", {}, 1, normalizers=["uuid"])
    recording.write_bytes(frozen.fixture.read_bytes())
    with serve([streamed(call(1, "clock"), number=1), *answers()[1:]]) as provider:
        result = run(project, provider, TALK, "--replay-update=write")
    result.assert_outcomes(passed=1)
    updated = load(recording)
    assert (updated.until_turn, updated.header["normalizers"]) == (1, ["uuid"])
    made_call = updated.tool_use("toolu_1")
    assert made_call is not None
    assert made_call.raw == call(1, "clock")


@pytest.mark.slow
def test_a_test_up_to_a_turn_is_replayed_during_an_update(
    project: pytest.Pytester, recording: Path, provider: ServedProvider
) -> None:
    """With `--replay-update`, a test that stops at a turn is still replayed."""
    before = recording.read_bytes()
    test_of_a_fix = marked(
        'step = replay.until(lambda: Agent().answer("How is it?"), turn=1); assert not step.differs'
    )
    result = run(project, provider, test_of_a_fix, "--replay-update=write")
    result.assert_outcomes(passed=1)
    assert "replay update" not in result.stdout.str()
    assert recording.read_bytes() == before


@pytest.mark.slow
def test_a_live_run_does_not_use_the_fixture(
    project: pytest.Pytester, recording: Path, provider: ServedProvider
) -> None:
    """With `--replay-live`, a marked test sends its requests to the provider, and its fixture is not changed."""
    before = recording.read_bytes()
    dry = marked('assert replay.run(Agent().answer, "How is it?") == "Oslo is dry."')
    run(project, provider, dry, "--replay-live").assert_outcomes(passed=1)
    assert recording.read_bytes() == before
    until = marked('replay.until(Agent().answer, "How is it?", turn=1)')
    result = run(project, provider, until, "--replay-live")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*a test that stops at a recorded turn cannot run live.*"])
    assert "Traceback" not in result.stdout.str()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            "pass",
            "*the test recorded 0 sessions with model calls (none), but a fixture contains only one*",
        ),
        (
            'Agent().answer("How is it?"); Agent().answer("How is it?")',
            "*the test recorded 2 sessions with model calls (weather-agent, weather-agent), "
            "but a fixture contains only one*",
        ),
    ],
)
def test_a_test_must_record_one_session(
    project: pytest.Pytester, recording: Path, provider: ServedProvider, body: str, expected: str
) -> None:
    """A test that records no session, or two sessions with the same name, fails and writes nothing."""
    before = recording.read_bytes()
    result = run(project, provider, marked(body), "--replay-update=write")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([expected])
    assert recording.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ("--replay-update=sure",),
            "*invalid value 'sure': use --replay-update=write, and put test paths before --replay-update*",
        ),
        (
            ("--replay-live", "--replay-update"),
            "*--replay-live writes no fixture, so it cannot be combined with --replay-update; remove one of them*",
        ),
    ],
)
def test_invalid_options_are_reported(
    project: pytest.Pytester, arguments: tuple[str, ...], expected: str
) -> None:
    """Invalid options are reported in one line, and no test runs."""
    project.makepyfile("def test_it(): pass\n")
    result = project.runpytest_inprocess("-p", "no:xdist", *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([expected])
