"""Imports of Claude Code's logs: counts match a simple recount, and invalid lines are skipped."""

from __future__ import annotations

import json
import os
import signal
import tracemalloc
from collections import Counter
from collections.abc import Iterable, Iterator
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
from agentobs.records.clear_text import id_label
from agentobs.records.exchanges import ModelExchange
from agentobs.sink import Record
from agentobs.store.duckdb.connection import named
from agentobs.store.duckdb.ingest import ingest
from agentobs.store.duckdb.retention import prune
from agentobs.store.named_queries import query_names
from replay.freeze.conversion import freeze
from tests.exporters.recount import TABLE, count, folder
from tests.store.recordings import attempt, end, record, session_id, start

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
def test_the_committed_counts_match_the_logs() -> None:
    """The committed table of counts equals a new count of the logs."""
    assert TRANSCRIPTS is not None
    assert {name: count(TRANSCRIPTS / name) for name in COUNTS} == COUNTS


@NEEDED
@pytest.mark.xdist_group("transcripts")
@pytest.mark.parametrize("client_id", SESSIONS)
def test_a_session_is_imported_completely(
    imported: duckdb.DuckDBPyConnection, client_id: str
) -> None:
    """Responses, models, calls, results, agents, compactions and tokens of each session match the simple count."""
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
    rows = imported.execute(
        "SELECT DISTINCT model FROM attempts WHERE session_id = ?", [session_id]
    ).fetchall()
    assert {model for (model,) in rows} == models


@NEEDED
@pytest.mark.xdist_group("transcripts")
def test_every_session_is_in_the_views(imported: duckdb.DuckDBPyConnection) -> None:
    """Each session has interactions, turns, a cost, and its source."""
    listed = imported.execute(
        "SELECT s.session_id, s.turns > 0, s.cost_usd > 0, t.source, t.started_ns > 0 "
        "FROM sessions AS s JOIN session_starts AS t USING (session_id) ORDER BY ALL"
    ).fetchall()
    expected = sorted(our_id(each) for each in SESSIONS)
    assert listed == [(each, True, True, "claude-code", True) for each in expected]


@pytest.mark.slow
@NEEDED
@pytest.mark.xdist_group("transcripts")
def test_every_session_is_in_every_query(imported: duckdb.DuckDBPyConnection) -> None:
    """Queries that list all sessions contain every imported session, and queries about one session return rows.

    All other queries, such as those about failures, run without an error. A new query must be added to `QUERIES`.
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
        "cache_efficiency", "cost_by_agent", "cost_by_branch", "cost_by_commit", "cost_by_repository",
        "cost_by_conversation", "cost_by_day", "cost_by_model",
        "cost_by_name", "cache_by_name",
        "cost_by_model_and_day", "cost_by_source", "recorded_lately", "session_range", "slowest_requests",
        "slowest_tools", "tool_latency", "usage_by_model_day", "costs_not_exact", "large_results",
        "repeated_tool_errors", "diagnoses_by_session", "sessions_by_day", "signatures_by_day",
    ),
    "failures": (
        "broken_caches", "cache_misses", "cache_rewrites", "cache_waste",
        "clock_jumps", "contradictions", "damaged_segments", "diagnoses",
        "file_changes", "first_token_by_model", "full_contexts", "hook_outcomes", "last_failed", "long_waits", "losses",
        "open_at_death", "repeated_calls", "repeated_denials", "rising_costs", "session_scores",
        "silent_hook_cancels", "spent_today", "unpriced_models", "waits_for_people", "failures", "failed_summaries",
        "unused_summaries", "rate_limit_headroom", "workspace_states",
    ),
    "tested elsewhere": ("lines_changed", "person_time", "session_errors"),
}  # fmt: skip
"""The named queries, grouped by the result that imported sessions must have."""


def answered(connection: duckdb.DuckDBPyConnection, name: str) -> list[dict[str, Any]]:
    rows = named(connection, name)
    columns = [each[0] for each in rows.description or []]
    return [dict(zip(columns, row, strict=True)) for row in rows.fetchall()]


def entry(kind: str, uuid: str, parent: str | None, content: Any, **more: Any) -> dict[str, Any]:
    """Return a line of a log in the client's format."""
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
TASK = {"type": "tool_use", "id": "toolu_90", "name": "Task", "input": {"prompt": "look"}}
READ = {"type": "tool_use", "id": "toolu_91", "name": "Read", "input": {"path": "a b.txt"}}
CONVERSATION = [
    entry("user", "m-1", None, "find the canary word"),
    entry("assistant", "m-2", "m-1", [TASK], id="msg_1"),
    entry("user", "m-7", "m-2", [{"type": "tool_result", "tool_use_id": "toolu_90", "content": "ok"}],
          toolUseResult={"agentId": "a1"}),
    entry("assistant", "m-8", "m-7", [{"type": "text", "text": "done"}], id="msg_4"),
]  # fmt: skip
AGENT = [
    entry("user", "a-3", None, "look", agentId="a1", isSidechain=True),
    entry("assistant", "a-4", "a-3", [READ], id="msg_2", agentId="a1"),
    entry("user", "a-5", "a-4", [{"type": "tool_result", "tool_use_id": "toolu_91",
                                  "content": "no such file", "is_error": True}], agentId="a1"),
    entry("assistant", "a-6", "a-5", [{"type": "text", "text": "none"}], id="msg_3", agentId="a1"),
]  # fmt: skip


def written(path: Path, entries: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(each) + "\n" for each in entries), "utf-8")
    return path


def test_an_agent_is_nested_under_the_call_that_started_it(tmp_path: Path) -> None:
    """The agent's lane is below its parent's lane, and its span is below the span of the call, wherever its file is."""
    home = open_home(tmp_path / "home")
    written(tmp_path / "logs" / f"{SESSION}.jsonl", CONVERSATION)
    written(tmp_path / "logs" / "agent-a1.jsonl", AGENT)
    bring_in(home, tmp_path / "logs")
    with agentobs.connect(home.path) as connection:
        spans = connection.execute(
            "SELECT s.name, p.name, s.lane FROM span_starts AS s "
            "LEFT JOIN span_starts AS p ON s.parent_span_id = p.span_id ORDER BY s.started_ns, s.sequence"
        ).fetchall()
    lane = "main/toolu_90"
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


@pytest.mark.slow
def test_an_agent_is_named_by_the_type_that_its_call_asked_for(tmp_path: Path) -> None:
    """Pages and tables name a sub-agent by its type, whether or not the call waited for the agent."""
    task = {**TASK, "input": {"prompt": "look", "subagent_type": "Explore"}}
    asked = [CONVERSATION[0], entry("assistant", "m-2", "m-1", [task], id="msg_1")]
    for name, result in (("waits", {}), ("goes-on", {"isAsync": True})):
        home = open_home(tmp_path / name)
        answered = {**CONVERSATION[2], "toolUseResult": {"agentId": "a1", **result}}
        logs = tmp_path / f"logs-{name}"
        written(logs / f"{SESSION}.jsonl", [*asked, answered, CONVERSATION[3]])
        written(logs / "agent-a1.jsonl", AGENT)
        bring_in(home, logs)
        shown = CliRunner().invoke(cli, ["--home", str(home.path), "show", our_id(SESSION)])
        assert any(line.startswith("Explore ") for line in shown.output.splitlines())


def test_an_impossible_time_is_replaced(tmp_path: Path) -> None:
    """A line whose year the store cannot represent gets the time of the previous line."""
    home = open_home(tmp_path / "home")
    log = [*CONVERSATION[:3], {**CONVERSATION[3], "timestamp": "9999-12-31T00:00:00.000Z"}]
    bring_in(home, written(tmp_path / "log.jsonl", log))
    with agentobs.connect(home.path) as connection:
        [(duration_ns,)] = connection.execute(
            "SELECT ended_ns - started_ns FROM sessions"
        ).fetchall()
    assert duration_ns == 6_000_000_000


def test_importing_twice_changes_nothing(tmp_path: Path) -> None:
    """The second import of a log creates the same segment, which already exists."""
    home = open_home(tmp_path / "home")
    log = written(tmp_path / "log.jsonl", CONVERSATION)
    [first] = bring_in(home, log).sessions
    before = {path: path.read_bytes() for path in home.segments.iterdir()}
    [second] = bring_in(home, log).sessions
    assert (first.is_new, second.is_new) == (True, False)
    assert {path: path.read_bytes() for path in home.segments.iterdir()} == before


def test_entries_copied_from_a_resumed_session_count_once(tmp_path: Path) -> None:
    """If a log starts with a copy of another log, only its new entries are imported."""
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
        rows = connection.execute(
            "SELECT session_id, message_id, message_count FROM attempts ORDER BY started_ns"
        ).fetchall()
    assert rows == [
        (our_id(SESSION), "msg_1", 1),
        (our_id(SESSION), "msg_4", 3),
        (our_id(later), "msg_5", 5),
    ]


def test_only_invalid_lines_are_skipped(tmp_path: Path) -> None:
    """An invalid line is reported with its file and line number, without its text; the other lines are imported."""
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


def test_facts_contain_no_text_and_no_file_names(tmp_path: Path) -> None:
    """Facts of an imported session contain neither content nor file names."""
    home = open_home(tmp_path / "home")
    written(tmp_path / f"{SESSION}.jsonl", CONVERSATION)
    written(tmp_path / "agent-a1.jsonl", AGENT)
    bring_in(home, tmp_path / f"{SESSION}.jsonl", tmp_path / "agent-a1.jsonl")
    facts = b"".join(path.read_bytes() for path in home.segments.glob("*.facts"))
    content = b"".join(path.read_bytes() for path in home.segments.glob("*.content"))
    for word in (b"canary word", b"a b.txt", b"no such file"):
        assert word not in facts
        assert word in content


@pytest.mark.slow
def test_a_longer_log_replaces_its_earlier_import(tmp_path: Path) -> None:
    """The longer log replaces the earlier import: each entry exists once, even in a rebuilt store."""
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
    sql = "SELECT message_id FROM attempts ORDER BY started_ns"
    with agentobs.connect(home.path) as connection:
        assert connection.execute(sql).fetchall() == [("msg_1",), ("msg_4",)]
    assert taken == [our_id(SESSION)]
    home.database.unlink()
    home.manifest.unlink()
    with agentobs.connect(home.path) as connection:
        assert connection.execute(sql).fetchall() == [("msg_1",), ("msg_4",)]
    prune(home, sessions=[our_id(SESSION)])
    with agentobs.connect(home.path) as connection:
        assert connection.execute(sql).fetchall() == []


def command(home: Home, *paths: Path) -> Result:
    return CliRunner().invoke(
        cli, ["--home", str(home.path), "import", "claude-code", *map(str, paths)]
    )


def messages(home: Home) -> list[str]:
    with agentobs.connect(home.path) as connection:
        rows = connection.execute("SELECT message_id FROM attempts ORDER BY started_ns").fetchall()
    return [row[0] for row in rows]


@pytest.mark.slow
def test_a_shorter_log_replaces_nothing(tmp_path: Path) -> None:
    """An import of only some of a session's files, or of an old copy, is skipped with a message and changes nothing."""
    home = open_home(tmp_path / "home")
    main = written(tmp_path / "logs" / f"{SESSION}.jsonl", CONVERSATION)
    agent = written(tmp_path / "logs" / "agent-a1.jsonl", AGENT)
    assert command(home, agent).exit_code == 0
    assert command(home, tmp_path / "logs").exit_code == 0
    all_messages = ["msg_1", "msg_2", "msg_3", "msg_4"]
    assert messages(home) == all_messages
    old = written(tmp_path / "old.jsonl", CONVERSATION[:3])
    for less in (agent, main, old):
        result = command(home, less)
        assert result.exit_code == 1
        assert result.output.startswith("0 sessions imported, 0 already imported\n")
        assert (
            f"skipped: {our_id(SESSION)}: these logs contain less than a previous import"
            in result.stderr
        )
        assert messages(home) == all_messages
    prune(home, sessions=[our_id(SESSION)])
    assert command(home, old).exit_code == 0
    assert messages(home) == ["msg_1"]


@pytest.mark.slow
def test_files_that_are_not_logs_are_skipped(tmp_path: Path) -> None:
    """Pipes, dangling links and malformed lines are reported, the other files are imported, and the exit code is 1."""
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
    result = command(home, logs)
    assert result.exit_code == 1
    assert [line.rpartition("/")[2] for line in result.stderr.splitlines()] == [
        "lost.jsonl: no such file or directory",
        "pipe.jsonl: not a regular file",
        "c.jsonl:1: not JSON: its bytes are not UTF-8",
        "c.jsonl:2: not JSON: a number with too many digits",
    ]
    assert messages(home) == ["msg_1", "msg_4"]


def test_paths_without_sessions_are_reported(tmp_path: Path) -> None:
    """Files and directories without a session are reported, and the command exits with 1."""
    home = open_home(tmp_path / "home")
    (tmp_path / "empty").mkdir()
    text = tmp_path / "a.txt"
    text.write_text("nothing\n")
    log = written(tmp_path / "logs" / "a.jsonl", CONVERSATION)
    result = command(home, tmp_path / "empty", text, log)
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        f"skipped: {each}: it contains no session" for each in (tmp_path / "empty", text)
    ]
    assert messages(home) == ["msg_1", "msg_4"]


def test_the_length_of_lines_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line above the limit is reported with its length, and the following lines are imported."""
    monkeypatch.setattr("agentobs.importers.claude_code.transcript_entries.LINE_BYTES_MAX", 1000)
    monkeypatch.setattr("agentobs.importers.claude_code.transcript_import.LINE_BYTES_MAX", 1000)
    home = open_home(tmp_path / "home")
    first = written(tmp_path / "log.jsonl", CONVERSATION[:2]).read_bytes()
    rest = written(tmp_path / "log.jsonl", CONVERSATION[2:]).read_bytes()
    (tmp_path / "log.jsonl").write_bytes(first + b"x" * 3_000_000 + b"\n" + rest + b"y" * 5000)
    report = bring_in(home, tmp_path / "log.jsonl")
    bad_lines = [(bad.line, bad.found) for bad in report.bad_lines]
    assert bad_lines == [(3, "a line of 3,000,001 bytes"), (6, "a line of 5,000 bytes")]
    assert [each.responses for each in report.sessions] == [2]


def counted(home: Home) -> tuple[list[str], list[str], int]:
    """Return the messages, the tool calls and the output tokens of a home, each as often as it counts."""
    with agentobs.connect(home.path) as connection:
        calls = connection.execute("SELECT tool_use_id FROM tool_uses ORDER BY ALL").fetchall()
        tokens = connection.execute("SELECT sum(output_tokens) FROM usage").fetchone()
    assert tokens is not None
    return sorted(messages(home)), [each[0] for each in calls], tokens[0]


PROXIED = json.loads(json.dumps(CONVERSATION).replace('"msg_', '"msg_1_'))
"""A log whose two responses have the message IDs of the recorded attempts 1 and 4."""


@pytest.mark.slow
@pytest.mark.parametrize("order", ["recorded first", "imported first", "imported in between"])
def test_responses_that_a_proxy_recorded_count_once(tmp_path: Path, order: str) -> None:
    """Log and recording of one session count once, in both orders and at the same time; both have the client's ID."""
    home = open_home(tmp_path / "home")
    own = written(tmp_path / "logs" / "own.jsonl", PROXIED)
    agent = written(tmp_path / "logs" / "agent-a1.jsonl", AGENT)
    parts: list[list[Record]] = [
        [
            start(1, client_session=id_label(SESSION)),
            attempt(1, 1, content=[TASK], output_tokens=5),
        ],
        [attempt(1, 4, output_tokens=5), end(1)],
    ]
    if order == "recorded first":
        record(home, [each for part in parts for each in part])
    elif order == "imported first":
        assert command(home, own, agent).exit_code == 0
        record(home, [each for part in parts for each in part])
    else:
        record(home, parts[0])
        assert command(home, own, agent).exit_code == 0
        record(home, parts[1])
    for _ in range(2):
        assert command(home, own, agent).exit_code == 0
        assert counted(home) == (
            ["msg_1_1", "msg_1_4", "msg_2", "msg_3"],
            ["toolu_90", "toolu_91"],
            20,
        )
    sql = "SELECT session_id FROM session_starts WHERE tags['client_session'] = ? ORDER BY ALL"
    with agentobs.connect(home.path) as connection:
        joined = connection.execute(sql, [SESSION]).fetchall()
    assert joined == sorted([(session_id(1),), (our_id(SESSION),)])


@pytest.mark.slow
def test_a_session_that_was_recorded_completely_is_not_imported(tmp_path: Path) -> None:
    """An import is removed once all of its responses are recorded, although its log has not changed."""
    home = open_home(tmp_path / "home")
    log = written(tmp_path / "log.jsonl", PROXIED)
    seen, recorded = Seen(), frozenset[str]()

    def take_out(of: Home, taken: str) -> None:
        prune(of, sessions=[taken])

    def look() -> tuple[int, int]:
        report = import_logs(
            home,
            logs_in([log]),
            remove_session=take_out,
            recorded_messages=lambda: recorded,
            seen=seen,
        )
        return len(report.sessions), report.recorded

    assert look() == (1, 0)
    assert messages(home) == ["msg_1_1", "msg_1_4"]
    recorded = frozenset({"msg_1_1", "msg_1_4"})
    assert look() == (0, 1)
    assert messages(home) == []
    assert look() == (0, 0)


@pytest.mark.slow
def test_following_continues_if_a_directory_disappears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory that is deleted while it is listed does not end `--follow`: later lines are still imported."""
    home, log = open_home(tmp_path / "home"), written(tmp_path / "log.jsonl", CONVERSATION[:2])
    checks = 0

    def pause(_: float) -> None:
        nonlocal checks
        checks += 1
        if checks == 3:
            raise KeyboardInterrupt
        written(log, CONVERSATION)

    def listed(paths: Iterable[Path]) -> list[Path]:
        if checks == 1:
            raise FileNotFoundError(str(tmp_path / "deleted"))
        return logs_in(paths)

    monkeypatch.setattr("agentobs.world.pause", pause)
    monkeypatch.setattr("agentobs.importers.claude_code.transcript_import.logs_in", listed)
    command(home, log, Path("--follow"))
    assert (checks, messages(home)) == (3, ["msg_1", "msg_4"])


@pytest.mark.slow
def test_a_repeated_import_reads_only_changed_sessions(tmp_path: Path) -> None:
    """Sessions that did not change are not read again; if a session grew, all of its files are read."""
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
        result = import_logs(home, logs, remove_session=take_out, seen=seen)
        return [(each.client_id, each.is_new, each.responses) for each in result.sessions]

    assert sorted(look()) == [(SESSION, True, 3), (later, True, 2)]
    assert look() == []
    written(grows, CONVERSATION)
    assert look() == [(SESSION, True, 4)]
    assert look() == []


def test_memory_does_not_grow_with_the_sum_of_the_requests(tmp_path: Path) -> None:
    """The memory of an import grows with the log, and not with the sum of all requests, which repeat their history."""
    log_entries, size = [entry("user", "u-0", None, "go")], 20_000
    for number in range(60):
        call = {"type": "tool_use", "id": f"toolu_{number}", "name": "Read", "input": {}}
        result = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": "x" * size}
        log_entries.append(
            entry("assistant", f"a{number}-1", log_entries[-1]["uuid"], [call], id=f"msg_{number}")
        )
        log_entries.append(entry("user", f"u{number}-2", log_entries[-1]["uuid"], [result]))
    log = written(tmp_path / "log.jsonl", log_entries)
    entries = [each for each in read_log(log) if isinstance(each, Entry)]
    tracemalloc.start()
    rebuilt = rebuild(SESSION, entries)
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rebuilt is not None
    request_sizes = [
        len(each.question.body) for each in rebuilt.records if isinstance(each, ModelExchange)
    ]
    assert len(request_sizes) == 60
    assert request_sizes == sorted(request_sizes)
    assert sum(request_sizes) > 29 * 60 * size > 10 * held


def test_an_imported_session_cannot_be_frozen(tmp_path: Path) -> None:
    """Freezing an imported session fails, and the error explains that the log does not contain complete requests."""
    home = open_home(tmp_path / "home")
    bring_in(home, written(tmp_path / "log.jsonl", CONVERSATION))
    recording = read_session(home, our_id(SESSION), segment_ids(home))
    assert len(recording.exchanges) == 3
    with pytest.raises(RecordingError, match="imported from a log of claude-code"):
        freeze(recording, tmp_path / "fixture", {})
    assert not (tmp_path / "fixture").exists()


def test_the_reason_why_a_session_cannot_be_replayed_is_shown(tmp_path: Path) -> None:
    """The reason is that no log contains complete requests, or that the client removed results of the session."""
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
    result = CliRunner().invoke(
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
    assert result.exit_code == 0, result.exception
    why = "not replayable: the log does not contain the system prompt, the tools and the settings of its requests"
    first, second, last = result.output.splitlines()
    assert first.endswith(why)
    assert second.endswith(f"{why}, nor which results were removed from the conversation")
    assert last == "2 sessions imported, 0 already imported"
    assert result.stderr == ""


def test_progress_counts_the_sessions(tmp_path: Path) -> None:
    """The progress callback receives the number of finished sessions and the total."""
    home = open_home(tmp_path / "home")
    seen: list[tuple[int, int]] = []
    log = written(tmp_path / "log.jsonl", CONVERSATION)
    import_logs(home, logs_in([log]), remove_session=never, progress=lambda *far: seen.append(far))
    assert seen == [(1, 1)]


@pytest.mark.slow
def test_a_killed_import_leaves_only_complete_sessions(tmp_path: Path) -> None:
    """An import that is killed after one session leaves only this session, complete.

    The next import adds the other sessions once.
    """
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
    sql = "SELECT session_id, count(*) FROM attempts GROUP BY ALL ORDER BY ALL"
    with agentobs.connect(home.path) as connection:
        assert connection.execute(sql).fetchall() == [(our_id(SESSION), 2)]
    assert [each.is_new for each in import_logs(home, logs, remove_session=never).sessions] == [
        False,
        True,
    ]
    with agentobs.connect(home.path) as connection:
        assert connection.execute(sql).fetchall() == [(our_id(SESSION), 2), (our_id(later), 2)]
