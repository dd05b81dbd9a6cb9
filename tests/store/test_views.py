"""The views, which join the recorded facts."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agentobs.cli import cli
from agentobs.records.exchanges import ModelExchange
from agentobs.records.facts import (
    Gap,
    InteractionEnd,
    InteractionStart,
    SessionEnd,
    SessionStart,
    SpanEnd,
    SpanStart,
    columns,
)
from agentobs.records.labels import Label
from agentobs.sink import Record
from agentobs.store.duckdb.connection import connect, named
from tests.store.recordings import (
    MODEL,
    SECOND,
    T0,
    a_home,
    attempt,
    conversation,
    end,
    permission,
    record,
    session_id,
    start,
    tool,
    usage_row,
    write_facts,
)

WEATHER = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Bern"}}


def retried(exchange: ModelExchange, count: int) -> ModelExchange:
    exchange.question.headers["x-stainless-retry-count"] = str(count)
    return exchange


def a_story() -> list[Any]:
    """Return a session with two interactions: a tool call, then a request that needs two attempts."""
    return [
        start(1, "refund-loop", git=Label("4f2a91c")),
        attempt(1, 1, content=[WEATHER], cache_read_input_tokens=1000),
        tool(1, "toolu_1", "weather", at=T0 + 2 * SECOND),
        retried(attempt(1, 3, at=T0 + 4 * SECOND, status=529), 0),
        retried(attempt(1, 3, at=T0 + 6 * SECOND), 1),
        end(1, failed=True),
    ]


def test_the_row_of_a_session(tmp_path: Path) -> None:
    """The row of a session has the counts and sums of its facts."""
    home = a_home(tmp_path)
    record(home, a_story())
    with connect(home, ingest=False) as connection:
        found = connection.execute("FROM sessions")
        names = [column[0] for column in found.description]
        [row] = found.fetchall()
    price = Decimal("0.000002") * 20 + Decimal("0.00001") * 40 + Decimal("0.0000002") * 1000
    session = dict(zip(names, row, strict=True))
    assert str(session.pop("started_at")) == "2026-09-21 14:13:20"
    assert session == {
        "session_id": session_id(1),
        "name": "refund-loop",
        "status": "failed",
        "reason": "ValueError",
        "signature": "exception:ValueError@stories:run",
        "started_ns": T0,
        "ended_ns": T0 + 60 * SECOND,
        "duration_ns": 60 * SECOND,
        "last_activity_ns": T0 + 60 * SECOND,
        "entry": "stories:run",
        "tags": {"git": "4f2a91c"},
        "interactions": 2,
        "turns": 2,
        "llm_requests": 2,
        "attempts": 3,
        "tool_calls": 1,
        "input_tokens": 20,
        "output_tokens": 40,
        "cache_read_tokens": 1000,
        "cache_write_tokens": 0,
        "cost_usd": price,
        "unpriced_calls": 0,
        "dropped": 0,
        "incomplete": False,
        "conversation_id": session_id(1),
        "continues_session_id": None,
        "relation": None,
        "forked_turn": None,
        "replayed_requests": 0,
        "is_telemetry": False,
    }


def test_attempts_results_and_interactions_are_joined(tmp_path: Path) -> None:
    """Attempts are grouped by request, results are joined to their calls, and interactions have an end."""
    home = a_home(tmp_path)
    record(home, a_story())
    with connect(home, ingest=False) as connection:

        def rows(sql: str) -> list[tuple[Any, ...]]:
            return connection.execute(sql).fetchall()

        assert rows(
            "SELECT attempts, outcome, status, duration_ns FROM llm_requests ORDER BY started_ns"
        ) == [
            (1, "ok", 200, 5_000_000),
            (2, "ok", 200, 2 * SECOND + 5_000_000),
        ]
        assert rows(
            "SELECT lane, turn, attempt, model, tool_use_count FROM turns ORDER BY turn"
        ) == [
            ("main", 1, 1, MODEL, 1),
            ("main", 2, 2, MODEL, 0),
        ]
        sql = "SELECT name, turn, requested_ns, started_ns, duration_ns, source, outcome, is_error FROM tool_calls"
        asked = T0 + SECOND + 5_000_000
        assert rows(sql) == [
            ("weather", 1, asked, T0 + 2 * SECOND, SECOND, "run", "executed", False)
        ]
        assert rows("SELECT result, is_error FROM interactions ORDER BY started_ns") == [
            ("interrupted", True),
            ("success", False),
        ]
        sql = "SELECT name, label, status, error_type, duration_ns FROM spans ORDER BY started_ns"
        assert rows(sql) == [
            ("llm_request", MODEL, "ok", None, 5_000_000),
            ("llm_request", MODEL, "ok", None, 2 * SECOND + 5_000_000),
            ("retry_wait", "overloaded_error", "ok", None, 2 * SECOND - 5_000_000),
        ]
        turns = named(connection, "session_turns", session_id=session_id(1)).fetchall()
        assert [(row[1], row[10], row[13]) for row in turns] == [(1, SECOND, 10), (2, None, 10)]
        latency = named(connection, "tool_latency").fetchall()
        assert latency == [("weather", 1, 1, 0, SECOND, SECOND, SECOND, SECOND, SECOND, 0, 0)]


def test_each_retry_wait_is_listed_once(tmp_path: Path) -> None:
    """Two waits between the attempts of one request are two rows of the waterfall, although both also have spans."""
    home = a_home(tmp_path)
    attempts = [
        retried(attempt(1, 1, at=T0 + at * SECOND, status=status), number)
        for number, (at, status) in enumerate(((1, 529), (3, 529), (7, 200)))
    ]
    record(home, [start(1), *attempts, end(1)])
    with connect(home, ingest=False) as connection:
        spans = connection.execute("SELECT started_ns FROM spans WHERE name = 'retry_wait'")
        assert len(spans.fetchall()) == 2
        found = named(connection, "session_waterfall", session_id=session_id(1)).fetchall()
    waits = [row for row in found if row[0] == "retry_wait"]
    assert [(row[8] - T0) // SECOND for row in waits] == [1, 3]


def test_a_timeline_in_order_and_depth(tmp_path: Path) -> None:
    """The timeline lists spans, attempts and tool calls in order; operations inside a span have a greater depth."""
    home = a_home(tmp_path)
    session = session_id(1)
    outer, inner = "a" * 16, "b" * 16
    record(
        home,
        [
            start(1),
            SpanStart(session, session, outer, None, "main", Label("agent"), None, T0),  # type: ignore[arg-type]
            SpanStart(
                session,
                session,
                inner,
                outer,
                Label("main"),
                Label("tool"),
                Label("weather"),
                T0 + 2 * SECOND,
            ),
            SpanEnd(session, inner, T0 + 3 * SECOND, "ok", None),
            SpanEnd(session, outer, T0 + 9 * SECOND, "cancelled", None),
            attempt(1, 1, content=[WEATHER]),
            tool(1, "toolu_1", "weather", at=T0 + 2 * SECOND),
            end(1),
        ],
    )
    with connect(home, ingest=False) as connection:
        found = named(connection, "session_timeline", session_id=session)
        names = [column[0] for column in found.description]
        rows = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
    assert [(r["kind"], r["name"], r["label"], r["depth"], r["outcome"]) for r in rows] == [
        ("span", "agent", None, 0, "cancelled"),
        ("span", "llm_request", MODEL, 0, "ok"),
        ("attempt", "/v1/messages", MODEL, 0, "ok"),
        ("tool_call", "weather", "run", 0, "executed"),
        ("span", "tool", "weather", 1, "ok"),
    ]


def test_a_timeline_with_cyclic_spans(tmp_path: Path) -> None:
    """Spans that are repeated, or that are parents of each other or of themselves, cause no endless loop in the
    timeline.
    """
    home = a_home(tmp_path)
    session = session_id(1)

    def span(span_id: str, parent: str | None) -> SpanStart:
        return SpanStart(session, session, span_id, parent, "main", "x", None, T0)  # type: ignore[arg-type]

    write_facts(
        home, [span("a", "b"), span("b", "a"), span("c", "c"), span("d", "lost"), span("e", "d")]
    )
    with connect(home, ingest=False) as connection:
        rows = named(connection, "session_timeline", session_id=session).fetchall()
        assert sorted((row[3], row[8]) for row in rows) == [
            ("a", 0), ("b", 0), ("c", 0), ("d", 0), ("e", 1),
        ]  # fmt: skip


def test_a_resumed_session(tmp_path: Path) -> None:
    """A session that ended and was started again is running, and its first start counts as its start."""
    home = a_home(tmp_path)
    record(home, conversation(1))
    again = start(1, at=T0 + 100 * SECOND).start
    segment = write_facts(home, [again], close=False)
    with connect(home, ingest=False) as connection:
        sql = "SELECT status, started_ns, ended_ns, attempts FROM sessions"
        assert connection.execute(sql).fetchall() == [("running", T0, None, 3)]
    segment.facts.append("session_ends", columns(end(1, T0 + 200 * SECOND, failed=True)))
    segment.close()
    with connect(home, ingest=False) as connection:
        sql = "SELECT status, duration_ns, reason FROM sessions"
        assert connection.execute(sql).fetchall() == [("failed", 200 * SECOND, "ValueError")]


def test_incomplete_sessions_are_marked(tmp_path: Path) -> None:
    """Sessions with dropped records or damaged segments are marked as incomplete, even if their first record is
    lost.
    """
    home = a_home(tmp_path)
    dropped = SessionEnd(session_id(1), T0, "completed", None, None, 3)
    write_facts(home, [start(1).start, dropped])
    record(home, conversation(2))
    record(home, conversation(3))
    path = sorted(home.segments.glob("*.facts"))[-1]
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], *lines[2:]]))
    with connect(home, ingest=False) as connection:
        sql = "SELECT session_id, name, dropped, incomplete FROM sessions ORDER BY 1"
        assert connection.execute(sql).fetchall() == [
            (session_id(1), "story", 3, True),
            (session_id(2), "story", 0, False),
            (session_id(3), None, 0, True),
        ]


def test_iterations_are_billed_in_place_of_the_top_level(tmp_path: Path) -> None:
    """The cost of a response with iterations is the cost of its iterations, each at the price of its own model."""
    home = a_home(tmp_path)
    iterations = [
        {"type": "compaction", "input_tokens": 1000, "output_tokens": 10},
        {
            "type": "advisor_message",
            "model": "claude-opus-5-5",
            "input_tokens": 5,
            "output_tokens": 1,
        },
    ]
    record(home, [start(1), attempt(1, 1, iterations=iterations), end(1)])
    with connect(home, ingest=False) as connection:
        assert connection.execute("SELECT count(*) FROM usage").fetchone() == (3,)
        sql = "SELECT iteration, kind, model, cost_usd FROM costs ORDER BY iteration"
        assert connection.execute(sql).fetchall() == [
            (1, "compaction", MODEL, Decimal("0.0021")),
            (2, "advisor_message", "claude-opus-5-5", Decimal("0.00004")),
        ]


def test_certainty_of_sums(tmp_path: Path) -> None:
    """A sum of costs contains the numbers of its exact, lower-bound, estimated and unpriced calls."""
    home = a_home(tmp_path)
    write_facts(
        home,
        [
            usage_row(1),
            usage_row(2, certainty="lower_bound"),
            usage_row(3, speed="fast"),
            usage_row(4, model="nobody"),
            usage_row(5, billed=False),
        ],
    )
    with connect(home, ingest=False) as connection:
        rows = named(connection, "cost_by_model").fetchall()
        assert [(row[0], row[1], *row[7:12]) for row in rows] == [
            (MODEL, 3, "estimated", 1, 1, 1, 0),
            ("nobody", 1, "unknown_model", 0, 0, 0, 1),
        ]
        assert rows[1][6] is None


def test_an_interaction_without_an_end(tmp_path: Path) -> None:
    """An interaction without an end has neither a duration nor a result."""
    home = a_home(tmp_path)
    facts: list[InteractionStart | InteractionEnd | SessionStart] = [
        InteractionStart(session_id(1), "i1", "main", T0),  # type: ignore[arg-type]
        InteractionStart(session_id(1), "i2", "main", T0 + 1),  # type: ignore[arg-type]
        InteractionEnd(session_id(1), "i1", T0 + SECOND, "success", False),  # type: ignore[arg-type]
    ]
    write_facts(home, facts)
    with connect(home, ingest=False) as connection:
        sql = "SELECT interaction_id, duration_ns, result, is_error FROM interactions ORDER BY 1"
        assert connection.execute(sql).fetchall() == [
            ("i1", SECOND, "success", False),
            ("i2", None, None, None),
        ]


@pytest.mark.parametrize("comes_early", [True, False])
def test_an_early_result_counts_once(tmp_path: Path, *, comes_early: bool) -> None:
    """The result of a read-only call counts once, even if it was available before the response with the call had ended.

    The next request contains the result again.
    """
    home = a_home(tmp_path)
    asked, ran = attempt(1, 1, content=[WEATHER]), tool(1, "toolu_1", "weather", at=T0 + SECOND)
    result_block = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"}
    messages = [
        {"role": "user", "content": "line 0 of session 1"},
        {"role": "assistant", "content": [WEATHER]},
        {"role": "user", "content": [result_block]},
    ]
    body = json.dumps({"model": MODEL, "max_tokens": 100, "messages": messages}).encode()
    later = attempt(1, 2)
    later = replace(later, question=replace(later.question, body=body))
    first: list[Record] = [ran, asked] if comes_early else [asked, ran]
    record(home, [start(1), *first, later, end(1)])
    with connect(home, ingest=False) as connection:
        calls = connection.execute("SELECT source, outcome FROM tool_calls").fetchall()
    assert calls == [("run", "executed")]


def test_calls_of_one_id_in_two_lanes(tmp_path: Path) -> None:
    """If calls in two lanes have the same ID, each call has its own result and decision.

    A result without a lane is joined by its ID.
    """
    home = a_home(tmp_path)
    parts: list[Any] = [start(1)]
    for number, lane in enumerate(("main/a", "main/b"), 1):
        asked, took = attempt(1, number, content=[WEATHER]), number * SECOND
        place = replace(asked.place, lane=lane, turn=1)
        ran = tool(1, "toolu_1", "weather", at=T0 + 5 * SECOND, took=took)
        decided = permission(1, "toolu_1", at=T0 + 4 * SECOND, lane=lane, approval_wait_ns=took)
        parts += [replace(asked, place=place), decided, replace(ran, place=place)]
    record(home, [*parts, end(1)])
    with connect(home, ingest=False) as connection:
        calls = connection.execute(
            "SELECT lane, duration_ns, approval_wait_ns FROM tool_calls ORDER BY lane"
        ).fetchall()
        decisions = connection.execute("SELECT count(*) FROM permission_decisions").fetchone()
        found = named(connection, "session_timeline", session_id=session_id(1))
        columns = [column[0] for column in found.description or ()]
        rows = [dict(zip(columns, row, strict=True)) for row in found.fetchall()]
    assert calls == [("main/a", SECOND, SECOND), ("main/b", 2 * SECOND, 2 * SECOND)]
    assert decisions == (2,)
    assert sorted(r["lane"] for r in rows if r["kind"] == "permission") == ["main/a", "main/b"]


@pytest.mark.slow
def test_a_session_whose_end_could_not_be_written(tmp_path: Path) -> None:
    """A session whose end could not be written is `incomplete`, not `crashed`, because its process kept running.

    A session with lost records is marked, with or without an end, and so are its sums and its row in the list.
    """
    home = a_home(tmp_path)
    refused = [
        Gap(session_id(1), T0 + 9 * SECOND, Label("session_ends"), Label("EFBIG"), 1),
        Gap(session_id(2), T0 + 9 * SECOND, Label("attempts"), Label("EMFILE"), 2),
    ]
    kept = [replace(usage_row(number), session_id=session_id(number)) for number in (1, 2)]
    ended = SessionEnd(session_id(2), T0 + 8 * SECOND, "completed", None, None, 0)
    write_facts(home, [start(1).start, start(2).start, *kept, ended, *refused])
    with connect(home, ingest=False) as connection:
        sql = "SELECT session_id, status, dropped, incomplete, last_activity_ns FROM sessions ORDER BY ALL"
        assert connection.execute(sql).fetchall() == [
            (session_id(1), "incomplete", 1, True, T0),
            (session_id(2), "completed", 2, True, T0 + 8 * SECOND),
        ]
        assert connection.execute("FROM crashes").fetchall() == []
        sure = "SELECT count(*) FROM incomplete_sessions"
        assert connection.execute(sure).fetchone() == (2,)
        failed = named(connection, "sessions", failed=True).fetchall()
        assert [row[0] for row in failed] == [session_id(1)]
    listed = CliRunner().invoke(cli, ["--home", str(home.path), "sessions"]).output
    assert listed.count("incomplete") == 2
    assert "completed, incomplete" in listed


def test_the_last_activity_of_a_session(tmp_path: Path) -> None:
    """The last activity of a session is its end, or the last record if the session is running."""
    home = a_home(tmp_path)
    record(home, [start(2), attempt(2, 1, at=T0 + SECOND)])
    record(home, a_story())
    with connect(home, ingest=False) as connection:
        sql = "SELECT last_activity_ns, ended_ns FROM sessions ORDER BY session_id"
        (last, ended), (seen, none) = connection.execute(sql).fetchall()
        [answered] = connection.execute(
            "SELECT started_ns + duration_ns FROM attempts WHERE session_id = ?", [session_id(2)]
        ).fetchone() or (0,)
    assert (last, seen, none) == (ended, answered, None)
