"""`agentobs freeze`: several sessions, freezing up to a turn, the output, and the errors."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import agentobs
from agentobs.agent.run_result import Result
from agentobs.recording.wire.provider_server import ServedProvider, ServeOptions
from agentobs.records.exchanges import ModelExchange, Recording
from agentobs.store.duckdb.connection import connect
from replay import DivergenceError, Replayer, ReplayOptions, load
from replay.freeze.conversion import freeze
from tests.cli.test_commands import Shell, unlucky
from tests.provider_script import script, streamed, text
from tests.replay.agents import Agent, answers, recorded
from tests.replay.mailer import Mailer, mails, recorded_run
from tests.test_demo import hide_pytest


def ask(url: str | None) -> str:
    return Agent(url).answer("How is it?")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with three sessions: two have the same name, one has no content."""
    path = tmp_path_factory.mktemp("freeze")
    recorded(path, ask, answers())
    recorded(path, ask, answers())
    with pytest.raises(agentobs.errors.RecordingError):
        recorded(path, without_content, [streamed(text("Hi."))])
    return path / "home"


def without_content(url: str) -> None:
    import anthropic

    client = agentobs.record(anthropic.Anthropic(api_key="sk-made-up", base_url=url))
    with agentobs.session("silent", content="off"):
        messages: Any = [{"role": "user", "content": "Hello"}]
        list(client.messages.create(model="m", max_tokens=9, messages=messages, stream=True))


@pytest.fixture
def shell(
    home: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Shell:
    monkeypatch.chdir(tmp_path)
    return Shell(home, capsys)


def ids(home: Path) -> list[str]:
    asked = "SELECT session_id FROM sessions WHERE name = 'weather-agent' ORDER BY started_ns"
    with connect(home) as store:
        return [row[0] for row in store.execute(asked).fetchall()]


@pytest.mark.slow
def test_several_sessions_have_separate_folders(shell: Shell) -> None:
    """Each session is frozen into a separate folder under `-o`; the next steps are commands that can be copied."""
    first, second = ids(shell.home)
    ended = shell("freeze", first, second, "-o", "kept here", "--no-check")
    assert (ended.code, ended.err) == (0, "")
    folders = [f"weather-agent-{each[-8:]}" for each in (first, second)]
    assert sorted(path.name for path in Path("kept here").iterdir()) == sorted(folders)
    for folder in folders:
        # A method of a class whose constructor needs no arguments can be called again.
        assert f"next   pytest 'kept here/{folder}'\n" in ended.out
        assert f"agentobs fork 'kept here/{folder}' --at" in ended.out


@pytest.mark.slow
def test_a_missing_pytest_is_named(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pytest, which the base install does not include, the next step names the extra that it needs."""
    hide_pytest(monkeypatch)
    ended = shell("freeze", ids(shell.home)[0], "--no-check")
    assert (ended.code, ended.err) == (0, "")
    assert "next   pytest fixtures/weather-agent   needs the extra `pytest`" in ended.out


@pytest.mark.slow
def test_normalization_rules_are_kept_when_frozen_again(shell: Shell) -> None:
    """`--normalize` stores the rules in the fixture. Freezing again keeps them; an empty value removes them."""
    command, folder = ["freeze", ids(shell.home)[0], "-o", "rules", "--no-check"], Path("rules")
    assert "normalizes  uuid, time" in shell(*command, "--normalize", "uuid, time").out
    assert "normalizes  uuid, time" in shell(*command).out
    assert load(folder).header["normalizers"] == ["uuid", "time"]
    assert "normalizes" not in shell(*command, "--normalize", "").out
    assert "normalizers" not in load(folder).header
    refused = shell(*command, "--normalize", "nothing")
    assert refused.code != 0
    assert "nothing" in refused.err


def test_freezing_until_a_turn(shell: Shell) -> None:
    """With `--until-turn`, the fixture ends with the request after the turn; its README and its test state this."""
    [first, _] = ids(shell.home)
    ended = shell("freeze", first, "-o", "part", "--until-turn", "2", "--no-check")
    assert "froze" in ended.out
    assert "3 requests, 3 tool calls, up to turn 2" in ended.out
    fixture = load("part")
    assert (fixture.until_turn, fixture.header["outcome"], len(fixture.requests)) == (
        2,
        "running",
        3,
    )
    assert fixture.requests[-1].answer.chunks == ()
    assert "Oslo is wet." not in Path("part/recording.jsonl").read_text()
    readme = Path("part/README.md").read_text()
    assert "3 requests and 3 tool calls; frozen up to turn 2." in readme
    assert "    lane main\n      POST /v1/messages  claude-sonnet-5  1 message" in readme
    code = Path("part/test_part.py").read_text()
    assert "after turn 2, where the recording was cut off" in code
    assert "test_fixed" not in code


@pytest.mark.slow
def test_an_edited_readme_is_kept(shell: Shell) -> None:
    """A file that a user wrote is kept; a generated file is written again."""
    [first, _] = ids(shell.home)
    shell("freeze", first, "-o", "it", "--no-check")
    readme = Path("it/README.md")
    written = readme.read_text()
    assert written.startswith("<!-- Generated by `agentobs freeze`")
    readme.write_text(written.replace("# weather-agent", "# changed"))
    shell("freeze", first, "-o", "it", "--no-check")
    assert readme.read_text() == written
    readme.write_text("Mine.")
    shell("freeze", first, "-o", "it", "--no-check")
    assert readme.read_text() == "Mine."


@pytest.mark.slow
def test_written_and_kept_files_are_listed(shell: Shell) -> None:
    """For each file, the output states whether it was written or kept; unchanged files and files of the user are
    kept.
    """
    [first, _] = ids(shell.home)
    names = ("recording.jsonl", "test_it.py", "README.md")
    out = shell("freeze", first, "-o", "it", "--no-check").out
    assert [line for line in out.splitlines() if " it/" in line and ": " not in line] == [
        f"wrote  it/{n}" for n in names
    ]
    out = shell("freeze", first, "-o", "it", "--no-check").out
    assert [line for line in out.splitlines() if " it/" in line and ": " not in line] == [
        f"kept   it/{n}" for n in names
    ]
    Path("it/README.md").unlink()
    out = shell("freeze", first, "-o", "it", "--no-check").out
    assert [line for line in out.splitlines() if line.startswith("wrote")] == [
        "wrote  it/README.md"
    ]


def no_content(home: Path) -> None:
    """Change nothing, because the session was recorded without content."""


def pruned(home: Path) -> None:
    from agentobs.recording.journal.home import existing_home
    from agentobs.store.duckdb.retention import prune

    prune(existing_home(home), sessions=ids(home), what="content")


def incomplete(home: Path) -> None:
    """Delete the content segments, which contain the content of requests."""
    for path in (home / "segments").glob("*.content*"):
        path.unlink()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "named", "expected"),
    [
        (no_content, "silent", "was recorded without content"),
        (pruned, "weather-agent", "was pruned on 20"),
        (incomplete, "weather-agent", "was pruned completely"),
    ],
)
def test_unfreezable_sessions_give_a_one_line_error(
    shell: Shell, tmp_path: Path, damage: Callable[[Path], None], named: str, expected: str
) -> None:
    """The error states what is missing and what to do, and nothing is written."""
    copy = tmp_path / "copy"
    shutil.copytree(shell.home, copy)
    damage(copy)
    ended = shell("freeze", named, home=copy)
    assert (ended.code, ended.err.count("\n")) == (1, 1)
    assert expected in ended.err
    assert "replay" in ended.err
    assert not Path("fixtures").exists()


@pytest.mark.slow
def test_a_running_session_is_not_frozen_completely(shell: Shell, tmp_path: Path) -> None:
    """The error states that the session is still running, and how to freeze the part that exists."""
    from agentobs.recording.session import start_recorder, stop_recorder

    place = tmp_path / "running"
    with ServedProvider(script(*answers()), ServeOptions("order")) as provider:
        start_recorder(str(place))
        try:
            with agentobs.session("open"):
                ask(provider.url)
                agentobs.recording.session.flush()
                ended = shell("freeze", "open", home=place)
                assert shell("freeze", "weather-agent", "--no-check", home=place).code == 0
        finally:
            stop_recorder()
    assert (ended.code, ended.err.count("\n")) == (1, 1)
    assert (
        "is still running. Wait until it ends, or freeze its first turns with --until-turn N."
        in ended.err
    )
    assert not Path("fixtures/open").exists()


def test_a_turn_that_does_not_exist(shell: Shell) -> None:
    """If the turn does not exist, the error lists the existing turns."""
    [first, _] = ids(shell.home)
    ended = shell("freeze", first, "--until-turn", "9")
    assert "--until-turn: session" in ended.err
    assert "has no turn 9. It has turns 1 to 3." in ended.err


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return recorded(tmp_path_factory.mktemp("session"), ask, answers())


@pytest.mark.slow
@pytest.mark.parametrize("turn", [1, 2])
def test_a_partial_fixture_replays_to_its_end(
    tmp_path: Path, session: Recording, turn: int
) -> None:
    """The replay of a partial fixture matches up to its last turn, repeatedly; later behavior is not compared."""
    fixture = load(freeze(session, tmp_path / "part", {}, turn).fixture)
    for options in (ReplayOptions(), ReplayOptions(serve_rest=True)):
        with Replayer(fixture, options) as replayed:
            assert replayed.run(ask, None) is None
        assert replayed.progress.requests_matched == turn + 1
    with Replayer(fixture) as replayed:
        assert not replayed.until(ask, None, turn=turn).differs
    with pytest.raises(agentobs.errors.UsageError, match=f"It has turns 1 to {turn}"):
        with Replayer(fixture) as replayed:
            replayed.until(ask, None, turn=turn + 1)


def test_a_partial_fixture_compares_the_next_request(tmp_path: Path, session: Recording) -> None:
    """The request after the turn is compared, so an agent that handles the turn differently diverges there."""
    fixture = load(freeze(session, tmp_path / "part", {}, 2).fixture)
    with pytest.raises(DivergenceError) as caught, Replayer(fixture) as replayed:
        replayed.run(Agent(clock="13:00").answer, "How is it?")
    assert caught.value.divergence.number == 3
    with pytest.raises(DivergenceError) as caught, Replayer(fixture) as replayed:
        replayed.run(lambda: None)
    assert caught.value.divergence.kind == "missing"


def test_a_partial_fixture_of_the_agent_loop(tmp_path: Path) -> None:
    """The fixture includes the exchanges of the loop up to this turn, so tools and approvals are also replayed."""
    given = mails("ann", "ben")
    recording, _, _ = recorded_run(tmp_path, [given[0], *mails("cy")])
    fixture = load(freeze(recording, tmp_path / "part", {}, 1).fixture)
    assert {tool.question.tool_use_id for tool in fixture.tools} == {"toolu_1", "toolu_2"}
    assert [ask.turn for ask in fixture.requests] == [1, 2]
    agent = Mailer()
    with Replayer(fixture) as replayed:
        replayed.run(agent.run)
    assert not any(isinstance(event, Result) for event in agent.events), (
        "it was stopped, not failed"
    )
    assert replayed.progress.tools_matched == 2
    assert replayed.progress.answers_matched == replayed.progress.answers


def test_the_last_turn_is_the_complete_session(tmp_path: Path, session: Recording) -> None:
    """Freezing until the last turn gives the complete session, because there is nothing to cut off after it."""
    freeze(session, tmp_path / "a" / "weather", {})
    freeze(session, tmp_path / "b" / "weather", {}, 3)
    files = [(tmp_path / each / "weather" / "recording.jsonl").read_bytes() for each in "ab"]
    assert files[0] == files[1]
    assert sum(isinstance(each, ModelExchange) for each in session.exchanges) == 3


@pytest.mark.slow
def test_incomplete_frozen_tests_explain_what_to_add(pytester: pytest.Pytester) -> None:
    """If a frozen test cannot start the agent, it fails with one line of advice and without a traceback."""
    failed = recorded(pytester.path, unlucky, answers())
    freeze(failed, pytester.path / "fixtures" / "elsewhere", {})
    unnamed = recorded(pytester.path, ask, answers())
    freeze(dataclasses.replace(unnamed, entry=None), pytester.path / "fixtures" / "unnamed", {})
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:xdist", "fixtures")
    result.assert_outcomes(failed=3)
    reported = result.stdout.str()
    assert "the recorded entry tests.cli.test_commands:_unlucky is not in a file under" in reported
    assert "the test does not specify how the agent is started. Put the function" in reported
    assert "Traceback" not in reported
