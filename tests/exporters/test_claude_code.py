"""Claude Code's logs become sessions: counts against a plain recount, twice is once, and bad lines cost themselves."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

import agentobs
from agentobs.errors import RecordingError
from agentobs.recording.home import Home, open_home
from agentobs.recording.journal import segment_ids
from agentobs.recording.vault import read_session
from agentobs.store.ingest import ingest
from agentobs.store.pruning import prune
from exporters.claude_code.importing import ImportReport, import_logs, logs_in
from exporters.claude_code.rebuilding import our_id
from replay.freeze import freeze
from tests.exporters.recount import TABLE, count, folder

TRANSCRIPTS = folder()
NEEDED = pytest.mark.skipif(
    TRANSCRIPTS is None, reason="no transcripts: set AGENTOBS_TRANSCRIPTS to their folder"
)
COUNTS: dict[str, dict[str, Any]] = json.loads(TABLE.read_text("utf-8"))
SESSIONS = sorted({session for counts in COUNTS.values() for session in counts["sessions"]})
SUMMED = ("responses", "tool_calls", "tool_results", "tool_errors", "agents", "compactions")
TOKENS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")


def never(home: Home, segment_id: str) -> None:
    raise AssertionError(f"nothing has grown, and {segment_id} of {home} was to be taken out")


def bring_in(home: Home, *paths: Path) -> ImportReport:
    return import_logs(home, logs_in(paths), take_out=never)


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    home = open_home(tmp_path_factory.mktemp("imported") / "home")
    assert TRANSCRIPTS is not None
    report = bring_in(home, TRANSCRIPTS)
    assert report.bad_lines == []
    with agentobs.connect(home.path) as connection:
        yield connection


@NEEDED
def test_the_counts_are_those_of_the_logs() -> None:
    """The committed table is what a plain recount gives."""
    assert TRANSCRIPTS is not None
    assert {name: count(TRANSCRIPTS / name) for name in COUNTS} == COUNTS


@NEEDED
@pytest.mark.xdist_group("transcripts")
@pytest.mark.parametrize("client_id", SESSIONS)
def test_a_session_is_imported_whole(imported: duckdb.DuckDBPyConnection, client_id: str) -> None:
    """Responses, models, calls, results, agents, compactions and tokens are those of a recount."""
    expected: Counter[str] = Counter()
    models: set[str] = set()
    for counts in COUNTS.values():
        if client_id in counts["sessions"]:
            expected.update({name: counts[name] for name in (*SUMMED, *TOKENS)})
            models |= set(counts["models"])
    session_id = our_id(client_id)

    def one(sql: str) -> Any:
        row = imported.execute(sql, [session_id]).fetchone()
        return row[0] if row and len(row) == 1 else row

    found = {
        "responses": one("SELECT count(DISTINCT message_id) FROM attempts WHERE session_id = ?"),
        "tool_calls": one("SELECT count(*) FROM tool_uses WHERE session_id = ?"),
        "tool_results": one("SELECT count(*) FROM tool_results WHERE session_id = ?"),
        "tool_errors": one("SELECT count(*) FROM tool_results WHERE is_error AND session_id = ?"),
        "agents": one(
            "SELECT count(DISTINCT lane) FROM attempts WHERE lane <> 'main' AND session_id = ?"
        ),
        "compactions": one(
            "SELECT count(*) FROM events WHERE kind = 'compaction' AND session_id = ?"
        ),
    }
    sums = ", ".join(
        f"sum({each})" for each in ("input_tokens", "output_tokens", "cache_read_tokens")
    )
    tokens = one(
        f"SELECT {sums}, sum(cache_write_5m_tokens + cache_write_1h_tokens) FROM usage "
        "WHERE iteration = 0 AND session_id = ?"
    )
    assert found == {name: expected[name] for name in SUMMED}
    assert tokens == tuple(expected[name] for name in TOKENS)
    told = imported.execute(
        "SELECT DISTINCT model FROM attempts WHERE session_id = ?", [session_id]
    ).fetchall()
    assert {model for (model,) in told} == models


@NEEDED
@pytest.mark.xdist_group("transcripts")
def test_every_session_is_in_the_views(imported: duckdb.DuckDBPyConnection) -> None:
    """Each has its interactions, turns, money and the word that it was imported."""
    listed = imported.execute(
        "SELECT s.session_id, s.turns > 0, s.cost_usd > 0, t.source, t.started_ns > 0 "
        "FROM sessions AS s JOIN session_starts AS t USING (session_id) ORDER BY ALL"
    ).fetchall()
    expected = sorted(our_id(each) for each in SESSIONS)
    assert listed == [(each, True, True, "claude-code", True) for each in expected]


def entry(kind: str, uuid: str, parent: str | None, content: Any, **more: Any) -> dict[str, Any]:
    """Return a line of a log as the client writes it."""
    at = f"2026-02-03T00:00:{int(uuid.rpartition('-')[2]):02d}.000Z"
    message: dict[str, Any] = {"role": kind, "content": content}
    if kind == "assistant":
        usage = {"input_tokens": 3, "output_tokens": 5, "cache_read_input_tokens": 0}
        message |= {"id": more.pop("id"), "model": "claude-opus-4-6", "usage": usage}
        message |= {"type": "message", "stop_reason": "end_turn"}
    return {
        "type": kind,
        "uuid": uuid,
        "parentUuid": parent,
        "sessionId": more.pop("session", SESSION),
        "timestamp": at,
        "version": "2.1.41",
        "message": message,
        **more,
    }


SESSION = "11111111-2222-3333-4444-555555555555"
TASK = {"type": "tool_use", "id": "toolu_task", "name": "Task", "input": {"prompt": "look"}}
READ = {"type": "tool_use", "id": "toolu_read", "name": "Read", "input": {"path": "a b.txt"}}
CONVERSATION = [
    entry("user", "m-1", None, "find the canary word"),
    entry("assistant", "m-2", "m-1", [TASK], id="msg_1"),
    entry("user", "m-7", "m-2", [{"type": "tool_result", "tool_use_id": "toolu_task", "content": "ok"}],
          toolUseResult={"agentId": "a1"}),
    entry("assistant", "m-8", "m-7", [{"type": "text", "text": "done"}], id="msg_4"),
]  # fmt: skip
AGENT = [
    entry("user", "a-3", None, "look", agentId="a1", isSidechain=True),
    entry("assistant", "a-4", "a-3", [READ], id="msg_2", agentId="a1"),
    entry("user", "a-5", "a-4", [{"type": "tool_result", "tool_use_id": "toolu_read",
                                  "content": "no such file", "is_error": True}], agentId="a1"),
    entry("assistant", "a-6", "a-5", [{"type": "text", "text": "none"}], id="msg_3", agentId="a1"),
]  # fmt: skip


def written(path: Path, entries: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(each) + "\n" for each in entries), "utf-8")
    return path


def test_an_agent_is_nested_under_the_call_that_started_it(tmp_path: Path) -> None:
    """Its requests are in a lane under that of its parent, its span under that of the call, its file wherever it is."""
    home = open_home(tmp_path / "home")
    written(tmp_path / "logs" / f"{SESSION}.jsonl", CONVERSATION)
    written(tmp_path / "logs" / "agent-a1.jsonl", AGENT)
    bring_in(home, tmp_path / "logs")
    with agentobs.connect(home.path) as connection:
        spans = connection.execute(
            "SELECT s.name, p.name, s.lane FROM span_starts AS s "
            "LEFT JOIN span_starts AS p ON s.parent_span_id = p.span_id ORDER BY s.started_ns, s.sequence"
        ).fetchall()
    lane = "main/toolu_task"
    assert spans == [
        ("interaction", None, "main"),
        ("llm_request", "interaction", "main"),
        ("tool", "interaction", "main"),
        ("sub_agent", "tool", lane),
        ("llm_request", "sub_agent", lane),
        ("tool", "sub_agent", lane),
        ("llm_request", "sub_agent", lane),
        ("llm_request", "interaction", "main"),
    ]


def test_importing_twice_changes_nothing(tmp_path: Path) -> None:
    """The same log gives the same segment, which is there already."""
    home = open_home(tmp_path / "home")
    log = written(tmp_path / "log.jsonl", CONVERSATION)
    [first] = bring_in(home, log).sessions
    before = {path: path.read_bytes() for path in home.segments.iterdir()}
    [second] = bring_in(home, log).sessions
    assert (first.is_new, second.is_new) == (True, False)
    assert {path: path.read_bytes() for path in home.segments.iterdir()} == before


def test_what_another_session_was_resumed_from_counts_once(tmp_path: Path) -> None:
    """A log that begins with a copy of another one tells of what is new in it."""
    home = open_home(tmp_path / "home")
    later = "99999999-2222-3333-4444-555555555555"
    copied = [{**each, "sessionId": later} for each in CONVERSATION]
    more = [
        entry("user", "m-9", "m-8", "and now?", session=later),
        entry("assistant", "m-10", "m-9", [{"type": "text", "text": "now"}], id="msg_5", session=later),
    ]  # fmt: skip
    written(tmp_path / "a.jsonl", CONVERSATION)
    written(tmp_path / "b.jsonl", copied + more)
    bring_in(home, tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    with agentobs.connect(home.path) as connection:
        told = connection.execute(
            "SELECT session_id, message_id, message_count FROM attempts ORDER BY started_ns"
        ).fetchall()
    assert told == [
        (our_id(SESSION), "msg_1", 1),
        (our_id(SESSION), "msg_4", 3),
        (our_id(later), "msg_5", 5),
    ]


def test_a_bad_line_costs_itself(tmp_path: Path) -> None:
    """It is told with its file and number, never with its text, and the rest is imported."""
    home = open_home(tmp_path / "home")
    lines = [json.dumps(each) for each in CONVERSATION]
    lines[1:1] = ['{"type": "user", "secret words', "[1, 2]"]
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(lines) + "\n", "utf-8")
    report = bring_in(home, log)
    assert [str(bad).rpartition("/")[2] for bad in report.bad_lines] == [
        "log.jsonl:2: not JSON: Invalid control character at",
        "log.jsonl:3: a JSON list where an object belongs",
    ]
    assert [each.responses for each in report.sessions] == [2]


def test_what_is_said_stays_in_the_content(tmp_path: Path) -> None:
    """No fact of an imported session holds what was said, or the name of a file."""
    home = open_home(tmp_path / "home")
    written(tmp_path / f"{SESSION}.jsonl", CONVERSATION)
    written(tmp_path / "agent-a1.jsonl", AGENT)
    bring_in(home, tmp_path / f"{SESSION}.jsonl", tmp_path / "agent-a1.jsonl")
    facts = b"".join(path.read_bytes() for path in home.segments.glob("*.facts"))
    content = b"".join(path.read_bytes() for path in home.segments.glob("*.content"))
    for said in (b"canary word", b"a b.txt", b"no such file"):
        assert said not in facts
        assert said in content


def test_a_log_that_grew_takes_the_place_of_its_beginning(tmp_path: Path) -> None:
    """What was imported of it before goes, what is told now is there once, and a store that is built anew agrees."""
    home = open_home(tmp_path / "home")
    log = tmp_path / "log.jsonl"
    taken: list[str] = []

    def take_out(of: Home, session_id: str) -> None:
        taken.append(session_id)
        prune(of, sessions=[session_id])

    for length in (2, 4):
        written(log, CONVERSATION[:length])
        import_logs(home, logs_in([log]), take_out=take_out)
        ingest(home)
    asked = "SELECT message_id FROM attempts ORDER BY started_ns"
    with agentobs.connect(home.path) as connection:
        assert connection.execute(asked).fetchall() == [("msg_1",), ("msg_4",)]
    assert taken == [our_id(SESSION)]
    home.database.unlink()
    home.manifest.unlink()
    with agentobs.connect(home.path) as connection:
        assert connection.execute(asked).fetchall() == [("msg_1",), ("msg_4",)]
    prune(home, sessions=[our_id(SESSION)])
    with agentobs.connect(home.path) as connection:
        assert connection.execute(asked).fetchall() == []


def test_an_imported_session_is_not_frozen(tmp_path: Path) -> None:
    """Its requests are not whole in the log, and one sentence says so."""
    home = open_home(tmp_path / "home")
    bring_in(home, written(tmp_path / "log.jsonl", CONVERSATION))
    recording = read_session(home, our_id(SESSION), segment_ids(home))
    assert len(recording.exchanges) == 3
    with pytest.raises(RecordingError, match="imported from a log of claude-code"):
        freeze(recording, tmp_path / "fixture", {})
    assert not (tmp_path / "fixture").exists()
