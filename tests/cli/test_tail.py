"""`agentobs tail`: sessions are followed while they are recorded, one line per step."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agentobs.cli import main
from agentobs.recording.journal.followed_segments import FollowedSegments
from agentobs.recording.journal.home import Home
from agentobs.recording.journal.segments import Segment
from agentobs.recording.recorder import Recorder
from agentobs.records.exchanges import ModelExchange
from agentobs.sink import Record
from agentobs.store.maintenance import ingest
from tests.cli.pseudo_terminal import on_terminal
from tests.store.recordings import (
    SECOND,
    T0,
    a_home,
    attempt,
    end,
    permission,
    record,
    session_id,
    start,
    tool,
)

CALL = [{"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Bern"}}]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return a_home(tmp_path)


def a_session(number: int = 1, *, failed: bool = True) -> list[Record]:
    """Return a session with a rejected attempt, a call that was denied, its result, and an end."""
    return [
        start(number, "refund-loop"),
        attempt(number, 1, at=T0 + SECOND, status=529),
        attempt(number, 1, at=T0 + 2 * SECOND, content=CALL, cache_read_input_tokens=1_000),
        permission(number, "toolu_1", at=T0 + 3 * SECOND, behavior="deny"),
        tool(number, "toolu_1", "weather", at=T0 + 4 * SECOND),
        attempt(number, 2, at=T0 + 6 * SECOND),
        end(number, failed=failed),
    ]


def printed(home: Home, capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    capsys.readouterr()
    main(["--home", str(home.path), "tail", *arguments])
    return capsys.readouterr().out.splitlines()


def test_each_step_is_one_line(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """Requests, calls, decisions, results and the end of the session have one line each, with time and money."""
    record(home, a_session())
    assert printed(home, capsys, "refund-loop", "-n", "100") == [
        "14:13:20  session     refund-loop started",
        "14:13:21  request     turn 1  claude-sonnet-5-5  http_error 529 overloaded_error  5.0 ms",
        "14:13:22  request     turn 1  claude-sonnet-5-5  end_turn  $0.0004  5.0 ms  in 10, out 20, cache read 1,000",
        "14:13:22  call        turn 1  weather  16 bytes of input",
        "14:13:23  permission  turn 1  weather  deny (person)  waited 1.00 s",
        "14:13:25  result      weather  5 bytes  1.00 s",
        "14:13:26  request     turn 2  claude-sonnet-5-5  end_turn  $0.0002  5.0 ms  in 10, out 20",
        "14:14:20  session     failed: exception:ValueError@stories:run  3 requests, $0.0006",
    ]


def test_a_call_is_printed_before_its_result(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    """If a tool ran while its response was still being received, its call is printed before its result."""
    early = tool(1, "toolu_1", "weather", at=T0 + SECOND)
    record(home, [start(1), attempt(1, 1, at=T0 + 9 * SECOND, content=CALL), early, end(1)])
    kinds = [line.split()[1] for line in printed(home, capsys, session_id(1))]
    assert kinds == ["session", "call", "result", "request", "session"]


def test_facts_without_known_fields_are_left_out(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    """Facts of other versions, with missing fields, are not an error; a cost that they were part of is a lower
    bound.
    """
    segment = Segment(home)
    for kind in ("session_starts", "attempts", "usage", "tool_uses", "tool_results", "permissions"):
        segment.facts.append(kind, {"session_id": session_id(1)})
        segment.facts.append(kind, {"another": 1})
    segment.close()
    record(home, a_session())
    lines = printed(home, capsys, session_id(1), "-n", "100")
    assert len(lines) == 8
    assert lines[-1].endswith("4 requests, at least $0.0006")


def test_damage_is_named(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """Damaged records are left out, and the command that reports damage is named."""
    record(home, a_session())
    ingest(home)
    [facts] = home.segments.glob("*.facts.zst")
    facts.chmod(0o600)
    facts.write_bytes(facts.read_bytes()[:-40])
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["--home", str(home.path), "tail", "--no-follow", session_id(1)])
    assert ended.value.code == 1
    assert "damaged records were left out. `agentobs verify`" in capsys.readouterr().err


@pytest.mark.slow
def test_only_the_last_steps_are_printed_first(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    """`-n` limits the earlier steps, even to none; a session whose segment was compressed is printed as well."""
    record(home, a_session())
    ingest(home)
    assert [line.split()[1] for line in printed(home, capsys, "refund-loop", "-n", "2")] == [
        "request",
        "session",
    ]
    assert printed(home, capsys, "refund-loop", "-n", "0") == []


def test_no_content_without_the_option(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """Prompts, responses, inputs and results are printed only with `--content`."""
    record(home, a_session())
    plain = "\n".join(printed(home, capsys, "refund-loop", "-n", "100"))
    full = "\n".join(printed(home, capsys, "refund-loop", "-n", "100", "--content"))
    for content in ("line 0 of session 1", "Bern", "sunny", "done"):
        assert content not in plain
        assert content in full


def test_all_sessions_are_named_by_their_ids(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without SESSION, each line has the start of the ID of its session."""
    record(home, [*a_session(1), *a_session(2, failed=False)])
    lines = printed(home, capsys, "--no-follow", "-n", "100")
    assert {line.split()[1] for line in lines} == {session_id(each)[:12] for each in (1, 2)}
    assert len(lines) == 16


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [(("nobody",), 1, "nobody: no session with that ID or name"), (("-n", "-1"), 2, "-n")],
)
def test_bad_input_is_one_error(
    home: Home,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    code: int,
    expected: str,
) -> None:
    """An unknown session and an invalid number are reported, without a traceback."""
    record(home, a_session())
    with pytest.raises(SystemExit) as ended:
        printed(home, capsys, *arguments)
    assert ended.value.code == code
    shown = capsys.readouterr()
    assert expected in shown.err
    assert "Traceback" not in shown.err


def of_agent(record: ModelExchange, name: str) -> ModelExchange:
    """Return a request of a sub-agent."""
    return replace(record, place=replace(record.place, lane=f"main/{name}"))


def test_agents_are_numbered_by_their_start(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """A sub-agent has the number that it has on the pages, even if the first request of another one ended before."""
    slow = replace(attempt(1, 1, at=T0 + SECOND), ended_ns=9 * SECOND)
    quick = attempt(1, 1, at=T0 + 2 * SECOND)
    record(home, [start(1, "fan-out"), of_agent(quick, "quick"), of_agent(slow, "slow"), end(1)])
    lines = printed(home, capsys, "--no-follow", session_id(1))
    names = [re.search(r"agent \d", line) for line in lines[1:3]]
    assert [found and found[0] for found in names] == ["agent 2", "agent 1"]


@pytest.mark.slow
def test_a_changed_number_is_announced(home: Home, recorder: Recorder) -> None:
    """If an agent that started earlier becomes known while a session is followed, the new names are printed."""
    recorder(start(1, "fan-out"))
    recorder(of_agent(attempt(1, 1, at=T0 + 2 * SECOND), "quick"))
    assert recorder.flush(30)
    process = following(home, "fan-out")
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(2)]
    slow = replace(attempt(1, 1, at=T0 + SECOND), ended_ns=9 * SECOND)
    for each in (of_agent(slow, "slow"), end(1)):
        recorder(each)
    assert recorder.flush(30)
    rest = process.communicate(timeout=60)[0].splitlines()
    assert "agent 1" in lines[1]
    assert rest[0] == "agent 1 is now agent 2, because another agent started before it"
    assert "agent 1" in rest[1]


def following(home: Home, *arguments: str) -> subprocess.Popen[str]:
    """Start to follow in another process, and wait until it has read the earlier steps."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "agentobs", "--home", str(home.path), "tail", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # The shell of a background job disables Ctrl-C, which children inherit.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert process.stderr is not None
    assert "Ctrl-C stops" in process.stderr.readline()
    return process


@pytest.fixture
def recorder(home: Home) -> Iterator[Recorder]:
    recorder = Recorder(home)
    yield recorder
    recorder.close(30)


@pytest.mark.slow
def test_steps_appear_while_they_are_recorded(home: Home, recorder: Recorder) -> None:
    """A running session is followed: each step appears before the next is recorded, and the end stops the command."""
    records = a_session()
    recorder(records[0])
    recorder(records[1])
    assert recorder.flush(30)
    process = following(home, "refund-loop")
    assert process.stdout is not None
    assert "started" in process.stdout.readline()
    assert "http_error 529" in process.stdout.readline()
    for each, expected in (
        (records[2], "$0.0004"),
        (records[4], "weather"),
        (records[6], "failed"),
    ):
        recorder(each)
        while expected not in process.stdout.readline():
            assert process.poll() is None
    assert process.wait(60) == 0
    assert process.stderr is not None
    assert process.stderr.read() == ""


@pytest.mark.slow
def test_ctrl_c_ends_it_cleanly(home: Home, recorder: Recorder) -> None:
    """Ctrl-C ends the command without an error and without a traceback."""
    recorder(start(1, "refund-loop"))
    assert recorder.flush(30)
    process = following(home)
    assert process.stdout is not None
    assert "refund-loop started" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "")


@pytest.mark.slow
def test_a_killed_process_ends_it(home: Home) -> None:
    """If the process of the session has died, the command ends and reports that there is no recorded end."""
    record(home, [start(1, "refund-loop"), attempt(1, 1)])
    shown = subprocess.run(
        [sys.executable, "-m", "agentobs", "--home", str(home.path), "tail", "refund-loop"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert shown.returncode == 0
    assert "the process of this session has ended without recording its end" in shown.stderr
    assert re.search(r"session +refund-loop started", shown.stdout)


def test_a_second_look_returns_only_new_facts(home: Home, recorder: Recorder) -> None:
    """Each fact is returned once, even if its segment is compressed between two polls."""
    followed = FollowedSegments(home)
    kinds: list[str] = []
    for each in a_session():
        recorder(each)
        assert recorder.flush(30)
        kinds += [found.line.kind for found in followed.look()]
    assert kinds.count("attempts") == 3
    assert recorder.close(30)
    ingest(home)
    kinds += [found.line.kind for found in followed.look()]
    assert (kinds.count("session_starts"), kinds.count("session_ends"), kinds.count("seal")) == (
        1,
        1,
        1,
    )
    assert followed.look() == []


@pytest.mark.slow
def test_a_failure_is_wrapped_on_a_narrow_terminal(home: Home) -> None:
    """With 60 columns, the reason of a failure is never cut; other steps have one line."""
    record(home, a_session())
    lines = on_terminal(
        home.path, "tail", "refund-loop", "-n", "100", "--no-follow", columns=60
    ).lines[1:]
    assert "http_error 529 overloaded_error 5.0 ms" in " ".join(" ".join(lines).split())
    [wrapped] = [line for line in lines if "overloaded_error" in line]
    assert wrapped.startswith(" " * 22)
    assert max(map(len, lines)) <= 60
    assert len([line for line in lines if line.endswith("…")]) == 2
