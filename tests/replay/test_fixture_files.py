"""Fixture files: git diffs, killed and concurrent processes, and manipulated fixtures."""

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
from replay.fixture.fixture_folder import write_fixture
from replay.fixture.format import BYTES_MAX
from replay.freeze.conversion import freeze
from tests.agent.provider import message
from tests.agent.provider import streamed as held
from tests.agent.provider import text as words
from tests.provider_script import call, streamed, text
from tests.recording.test_kills import killed_while_streaming
from tests.replay.agents import Agent, answers, recorded

ONE_WORKER = pytest.mark.xdist_group("fixture files")
"""Run these tests in one xdist worker, because eight processes that import the SDK slow down all other tests."""
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


def with_other_timing(answer: Answer) -> Answer:
    """Return the same response with other chunks and times, as in another run of the provider."""
    body = answer.body
    chunks = tuple(Chunk(body[at : at + 50], at * 1_000_000) for at in range(0, len(body), 50))
    return dataclasses.replace(answer, chunks=chunks)


def test_git_shows_only_the_changed_turn(tmp_path: Path, session: Recording) -> None:
    """If one response changes, the diff contains only this response, the request that repeats it, and the digest."""
    folder = tmp_path / "repository" / "fixtures" / "weather"
    freeze(session, folder, {"anthropic": "1"})
    git(tmp_path, "init", "-q", "repository")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "Freeze it")
    first, _, last = map(with_other_timing, answers())
    other = streamed(text("Next."), call(2, "weather", city="Rome"), number=2)
    session_now = recorded(tmp_path, ask, [first, other, last])
    freeze(session_now, folder, {"anthropic": "1"})
    assert git(folder, "diff", "--name-only", "--relative").split() == [
        "README.md",
        "recording.jsonl",
    ]
    shown = git(folder, "diff", "-U0", "recording.jsonl").splitlines()[4:]
    changed = [json.loads(line[1:]) for line in shown if line[:1] in "+-"]
    # The header, which names the original session, changes as well.
    names = {"agentobs_fixture", "response", "event", "request", "tool", "end"}
    assert {next(iter(line)) for line in changed} <= names
    assert {line["response"] for line in changed if "response" in line} == {2}
    assert {line["request"] for line in changed if "request" in line} == {3}
    lines = (folder / "recording.jsonl").read_bytes().splitlines()
    assert sum(line[:1] == "+" for line in shown) < len(lines) / 2
    steps = git(folder, "diff", "-U0", "README.md").splitlines()[5:]
    added = [line[1:].split() for line in steps if line[:1] == "+"]
    assert added[1:2] == [["says", "Next."]]
    assert added[0][:7] == ["A", "recorded", "session:", "3", "requests", "and", "2"]


def test_an_identical_session_changes_nothing(tmp_path: Path, session: Recording) -> None:
    """Freezing an identical session with other chunks and times changes no byte of the fixture."""
    folder = tmp_path / "weather"
    freeze(session, folder, {"anthropic": "1"})
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    session_now = recorded(tmp_path, ask, [with_other_timing(each) for each in answers()])
    freeze(session_now, folder, {"anthropic": "2"})
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.slow
@ONE_WORKER
def test_the_recording_of_a_killed_process_is_frozen(tmp_path: Path) -> None:
    """A process that was killed leaves a recording that can be frozen and replayed up to its last complete event."""
    sent = held(
        message(*[words(f"{number} " * 40) for number in range(60)]), hold=threading.Event()
    )
    place, session_id = killed_while_streaming(tmp_path / "home", sent)
    recording = read_session(place, session_id, segment_ids(place))
    fixture = load(freeze(recording, tmp_path / "killed", {}).fixture)
    assert fixture.header["outcome"] == "crashed"
    [request] = fixture.requests
    assert (request.answer.ending, request.answer.body[-2:]) == ("cut", b"\n\n")
    assert b"".join(sent.chunks).startswith(request.answer.body)
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
        for line in request.answer.body.splitlines()
        if line.startswith(b"event: ") and line != b"event: ping"
    ]


def test_a_failed_write_keeps_the_old_fixture(
    tmp_path: Path, session: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If writing fails, the old fixture is kept completely and no temporary file is left."""
    folder = tmp_path / "weather"
    freeze(session, folder, {})
    before = (folder / "recording.jsonl").read_bytes()
    failing = dataclasses.replace(session, exchanges=session.exchanges[:1])
    folder.chmod(0o500)
    try:
        if os.access(
            folder, os.W_OK
        ):  # root ignores permissions, so the write has to fail in a different way
            monkeypatch.setattr(Path, "replace", _fail_to_replace)
        with pytest.raises(AgentobsError, match="cannot write the fixture"):
            freeze(failing, folder, {})
    finally:
        folder.chmod(0o700)
    assert (folder / "recording.jsonl").read_bytes() == before
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def _fail_to_replace(path: Path, target: Path) -> Path:
    raise OSError(28, "No space left on device")


@pytest.mark.soak
@ONE_WORKER
@pytest.mark.timeout(600)
def test_workers_share_a_fixture(pytester: pytest.Pytester, session: Recording) -> None:
    """Tests in two worker processes can use one fixture, and a complete run reports an unused fixture once."""
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
    warning = "fixtures/forgotten: no collected test uses this fixture."
    assert result.stdout.str().count(warning) == 1


@pytest.mark.slow
def test_a_run_without_replays_imports_only_the_plugin(pytester: pytest.Pytester) -> None:
    """A run without replays imports only `agentobs.pytest_plugin`, and neither the SDK nor any other module of
    agentobs.
    """
    pytester.makepyfile(
        "import sys\nOURS = ('agentobs', 'replay', 'exporters', 'dashboards')\n"
        "def test_it():\n"
        "    found = {name for name in sys.modules if name.split('.')[0] in OURS}\n"
        "    assert found == {'agentobs', 'agentobs.pytest_plugin'}\n"
        "    assert not {'anthropic', 'httpx2', 'duckdb', 'genai_prices'} & set(sys.modules)\n"
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


def with_digest(lines: list[dict[str, Any]]) -> bytes:
    """Return the bytes of a changed fixture with a correct digest."""
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
    ("change", "expected"),
    [
        (no_body, "the body of request 1 was redacted"),
        (wrong_day, "the fixture cannot be read"),
        (wrong_turn, "`until_turn` of the first line: expected an integer of 1 or more"),
    ],
)
def test_a_manipulated_fixture_with_a_correct_digest_is_rejected(
    tmp_path: Path,
    session: Recording,
    change: Callable[[list[dict[str, Any]]], None],
    expected: str,
) -> None:
    """An invalid fixture with a correct digest is rejected with an error that describes the problem."""
    file = freeze(session, tmp_path / "weather", {}).fixture
    changed = read_lines(file)
    change(changed)
    file.write_bytes(with_digest(changed))
    with pytest.raises(DamagedError, match=expected):
        load(file)


def test_a_fixture_of_a_gigabyte_is_rejected_unread(tmp_path: Path) -> None:
    """A fixture of a gigabyte is rejected because of its size before it is read."""
    file = tmp_path / "recording.jsonl"
    with file.open("wb") as sparse:
        sparse.truncate(2**30)
    with pytest.raises(DamagedError, match="the fixture has 1,024 MB; the limit is 256 MB"):
        load(file)
    assert BYTES_MAX < 2**30


HOSTILE = '../../etc/x"""\nimport os; os.abort()  #\x1b]0;owned\x07\u202e<script>`{0}'


def test_hostile_names_are_harmless(
    tmp_path: Path, session: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names of a session, its entry and its tools, and its reason never become code, paths, markup or escape
    sequences.
    """
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


def test_a_hostile_name_becomes_a_folder_below_fixtures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """For any session name, `agentobs freeze` writes below `fixtures/` and prints no escape sequence."""

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
    output = capsys.readouterr().out
    assert all(c.isprintable() for c in output.replace("\n", ""))
    [written] = [path.relative_to(tmp_path) for path in tmp_path.rglob("recording.jsonl")]
    assert (written.parts[0], len(written.parts)) == ("fixtures", 3)
    assert 0 < len(written.parts[1]) <= 80


@pytest.mark.parametrize("name", ["..", ".", "", "/", "\u202e", "-rf"])
def test_a_name_without_letters_becomes_a_folder(session: Recording, name: str) -> None:
    """A session name without letters neither leads out of `fixtures/` nor looks like a command-line option."""
    [folder] = _folders([dataclasses.replace(session, name=name)], None)
    assert folder in (Path("fixtures/session"), Path("fixtures/rf"))


def test_sessions_with_equal_names_have_separate_folders(session: Recording) -> None:
    """Sessions with equal names that are frozen together are written to separate folders."""
    other = dataclasses.replace(session, session_id="0" * 24 + "89abcdef")
    third = dataclasses.replace(session, name="third")
    assert _folders([session, other, third], Path("kept")) == [
        Path("kept") / f"weather-agent-{session.session_id[-8:]}",
        Path("kept/weather-agent-89abcdef"),
        Path("kept/third"),
    ]


def test_two_replays_of_one_fixture_are_independent(tmp_path: Path, session: Recording) -> None:
    """A fixture that was loaded once can be replayed several times, each time from its start."""
    fixture = load(freeze(session, tmp_path / "weather", {}).fixture)
    for _ in range(2):
        with Replayer(fixture) as replayed:
            assert replayed.run(Agent().answer, "How is it?") == "Oslo is wet."
    with pytest.raises(DivergenceError), Replayer(fixture) as replayed:
        Agent().answer("Eh?")
    with Replayer(fixture) as replayed:
        assert replayed.run(Agent().answer, "How is it?") == "Oslo is wet."


def run_with_stream(fixture: Fixture, read: Callable[[Any], object]) -> None:
    """Run an agent that opens a stream and passes it to `read`."""
    import anthropic

    import agentobs

    agent = Agent()
    client = agentobs.record(anthropic.Anthropic(api_key="sk-made-up", max_retries=0))
    messages: Any = [{"role": "user", "content": "How is it?"}]
    with Replayer(fixture):
        read(client.messages.create(messages=messages, stream=True, **agent.ask()))


@pytest.mark.parametrize("read", [lambda stream: None, next, lambda stream: stream.close()])
def test_an_unread_stream_does_not_hang(
    tmp_path: Path, session: Recording, read: Callable[[Any], object]
) -> None:
    """An agent that does not read its stream to the end does not hang, and fails because of the missing requests."""
    fixture = load(freeze(session, tmp_path / "weather", {}).fixture)
    with pytest.raises(DivergenceError) as caught:
        run_with_stream(fixture, read)
    assert caught.value.divergence.kind == "missing"
    assert caught.value.divergence.progress.requests_matched == 1


@pytest.mark.parametrize(
    ("changes", "expected", "advice"),
    [
        ({"dropped": 3}, "is incomplete: 3 records were not written", "Record it again"),
        ({"source": "claude-code"}, "was imported from a log of claude-code", "Record the agent"),
        ({"exchanges": ()}, "made no LLM requests", ""),
    ],
)
def test_an_incomplete_session_is_not_frozen(
    tmp_path: Path, session: Recording, changes: dict[str, Any], expected: str, advice: str
) -> None:
    """An incomplete, imported or empty session is rejected with an error that contains its ID, and nothing is
    written.
    """
    with pytest.raises(RecordingError) as caught:
        freeze(dataclasses.replace(session, **changes), tmp_path / "weather", {})
    assert str(caught.value).startswith(f"session {session.session_id} {expected}")
    assert advice in caught.value.todo
    assert not (tmp_path / "weather").exists()


def test_two_processes_freeze_the_same_recording(tmp_path: Path) -> None:
    """Two processes that write the same fixture concurrently leave one complete fixture and no temporary file."""
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


def test_only_changed_files_are_written(tmp_path: Path) -> None:
    """The files that were written are returned; a second write of the same data writes nothing."""
    fixture = tmp_path / "new folder" / "other.jsonl"
    assert write_fixture(fixture, b"one") == (fixture,)
    assert write_fixture(fixture, b"one") == ()
    assert write_fixture(fixture, b"two") == (fixture,)
    assert fixture.read_bytes() == b"two"
