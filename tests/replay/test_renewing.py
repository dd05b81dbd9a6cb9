"""`--replay-update` and `--replay-live`: a marked test runs live, and its fixture changes only when told to."""

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
    pytester: pytest.Pytester, fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> pytest.Pytester:
    """A project with one fixture in it."""
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
    """A provider that says something else in the last turn than when the fixture was recorded."""
    with served(DRY * 2) as provider:
        yield provider


def served(given: list[Answer]) -> ServedProvider:
    return ServedProvider(script(*given), ServeOptions(match="order"))


def run(
    project: pytest.Pytester, provider: ServedProvider, test: str, *arguments: str
) -> pytest.RunResult:
    project.makepyfile(USE + test.replace("Agent()", f"Agent({provider.url!r})"))
    return project.runpytest_inprocess("-p", "no:xdist", *arguments)


def marked(body: str) -> str:
    return f"{MARK}def test_it(replay):\n    {body}\n"


TALK = marked('assert Agent().answer("How is it?").startswith("Oslo is ")')


def test_update_shows_and_then_writes_just_that(project: pytest.Pytester, recording: Path) -> None:
    """The first run shows what would change by step and writes nothing; the second writes it without asking anybody."""
    before = recording.read_bytes()
    with served(DRY) as provider:
        shown = run(project, provider, TALK, "--replay-update")
    shown.assert_outcomes(passed=1)
    shown.stdout.fnmatch_lines(
        [
            "*fixtures/weather: 2 lines of steps differ:",
            "*  -    says Oslo is wet.",
            "*  +    says Oslo is dry.",
            "not written: write --replay-update=write",
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


def test_what_people_read_is_written_with_it(
    project: pytest.Pytester, recording: Path, provider: ServedProvider
) -> None:
    """The README of the folder tells what the fixture holds now; one of your own is left alone."""
    readme = recording.with_name("README.md")
    run(project, provider, TALK, "--replay-update=write").assert_outcomes(passed=1)
    assert "    says Oslo is dry." in readme.read_text()
    readme.write_text("Mine.")
    with served(answers()) as other:
        run(project, other, TALK, "--replay-update=write").assert_outcomes(passed=1)
    assert b"Oslo is wet." in recording.read_bytes()
    assert readme.read_text() == "Mine."


def test_48_a_failed_test_overwrites_nothing(
    project: pytest.Pytester, recording: Path, provider: ServedProvider
) -> None:
    """What a test recorded that then fails is not written, nor kept to be written."""
    before = recording.read_bytes()
    failing = marked('assert Agent().answer("How is it?") == "Oslo is wet."')
    run(project, provider, failing, "--replay-update=write").assert_outcomes(failed=1)
    assert recording.read_bytes() == before
    assert not list((project.path / ".pytest_cache").rglob("*.jsonl"))


def test_49_two_tests_that_record_one_fixture_are_told(
    project: pytest.Pytester, recording: Path, provider: ServedProvider
) -> None:
    """The first one is written, the second fails with both names."""
    both = TALK + TALK.replace("def test_it", "def test_other")
    result = run(project, provider, both, "--replay-update=write")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*fixtures/weather: *::test_it has recorded this fixture already in this run; *::test_other*"
        ]
    )
    assert "Traceback" not in result.stdout.str()
    assert b"Oslo is dry." in recording.read_bytes()
    load(recording)


def test_a_missing_fixture_is_recorded(project: pytest.Pytester, provider: ServedProvider) -> None:
    """A test whose fixture is not there yet makes it; run again without options, it is replayed."""
    new = TALK.replace("fixtures/weather", "fixtures/new")
    run(project, provider, new).assert_outcomes(errors=1)
    made = run(project, provider, new, "--replay-update=write")
    made.assert_outcomes(passed=1)
    made.stdout.fnmatch_lines(["*fixtures/new: a new fixture:", "*+ lane main"])
    assert load(project.path / "fixtures" / "new").name == "weather-agent"
    run(project, provider, new).assert_outcomes(passed=1)


def test_nothing_changes_where_nothing_differs(project: pytest.Pytester, recording: Path) -> None:
    """The same answers make the same bytes, whatever pieces and times they came in."""
    before = recording.read_bytes()
    with served(answers()) as provider:
        result = run(project, provider, TALK, "--replay-update=write")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*fixtures/weather: unchanged"])
    assert recording.read_bytes() == before


def test_what_was_chosen_when_it_was_frozen_stays(
    project: pytest.Pytester, recording: Path, tmp_path: Path
) -> None:
    """A fixture that was cut off, and that has normalizers, is so when it is recorded anew."""
    session = recorded(tmp_path, lambda url: Agent(url).answer("How is it?"), answers())
    made = freeze(session, tmp_path / "part", {}, 1, normalizers=["uuid"])
    recording.write_bytes(made.fixture.read_bytes())
    with served([streamed(call(1, "clock"), number=1), *answers()[1:]]) as provider:
        result = run(project, provider, TALK, "--replay-update=write")
    result.assert_outcomes(passed=1)
    again = load(recording)
    assert (again.until_turn, again.header["normalizers"]) == (1, ["uuid"])
    made_call = again.tool_use("toolu_1")
    assert made_call is not None
    assert made_call.raw == call(1, "clock")


def test_a_test_up_to_a_turn_is_answered_as_ever(
    project: pytest.Pytester, recording: Path, provider: ServedProvider
) -> None:
    """What a test of the mend goes up to is the recording, in a run with --replay-update, too."""
    before = recording.read_bytes()
    mended = marked(
        'step = replay.until(lambda: Agent().answer("How is it?"), turn=1); assert not step.differs'
    )
    result = run(project, provider, mended, "--replay-update=write")
    result.assert_outcomes(passed=1)
    assert "replay update" not in result.stdout.str()
    assert recording.read_bytes() == before


def test_live_answers_nothing_from_the_fixture(
    project: pytest.Pytester, recording: Path, provider: ServedProvider
) -> None:
    """With --replay-live a marked test asks the provider, and its fixture is left alone."""
    before = recording.read_bytes()
    dry = marked('assert replay.run(Agent().answer, "How is it?") == "Oslo is dry."')
    run(project, provider, dry, "--replay-live").assert_outcomes(passed=1)
    assert recording.read_bytes() == before
    until = marked('replay.until(Agent().answer, "How is it?", turn=1)')
    result = run(project, provider, until, "--replay-live")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*a test that stops at a recorded turn cannot run live.*"])
    assert "Traceback" not in result.stdout.str()


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (
            "pass",
            "*the test recorded 0 sessions with model calls (none), and a fixture holds one*",
        ),
        (
            'Agent().answer("How is it?"); Agent().answer("How is it?")',
            "*the test recorded 2 sessions with model calls (weather-agent, weather-agent)*",
        ),
    ],
)
def test_what_is_not_one_session_is_told(
    project: pytest.Pytester, recording: Path, provider: ServedProvider, body: str, told: str
) -> None:
    """A fixture holds one session: a test that recorded none, or two of its name, fails and writes nothing."""
    before = recording.read_bytes()
    result = run(project, provider, marked(body), "--replay-update=write")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([told])
    assert recording.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--replay-update=sure",), "*'sure': write --replay-update=write*"),
        (("--replay-live", "--replay-update"), "*--replay-live writes nothing*"),
    ],
)
def test_options_that_make_no_sense_are_told(
    project: pytest.Pytester, arguments: tuple[str, ...], told: str
) -> None:
    """One line, and nothing is run."""
    project.makepyfile("def test_it(): pass\n")
    result = project.runpytest_inprocess("-p", "no:xdist", *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([told])
