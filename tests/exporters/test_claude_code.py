"""Claude Code's logs become sessions: counts against a plain recount, twice is once, and bad lines cost themselves."""

from __future__ import annotations

import json
import os
import signal
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from click.testing import CliRunner, Result

import agentobs
from agentobs.cli import cli
from agentobs.errors import RecordingError
from agentobs.importers.claude_code.session_records import our_id, rebuild
from agentobs.importers.claude_code.transcript_entries import Entry, read_log
from agentobs.importers.claude_code.transcript_import import (
    ImportReport,
    Seen,
    import_logs,
    logs_in,
)
from agentobs.recording.journal.home import Home, open_home
from agentobs.recording.journal.segments import segment_ids
from agentobs.recording.vault.vault import read_session
from agentobs.records.exchanges import ModelExchange
from agentobs.store.duckdb.connection import named
from agentobs.store.duckdb.ingest import ingest
from agentobs.store.duckdb.retention import prune
from agentobs.store.named_queries import query_names
from replay.freeze.conversion import freeze
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
    return import_logs(home, logs_in(paths), remove_session=never)


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


@NEEDED
@pytest.mark.xdist_group("transcripts")
def test_every_session_is_in_every_query(imported: duckdb.DuckDBPyConnection) -> None:
    """Each query that lists what every session has lists all of them; one about a session answers about each that is
    asked for; and all others, which tell of failures, answer. A query that is new must say here which it is.
    """
    sessions = {our_id(each) for each in SESSIONS}
    kinds = {name: kind for kind, names in QUERIES.items() for name in names}
    assert sorted(kinds) == query_names()
    for name, kind in kinds.items():
        if kind == "of each session":
            empty = [
                s
                for s in sorted(sessions)[::7]
                if not named(imported, name, session_id=s).fetchall()
            ]
            assert empty == [], name
            continue
        rows = answered(imported, name)
        if kind == "of all sessions":
            assert {row["session_id"] for row in rows} == sessions, name
        elif kind == "sums":
            assert rows, name


QUERIES = {
    "of all sessions": (
        "sessions", "cost_by_session", "cache_by_session",
    ),
    "of each session": (
        "conversation_sessions", "interaction_intervals", "session_segments", "session_steps", "session_timeline",
        "session_turns", "diagnosable", "context_growth", "session_waterfall",
    ),
    "sums": (
        "cache_efficiency", "cost_by_agent", "cost_by_conversation", "cost_by_day", "cost_by_model",
        "cost_by_name", "cache_by_name",
        "cost_by_model_and_day", "cost_by_source", "recorded_lately", "session_range", "slowest_requests",
        "slowest_tools", "tool_latency", "usage_by_model_day", "costs_not_exact", "large_results",
        "repeated_tool_errors", "diagnoses_by_session", "sessions_by_day", "signatures_by_day",
    ),
    "failures": (
        "broken_caches", "cache_misses", "cache_waste",
        "clock_jumps", "contradictions", "damaged_segments", "diagnoses",
        "first_token_by_model", "full_contexts", "hook_outcomes", "last_failed", "long_waits", "losses",
        "open_at_death", "repeated_calls", "repeated_denials", "rising_costs", "silent_hook_cancels", "spent_today",
        "unpriced_models", "waits_for_people",
    ),
}  # fmt: skip
"""The named queries by what they must answer of sessions that were imported."""


def answered(connection: duckdb.DuckDBPyConnection, name: str) -> list[dict[str, Any]]:
    rows = named(connection, name)
    columns = [each[0] for each in rows.description or []]
    return [dict(zip(columns, row, strict=True)) for row in rows.fetchall()]


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


def test_a_time_that_cannot_be_is_not_believed(tmp_path: Path) -> None:
    """A line of a year that no store can hold was written when the one before it was."""
    home = open_home(tmp_path / "home")
    log = [*CONVERSATION[:3], {**CONVERSATION[3], "timestamp": "9999-12-31T00:00:00.000Z"}]
    bring_in(home, written(tmp_path / "log.jsonl", log))
    with agentobs.connect(home.path) as connection:
        [(took,)] = connection.execute("SELECT ended_ns - started_ns FROM sessions").fetchall()
    assert took == 6_000_000_000


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
        "log.jsonl:3: a JSON list instead of an object",
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
        import_logs(home, logs_in([log]), remove_session=take_out)
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


def command(home: Home, *paths: Path) -> Result:
    return CliRunner().invoke(
        cli, ["--home", str(home.path), "import", "claude-code", *map(str, paths)]
    )


def messages(home: Home) -> list[str]:
    with agentobs.connect(home.path) as connection:
        rows = connection.execute("SELECT message_id FROM attempts ORDER BY started_ns").fetchall()
    return [row[0] for row in rows]


def test_what_holds_less_takes_the_place_of_nothing(tmp_path: Path) -> None:
    """A part of a session's files and an old copy leave what is here as it is, and say so; all of it replaces."""
    home = open_home(tmp_path / "home")
    main = written(tmp_path / "logs" / f"{SESSION}.jsonl", CONVERSATION)
    agent = written(tmp_path / "logs" / "agent-a1.jsonl", AGENT)
    assert command(home, agent).exit_code == 0
    assert command(home, tmp_path / "logs").exit_code == 0
    whole = ["msg_1", "msg_2", "msg_3", "msg_4"]
    assert messages(home) == whole
    old = written(tmp_path / "old.jsonl", CONVERSATION[:3])
    for less in (agent, main, old):
        told = command(home, less)
        assert told.exit_code == 1
        assert told.output.startswith("0 sessions imported, 0 already imported\n")
        assert (
            f"skipped: {our_id(SESSION)}: these logs contain less than a previous import"
            in told.stderr
        )
        assert messages(home) == whole
    prune(home, sessions=[our_id(SESSION)])
    assert command(home, old).exit_code == 0
    assert messages(home) == ["msg_1"]


def test_what_is_no_log_costs_itself(tmp_path: Path) -> None:
    """Pipes, links to nothing and lines of any shape are named, the rest is imported, and the command ends with 1."""
    home = open_home(tmp_path / "home")
    logs = tmp_path / "logs"
    written(logs / "a.jsonl", CONVERSATION)
    (logs / "folder.jsonl").mkdir()
    assert command(home, logs).exit_code == 0
    os.mkfifo(logs / "pipe.jsonl")
    (logs / "lost.jsonl").symlink_to(tmp_path / "nowhere")
    odd: dict[str, Any] = {"sessionId": SESSION, "uuid": "x", "timestamp": []}
    lines: list[dict[str, Any]] = [
        {"type": [], **odd}, {"type": "user", "message": [], **odd}, {"type": "progress", "data": 1, **odd},
        {"type": "system", "subtype": [], **odd}, {"type": "system", "subtype": "api_error", "retryInMs": 1e999,
        "retryAttempt": 10**400, **odd, "uuid": "y", "timestamp": CONVERSATION[2]["timestamp"]},
    ]  # fmt: skip
    written(logs / "b.jsonl", lines)
    (logs / "c.jsonl").write_bytes(
        b'{"sessionId":"s","x":"\xff\xfe"}\n{"sessionId":' + b"9" * 5000 + b"}\n"
    )
    told = command(home, logs)
    assert told.exit_code == 1
    assert [line.rpartition("/")[2] for line in told.stderr.splitlines()] == [
        "lost.jsonl: no such file or directory",
        "pipe.jsonl: not a regular file",
        "c.jsonl:1: not JSON: its bytes are not UTF-8",
        "c.jsonl:2: not JSON: a number with too many digits",
    ]
    assert messages(home) == ["msg_1", "msg_4"]


def test_where_nothing_is_found_it_is_said(tmp_path: Path) -> None:
    """A file without a session, and a folder without one, are named, and the command ends with 1."""
    home = open_home(tmp_path / "home")
    (tmp_path / "empty").mkdir()
    text = tmp_path / "a.txt"
    text.write_text("nothing\n")
    log = written(tmp_path / "logs" / "a.jsonl", CONVERSATION)
    told = command(home, tmp_path / "empty", text, log)
    assert told.exit_code == 1
    assert told.stderr.splitlines() == [
        f"skipped: {each}: it contains no session" for each in (tmp_path / "empty", text)
    ]
    assert messages(home) == ["msg_1", "msg_4"]


def test_a_line_is_read_up_to_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a longer one only its length is told, wherever it ends, and what follows it is read."""
    monkeypatch.setattr("agentobs.importers.claude_code.transcript_entries.LINE_BYTES_MAX", 1000)
    monkeypatch.setattr("agentobs.importers.claude_code.transcript_import.LINE_BYTES_MAX", 1000)
    home = open_home(tmp_path / "home")
    first = written(tmp_path / "log.jsonl", CONVERSATION[:2]).read_bytes()
    rest = written(tmp_path / "log.jsonl", CONVERSATION[2:]).read_bytes()
    (tmp_path / "log.jsonl").write_bytes(first + b"x" * 3_000_000 + b"\n" + rest + b"y" * 5000)
    report = bring_in(home, tmp_path / "log.jsonl")
    told = [(bad.line, bad.found) for bad in report.bad_lines]
    assert told == [(3, "a line of 3,000,001 bytes"), (6, "a line of 5,000 bytes")]
    assert [each.responses for each in report.sessions] == [2]


def test_whoever_looks_again_reads_what_has_changed(tmp_path: Path) -> None:
    """Of sessions whose files are as they were nothing is read; of one that grew all of its files are."""
    home, seen = open_home(tmp_path / "home"), Seen()
    later = "99999999-2222-3333-4444-555555555555"
    other = json.loads(json.dumps(CONVERSATION).replace("msg_", "msg_x"))
    grows = written(tmp_path / "logs" / "a.jsonl", CONVERSATION[:2])
    written(tmp_path / "logs" / "agent-a1.jsonl", AGENT)
    written(tmp_path / "logs" / "b.jsonl", [{**each, "sessionId": later} for each in other])

    def take_out(of: Home, session_id: str) -> None:
        prune(of, sessions=[session_id])

    def look() -> list[tuple[str, bool, int]]:
        logs = logs_in([tmp_path / "logs"])
        told = import_logs(home, logs, remove_session=take_out, seen=seen)
        return [(each.client_id, each.is_new, each.responses) for each in told.sessions]

    assert sorted(look()) == [(SESSION, True, 3), (later, True, 2)]
    assert look() == []
    written(grows, CONVERSATION)
    assert look() == [(SESSION, True, 4)]
    assert look() == []


def test_a_long_session_does_not_fill_the_memory(tmp_path: Path) -> None:
    """Each request repeats all before it: rebuilding holds what the log holds, and not the sum of its requests."""
    told, size = [entry("user", "u-0", None, "go")], 20_000
    for number in range(60):
        call = {"type": "tool_use", "id": f"toolu_{number}", "name": "Read", "input": {}}
        result = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": "x" * size}
        told.append(
            entry("assistant", f"a{number}-1", told[-1]["uuid"], [call], id=f"msg_{number}")
        )
        told.append(entry("user", f"u{number}-2", told[-1]["uuid"], [result]))
    log = written(tmp_path / "log.jsonl", told)
    entries = [each for each in read_log(log) if isinstance(each, Entry)]
    tracemalloc.start()
    rebuilt = rebuild(SESSION, entries)
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rebuilt is not None
    asked = [len(each.question.body) for each in rebuilt.records if isinstance(each, ModelExchange)]
    assert len(asked) == 60
    assert asked == sorted(asked)
    assert sum(asked) > 29 * 60 * size > 10 * held


def test_an_imported_session_is_not_frozen(tmp_path: Path) -> None:
    """Its requests are not whole in the log, and one sentence says so."""
    home = open_home(tmp_path / "home")
    bring_in(home, written(tmp_path / "log.jsonl", CONVERSATION))
    recording = read_session(home, our_id(SESSION), segment_ids(home))
    assert len(recording.exchanges) == 3
    with pytest.raises(RecordingError, match="imported from a log of claude-code"):
        freeze(recording, tmp_path / "fixture", {})
    assert not (tmp_path / "fixture").exists()


def test_of_each_session_it_is_said_why_it_cannot_be_replayed(tmp_path: Path) -> None:
    """No log holds its requests whole; one in which the client took results out holds not even the conversation."""
    home = open_home(tmp_path / "home")
    later = "99999999-2222-3333-4444-555555555555"
    cleared = {
        "type": "system", "subtype": "microcompact_boundary", "uuid": "c-3", "parentUuid": "m-2",
        "sessionId": later, "timestamp": "2026-02-03T00:00:03.000Z", "microcompactMetadata": {"preTokens": 9},
    }  # fmt: skip
    written(tmp_path / "a.jsonl", CONVERSATION)
    written(
        tmp_path / "b.jsonl",
        [{**each, "sessionId": later} for each in CONVERSATION[:2]] + [cleared],
    )
    altered = (tmp_path / "b.jsonl").read_text().replace("msg_1", "msg_9")
    (tmp_path / "b.jsonl").write_text(altered)
    told = CliRunner().invoke(
        cli,
        [
            "--home",
            str(home.path),
            "import",
            "claude-code",
            str(tmp_path / "a.jsonl"),
            str(tmp_path / "b.jsonl"),
        ],
    )
    assert told.exit_code == 0, told.exception
    why = "not replayable: the log does not contain the system prompt, the tools and the settings of its requests"
    first, second, last = told.output.splitlines()
    assert first.endswith(why)
    assert second.endswith(f"{why}, nor which results were removed from the conversation")
    assert last == "2 sessions imported, 0 already imported"
    assert told.stderr == ""


def test_progress_counts_the_sessions(tmp_path: Path) -> None:
    """Whoever shows it hears how many are done, and of how many."""
    home = open_home(tmp_path / "home")
    seen: list[tuple[int, int]] = []
    log = written(tmp_path / "log.jsonl", CONVERSATION)
    import_logs(home, logs_in([log]), remove_session=never, progress=lambda *far: seen.append(far))
    assert seen == [(1, 1)]


def test_an_import_that_dies_leaves_whole_sessions(tmp_path: Path) -> None:
    """Killed after one, it is there whole and no other is; the next import brings the rest, and each counts once."""
    home = open_home(tmp_path / "home")
    later = "99999999-2222-3333-4444-555555555555"
    other = json.loads(json.dumps(CONVERSATION).replace("msg_", "msg_x"))
    written(tmp_path / "a.jsonl", CONVERSATION)
    written(tmp_path / "b.jsonl", [{**each, "sessionId": later} for each in other])
    logs = logs_in([tmp_path / "a.jsonl", tmp_path / "b.jsonl"])
    child = os.fork()
    if child == 0:
        import_logs(
            home,
            logs,
            remove_session=never,
            on_imported=lambda _: os.kill(os.getpid(), signal.SIGKILL),
        )
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    asked = "SELECT session_id, count(*) FROM attempts GROUP BY ALL ORDER BY ALL"
    with agentobs.connect(home.path) as connection:
        assert connection.execute(asked).fetchall() == [(our_id(SESSION), 2)]
    assert [each.is_new for each in import_logs(home, logs, remove_session=never).sessions] == [
        False,
        True,
    ]
    with agentobs.connect(home.path) as connection:
        assert connection.execute(asked).fetchall() == [(our_id(SESSION), 2), (our_id(later), 2)]
