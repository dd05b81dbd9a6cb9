"""Forks of sessions with recorded files: they continue from the files of their turn, in their own directory."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest

import agentobs
from agentobs.cli.replay import fork_runs
from agentobs.errors import UsageError
from agentobs.records.backend import WrittenFact
from agentobs.records.labels import Label
from replay.command.child_program import stopped_by_signals
from replay.scenario.live_meter import LiveMeter
from tests.cli.test_commands import Shell
from tests.effects.workspaces.file_sessions import (
    HALTING,
    KEY,
    OTHER,
    OTHER_TURNS,
    RECORDED,
    RECORDED_TURNS,
    FileProvider,
    record_python_session,
    record_session,
    serving,
)
from tests.effects.workspaces.trees import FileState, files_of, git
from tests.queries import query
from tests.shared_stores import shared_store
from tests.store.recordings import usage_row
from tests.store.test_money import an_attempt


class Session(NamedTuple):
    """A recorded session, and the provider for its forks."""

    folder: Path
    at_turn: dict[int, dict[bytes, FileState]]
    provider: FileProvider


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    folder = tmp_path_factory.mktemp("forks")
    scripts = {RECORDED: RECORDED_TURNS, OTHER: OTHER_TURNS, HALTING: OTHER_TURNS[:6]}
    with serving(FileProvider(scripts)) as provider:
        yield Session(folder, record_session(folder, provider), provider)


@pytest.fixture
def session(recorded: Session, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Session:
    """Work in an empty directory, with the provider."""
    agentobs.stop_recorder()
    for name in ("empty", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    # Forks and comparisons keep their directories.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("ANTHROPIC_BASE_URL", recorded.provider.url)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    recorded.provider.requests.clear()
    recorded.provider.before_response = lambda model, turn: None
    return recorded


@pytest.fixture
def shell(session: Session, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(session.folder / "home", capsys)


@pytest.fixture
def reader(session: Session, shell: Shell) -> Iterator[Shell]:
    """A shell for commands that record nothing."""
    with shared_store(session.folder / "home"):
        yield shell


def passes(directory: Path) -> bool:
    """Return whether the tests of the agent's project pass."""
    return subprocess.run(["sh", "check.sh"], cwd=directory, check=False).returncode == 0


@pytest.mark.slow
def test_a_fork_with_another_model_fixes_what_the_session_could_not(
    session: Session, shell: Shell, tmp_path: Path
) -> None:
    """It starts from the files of turn 5; the tests that failed in the session pass, and nothing else is changed.

    The directory that the user has chosen is not deleted with the session.
    """
    project, out = session.folder / "project", tmp_path / "out"
    (project / "later.txt").write_text("changed after the session\n")
    before = files_of(project)
    files: list[dict[bytes, FileState]] = []
    session.provider.before_response = lambda model, turn: files.append(files_of(out))
    ended = shell("fork", "fix", "--at", "5", "--model", OTHER, "-o", str(out), "--prompt", "Hint.")
    assert ended.code == 0, ended.err
    assert f"files   {out}" in ended.err
    assert "replaced" not in ended.err
    assert (passes(project), passes(out)) == (False, True)
    assert files[0] == session.at_turn[6]
    assert files_of(project) == before
    assert list(Path.cwd().iterdir()) == []
    requests = session.provider.requests
    assert [each["model"] for each in requests] == [OTHER] * 3
    hint = {"type": "text", "text": "Hint."}
    for each in requests:
        assert each["messages"][10]["content"][-1] == hint
        assert str(each["messages"]).count("Hint.") == 1
    home = session.folder / "home"
    [parent] = query("SELECT session_id FROM sessions WHERE name = 'fix'", home=home)
    fork = shown_session(ended.err)
    forks = query(
        "SELECT name, relation, continues_session_id, forked_turn, status FROM sessions "
        "WHERE session_id = $1",
        [fork],
        home=home,
    )
    assert forks == [("fix-fork-5", "fork", parent[0], 5, "completed")]
    states = query(
        "SELECT count(*) FROM workspace_states WHERE session_id = $1 AND source = 'end'",
        [fork],
        home=home,
    )
    assert states == [(1,)]
    assert shell("prune", "--session", fork, "--content-only").code == 0
    assert (out / "check.sh").is_file()


def shown_session(messages: str) -> str:
    """Return the session of a fork, as its messages name it."""
    return messages.partition("agentobs show ")[2].split()[0]


def compared(shell: Shell, *arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    """Return the exit code, the rows and the messages of a comparison."""
    ended = shell("compare", "fix", "--at", "5", "--verify", "sh check.sh", *arguments, "--json")
    return ended.code, json.loads(ended.out)["rows"] if ended.out else [], ended.err


@pytest.mark.slow
def test_a_comparison_shows_which_model_passes(
    session: Session, shell: Shell, tmp_path: Path
) -> None:
    """Each fork has a row, even if the provider is down in the meantime; each fork has its own directory and
    session.

    The directory is deleted with the last of its sessions, as is that of a fork without a comparison.
    """
    code, rows, messages = compared(shell, "--models", f"{HALTING},{RECORDED}", "--yes")
    assert code == 1
    shown = [(row["model"], row["run"], row["verdict"], row["turns"]) for row in rows]
    assert shown == [
        (RECORDED, None, "failed", 7),
        (HALTING, 1, "passed", 1),
        (RECORDED, 1, "failed", 7),
    ]
    assert [row["files_changed"] for row in rows] == [4, 4, 4]
    assert [row["tokens"] for row in rows] == [770, 110, 770]
    assert [row["cost_status"] for row in rows] == ["exact"] * 3
    assert rows[0]["usd"] == rows[2]["usd"]
    assert [bool(row["problem"]) for row in rows] == [False, True, False]
    assert "exit code 3" in rows[1]["problem"]
    assert "plan     2 forks of fix after turn 5, one after another" in messages
    assert "cost     at most $" in messages
    directories = {row["directory"] for row in rows}
    assert len(directories) == 3
    for row in rows[1:]:
        [forked] = query(
            "SELECT relation, forked_turn FROM sessions WHERE session_id = $1",
            row["session_ids"],
            home=session.folder / "home",
        )
        assert forked == ("fork", 5)
    ended = shell("fork", "fix", "--at", "5", "--model", OTHER)
    assert ended.code == 0, ended.err
    temporary = tmp_path / "temporary"

    def prune(*session_ids: str) -> list[str]:
        options = [part for each in session_ids for part in ("--session", each)]
        assert shell("prune", *options, "--content-only").code == 0
        return sorted(each.name[:12] for each in temporary.iterdir())

    assert len(list(temporary.iterdir())) == 2
    assert prune(shown_session(ended.err), *rows[1]["session_ids"]) == ["agentobs-com"]
    assert prune(*rows[2]["session_ids"]) == []
    # Comparisons of other tests are listed as well.
    listed = [each.read_text() for each in (session.folder / "home" / "forks").iterdir()]
    assert not any(str(temporary) in each for each in listed)


@pytest.mark.slow
def test_nothing_is_sent_without_a_confirmation_or_above_the_limit(
    session: Session, shell: Shell
) -> None:
    """Before each fork its maximum is compared with what is left; a fork that cannot be limited is not started."""
    with shared_store(session.folder / "home"):
        code, rows, messages = compared(shell, "--models", OTHER)
        assert (code, rows) == (1, [])
        assert "not started: pass --yes" in messages
        most = fork_limit(messages)
        refusals = (
            (("--models", "no-such-model"), "no price is known for the model no-such-model"),
            (("--models", OTHER, "--max-usd", "0.0001"), "the limit allows no fork"),
            (("--models", OTHER, "--max-usd", "x"), "expected an amount of dollars above 0"),
            (("--models", ","), "no models given"),
            (("--models", OTHER, "--link", "node_modules"), "not an existing path"),
        )
        for arguments, why in refusals:
            code, _, messages = compared(shell, *arguments, "--yes")
            assert (code, why in messages) == (1, True), messages
    assert session.provider.requests == []
    code, rows, _ = compared(shell, "--models", OTHER, "--runs", "2", "--max-usd", most, "--yes")
    assert code == 1
    assert rows[1]["verdict"] == "passed"
    assert rows[2]["verdict"] is None
    assert rows[2]["problem"].startswith("not started: $")


def fork_limit(messages: str) -> str:
    """Return the maximum of a fork, as the plan shows it."""
    return messages.partition("at most $")[2].partition(" ")[0]


def test_requests_in_flight_count_with_their_highest_cost() -> None:
    """A request with 1,000 bytes has at most 500 tokens, each at the price of a cache write for 1 hour."""
    body = {"model": OTHER, "max_tokens": 100}
    most = 500 * Decimal("0.00001") + 100 * Decimal("0.000025")
    meter = LiveMeter(2 * most)
    for _ in range(2):
        meter.admit("/v1/messages", body, 1000)
    with pytest.raises(
        UsageError, match=r"\$0.015 is spent or reserved, and the request could cost \$0.0075"
    ):
        meter.admit("/v1/messages", body, 1000)
    LiveMeter().admit("/v1/messages", {"model": "no-such-model"}, 10**9)
    with pytest.raises(UsageError, match="no price is known for the model no-such-model"):
        meter.admit("/v1/messages", {"model": "no-such-model"}, 1)


def test_a_request_whose_cost_is_not_known_stays_reserved() -> None:
    """A response that was cut off or that the client did not wait for may cost all that its request allows."""
    body = {"model": OTHER, "max_tokens": 100}
    most = 500 * Decimal("0.00001") + 100 * Decimal("0.000025")
    for certainty, note, outcome, is_sent in (
        ("exact", None, "ok", True),
        (None, None, "http_error", True),
        ("lower_bound", None, "cut", False),
        ("lower_bound", None, "cancelled", False),
        ("estimated", "input_tokens:negative", "ok", False),
        # The counts are final; only the price of the platform may be different.
        ("estimated", "platform:bedrock", "ok", True),
    ):
        meter = LiveMeter(most * Decimal("1.5"))
        meter.admit("/v1/messages", body, 1000)
        if certainty is not None:
            row = usage_row(
                1,
                model=Label(OTHER),
                certainty=certainty,
                cache_read_tokens=0,
                note=note and Label(note),
            )
            meter(WrittenFact(row, 1))
        meter(WrittenFact(an_attempt(1, outcome=outcome, origin="live"), 2))
        expected = contextlib.nullcontext() if is_sent else pytest.raises(UsageError, match="spent")
        with expected:
            meter.admit("/v1/messages", body, 1000)


def test_a_request_at_a_higher_price_is_limited_at_that_price() -> None:
    """Fast inference costs twice as much as the standard speed of this model."""
    body = {"model": OTHER, "max_tokens": 100}
    most = 500 * Decimal("0.00001") + 100 * Decimal("0.000025")
    LiveMeter(most).admit("/v1/messages", body, 1000)
    with pytest.raises(UsageError, match=r"could cost \$0.015"):
        LiveMeter(most).admit("/v1/messages", {**body, "speed": "fast"}, 1000)


@pytest.mark.slow
def test_a_fork_that_was_killed_counts_with_its_maximum(
    session: Session, reader: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wrote no result, but it may have sent requests: its cost is at least 0, and the next fork must not start."""
    _, _, messages = compared(reader, "--models", OTHER)
    most = fork_limit(messages)
    monkeypatch.setattr(fork_runs, "_run", lambda command, log: -signal.SIGKILL)
    arguments = ("--models", OTHER, "--runs", "2", "--max-usd", most, "--yes")
    code, rows, _ = compared(reader, *arguments)
    assert code == 1
    assert (rows[1]["cost_status"], "exit code -9" in rows[1]["problem"]) == ("lower_bound", True)
    assert rows[2]["problem"].startswith("not started: $")


@pytest.mark.slow
def test_a_comparison_that_does_not_start_leaves_no_directory(
    session: Session, shell: Shell, tmp_path: Path
) -> None:
    """The same command with --yes can use the directory. SIGTERM while the recorded files are verified leaves none."""
    out = tmp_path / "out"
    assert compared(shell, "--models", OTHER, "-o", str(out))[0] == 1
    assert not out.exists()
    stop = f"kill -TERM {os.getpid()}"
    before = signal.getsignal(signal.SIGTERM)
    arguments = ("compare", "fix", "--at", "5", "--models", OTHER, "-o", str(out), "--yes")
    assert shell(*arguments, "--verify", stop).code == 128 + signal.SIGTERM
    assert not out.exists()
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.slow
def test_a_fork_stops_before_its_limit(session: Session, shell: Shell, tmp_path: Path) -> None:
    """The request that could exceed the limit is not sent; the command ends, and the error states what was spent."""
    out = tmp_path / "out"
    ended = shell(
        "fork", "fix", "--at", "5", "--model", OTHER, "-o", str(out), "--max-usd", "0.00001"
    )
    assert ended.code == 1
    assert "does not allow another request: $0 is spent or reserved" in ended.err
    assert session.provider.requests == []


@pytest.mark.slow
def test_bad_input_is_one_error_before_anything_is_sent(
    session: Session, reader: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "repository").mkdir()
    git(tmp_path / "repository", "init", "-q")
    for arguments, why in (
        (("--at", "99"), "it has the files of turns 1 to 12"),
        (("--at", "5", "-o", str(tmp_path / "full")), "the directory is not empty"),
        (("--at", "5", "-o", str(tmp_path / "repository" / "x")), "inside a git repository"),
        (("--at", "12", "--prompt", "Hint."), "calls no tool"),
        (("--at", "5", "--in-place", "-o", str(tmp_path / "x")), "the fork runs in place"),
    ):
        ended = reader("fork", "fix", *arguments)
        assert (ended.code, why in ended.err) == (1, True), ended.err
    missing = reader(
        "compare", "fix", "--at", "5", "--models", OTHER, "--verify", "no-such-program", "--yes"
    )
    assert (missing.code, "--verify: the command ended with exit code 127" in missing.err) == (
        1,
        True,
    )
    monkeypatch.setenv("ANTHROPIC_API_KEY", "")
    ended = reader("fork", "fix", "--at", "5", "--model", OTHER, "-o", str(tmp_path / "out"))
    assert (ended.code, "sends no credentials" in ended.err) == (1, True), ended.err
    assert session.provider.requests == []


@pytest.mark.slow
def test_a_command_that_fails_before_its_first_request_says_why(
    session: Session, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is that of the command, not a missing key."""
    monkeypatch.setenv("FILE_AGENT_EARLY", "no-such-directory/early.py")
    ended = shell("fork", "fix", "--at", "5", "--model", OTHER)
    assert (ended.code, "exit code 1 before its first request: " in ended.err) == (1, True)
    assert "FileNotFoundError" in ended.err
    assert session.provider.requests == []


@pytest.mark.slow
def test_a_fork_of_a_fixture_needs_no_home(
    session: Session, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fixture has the files of each turn; a link to a path that is not recorded is added and not compared."""
    folder = tmp_path / "fix"
    ended = shell("freeze", "fix", "--workspace", "--no-check", "-o", str(folder))
    assert ended.code == 0, ended.err
    (Path.cwd() / "node_modules").mkdir()
    out, home = tmp_path / "out", tmp_path / "other-home"
    ended = shell(
        *("fork", str(folder), "--at", "7", "--model", OTHER, "-o", str(out)),
        *("--link", "node_modules"),
        home=home,
    )
    assert ended.code == 0, ended.err
    status = " D legacy.py\n D src/calc.py\n?? notes.md\n?? src/sums.py\n"
    assert git(out, "status", "--porcelain") == status
    assert (out / "node_modules").readlink() == Path.cwd() / "node_modules"
    expected = {**session.at_turn[7], b"node_modules": ("link", bytes(Path.cwd() / "node_modules"))}
    assert files_of(out) == expected
    states = query("SELECT max(files) FROM workspace_states", home=home)
    assert len(states) == 1


@pytest.mark.slow
def test_files_that_the_replay_did_not_produce_are_replaced(
    session: Session, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent behaves differently in the replayed part, but the fork goes live from the recorded files."""
    monkeypatch.setenv("FILE_AGENT_EARLY", "src/early.py")
    out = tmp_path / "out"
    ended = shell("fork", "fix", "--at", "5", "--model", OTHER, "-o", str(out))
    assert ended.code == 0, ended.err
    assert "replaced 1 file that differed from the recorded ones at turn 5" in ended.err
    assert not (out / "src" / "early.py").exists()
    assert passes(out)


@pytest.mark.slow
def test_a_python_agent_is_forked_from_the_files_of_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its tools run in the new directory, and its own project does not change."""
    scripts = {RECORDED: RECORDED_TURNS, OTHER: OTHER_TURNS}
    with serving(FileProvider(scripts)) as provider:
        record_python_session(tmp_path, provider, "py_fork_agent")
        shell, project, out = (
            Shell(tmp_path / "home", capsys),
            tmp_path / "project",
            tmp_path / "out",
        )
        monkeypatch.chdir(project)
        monkeypatch.syspath_prepend(str(project))
        monkeypatch.setenv("ANTHROPIC_BASE_URL", provider.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        in_place = shell("fork", "py-fix", "--at", "12", "--in-place", "--link", "x")
        assert "the fork runs in place" in in_place.err
        before = files_of(project, skipped=("__pycache__",))
        options = ("--models", OTHER, "--verify", "sh check.sh", "--yes", "--json")
        ended = shell("compare", "py-fix", "--at", "5", "-o", str(out), *options)
    assert ended.code == 0, ended.out + ended.err
    rows = json.loads(ended.out)["rows"]
    assert [row["verdict"] for row in rows] == ["failed", "passed"]
    assert Path(rows[1]["directory"]).is_relative_to(out)
    assert passes(Path(rows[1]["directory"]))
    assert files_of(project, skipped=("__pycache__",)) == before
    assert Path.cwd() == project


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_terminated_comparison_ends_its_fork(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Otherwise the fork would continue and spend money after its terminal was closed."""

    class Process:
        signals: ClassVar[list[int]] = []

        def __init__(self, *arguments: object, **options: object) -> None:
            self.has_ended = False

        def wait(self, timeout: float | None = None) -> int:
            if timeout is None and not self.has_ended:
                self.has_ended = True
                os.kill(os.getpid(), number)
            return 0

        def send_signal(self, sent: int) -> None:
            self.signals.append(sent)

        def kill(self) -> None:
            pass

    monkeypatch.setattr(subprocess, "Popen", Process)
    with pytest.raises(SystemExit) as ended, stopped_by_signals():
        fork_runs._run(["x"], tmp_path / "log")
    assert (ended.value.code, Process.signals) == (128 + number, [signal.SIGINT])


@pytest.mark.slow
def test_an_interrupted_comparison_shows_what_has_ended(session: Session, shell: Shell) -> None:
    """Ctrl-C ends the fork and its session in order; the table has the forks before it, and later ones do not start."""

    has_ended = threading.Event()

    def interrupt(model: str, turn: int) -> None:
        if (model, turn) == (HALTING, 6):
            os.kill(os.getpid(), signal.SIGINT)
            has_ended.wait()

    session.provider.before_response = interrupt
    try:
        code, rows, _ = compared(shell, "--models", f"{HALTING},{OTHER}", "--yes")
    finally:
        has_ended.set()
    assert code == 130
    assert [row["verdict"] for row in rows] == ["failed", None, None]
    assert [row["problem"] for row in rows[1:]] == ["interrupted", "not started: interrupted"]
    status = query(
        "SELECT status FROM sessions WHERE session_id = $1",
        rows[1]["session_ids"],
        home=session.folder / "home",
    )
    assert status == [("interrupted",)]
