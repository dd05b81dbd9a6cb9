"""The cost views: small cases calculated by hand, and sums that do not depend on order or segments."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentobs.records.exchanges import Chunk, ModelExchange, Place, Question
from agentobs.records.facts import Attempt, Prefix, ToolUse
from agentobs.records.labels import Label
from agentobs.store.duckdb.connection import connect, named
from tests.store.recordings import (
    MODEL,
    SECOND,
    T0,
    a_home,
    attempt,
    end,
    record,
    session_id,
    start,
    usage_row,
    write_facts,
)

DAY = 86_400 * SECOND
MINUTE = 60 * SECOND
IN, OUT, W5, W1 = (Decimal(n) / 1_000_000 for n in ("2", "10", "2.5", "4"))
"""Dollars per token of claude-sonnet-5-5 (published prices, 2026-09)."""
VIEWS = (
    "cost_by_session", "cost_by_model", "cost_by_day", "cost_by_agent", "cost_by_source",
    "cost_by_tool_turn", "cost_certainty", "cache_efficiency", "cache_misses", "cache_lifetimes",
)  # fmt: skip


def an_attempt(number: int, **changes: Any) -> Attempt:
    """Return the fact of the attempt that belongs to `usage_row(number)`."""
    values: dict[str, Any] = dict.fromkeys(field.name for field in dataclasses.fields(Attempt))
    values |= {
        "session_id": session_id(1),
        "lane": "main",
        "attempt_id": f"{number:032x}",
        "llm_request_id": f"{number:032x}",
        "attempt": 1,
        "started_ns": T0 + number,
        "duration_ns": SECOND,
        "endpoint": "/v1/messages",
        "makes_turns": True,
        "method": "POST",
        "outcome": "ok",
        "query_source": "main",
        "tool_use_count": 0,
    }
    return Attempt(**{**values, **changes})


def plain(number: int, **changes: Any) -> Any:
    """Return a usage fact with ten input and ten output tokens, which cost 0.00012 USD."""
    none = {"cache_read_tokens": 0, "cache_write_5m_tokens": 0, "cache_write_1h_tokens": 0}
    return usage_row(number, **{**none, "input_tokens": 10, "output_tokens": 10, **changes})


ONE = 10 * IN + 10 * OUT


def selected(tmp_path: Path, facts: list[Any], *queries: str) -> list[list[dict[str, Any]]]:
    """Write facts to a home, and return the rows of some SELECT statements."""
    home = a_home(tmp_path)
    write_facts(home, facts)
    found = []
    with connect(home, ingest=False) as connection:
        for query in queries:
            answer = connection.execute(query)
            names = [column[0] for column in answer.description]
            found.append([dict(zip(names, row, strict=True)) for row in answer.fetchall()])
    return found


def test_aliases_and_dated_ids_are_one_model(tmp_path: Path) -> None:
    """All billed IDs of a model, such as aliases and dated IDs, are one row, which lists the IDs."""
    ids = ("claude-sonnet-4-5", "claude-sonnet-4-5-20250929", "claude-opus-5-5")
    facts = [plain(number, model=model) for number, model in enumerate(ids)]
    [rows] = selected(tmp_path, facts, "FROM cost_by_model ORDER BY canonical_model")
    assert [(row["canonical_model"], row["models"], row["calls"]) for row in rows] == [
        ("claude-opus-5-5", ["claude-opus-5-5"], 1),
        ("claude-sonnet-4-5", ["claude-sonnet-4-5", "claude-sonnet-4-5-20250929"], 2),
    ]


def test_the_parts_of_a_sum(tmp_path: Path) -> None:
    """Each part of a sum is the sum of that part of the calls, and the parts add up to the total."""
    facts = [
        plain(1, cache_write_5m_tokens=100, cache_write_1h_tokens=1000, web_search_requests=2),
        plain(2),
    ]
    [[row]] = selected(tmp_path, facts, "FROM cost_by_session")
    assert row["input_usd"] == 20 * IN
    assert row["output_usd"] == 20 * OUT
    assert row["cache_write_5m_usd"] == 100 * W5
    assert row["cache_write_1h_usd"] == 1000 * W1
    assert row["server_tools_usd"] == Decimal("0.02")
    parts = ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h", "server_tools")
    assert row["cost_usd"] == sum(row[f"{part}_usd"] for part in parts)
    assert (row["cache_write_tokens"], row["cost_status"]) == (1100, "exact")


def test_days_are_in_utc(tmp_path: Path) -> None:
    """A call belongs to the day (UTC) on which it was sent, with nanosecond precision."""
    midnight = T0 - T0 % DAY + DAY
    facts = [plain(1, at_ns=midnight - 1), plain(2, at_ns=midnight), plain(3, at_ns=midnight + 1)]
    [rows] = selected(
        tmp_path, facts, "SELECT day::VARCHAR AS day, calls FROM cost_by_day ORDER BY 1"
    )
    assert rows == [{"day": "2026-09-21", "calls": 1}, {"day": "2026-09-22", "calls": 2}]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kinds", "status", "cost"),
    [
        (["exact"], "exact", ONE),
        (["exact", "lower_bound"], "lower_bound", 2 * ONE),
        (["exact", "estimated"], "estimated", 2 * ONE),
        (["lower_bound", "estimated"], "estimated", 2 * ONE),
        (["exact", "unknown"], "lower_bound", ONE),
        (["estimated", "unknown"], "estimated", ONE),
        (["unknown"], "unknown_model", None),
    ],
)
def test_the_certainty_of_a_sum(
    tmp_path: Path, kinds: list[str], status: str, cost: Decimal | None
) -> None:
    """A sum is exact only if all its calls are exact; if no call has a price, the sum is NULL, never 0."""
    changes: dict[str, dict[str, Any]] = {
        "exact": {},
        "lower_bound": {"certainty": "lower_bound"},
        "estimated": {"certainty": "estimated", "note": "input_tokens:negative"},
        "unknown": {"model": "nobody"},
    }
    facts = [plain(number, **changes[kind]) for number, kind in enumerate(kinds)]
    [[row], levels] = selected(tmp_path, facts, "FROM cost_by_session", "FROM cost_certainty")
    assert (row["cost_status"], row["cost_usd"]) == (status, cost)
    assert row["unpriced_calls"] == kinds.count("unknown")
    assert row["exact_calls"] == kinds.count("exact")
    assert sum(level["calls"] for level in levels) == len(kinds)
    assert sum(level["share_of_calls"] for level in levels) == pytest.approx(1)
    for level in levels:
        assert (level["cost_usd"] is None) == (level["cost_status"] == "unknown_model")


def test_missing_records_make_costs_lower_bounds(tmp_path: Path) -> None:
    """If records of a session were dropped, none of its sums is exact in any view; the sums of other sessions are
    unchanged.
    """
    ended = dataclasses.replace(end(1), dropped=1)
    facts = [plain(1), ended, plain(2, session_id=session_id(2), model="claude-opus-5-5"), end(2)]
    by_session, by_model, [day], certainty, by_agent, efficiency = selected(
        tmp_path,
        facts,
        "FROM cost_by_session ORDER BY session_id",
        "FROM cost_by_model ORDER BY canonical_model DESC",
        "FROM cost_by_day",
        "FROM cost_certainty ORDER BY cost_status DESC",
        "FROM cost_by_agent ORDER BY session_id",
        "FROM cache_efficiency ORDER BY session_id",
    )
    for rows in (by_session, by_model, certainty, by_agent, efficiency):
        assert [row["cost_status"] for row in rows] == ["lower_bound", "exact"]
    assert [(row["exact_calls"], row["lower_bound_calls"]) for row in by_session] == [
        (0, 1),
        (1, 0),
    ]
    assert (day["cost_status"], day["exact_calls"], day["lower_bound_calls"]) == (
        "lower_bound",
        1,
        1,
    )
    assert by_session[0]["cost_usd"] == ONE


def test_unpriced_server_requests_make_costs_lower_bounds(tmp_path: Path) -> None:
    """The cost of code executions and of unknown kinds of requests is a lower bound, because they may cost more than
    their tokens.
    """
    facts = [
        plain(1, code_execution_requests=1),
        plain(2, server_requests={"holodeck_requests": 1}),
        plain(3, web_fetch_requests=5),
    ]
    [rows] = selected(tmp_path, facts, "SELECT cost_status FROM costs ORDER BY attempt_id")
    assert [row["cost_status"] for row in rows] == ["lower_bound", "lower_bound", "exact"]


def test_results_of_a_batch_count_once(tmp_path: Path) -> None:
    """A batch result counts once, at its first fetch, however often and in however many sessions it is fetched."""
    tier = {"service_tier": "batch"}
    facts = [
        plain(1, batch_result_id="b1/a", **tier),
        plain(1, batch_result_id="b1/b", **tier),
        plain(2, batch_result_id="b1/a", at_ns=T0 + DAY, **tier),
        plain(3, batch_result_id="b1/b", at_ns=T0 + DAY, session_id=session_id(2), **tier),
        plain(4, batch_result_id="b2/a", at_ns=T0 + DAY, **tier),
    ]
    [[row], days] = selected(
        tmp_path, facts, "FROM cost_by_model", "SELECT calls FROM cost_by_day ORDER BY day"
    )
    assert (row["calls"], row["cost_usd"]) == (3, 3 * ONE / 2)
    assert [day["calls"] for day in days] == [2, 1]


def test_cost_by_source(tmp_path: Path) -> None:
    """The costs of sub-agents, auxiliary requests and provider-side calls are separate, and add up to the cost of the
    session.
    """
    facts: list[Any] = [
        an_attempt(1),
        plain(1),
        an_attempt(2, lane="main/toolu_1", query_source="sub_agent"),
        plain(2),
        an_attempt(3, query_source="classifier"),
        plain(3),
        an_attempt(4),
        plain(4, billed=False),
        plain(4, iteration=1, kind="compaction"),
        plain(4, iteration=2, kind="message"),
        plain(4, iteration=3, kind="advisor_message", model="claude-opus-5-5"),
        plain(5),  # its attempt was lost
    ]
    sources, agents, [session] = selected(
        tmp_path,
        facts,
        "FROM cost_by_source ORDER BY source",
        "FROM cost_by_agent ORDER BY lane",
        "FROM cost_by_session",
    )
    assert [(row["source"], row["calls"]) for row in sources] == [
        ("advisor", 1), ("classifier", 1), ("compaction", 1), ("main", 3), ("sub_agent", 1),
    ]  # fmt: skip
    assert [(row["lane"], row["calls"]) for row in agents] == [("main", 6), ("main/toolu_1", 1)]
    for rows in (sources, agents):
        assert sum(row["cost_usd"] for row in rows) == session["cost_usd"]


def test_cost_by_tool_turn(tmp_path: Path) -> None:
    """The full cost of a turn counts for each tool that it calls; shared turns are counted, and turns without tools
    have no tool name.
    """

    def use(number: int, name: str, ordinal: int) -> ToolUse:
        tool_use_id, attempt_id = Label(f"t{number}{ordinal}"), f"{number:032x}"
        return ToolUse(
            session_id(1), None, Label("main"), 1, attempt_id, tool_use_id, Label(name), ordinal, T0, 2
        )  # fmt: skip

    facts = [
        plain(1), use(1, "read", 1), use(1, "read", 2), use(1, "bash", 3),
        plain(2), use(2, "read", 1),
        plain(3),
    ]  # fmt: skip
    [rows] = selected(tmp_path, facts, "FROM cost_by_tool_turn ORDER BY name NULLS FIRST")
    by_tool = [
        (r["name"], r["turns"], r["shared_turns"], r["tool_calls"], r["cost_usd"]) for r in rows
    ]
    assert by_tool == [
        (None, 1, 0, None, ONE),
        ("bash", 1, 1, 1, ONE),
        ("read", 2, 1, 3, 2 * ONE),
    ]


def test_all_costs_are_exact_decimals(tmp_path: Path) -> None:
    """Every column of dollars in every view is DECIMAL(38,12), never a float."""
    home = a_home(tmp_path)
    write_facts(home, [plain(1)])
    with connect(home, ingest=False) as connection:
        sql = "SELECT DISTINCT data_type FROM duckdb_columns() WHERE column_name LIKE '%usd'"
        assert connection.execute(sql).fetchall() == [("DECIMAL(38,12)",)]
        sql = (
            "SELECT column_name FROM duckdb_columns() WHERE data_type IN ('DOUBLE', 'FLOAT')"
            " AND (contains(column_name, 'usd') OR contains(column_name, 'tokens'))"
        )
        assert connection.execute(sql).fetchall() == []


rows_of_usage = st.lists(
    st.tuples(
        st.sampled_from([MODEL, "claude-opus-5-5", "claude-haiku-5-5", "nobody"]),
        st.integers(0, 200_000),
        st.integers(0, 5_000),
        st.integers(0, 150_000),
        st.integers(0, 3_000),
        st.sampled_from(["exact", "lower_bound", "estimated"]),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(rows=rows_of_usage, seed=st.randoms(use_true_random=False), cut=st.integers(0, 8))
def test_neither_order_nor_a_split_changes_a_sum(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], seed: Any, cut: int
) -> None:
    """Facts in a different order, in several segments, or with half of them in another session have the same sums."""
    facts = [
        usage_row(
            number,
            model=model,
            input_tokens=plain_input,
            output_tokens=output,
            cache_read_tokens=read,
            cache_write_5m_tokens=written,
            certainty=certainty,
            at_ns=T0 + day * DAY,
        )
        for number, (model, plain_input, output, read, written, certainty, day) in enumerate(rows)
    ]
    shuffled = facts.copy()
    seed.shuffle(shuffled)
    split = [
        dataclasses.replace(fact, session_id=session_id(2)) if number >= cut else fact
        for number, fact in enumerate(facts)
    ]
    answers = []
    for each in ([facts], [shuffled[:cut], shuffled[cut:]], [split]):
        home = a_home(tmp_path_factory.mktemp("sums"))
        for segment in filter(None, each):
            write_facts(home, segment)
        with connect(home, ingest=False) as connection:
            by_session = connection.execute(
                "SELECT sum(cost_usd), sum(calls), sum(unpriced_calls) FROM cost_by_session"
            ).fetchall()
            others = [
                connection.execute(f"SELECT * FROM {view} ORDER BY ALL").fetchall()
                for view in ("cost_by_model", "cost_by_day", "cost_certainty")
            ]
            answers.append((by_session, others))
    assert answers[0] == answers[1] == answers[2]


def test_adding_tokens_before_pricing_is_exact(tmp_path: Path) -> None:
    """By model and day, tokens are added up before they are priced; the result equals the sum over calls to the last
    digit.
    """
    home = a_home(tmp_path)
    facts = [
        usage_row(
            number,
            model=("claude-haiku-5-5", MODEL, "nobody")[number % 3],
            input_tokens=number * 7_919 % 180_000,
            cache_read_tokens=2**62 if number == 7 else number,
            at_ns=T0 + number * DAY // 5,
            certainty=("exact", "exact", "lower_bound", "estimated")[number % 4],
            web_search_requests=number % 2,
        )
        for number in range(40)
    ]
    write_facts(home, facts)
    with connect(home, ingest=False) as connection:
        found = named(connection, "cost_by_model_and_day")
        names = [column[0] for column in found.description]
        rows = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
        for view, key in (("cost_by_model", "model"), ("cost_by_day", "day")):
            column = "canonical_model" if key == "model" else key
            sql = f"SELECT {column}, cost_usd, calls, calls - exact_calls, input_tokens FROM {view}"
            for value, cost, calls, doubts, tokens in connection.execute(sql).fetchall():
                own = [row for row in rows if row[key] == value]
                known = [row["cost_usd"] for row in own if row["cost_usd"] is not None]
                assert (sum(known) if known else None) == cost
                assert sum(row["calls"] for row in own) == calls
                assert sum(row["not_exact_calls"] for row in own) == doubts
                assert sum(row["input_tokens"] for row in own) == tokens


TOOLS = [{"name": "weather", "input_schema": {"type": "object"}}]


def history(count: int, first: str = "hello") -> list[dict[str, Any]]:
    """Return a conversation of `count` messages; the last message is from a person."""
    return [
        {"role": ("user", "assistant")[n % 2], "content": first if n == 0 else f"line {n}"}
        for n in range(count)
    ]


def call(
    turn: int, messages: list[Any], *, at: int, head: Any = None, **usage: Any
) -> ModelExchange:
    """Return a call of session 1 with this prompt, sent `at` seconds after the start."""
    known = {"model": MODEL, "max_tokens": 9, "system": "be kind", "tools": TOOLS}
    body = {"messages": messages, **known, **(head or {})}
    question = Question(
        "POST", "/v1/messages", {"content-type": "application/json"}, json.dumps(body).encode()
    )
    diagnostics = usage.pop("diagnostics", None)
    made = attempt(1, turn, at=T0 + at * SECOND, model=body["model"], **usage)
    if diagnostics:
        message = json.loads(made.answer.body) | {"diagnostics": diagnostics}
        chunk = Chunk(json.dumps(message).encode(), 2_000_000)
        made = dataclasses.replace(made, answer=dataclasses.replace(made.answer, chunks=(chunk,)))
    return dataclasses.replace(made, place=Place(session_id(1)), question=question)


def read(tokens: int, written: int = 0) -> dict[str, int]:
    return {"cache_read_input_tokens": tokens, "cache_creation_input_tokens": written}


MISSES: list[tuple[ModelExchange, str, int | None, str | None]] = [
    (call(2, history(3), at=60, **read(0, 1100)), "unknown", None, None),
    (call(2, history(3), at=400, **read(0, 1100)), "expired", None, "gap"),
    (call(2, history(3), at=60, head={"tools": []}, **read(0, 1100)), "tools_changed", None, "request"),
    (call(2, history(3), at=60, head={"system": "be rude"}, **read(0, 1100)), "system_changed", None, "request"),
    (call(2, history(3), at=60, head={"thinking": {"type": "adaptive"}}, **read(0, 1100)),
     "parameters_changed", None, "request"),
    (call(2, history(3), at=60, head={"model": "claude-opus-5-5"}, **read(0, 1100)),
     "model_changed", None, "request"),
    (call(2, history(3, "hello you"), at=60, **read(0, 1100)), "messages_changed", 1, "request"),
    (call(2, history(3), at=60, head={"tools": []}, **read(0, 1100),
          diagnostics={"cache_miss_reason": {"type": "system_changed", "cache_missed_input_tokens": 900}}),
     "system_changed", None, "provider"),
    (call(2, history(3), at=400, **read(0, 1100), diagnostics={"cache_miss_reason": {"type": "unavailable"}}),
     "expired", None, "gap"),
]  # fmt: skip
"""The second request of each session, the reason of its cache miss, the number of the changed message, and the source
of the reason. The first request is the same in all sessions.
"""


def in_session(number: int, exchange: ModelExchange) -> ModelExchange:
    """Return an exchange of session 1 as an exchange of another session."""
    attempt_id = f"{number:08x}{exchange.attempt_id[8:]}"
    return dataclasses.replace(exchange, place=Place(session_id(number)), attempt_id=attempt_id)


@pytest.fixture(scope="module")
def misses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    """The store with a session for each of `MISSES`, numbered from 1, and for each of `CHANGES`, numbered from 101."""
    home = a_home(tmp_path_factory.mktemp("missed"))
    for at, (second, *_) in enumerate(MISSES, 1):
        both = [call(1, history(1), at=0, **read(0, 1000)), second]
        record(home, [start(at), *(in_session(at, each) for each in both), end(at)])
    for at, (head, beta, messages, _) in enumerate(CHANGES, 101):
        both = changed_prompt(head, beta, messages)
        record(home, [start(at), *(in_session(at, each) for each in both), end(at)])
    with connect(home, ingest=False) as connection:
        yield connection


@pytest.mark.parametrize(
    ("session", "reason", "number", "by"), [(at, *case[1:]) for at, case in enumerate(MISSES, 1)]
)
def test_reasons_of_cache_misses(
    misses: duckdb.DuckDBPyConnection, session: int, reason: str, number: int | None, by: str | None
) -> None:
    """The reason of a cache miss is the provider's reason, or else a change in the request, or else the elapsed
    time.
    """
    rows = named(misses, "cache_misses", session_id=session_id(session)).fetchall()
    [(_, lane, _, _, _, _, missed, wasted, *reasons, zones, turn, compared_turn, compared)] = rows
    assert (lane, reasons) == ("main", [reason, number, by])
    assert (turn, compared_turn) == (2, 1)
    assert compared is not None
    found = None if by == "gap" or reason == "unknown" else reason.removesuffix("_changed")
    assert zones == ("tools" if by == "provider" else found)
    assert missed == (900 if by == "provider" else 1000)
    assert wasted > 0


MARK = {"cache_control": {"type": "ephemeral"}}


def test_the_misses_of_a_session_read_only_its_rows(misses: duckdb.DuckDBPyConnection) -> None:
    """A query about the cache misses of one session reads requests and calls of this session only."""
    query = f"EXPLAIN (FORMAT json) FROM cache_misses WHERE session_id = '{session_id(1)}'"
    [[_, plan]] = misses.execute(query).fetchall()
    unfiltered, left = set(), list(json.loads(plan))
    while left:
        node = left.pop()
        left += node["children"]
        table = str(node["extra_info"].get("Table", "")).rpartition(".")[2]
        if table and "session_id" not in str(node["extra_info"].get("Filters")):
            unfiltered.add(table)
    assert unfiltered <= {"prices", "session_starts"}


def system_prompt(*texts: str) -> list[dict[str, Any]]:
    """Return a system prompt with a cache breakpoint after its first block."""
    first, *rest = ({"type": "text", "text": text} for text in texts)
    return [first | MARK, *rest]


CHANGES: list[tuple[dict[str, Any], str, list[Any], str | None]] = [
    ({}, "a-1", history(3), None),
    ({}, "a-1,b-2", history(3), "betas"),
    ({"system": system_prompt("be kind", "it is 9:31")}, "a-1", history(3), "system_dynamic"),
    ({"system": system_prompt("be rude", "it is 9:30")}, "a-1", history(3), "system"),
    ({"system": [*system_prompt("be kind, it is 9:30"), system_prompt("")[0]]}, "a-1", history(3),
     "system, system_dynamic"),
    ({"tools": [], "speed": "fast"}, "b-2", history(3, "bye"), "betas, model, tools, messages"),
    ({"system": [*system_prompt("be kind"), system_prompt("it is 9:30")[0]]}, "a-1", history(3), None),
]  # fmt: skip
"""The prompt of the second request of each session, and the zones in which it differs from the first request."""


def changed_prompt(head: dict[str, Any], beta: str, messages: list[Any]) -> list[ModelExchange]:
    """Return the two requests of a session; the second one has another prompt."""
    usual = {"system": system_prompt("be kind", "it is 9:30")}
    first = call(1, history(1), at=0, head=usual, **read(0, 1000))
    second = call(2, messages, at=60, head={**usual, **head}, **read(0, 1100))
    return [with_beta(first, "a-1"), with_beta(second, beta)]


@pytest.mark.parametrize(
    ("session", "blamed"), [(at, case[-1]) for at, case in enumerate(CHANGES, 101)]
)
def test_a_miss_names_all_changed_zones(
    misses: duckdb.DuckDBPyConnection, session: int, blamed: str | None
) -> None:
    """A cache miss names all zones that differ from the earlier request, in the order of the prompt, and ignores cache
    breakpoints.
    """
    [row] = misses.execute(
        "SELECT zones_changed, missed.turn, compared_turn, compared_attempt_id = first.attempt_id, reason "
        "FROM cache_misses AS missed JOIN turns AS first USING (session_id) WHERE session_id = ? AND first.turn = 1",
        [session_id(session)],
    ).fetchall()
    first_blamed = blamed.partition(",")[0] if blamed else None
    assert row[:4] == (blamed, 2, 1, True)
    assert row[4] == (f"{first_blamed}_changed" if blamed else "unknown")


def with_beta(exchange: ModelExchange, beta: str) -> ModelExchange:
    headers = {**exchange.question.headers, "anthropic-beta": beta}
    return dataclasses.replace(
        exchange, question=dataclasses.replace(exchange.question, headers=headers)
    )


def test_repeated_messages_have_equal_digests(tmp_path: Path) -> None:
    """The repeated part of a prompt has the digest of the earlier prompt, even if cache breakpoints move or an attempt
    fails.
    """
    home, marked = a_home(tmp_path), history(3)
    marked[-1] = {"role": "user", "content": [{"type": "text", "text": "line 2"} | MARK]}
    failed = attempt(1, 2, at=T0 + 30 * SECOND, status=529)
    failed = dataclasses.replace(failed, question=call(2, marked, at=0).question)
    record(
        home,
        [
            start(1),
            call(1, history(1), at=0),
            failed,
            call(2, marked, at=60),
            call(3, history(5), at=90),
            call(4, history(7, "hello you"), at=120),
            end(1),
        ],
    )
    with connect(home, ingest=False) as connection:
        rows = connection.execute(
            "SELECT messages, repeated_messages, repeated FROM zones ORDER BY sequence"
        ).fetchall()
    one, cut, three, five, other = rows
    assert one[1:] == (None, None)
    assert cut == three == (cut[0], 1, one[0])
    assert five[1:] == (3, three[0])
    assert other[1] == 5
    assert other[2] not in (None, five[0])
    assert len({one[0], three[0], five[0], other[0]}) == 4


def test_digests_are_keyed(tmp_path: Path) -> None:
    """The same prompt has different digests in different homes, so a short prompt cannot be guessed from its digest."""
    digests = []
    for name in ("here", "there"):
        home = a_home(tmp_path / name)
        record(home, [start(1), call(1, history(1), at=0), end(1)])
        with connect(home, ingest=False) as connection:
            digests.append(
                connection.execute("SELECT system, tools, messages FROM zones").fetchone()
            )
    assert all(a != b for a, b in zip(*digests, strict=True))


def test_continued_prompts_are_not_misses(tmp_path: Path) -> None:
    """A request with moved cache breakpoints or new messages, or of a new conversation, is not a cache miss."""
    marked = [{"type": "text", "text": "be kind", "cache_control": {"type": "ephemeral"}}]
    home = a_home(tmp_path)
    record(
        home,
        [
            start(1),
            call(1, history(1), at=0, **read(0, 1000)),
            call(2, history(3), at=60, head={"system": marked}, **read(1000, 100)),
            call(3, history(5), at=120, **read(1100, 100)),
            call(4, history(1, "something else"), at=130, **read(0, 500)),
            end(1),
        ],
    )
    with connect(home, ingest=False) as connection:
        assert named(connection, "cache_misses").fetchall() == []
        assert connection.execute("FROM prefixes").fetchall() == []


def test_prompt_changes_contain_no_content(tmp_path: Path) -> None:
    """The facts about a changed prompt contain only IDs, labels and numbers."""
    home = a_home(tmp_path)
    secret = {"type": "a secret of somebody", "cache_missed_input_tokens": -1}
    record(
        home,
        [
            start(1),
            call(1, history(1), at=0),
            call(2, history(3), at=1, head={"system": "be very rude"}, diagnostics={"cache_miss_reason": secret}),
            end(1),
        ],
    )  # fmt: skip
    with connect(home, ingest=False) as connection:
        [row] = connection.execute(
            "SELECT changed, miss_reason, missed_tokens FROM prefixes"
        ).fetchall()
    assert row[0] == "system"
    assert "secret" not in row[1]
    assert row[2] is None


def test_the_usual_reason_of_misses_is_the_most_expensive(tmp_path: Path) -> None:
    """One expired prefix that cost more than two rewrites for another reason is the usual reason."""
    home = a_home(tmp_path)
    record(
        home,
        [
            start(1),
            call(1, history(1), at=0, **read(0, 9000)),
            call(2, history(3), at=500, **read(0, 9100)),
            call(3, history(5), at=520, **read(8000, 1200)),
            call(4, history(7), at=540, **read(8100, 1200)),
            end(1),
        ],
    )
    with connect(home, ingest=False) as connection:
        reasons = connection.execute(
            "SELECT reason, count(*), sum(wasted_usd) FROM cache_misses GROUP BY reason ORDER BY sum(wasted_usd) DESC"
        ).fetchall()
        found = named(connection, "cache_by_session")
        names = [column[0] for column in found.description]
        [values] = found.fetchall()
    assert [count for _, count, _ in reasons] == [1, 2]
    row = dict(zip(names, values, strict=True))
    assert (row["usual_reason"], row["misses"]) == (reasons[0][0], 3)
    assert row["wasted_usd"] == sum(wasted for _, _, wasted in reasons)


def test_savings_and_waste_of_caching(tmp_path: Path) -> None:
    """Savings are cache reads compared with uncached input, minus the premium for writes; a miss pays for the write
    again.
    """
    home = a_home(tmp_path)
    record(
        home,
        [
            start(1),
            call(1, history(1), at=0, **read(0, 1000)),
            call(2, history(3), at=60, **read(1000, 100)),
            call(3, history(5), at=500, **read(0, 1200)),
            end(1),
        ],
    )
    with connect(home, ingest=False) as connection:
        [price] = connection.execute(
            "SELECT DISTINCT cache_read_usd_each FROM costs"
        ).fetchone() or [0]
        found = named(connection, "cache_by_session")
        names = [column[0] for column in found.description]
        [values] = found.fetchall()
    row = dict(zip(names, values, strict=True))
    assert row["hit_ratio"] == pytest.approx(1000 / (30 + 1000 + 2300))
    assert row["read_saved_usd"] == 1000 * (IN - price)
    assert row["write_premium_usd"] == 2300 * (W5 - IN)
    assert row["saved_usd"] == row["read_saved_usd"] - row["write_premium_usd"]
    assert (row["misses"], row["missed_tokens"], row["usual_reason"]) == (1, 1100, "expired")
    assert row["wasted_usd"] == 1100 * (W5 - price)
    # Before the expiry, the third call would have read the 1,100 tokens that the second call cached.
    assert row["cache_usd"] == 1000 * price + 2300 * W5
    assert row["cache_5m_usd"] == row["cache_usd"]
    assert row["cache_1h_usd"] == 1000 * W1 + (1000 * price + 100 * W1) + (1100 * price + 100 * W1)
    assert (row["gaps_over_5m"], row["gaps_over_1h"]) == (1, 0)
    assert row["better"] == ("5m" if row["cache_5m_usd"] < row["cache_1h_usd"] else "1h")


@pytest.mark.parametrize(("gap", "better"), [(60, "5m"), (600, "1h"), (4000, "5m")])
def test_the_gaps_decide_which_lifetime_is_cheaper(tmp_path: Path, gap: int, better: str) -> None:
    """The shorter lifetime is cheaper if the gaps are below 5 minutes or above an hour; otherwise, a lifetime of 1 hour
    is cheaper.
    """
    home = a_home(tmp_path)
    calls = [
        call(
            n,
            history(2 * n - 1),
            at=n * gap,
            **(read(0, 10_000) if gap > 300 or n == 1 else read(10_000)),
        )
        for n in range(1, 7)
    ]
    record(home, [start(1), *calls, end(1)])
    with connect(home, ingest=False) as connection:
        assert connection.execute("SELECT better FROM cache_lifetimes").fetchall() == [(better,)]


def test_lifetimes_of_a_response_with_iterations(tmp_path: Path) -> None:
    """The cache reads and writes of all iterations of a response are included, and the response counts as one call."""
    facts: list[Any] = [
        an_attempt(1),
        plain(1, billed=False),
        *(
            plain(1, iteration=n, cache_read_tokens=1000, cache_write_5m_tokens=100 * n)
            for n in (1, 2, 3)
        ),
    ]
    [row], [parts] = selected(
        tmp_path,
        facts,
        "FROM cache_lifetimes",
        "SELECT sum(cache_read_usd + cache_write_5m_usd + cache_write_1h_usd) AS usd FROM costs",
    )
    assert (row["calls"], row["cache_usd"], row["unpriced_calls"]) == (1, parts["usd"], 0)
    assert row["cache_5m_usd"] < row["cache_1h_usd"]


def test_views_with_invalid_values(tmp_path: Path) -> None:
    """The views return rows, not errors, for huge counts, rows without an attempt, and a prefix without data."""
    facts: list[Any] = [
        plain(1, input_tokens=2**62, cache_read_tokens=2**62, cache_write_5m_tokens=2**62),
        plain(2, model="nobody", cache_read_tokens=2**62, input_tokens=2**62),
        plain(3, input_tokens=0, output_tokens=0),
        Prefix(session_id(1), "lost", "lost too", "tools", None, None, None),
        an_attempt(1),
        an_attempt(2, continues_attempt_id=f"{1:032x}"),
    ]
    found = selected(tmp_path, facts, *(f"FROM {view}" for view in VIEWS))
    assert all(found[:8])


def test_missed_tokens_are_limited_by_paid_tokens(tmp_path: Path) -> None:
    """The missed tokens of a call are at most the tokens that it paid for, even if more tokens were cached.

    A call that returns to a short prompt pays again only for the tokens that it wrote and sent.
    """
    none = dict.fromkeys(("changed_message", "missed_tokens"))
    prefix: dict[str, Any] = dict.fromkeys(field.name for field in dataclasses.fields(Prefix))
    prefix |= none | {
        "session_id": session_id(1),
        "attempt_id": f"{2:032x}",
        "compared_attempt_id": f"{1:032x}",
        "changed": "messages",
        "miss_reason": None,
    }
    facts = [
        an_attempt(1),
        plain(1, cache_write_5m_tokens=20_000),
        an_attempt(2),
        plain(2, cache_read_tokens=5_000, cache_write_5m_tokens=2_000),
        Prefix(**prefix),
    ]
    [[row]] = selected(tmp_path, facts, "FROM cache_misses")
    assert (row["missed_tokens"], row["reason"]) == (2_010, "messages_changed")
