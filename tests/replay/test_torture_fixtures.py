"""Torture of fixtures: what git shows, who dies while writing, who shares one, and whatever somebody made of it."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import threading
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentobs.cli import main
from agentobs.cli.replay.freeze import _folders
from agentobs.errors import AgentobsError, DamagedError, RecordingError
from agentobs.recording.journal.segments import segment_ids
from agentobs.recording.vault.vault import read_session
from agentobs.records.canonical_json import digest
from agentobs.records.exchanges import Answer, Chunk, ModelExchange, Recording
from replay import DivergenceError, Fixture, Replayer, load
from replay.fixture.format import BYTES_MAX
from replay.freeze.conversion import freeze
from tests.agent.provider import message
from tests.agent.provider import streamed as held
from tests.agent.provider import text as words
from tests.provider_script import call, streamed, text
from tests.recording.test_kills import killed_while_streaming
from tests.replay.agents import Agent, answers, recorded

TOGETHER = pytest.mark.xdist_group("torture of fixtures")
"""Not beside each other: eight processes that import the SDK keep all others waiting."""
USE = "import pytest\nfrom tests.replay.agents import Agent\n"


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return recorded(tmp_path_factory.mktemp("session"), ask, answers())


def ask(url: str | None) -> str:
    return Agent(url).answer("How is it?")


def git(folder: Path, *arguments: str) -> str:
    settings = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org")
    ran = subprocess.run(
        ["git", *settings, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return ran.stdout


def late(answer: Answer) -> Answer:
    """The same answer, as another run of the provider sends it: in other pieces, at other times."""
    body = answer.body
    pieces = tuple(Chunk(body[at : at + 50], at * 1_000_000) for at in range(0, len(body), 50))
    return dataclasses.replace(answer, chunks=pieces)


def test_47_git_shows_only_the_turn_that_changed(tmp_path: Path, session: Recording) -> None:
    """With another second answer, the diff has that answer, the request that repeats it, and the digest."""
    folder = tmp_path / "repository" / "fixtures" / "weather"
    freeze(session, folder, {"anthropic": "1"})
    git(tmp_path, "init", "-q", "repository")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "Freeze it")
    first, _, last = map(late, answers())
    other = streamed(text("Next."), call(2, "weather", city="Rome"), number=2)
    again = recorded(tmp_path, ask, [first, other, last])
    freeze(again, folder, {"anthropic": "1"})
    assert git(folder, "diff", "--name-only", "--relative").split() == [
        "README.md",
        "recording.jsonl",
    ]
    shown = git(folder, "diff", "-U0", "recording.jsonl").splitlines()[4:]
    changed = [json.loads(line[1:]) for line in shown if line[:1] in "+-"]
    # The first line names the session that it was frozen from.
    names = {"agentobs_fixture", "response", "event", "request", "tool", "end"}
    assert {next(iter(line)) for line in changed} <= names
    assert {line["response"] for line in changed if "response" in line} == {2}
    assert {line["request"] for line in changed if "request" in line} == {3}
    whole = (folder / "recording.jsonl").read_bytes().splitlines()
    assert sum(line[:1] == "+" for line in shown) < len(whole) / 2
    steps = git(folder, "diff", "-U0", "README.md").splitlines()[5:]
    added = [line[1:].split() for line in steps if line[:1] == "+"]
    assert added[1:2] == [["says", "Next."]]
    assert added[0][:7] == ["A", "recorded", "session:", "3", "requests", "and", "2"]


def test_47_nothing_changes_where_nothing_did(tmp_path: Path, session: Recording) -> None:
    """The same session recorded anew, in other pieces and at other times, is byte for byte the same."""
    folder = tmp_path / "weather"
    freeze(session, folder, {"anthropic": "1"})
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    again = recorded(tmp_path, ask, [late(each) for each in answers()])
    freeze(again, folder, {"anthropic": "2"})
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@TOGETHER
def test_48_what_was_recorded_when_the_process_was_killed_is_frozen_as_that(tmp_path: Path) -> None:
    """After kill -9 the recording reads up to the last whole event, says it crashed, and replays to just there."""
    sent = held(
        message(*[words(f"{number} " * 40) for number in range(60)]), hold=threading.Event()
    )
    place, session_id = killed_while_streaming(tmp_path / "home", sent)
    recording = read_session(place, session_id, segment_ids(place))
    fixture = load(freeze(recording, tmp_path / "killed", {}).fixture)
    assert fixture.header["outcome"] == "crashed"
    [asked] = fixture.asks
    assert (asked.answer.ending, asked.answer.body[-2:]) == ("cut", b"\n\n")
    assert b"".join(sent.pieces).startswith(asked.answer.body)
    read: list[str] = []

    def agent() -> None:
        import anthropic

        import agentobs

        client = agentobs.record(anthropic.Anthropic(max_retries=0))
        messages: Any = [{"role": "user", "content": "Hello"}]
        ask: Any = client.messages.create
        for event in ask(model="claude-sonnet-5", max_tokens=64, messages=messages, stream=True):
            read.append(event.type)

    with Replayer(fixture) as replayed, pytest.raises(Exception, match="the process ended"):
        replayed.run(agent)
    assert read == [
        line.partition(b": ")[2].decode()
        for line in asked.answer.body.splitlines()
        if line.startswith(b"event: ") and line != b"event: ping"
    ]


def test_48_a_failed_write_leaves_the_old_recording(
    tmp_path: Path, session: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fixture is replaced whole or not at all, and nothing is left lying about."""
    folder = tmp_path / "weather"
    freeze(session, folder, {})
    before = (folder / "recording.jsonl").read_bytes()
    failing = dataclasses.replace(session, exchanges=session.exchanges[:1])
    folder.chmod(0o500)
    try:
        if os.access(folder, os.W_OK):  # whoever may do everything needs another obstacle
            monkeypatch.setattr(Path, "replace", _full)
        with pytest.raises(AgentobsError, match="cannot write a fixture"):
            freeze(failing, folder, {})
    finally:
        folder.chmod(0o700)
    assert (folder / "recording.jsonl").read_bytes() == before
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def _full(path: Path, target: Path) -> Path:
    raise OSError(28, "No space left on device")


@pytest.mark.soak
@TOGETHER
@pytest.mark.timeout(600)
def test_49_workers_share_a_fixture(pytester: pytest.Pytester, session: Recording) -> None:
    """Tests on one fixture in two processes pass, and an unused fixture is reported once, by the whole run."""
    freeze(session, pytester.path / "fixtures" / "weather", {})
    freeze(session, pytester.path / "fixtures" / "forgotten", {})
    for test in (pytester.path / "fixtures").rglob("test_*.py"):
        test.unlink()
    pytester.makepyfile(
        USE + '@pytest.mark.replay("fixtures/weather")\n@pytest.mark.parametrize("n", range(6))\n'
        "def test_it(n): assert Agent().answer('How is it?') == 'Oslo is wet.'\n"
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-n", "2", "-q")
    result.assert_outcomes(passed=6)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    told = "fixtures/forgotten: no collected test names it."
    assert result.stdout.str().count(told) == 1


def test_a_run_that_replays_nothing_loads_nothing_of_ours(pytester: pytest.Pytester) -> None:
    """Of all our modules only the plugin is imported, and nothing that it would need."""
    pytester.makepyfile(
        "import sys\nOURS = ('agentobs', 'replay', 'exporters', 'dashboards')\n"
        "def test_it():\n"
        "    found = {name for name in sys.modules if name.split('.')[0] in OURS}\n"
        "    assert found == {'replay', 'replay.plugin'}\n"
        "    assert not {'anthropic', 'httpx2', 'duckdb', 'genai_prices'} & set(sys.modules)\n"
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


def signed(lines: list[dict[str, Any]]) -> bytes:
    """A fixture that somebody changed, and signed again."""
    body = b"".join(json.dumps(line).encode() + b"\n" for line in lines[:-1])
    return body + json.dumps({**lines[-1], "digest": digest(body)}).encode() + b"\n"


def read_lines(fixture: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in fixture.read_bytes().splitlines()]


def no_body(lines: list[dict[str, Any]]) -> None:
    del next(line for line in lines if line.get("request") == 1)["body"]


def wrong_day(lines: list[dict[str, Any]]) -> None:
    lines[0]["recorded_on"] = "yesterday"


def wrong_turn(lines: list[dict[str, Any]]) -> None:
    lines[0]["until_turn"] = "2"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (no_body, "the body of request 1 was redacted"),
        (wrong_day, "the fixture cannot be read"),
        (wrong_turn, "`until_turn` of the first line is .2., and not an integer"),
    ],
)
def test_a_fixture_that_somebody_changed_and_signed_is_refused(
    tmp_path: Path, session: Recording, change: Callable[[list[dict[str, Any]]], None], told: str
) -> None:
    """One clear line says what is wrong with it."""
    file = freeze(session, tmp_path / "weather", {}).fixture
    changed = read_lines(file)
    change(changed)
    file.write_bytes(signed(changed))
    with pytest.raises(DamagedError, match=told):
        load(file)


def test_a_fixture_of_a_gigabyte_is_refused_unread(tmp_path: Path) -> None:
    """It is refused by its size, before a byte of it is in memory."""
    file = tmp_path / "recording.jsonl"
    with file.open("wb") as sparse:
        sparse.truncate(2**30)
    with pytest.raises(DamagedError, match="a fixture of 1,024 MB; at most 256 MB are read"):
        load(file)
    assert BYTES_MAX < 2**30


HOSTILE = '../../etc/x"""\nimport os; os.abort()  #\x1b]0;owned\x07\u202e<script>`{0}'


def test_hostile_names_are_only_names(
    tmp_path: Path, session: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a session, its end, its entry and its tools are called becomes no code, no path, no markup, no escape."""
    first, *others = session.exchanges
    assert isinstance(first, ModelExchange)
    first = dataclasses.replace(first, answer=streamed(call(1, HOSTILE, path=HOSTILE)))
    hostile = dataclasses.replace(
        session,
        name=HOSTILE,
        entry=HOSTILE,
        outcome="failed",
        reason=HOSTILE,
        arguments={},
        exchanges=(first, *others),
    )
    folder = tmp_path / "it's; rm -rf $HOME"
    frozen = freeze(hostile, folder, {"anthropic": "1"})
    assert {path.parent for path in (frozen.fixture, frozen.test)} == {folder}
    assert frozen.test.name == "test_it_s_rm_rf_home.py"
    code = frozen.test.read_text()
    compiled = compile(code, str(frozen.test), "exec")
    assert [name for name in compiled.co_names if name not in ("pytest", "mark", "replay")] == [
        "__doc__",
        "test_reaches_the_failure",
        "test_fixed",
    ]
    for written in (code, (folder / "README.md").read_text()):
        assert not [c for c in written if unicodedata.category(c).startswith("C") and c != "\n"]
        assert not [
            line for line in written.splitlines() if "<script>" in line and line[:4].strip()
        ]
    assert not (tmp_path.parent.parent / "etc").exists()


def test_a_hostile_name_is_a_folder_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`agentobs freeze` writes under fixtures/ whatever the session calls itself, and prints no escape of it."""

    def run(url: str) -> None:
        import anthropic

        import agentobs

        client = agentobs.record(anthropic.Anthropic(api_key="sk-made-up", base_url=url))
        with agentobs.session(HOSTILE * 90):
            messages: Any = [{"role": "user", "content": "Hello"}]
            list(client.messages.create(model="m", max_tokens=9, messages=messages, stream=True))

    monkeypatch.chdir(tmp_path)
    recording = recorded(tmp_path, run, [streamed(text("Hi."))])
    main(["--home", str(tmp_path / "home"), "freeze", recording.session_id])
    told = capsys.readouterr().out
    assert all(c.isprintable() for c in told.replace("\n", ""))
    [made] = [path.relative_to(tmp_path) for path in tmp_path.rglob("recording.jsonl")]
    assert (made.parts[0], len(made.parts)) == ("fixtures", 3)
    assert 0 < len(made.parts[1]) <= 80


@pytest.mark.parametrize("name", ["..", ".", "", "/", "\u202e", "-rf"])
def test_a_name_without_letters_is_a_folder_too(session: Recording, name: str) -> None:
    """No name leads out of fixtures/, and none is an option of a command."""
    [folder] = _folders([dataclasses.replace(session, name=name)], None)
    assert folder in (Path("fixtures/session"), Path("fixtures/rf"))


def test_sessions_of_one_name_have_folders_of_their_own(session: Recording) -> None:
    """Several that are frozen at once do not overwrite each other."""
    other = dataclasses.replace(session, session_id="0" * 24 + "89abcdef")
    third = dataclasses.replace(session, name="third")
    assert _folders([session, other, third], Path("kept")) == [
        Path("kept") / f"weather-agent-{session.session_id[-8:]}",
        Path("kept/weather-agent-89abcdef"),
        Path("kept/third"),
    ]


def test_two_tests_of_one_fixture_do_not_meet(tmp_path: Path, session: Recording) -> None:
    """Each replay of a fixture that was read once stands at its own place."""
    fixture = load(freeze(session, tmp_path / "weather", {}).fixture)
    for _ in range(2):
        with Replayer(fixture) as replayed:
            assert replayed.run(Agent().answer, "How is it?") == "Oslo is wet."
    with pytest.raises(DivergenceError), Replayer(fixture) as replayed:
        Agent().answer("Eh?")
    with Replayer(fixture) as replayed:
        assert replayed.run(Agent().answer, "How is it?") == "Oslo is wet."


def lazy(fixture: Fixture, read: Callable[[Any], object]) -> None:
    """An agent that opens its stream and does with it what it is told."""
    import anthropic

    import agentobs

    agent = Agent()
    client = agentobs.record(anthropic.Anthropic(api_key="sk-made-up", max_retries=0))
    messages: Any = [{"role": "user", "content": "How is it?"}]
    with Replayer(fixture):
        read(client.messages.create(messages=messages, stream=True, **agent.ask()))


@pytest.mark.parametrize("read", [lambda stream: None, next, lambda stream: stream.close()])
def test_a_stream_that_nobody_reads_hangs_nothing(
    tmp_path: Path, session: Recording, read: Callable[[Any], object]
) -> None:
    """A test that never consumes its stream ends, and is judged by what it did not ask."""
    fixture = load(freeze(session, tmp_path / "weather", {}).fixture)
    with pytest.raises(DivergenceError) as caught:
        lazy(fixture, read)
    assert caught.value.divergence.kind == "missing"
    assert caught.value.divergence.progress.requests_matched == 1


@pytest.mark.parametrize(
    ("changes", "told", "todo"),
    [
        ({"dropped": 3}, "is incomplete: 3 records were not written", "Record it again"),
        ({"source": "claude-code"}, "was imported from a log of claude-code", "Record the agent"),
        ({"exchanges": ()}, "made no model calls", ""),
    ],
)
def test_a_session_that_is_not_whole_is_not_frozen(
    tmp_path: Path, session: Recording, changes: dict[str, Any], told: str, todo: str
) -> None:
    """One error says which session and what to do, and nothing is written."""
    with pytest.raises(RecordingError) as caught:
        freeze(dataclasses.replace(session, **changes), tmp_path / "weather", {})
    assert str(caught.value).startswith(f"session {session.session_id} {told}")
    assert todo in caught.value.todo
    assert not (tmp_path / "weather").exists()


def test_the_same_recording_is_frozen_from_another_process(tmp_path: Path) -> None:
    """Two processes that write one fixture at once leave one whole fixture."""
    code = (
        "import sys\nfrom pathlib import Path\nfrom replay.fixture.fixture_folder import replace_file\n"
        "data = sys.argv[2].encode() * 200_000\n"
        "for _ in range(40): replace_file(Path(sys.argv[1]), data)\n"
    )
    file = tmp_path / "recording.jsonl"
    command = [sys.executable, "-c", code, str(file)]
    running = [subprocess.Popen([*command, letter]) for letter in "ab"]
    assert [each.wait() for each in running] == [0, 0]
    assert file.read_bytes() in (b"a" * 200_000, b"b" * 200_000)
    assert [path.name for path in tmp_path.iterdir()] == ["recording.jsonl"]
