"""Loading a conversation: the right session is found, and each obstacle is reported as one clear error."""

from __future__ import annotations

import dataclasses
import json
import warnings
import zlib
from collections.abc import Iterable
from pathlib import Path

import pytest

from agentobs import errors, wiring
from agentobs.agent.sessions.resumption import conversation_from
from agentobs.errors import AgentobsError, ForeignError, RecordingError, UsageError
from agentobs.recording.journal.home import Home
from agentobs.recording.journal.segments import Segment, content_path, facts_path, segment_ids
from agentobs.recording.recorder import Recorder
from agentobs.records.canonical_json import Json
from agentobs.store.duckdb.ingest import ingest
from tests.store.recordings import SECOND, T0, a_home, attempt, end, record, session_id, start, tool
from tests.store.test_conversations import continued

CALLS = [{"type": "tool_use", "id": each, "name": "weather", "input": {}} for each in "ab"]


def load(home: Home, text: str = session_id(1), turn: int | None = None, how: str = "") -> Json:
    relation = how or ("fork" if turn else "resume")
    return wiring.load_conversation(
        {"session_id": text, "turn": turn, "relation": relation}, home.path
    )


def refused(home: Home, text: str = session_id(1), turn: int | None = None) -> AgentobsError:
    with pytest.raises(AgentobsError) as raised:
        load(home, text, turn)
    assert raised.value.todo
    return raised.value


def a_session(home: Home, number: int = 1) -> None:
    """Record two turns of another client; the first turn calls two tools, and only one of the calls ends."""
    called = attempt(number, 1, content=CALLS)
    record(home, [start(number), called, tool(number, "a", "weather", at=T0 + SECOND + 1)])


@pytest.mark.slow
@pytest.mark.parametrize("published", [False, True])
def test_load_by_id_or_part_of_it(published: bool, tmp_path: Path) -> None:
    """A session, live or ingested, can be loaded by its ID or a part of it.

    The conversation has only the messages, results and costs of this session.
    """
    home = a_home(tmp_path)
    a_session(home)
    record(home, [start(2), attempt(2, 1, input_tokens=10**6), end(2)])
    if published:
        ingest(home)
    found = load(home)
    assert found == load(home, session_id(1)[:8])
    assert found["session_id"] == session_id(1)
    results = [
        (block["content"], block.get("is_error")) for block in found["messages"][-1]["content"]
    ]
    assert results[0] == ("sunny", None)
    assert results[1][1] is True
    talk = conversation_from(found)
    assert talk.meter.total().usd == wiring.meter_of(session_id(1), home.path).total().usd
    assert talk.meter.total().calls == 1


@pytest.mark.slow
def test_a_fork_from_an_earlier_turn(tmp_path: Path) -> None:
    """A fork has the turns up to the chosen turn and their costs, regardless of later turns."""
    home = a_home(tmp_path)
    record(home, [start(1), attempt(1, 1), attempt(1, 2), attempt(1, 3)])
    found = load(home, turn=2)
    assert (found["turns"], len(found["usage"]), len(found["messages"])) == (2, 2, 3)
    assert refused(home, turn=4).found == "the session has no turn 4"
    assert "It has turns 1 to 3" in refused(home, turn=4).todo


def test_a_turn_of_an_earlier_session(tmp_path: Path) -> None:
    """If the chosen turn is before the resume, the error names the earlier session that contains it."""
    home = a_home(tmp_path)
    record(home, [continued(2, 1), attempt(2, 2)])
    assert session_id(1) in refused(home, session_id(2), turn=9).todo


def test_an_unknown_session(tmp_path: Path) -> None:
    """An unknown ID, or a prefix of several IDs, is one clear error."""
    home = a_home(tmp_path)
    a_session(home)
    a_session(home, 2)
    assert isinstance(refused(home, "f" * 32), UsageError)
    assert "2 sessions" in refused(home, "0000").found


@pytest.mark.slow
def test_a_running_session(tmp_path: Path) -> None:
    """A running session cannot be resumed, but it can be forked."""
    home = a_home(tmp_path)
    recorder = Recorder(home)
    for each in (start(1), attempt(1, 1)):
        recorder(each)
    assert recorder.flush(30)
    error = refused(home)
    assert (type(error), "fork it" in error.todo) == (UsageError, True)
    assert load(home, how="fork")["turns"] == 1
    assert recorder.close(30)
    assert load(home)["turns"] == 1


def contents(home: Home) -> Iterable[Path]:
    return [content_path(home, each) for each in segment_ids(home)]


@pytest.mark.slow
def test_pruned_content(tmp_path: Path) -> None:
    """A session whose content was pruned cannot be loaded; the error names the missing content."""
    home = a_home(tmp_path)
    a_session(home)
    for path in contents(home):
        path.unlink()
    for turn in (None, 1):
        error = refused(home, turn=turn)
        assert isinstance(error, RecordingError)
        assert "was pruned" in error.found
        assert error.where.endswith(".content")


def test_missing_content(tmp_path: Path) -> None:
    """If content that the conversation needs is missing, the error names it; a body that the conversation does not need
    may be missing.
    """
    home = a_home(tmp_path)
    record(home, [start(1), attempt(1, 1), attempt(1, 2)])
    [path] = contents(home)
    lines = path.read_bytes().splitlines(keepends=True)
    answers = [line for line in lines if b" response " in line]
    path.write_bytes(b"".join(line for line in lines if line is not answers[-1]))
    assert "a request or its response in turn 2 of main cannot be read" in refused(home).found


@pytest.mark.slow
def test_dropped_records(tmp_path: Path) -> None:
    """If records were dropped, a session cannot be resumed, because its end is unknown.

    A recorded turn can be forked, and its cost is a lower bound.
    """
    home = a_home(tmp_path)
    record(home, [start(1), dataclasses.replace(attempt(1, 1), lost_bytes=9), end(1)])
    error = refused(home)
    assert isinstance(error, RecordingError)
    assert "Fork it" in error.todo
    assert conversation_from(load(home, turn=1)).meter.total().status == "lower_bound"


def test_a_damaged_segment(tmp_path: Path) -> None:
    """If a segment is damaged within the session, the error names the location of the damage."""
    home = a_home(tmp_path)
    record(home, [start(1), attempt(1, 1), attempt(1, 2), end(1)])
    [segment] = segment_ids(home)
    path = facts_path(home, segment)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[-3] = lines[-3].replace(b"1", b"2")
    path.write_bytes(b"".join(lines))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert "damaged at byte" in refused(home).found


def test_a_segment_of_a_newer_version(tmp_path: Path) -> None:
    """If a segment of a newer version may contain the session, the error states this instead of "unknown session"."""
    home = a_home(tmp_path)
    segment = Segment(home)
    segment.close()
    path = facts_path(home, segment.segment_id)
    data = json.loads(path.read_bytes().partition(b"\n")[0].split(b" ", 3)[3])
    rest = b"1 segment " + json.dumps({**data, "format": 99}).encode()
    check = zlib.crc32(rest, zlib.crc32(segment.segment_id.encode()))
    path.write_bytes(b"%08x %s\n" % (check, rest))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert isinstance(refused(home), ForeignError)


def test_redacted_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversation with redacted secrets is resumed with placeholders, and a warning states this."""
    home = a_home(tmp_path)
    exchange = attempt(1, 1)
    body = exchange.question.body.replace(b"line 0", b"my key: sk-ant-api03-" + b"x" * 40)
    question = dataclasses.replace(exchange.question, body=body)
    record(home, [start(1), dataclasses.replace(exchange, question=question)])
    monkeypatch.setattr(errors, "_reported", set())
    with pytest.warns(RuntimeWarning, match="placeholders"):
        found = load(home)
    assert "[redacted:anthropic_key:" in found["messages"][0]["content"]
