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
COUNTS = [
    (LARGEST, LARGEST, LARGEST),
    (SMALLEST, SMALLEST, SMALLEST),
    (0, LARGEST, -5),
    (LARGEST, SMALLEST, LARGEST),
]
"""Counts of uncached input, cache reads and cache writes."""


def call(number: int, plain: int, read: int, written: int) -> list[Any]:
    """Return a call that continues the previous one, with two iterations and a cache miss reported by the provider."""
    made: dict[str, Any] = {field.name: None for field in dataclasses.fields(Attempt)}
    made |= {f.name: 0 for f in dataclasses.fields(Attempt) if f.type == "int"}
    made |= {"session_id": session_id(2), "lane": "main", "query_source": "main", "outcome": "ok"}
    made |= {"started_ns": T0 + number, "duration_ns": 1000, "endpoint": "/v1/messages"}
    made |= {"makes_turns": True}
    made |= {"attempt_id": f"{number:032x}", "llm_request_id": f"{number:032x}", "model": MODEL}
    before = f"{number - 1:032x}" if number > 1 else None
    counts: dict[str, Any] = {"input_tokens": plain, "output_tokens": plain}
    counts |= {"cache_read_tokens": read if number % 2 else 0, "web_search_requests": plain}
    counts |= {"cache_write_5m_tokens": written, "cache_write_1h_tokens": written}
    later = {"session_id": session_id(2), "at_ns": T0 + number * 4 * 10**12}
    missed = plain if number % 3 else None
    return [
        Attempt(**{**made, "method": "POST", "streamed": True, "continues_attempt_id": before}),
        *(usage_row(number, iteration=n, **counts, **later) for n in (1, 2)),
        Prefix(session_id(2), f"{number:032x}", before, None, None, None, missed),
    ]


@pytest.mark.parametrize("counts", COUNTS)
def test_all_views_and_queries_run(tmp_path: Path, counts: tuple[int, int, int]) -> None:
    """If one session has impossible counts, all views and queries still run, and the costs of other sessions are
    unchanged.
    """
    home = a_home(tmp_path)
    record(home, conversation(1))
    begun = start(2).start
    context: dict[str, Any] = {field.name: None for field in dataclasses.fields(Event)}
    context |= {"session_id": session_id(2), "lane": "main", "at_ns": T0, "kind": "context"}
    windowed = Event(**{**context, "numbers": {"window": 5.0}})
    facts = [each for number in range(1, 6) for each in call(number, *counts)]
    write_facts(home, [begun, windowed, *facts, end(2)])
    ingest(home)
    with connect(home) as connection:
        views = "SELECT view_name FROM duckdb_views() WHERE NOT internal AND schema_name = 'main'"
        for (view,) in connection.execute(views).fetchall():
            connection.execute(f'SELECT * FROM "{view}"').fetchall()
        for name in query_names():
            wanted = re.findall(r"\$([a-z_]+)", re.sub(r"(?m)^\s*--.*$", "", query_text(name)))
            given = {each: session_id(2) if each == "session_id" else None for each in wanted}
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
