"""The commands as a user runs them: their output, their exit codes, and their errors."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic, APIStatusError

import agentobs
from agentobs.cli import main
from agentobs.recording.wire.provider_server import ServedProvider, ServeOptions
from agentobs.records.exchanges import Recording
from replay.freeze.conversion import freeze
from tests.provider_script import script
from tests.replay.agents import KEY, MODEL, Agent, answers, last_session, recorded

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONUNBUFFERED": "1"}


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


class Shell:
    """Runs commands in this process against one home."""

    def __init__(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.home, self._capsys = home, capsys

    def __call__(self, *arguments: str, home: Path | None = None) -> Ended:
        code: object = 0
        self._capsys.readouterr()
        try:
            main(["--home", str(home or self.home), *arguments])
        except SystemExit as end:
            code = end.code
        printed = self._capsys.readouterr()
        assert "Traceback" not in printed.err
        return Ended(code if isinstance(code, int) else 0, printed.out, printed.err)


def unlucky(url: str) -> None:
    """Run a session that fails after its responses."""
    with pytest.raises(LookupError):
        _unlucky(url)


@agentobs.session("unlucky", tags={"git": "4f2a91c"})
def _unlucky(url: str) -> None:
    client = agentobs.record(Anthropic(api_key=KEY, base_url=url))
    question = [{"role": "user", "content": "hello"}]
    ask: Any = client.messages.create
    list(ask(model=MODEL, max_tokens=9, messages=question, stream=True))
    raise LookupError("no such order")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with one completed session and one failed session."""
    path = tmp_path_factory.mktemp("cli")
    recorded(path, lambda url: Agent(url).answer("How is it?"), answers())
    recorded(path, unlucky, answers())
    shutil.copytree(path / "home", path / "as-recorded")
    return path / "home"


@pytest.fixture
def shell(
    home: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Shell:
    monkeypatch.chdir(tmp_path)
    return Shell(home, capsys)


@pytest.mark.slow
def test_sessions_lists_the_newest_first(shell: Shell) -> None:
    """`sessions` lists the newest session first, with name, status and reason; `--failed` lists failed sessions."""
    listed = [json.loads(line) for line in shell("sessions", "--json").out.splitlines()]
    assert [(each["name"], each["status"], each["reason"]) for each in listed] == [
        ("unlucky", "failed", "LookupError"),
        ("weather-agent", "completed", None),
    ]
    assert listed[0]["signature"] == "exception:LookupError@tests.cli.test_commands:_unlucky"
    assert listed[0]["tags"] == {"git": "4f2a91c"}
    failed = shell("sessions", "--failed").out
    assert "unlucky" in failed
    assert "weather-agent" not in failed
    assert len(shell("sessions", "--limit", "1", "--csv").out.splitlines()) == 2


@pytest.mark.slow
@pytest.mark.parametrize("named", ["weather-agent", "id", "end"])
def test_show_prints_one_session(shell: Shell, named: str) -> None:
    """`show` finds a session by its name, its ID, or a suffix of the ID, and prints content only on request."""
    listed = [json.loads(line) for line in shell("sessions", "--json").out.splitlines()]
    session_id = listed[1]["session_id"]
    result = shell("show", {"id": session_id, "end": session_id[-8:]}.get(named, named))
    assert (result.code, result.err) == (0, "")
    for word in ("completed", "tool_use", "weather", "request "):
        assert word in result.out
    assert "Oslo" not in result.out
    if named == "weather-agent":
        assert 'calls weather {"city": "Oslo"}' in shell("show", named, "--content").out


@pytest.mark.slow
def test_cost_counts_four_token_classes(shell: Shell) -> None:
    """`cost` lists tokens and cost by model, session and day; `--detail` separates cache writes by lifetime."""
    [row] = [json.loads(line) for line in shell("cost", "--json").out.splitlines()]
    assert (row["model"], row["calls"], row["input_tokens"], row["output_tokens"]) == (
        MODEL,
        4,
        40,
        28,
    )
    assert row["cache_read_tokens"] == 12
    assert shell("cost", "--by", "session").out.count("\n") == 3
    assert shell("cost", "--by", "day", "--detail").code == 0
    assert "write 5m" in shell("cost", "--detail").out


@pytest.mark.slow
def test_sql_runs_one_select(shell: Shell) -> None:
    """`agentobs sql` runs one SELECT over tables and views, and rejects any other statement with a one-line error."""
    assert shell("sql", "SELECT count(*) AS n FROM attempts", "--csv").out == "n\n4\n"
    for refused in (
        "COPY (SELECT 1) TO 'stolen.csv'",
        "SELECT 1; SELECT 2",
        "SELECT * FROM read_text('/proc/self/environ')",
        "SELECT nothing FROM attempts",
        "ATTACH 'other.db'",
        "SET memory_limit = '1TB'",
        "selec",
    ):
        result = shell("sql", refused)
        assert result.code == 1
        assert result.err.startswith("error: sql: ")
        assert len(result.err.splitlines()) == 1
    assert not list(Path.cwd().iterdir())


@pytest.mark.slow
def test_freeze_and_replay(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last failed session becomes a fixture and a test, and a replay of the fixture matches."""
    frozen = shell("freeze", "--last-failed", "--no-check")
    assert frozen.code == 0
    assert sorted(path.name for path in Path("fixtures/unlucky").iterdir()) == [
        "README.md",
        "recording.jsonl",
        "test_unlucky.py",
    ]
    fixture = Path("fixtures/unlucky/recording.jsonl")
    before = fixture.read_bytes()
    again = shell("freeze", "unlucky", "--no-check")
    assert "kept   fixtures/unlucky/test_unlucky.py" in again.out
    assert fixture.read_bytes() == before
    fixtures = Path.cwd() / "fixtures" / "unlucky"
    monkeypatch.chdir(ROOT)
    assert (
        shell("replay", str(fixtures)).out
        == "MATCHED  unlucky  1 of 1 requests, 0 of 0 tool calls\n"
    )
    steps = shell("replay", str(fixtures), "--trajectory").out
    assert "end failed LookupError" in steps


def test_verify_and_ingest_report_their_results(shell: Shell) -> None:
    """`ingest` and `verify` succeed for an undamaged home, and so does a second `ingest`."""
    assert shell("ingest").code == 0
    assert shell("verify").code == 0
    assert shell("ingest").code == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["show", "weather-agnet"], "weather-agnet: no session with that ID or name"),
        (
            ["freeze"],
            "specify a SESSION, --last-failed or --where. `agentobs sessions` lists sessions.",
        ),
        (["freeze", "unlucky", "--last-failed"], "specify a SESSION, --last-failed or --where"),
        (["replay", "nowhere"], "nowhere: this is not a fixture. A fixture is a folder"),
        (
            ["serve", "--match", "question", "--explain", "weather-agent"],
            "--explain: requires --match spine",
        ),
        (
            ["serve", "--fault", "boom", "weather-agent"],
            "--fault: 'boom' is not a fault. Write status:CODE",
        ),
        (
            ["serve", "bad.jsonl"],
            "bad.jsonl: line 2 is not a recorded exchange: 'body' is missing",
        ),
        (["serve", "zzzz"], "zzzz: no session with that ID or name"),
    ],
)
def test_invalid_input_gives_a_one_line_error(
    shell: Shell, arguments: list[str], expected: str
) -> None:
    """Invalid input gives a non-zero exit code and one line that states what was found, where, and what to do."""
    good = '{"request": {"method": "GET", "path": "/", "headers": {}, "body": null}, "response": '
    good += '{"status": 200, "headers": {}, "body_text": ""}}\n'
    Path("bad.jsonl").write_text(good + '{"request": {"method": "GET"}}\n')
    ended = shell(*arguments)
    assert ended.code == 1
    assert ended.err.startswith(f"error: {expected}")
    assert len(ended.err.splitlines()) == 1


def test_a_home_without_recordings_is_reported(shell: Shell, tmp_path: Path) -> None:
    """Reading a home that does not exist prints an error and creates nothing."""
    ended = shell("sessions", home=tmp_path / "none")
    assert (ended.code, (tmp_path / "none").exists()) == (1, False)
    assert "no recordings found. Record a session first" in ended.err


def test_a_foreign_database_file_is_not_touched(shell: Shell, tmp_path: Path) -> None:
    """A DuckDB file that agentobs did not write is named in the error and stays unchanged."""
    import duckdb

    theirs = tmp_path / "home" / "agentobs.duckdb"
    (tmp_path / "home" / "segments").mkdir(parents=True)
    with duckdb.connect(str(theirs)) as connection:
        connection.execute("CREATE TABLE mine AS SELECT 42 AS x")
    before = theirs.read_bytes()
    for command in ("sessions", "ingest"):
        ended = shell(command, home=tmp_path / "home")
        assert ended.code == 1
        assert "agentobs.duckdb" in ended.err
        assert len(ended.err.splitlines()) == 1
    assert theirs.read_bytes() == before


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--mode", "bypassPermissions"], "must be confirmed"),
        (["--allow", "edit(src"], "the command line, allow[0]: "),
        (["--max-usd", "a lot"], "--max-usd: invalid dollar amount: 'a lot'. Pass dollars"),
        (["--max-usd", "-1"], "Budget.interaction_usd: Decimal('-1') is not a valid amount"),
        (["--permissions", "none.json"], "none.json: the file cannot be read"),
        (["--tools", "nowhere"], "nowhere: cannot load tools"),
    ],
)
def test_run_checks_its_options_before_the_first_request(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, options: list[str], expected: str
) -> None:
    """Invalid options of `run` give a one-line error and a non-zero exit code before any request is sent."""
    with ServedProvider(script(*answers()), ServeOptions(match="order")) as provider:
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", provider.url)
        ended = shell("run", "How is it?", *options)
        assert provider.script.request_count == 0
    assert ended.code == 1
    assert ended.err.startswith("error: ")
    assert expected in ended.err
    assert len(ended.err.splitlines()) == 1


def test_run_without_a_key_suggests_the_demo(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an API key, `run` sends no request, and its one-line error suggests the demo."""
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    ended = shell("run", "hello")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == (
        "error: no API key in the environment (ANTHROPIC_API_KEY). "
        "Set one, or try `agentobs demo`, which needs no key.\n"
    )


@pytest.mark.slow
def test_run_records_a_session_that_replays(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`run` runs the agent loop with the given tools; its session can be frozen and replayed."""
    Path("mytools.py").write_text(
        "from agentobs.agent import tool\n"
        "@tool(subject='city')\ndef weather(city: str) -> str:\n    return city + ' is wet'\n"
        "@tool(subject='zone')\ndef clock(zone: str) -> str:\n    return '12:00'\n"
    )
    with ServedProvider(script(*answers()), ServeOptions(match="order")) as provider:
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", provider.url)
        agentobs.stop_recorder()
        arguments = ["run", "How is it?", "--tools", "mytools", "--max-usd", "0.50"]
        Path("rules.json").write_text(
            '{"deny": ["weather(secret*)", "wether(x)"], "allow": ["weather(secretary)"]}'
        )
        allowed = [
            "--allow",
            "weather",
            "--allow",
            "clock(*)",
            "--permissions",
            "project=rules.json",
        ]
        ended = shell(*arguments, *allowed, home=tmp_path / "home")
        assert agentobs.stop_recorder()
    assert (ended.code, ended.out, "denied:" in ended.err) == (0, "Looking.Oslo is wet.\n", False)
    assert "note: The project rule to allow weather(secretary) never has an effect" in ended.err
    hint = "note: The project rule to deny wether(x) has no effect: there is no tool wether."
    assert f"{hint} Did you mean weather?\n" in ended.err
    assert last_session(tmp_path / "home").name == "run"
    assert shell("freeze", "run", "--no-check", home=tmp_path / "home").code == 0
    matched = shell("replay", "fixtures/run")
    assert "MATCHED  run  3 of 3 requests, 3 of 3 tool calls" in matched.out


@pytest.fixture
def serving(home: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `agentobs serve` in a separate process, and yield its URL."""
    command = [sys.executable, "-m", "agentobs", "--home", str(home), "serve", "weather-agent"]
    process = subprocess.Popen(
        [*command, "--chunk", "7"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    assert first == "serving 3 exchanges; stop with Ctrl-C\n"
    yield process, process.stdout.readline().split()[1].partition("=")[2]
    process.kill()
    process.communicate()


@pytest.mark.slow
def test_serve_responds_to_any_client_until_interrupted(
    serving: tuple[subprocess.Popen[str], str],
) -> None:
    """Any client gets the recorded responses; Ctrl-C ends the server, which prints the number of served exchanges."""
    process, url = serving
    assert Agent(url).answer("How is it?") == "Oslo is wet."
    agentobs.stop_recorder()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (130, "", "served 3 of 3 exchanges: exact 3\n")


@pytest.mark.slow
def test_a_strict_server_fails_if_a_request_was_not_recorded(home: Path) -> None:
    """With `--strict`, the exit code is 1 if a request was not recorded, and the last line counts these requests."""
    command = [
        sys.executable,
        "-m",
        "agentobs",
        "--home",
        str(home),
        "serve",
        "weather-agent",
        "--strict",
        "--json",
        "--explain",
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        url = process.stdout.readline().split()[1].partition("=")[2]
        client = Anthropic(api_key="made-up-key", base_url=url, max_retries=0)
        with pytest.raises(APIStatusError, match="was not recorded"):
            client.messages.create(
                model="claude-sonnet-5", max_tokens=9, messages=[{"role": "user", "content": "?"}]
            )
        process.terminate()
        out, err = process.communicate(timeout=20)
    assert process.returncode == 1
    assert err.startswith(
        "served 0 of 3 exchanges: exact 0, missed 1, unused 3\n"
        "request 1 was not recorded; the nearest is request 1; first difference at $.conversation[0].content[0]\n"
    )
    verdict = json.loads(out)
    assert (verdict["served"], verdict["missed"], verdict["unused_requests"]) == (0, 1, [1, 2, 3])


@pytest.mark.slow
def test_an_interrupted_agent_loses_no_data(home: Path, tmp_path: Path) -> None:
    """If Ctrl-C interrupts a stream, the received part is recorded, and the session is marked as failed."""
    agent = tmp_path / "agent.py"
    agent.write_text(
        "import agentobs\nfrom anthropic import Anthropic\n"
        "client = agentobs.record(Anthropic(api_key='made-up-key'))\n"
        "with agentobs.session('interrupted'):\n"
        "    ask = dict(model='claude-sonnet-5', max_tokens=9, messages=[{'role': 'user', 'content': 'x'}])\n"
        "    for event in client.messages.create(**ask, stream=True):\n"
        "        print(event.type, flush=True)\n"
    )
    slow = script(*answers())
    first = slow.exchanges[0].answer
    pieces = [(c.data, 3_600_000_000_000 * (n == 2)) for n, c in enumerate(first.chunks)]  # type: ignore[union-attr]
    from agentobs.records.exchanges import Chunk, ModelExchange

    exchange = slow.exchanges[0]
    assert isinstance(exchange, ModelExchange)
    paced = replace(exchange.answer, chunks=tuple(Chunk(*piece) for piece in pieces))
    recording = replace(slow, exchanges=(replace(exchange, answer=paced),))
    with ServedProvider(recording, ServeOptions(match="order", pace=1.0)) as provider:
        environment = {
            **ENVIRONMENT,
            "ANTHROPIC_BASE_URL": provider.url,
            "AGENTOBS_HOME": str(tmp_path / "home"),
        }
        process = subprocess.Popen(
            [sys.executable, str(agent)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "message_start\n"
        assert process.stdout.readline() == "content_block_start\n"
        # Python misses a signal that arrives just before it waits for bytes, so the signal is sent again.
        for _ in range(3):
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=20)
                break
        assert process.poll() is not None
    made = last_session(tmp_path / "home")
    assert (made.outcome, made.reason) == ("interrupted", "KeyboardInterrupt")
    [kept] = made.exchanges
    assert isinstance(kept, ModelExchange)
    assert kept.answer.ending == "cancelled"
    assert kept.answer.body == b"".join(data for data, _ in pieces[:2])


@pytest.mark.slow
def test_a_damaged_session_is_not_frozen(shell: Shell, home: Path, tmp_path: Path) -> None:
    """If a record in the middle of a session is damaged, `freeze` prints a one-line error and writes nothing."""
    broken = tmp_path / "broken"
    # An earlier ingest may have compressed the segments.
    shutil.copytree(home.with_name("as-recorded"), broken)
    [file] = [p for p in (broken / "segments").glob("*.facts") if b"LookupError" in p.read_bytes()]
    data = file.read_bytes()
    at = data.index(b" attempts ") + 40
    file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    ended = shell("freeze", "unlucky", home=broken)
    assert ended.code == 1
    assert "the session is damaged at byte" in ended.err
    assert not Path("fixtures").exists()
    assert shell("freeze", "weather-agent", "--no-check", home=broken).code == 0


def test_a_session_name_never_becomes_code(tmp_path: Path) -> None:
    """The name of a session is only data: it cannot escape from the strings of the generated test."""
    name = 'x""" ; raise SystemExit("stolen") ; """'
    recording = replace(last_named(tmp_path), name=name, reason=name)
    frozen = freeze(recording, tmp_path / "frozen", {})
    written = frozen.test.read_text()
    kinds = [type(node).__name__ for node in ast.parse(written).body]
    assert kinds == ["Expr", "Import", "FunctionDef", "FunctionDef"]


def last_named(tmp_path: Path) -> Recording:
    return recorded(tmp_path, unlucky, answers())


@pytest.mark.parametrize(
    "arguments",
    [("show", "x\x1b]52;c;aGk=\x07"), ("ingest", "x\x1b]52;c;aGk=\x07")],
)
def test_errors_escape_control_characters(shell: Shell, arguments: tuple[str, ...]) -> None:
    """Control characters in quoted input are escaped in agentobs errors and in usage errors."""
    ended = shell(*arguments)
    assert ended.code != 0
    assert "\\u001b]52;c;aGk=\\u0007" in ended.err
    assert ended.err.replace("\n", "").isprintable()
