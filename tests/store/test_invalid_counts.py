"""Invalid counts: absurd token counts of a hostile provider do not affect queries about other sessions."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from agentobs.ledger import Meter
from agentobs.records.facts import Attempt, Event, Prefix
from agentobs.store.duckdb.connection import connect
from agentobs.store.duckdb.ingest import ingest
from agentobs.store.named_queries import query_names, query_text
from tests.marks import mark_all_but_first
from tests.store.recordings import (
    MODEL,
    T0,
    a_home,
    conversation,
    end,
    record,
    session_id,
    start,
    usage_row,
    write_facts,
)

LARGEST, SMALLEST = 2**63 - 1, -(2**63)
HIGH, LOW = (LARGEST, LARGEST, LARGEST), (SMALLEST, SMALLEST, SMALLEST)
MIXED = [(0, LARGEST, -5), (LARGEST, SMALLEST, LARGEST)]
"""Counts of uncached input, cache reads and cache writes."""


def call(session: int, number: int, plain: int, read: int, written: int) -> list[Any]:
    """Return a call of a session that continues the previous one, with two iterations and a cache miss that the
    provider reported.
    """
    made: dict[str, Any] = {field.name: None for field in dataclasses.fields(Attempt)}
    made |= {f.name: 0 for f in dataclasses.fields(Attempt) if f.type == "int"}
    made |= {
        "session_id": session_id(session),
        "lane": "main",
        "query_source": "main",
        "outcome": "ok",
    }
    made |= {"started_ns": T0 + number, "duration_ns": 1000, "endpoint": "/v1/messages"}
    made |= {"makes_turns": True}
    unique = session * 16 + number
    attempt_id, before = f"{unique:032x}", f"{unique - 1:032x}" if number > 1 else None
    made |= {"attempt_id": attempt_id, "llm_request_id": attempt_id, "model": MODEL}
    counts: dict[str, Any] = {"input_tokens": plain, "output_tokens": plain}
    counts |= {"cache_read_tokens": read if number % 2 else 0, "web_search_requests": plain}
    counts |= {"cache_write_5m_tokens": written, "cache_write_1h_tokens": written}
    later = {"session_id": session_id(session), "at_ns": T0 + number * 4 * 10**12}
    missed = plain if number % 3 else None
    return [
        Attempt(**{**made, "method": "POST", "streamed": True, "continues_attempt_id": before}),
        *(usage_row(unique, iteration=n, **counts, **later) for n in (1, 2)),
        Prefix(session_id(session), attempt_id, before, None, None, None, missed),
    ]


def invalid_session(number: int, counts: tuple[int, int, int]) -> list[Any]:
    """Return the facts of a session with such counts."""
    begun = start(number).start
    context: dict[str, Any] = {field.name: None for field in dataclasses.fields(Event)}
    context |= {"session_id": session_id(number), "lane": "main", "at_ns": T0, "kind": "context"}
    windowed = Event(**{**context, "numbers": {"window": 5.0}})
    facts = [each for turn in range(1, 6) for each in call(number, turn, *counts)]
    return [begun, windowed, *facts, end(number)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "invalid",
    mark_all_but_first(
        [[HIGH], [LOW, *MIXED], [LOW], *([each] for each in MIXED)], pytest.mark.crash, kept=2
    ),
)
def test_all_views_and_queries_run(tmp_path: Path, invalid: list[tuple[int, int, int]]) -> None:
    """If sessions have impossible counts, all views and queries still run, and the costs of other sessions are
    unchanged.
    """
    home = a_home(tmp_path)
    record(home, conversation(1))
    for number, counts in enumerate(invalid, 2):
        write_facts(home, invalid_session(number, counts))
    ingest(home)
    with connect(home) as connection:
        views = "SELECT DISTINCT view_name FROM duckdb_views() WHERE NOT internal AND schema_name = 'main'"
        for (view,) in connection.execute(views).fetchall():
            connection.execute(f'SELECT * FROM "{view}"').fetchall()
        for name in query_names():
            wanted = re.findall(r"\$([a-z_]+)", re.sub(r"(?m)^\s*--.*$", "", query_text(name)))
            numbers = range(2, 2 + len(invalid)) if "session_id" in wanted else [0]
            for number in numbers:
                given = {e: session_id(number) if e == "session_id" else None for e in wanted}
                connection.execute(query_text(name), given).fetchall()
        sql = "SELECT sum(cost_usd) > 0 FROM costs WHERE session_id = ?"
        assert connection.execute(sql, [session_id(1)]).fetchall() == [(True,)]


@pytest.mark.parametrize("count", [LARGEST, -5, SMALLEST])
def test_a_prompt_with_an_invalid_size_has_no_price(tmp_path: Path, count: int) -> None:
    """A prompt with an invalid size has no price, neither in the meter nor in the store, and the meter raises no
    error.
    """
    row = usage_row(1, input_tokens=count, cache_read_tokens=0, cache_write_5m_tokens=0)
    row = dataclasses.replace(row, cache_write_1h_tokens=0)
    meter = Meter()
    meter.add_facts([row])
    assert meter.total().usd is None
    home = a_home(tmp_path)
    write_facts(home, [row])
    with connect(home) as connection:
        assert connection.sql("SELECT cost_usd FROM costs").fetchall() == [(None,)]
