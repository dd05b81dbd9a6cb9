"""Figures of time: each nanosecond belongs to one part of one bar, each approval to one bucket, each model to one
row.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentobs.records.exchanges import Chunk
from agentobs.store.analysis.wall_time import PARTS, interaction_times
from agentobs.store.duckdb.connection import connect
from agentobs.store.duckdb.store import DuckStore
from dashboards.drawing import svg
from dashboards.figures import blocked_on_user, first_token, time_split
from dashboards.figures.durations import BUCKETS, MOST_BARS, MOST_RESOLVERS, NAMES
from tests.dashboards.figure_checks import assert_valid, hostile, rows_of, rows_of_nulls
from tests.exporters.sample_session import sample_home
from tests.store.recordings import (
    SECOND,
    T0,
    a_home,
    attempt,
    permission,
    record,
    start,
    write_facts,
)

Rows = list[dict[str, Any]]


def split_row(wall_ns: int = 10 * SECOND, **parts: int) -> dict[str, Any]:
    """Return the fields of a split; the time outside of the given parts is the program's own."""
    spent = {f"{part}_ns": parts.get(part, 0) for part in PARTS}
    spent["own_ns"] += wall_ns - sum(spent.values())
    return {
        "interaction_id": "1" * 32, "lane": "main", "started_ns": T0, "wall_ns": wall_ns, "has_ended": True,
        "timing_source": "spans", **spent,
    }  # fmt: skip


def wait_row(resolver: str = "person", about: str = "weather", **counts: int) -> dict[str, Any]:
    """Return a row of the query about waits."""
    return {"about": about, "resolver": resolver, **dict.fromkeys(BUCKETS, 0), **counts}


@pytest.fixture(scope="module")
def store_rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Rows]:
    """The rows of the store about a session of our agent loop, by name of the figure."""
    home = sample_home(tmp_path_factory.mktemp("sample"))
    with connect(home) as connection:
        [(session,)] = connection.execute("SELECT session_id FROM sessions").fetchall()
        splits = interaction_times(DuckStore(connection, home), session)
        return {
            "time_split": [dataclasses.asdict(each) for each in splits],
            "blocked_on_user": rows_of(connection, "waits_for_people"),
            "first_token": rows_of(connection, "first_token_by_model"),
        }


DRAW = {"time_split": time_split, "blocked_on_user": blocked_on_user, "first_token": first_token}


@pytest.mark.parametrize("name", DRAW)
def test_all_figures_are_valid(store_rows: dict[str, Rows], name: str) -> None:
    """Figures of real rows, no rows, rows of nulls, and texts with markup are valid."""
    for rows in (store_rows[name], [], rows_of_nulls(store_rows[name]), hostile(store_rows[name])):
        assert_valid(DRAW[name](rows))
    assert DRAW[name]([]).layout.annotations[0].text == "nothing to show"
    assert DRAW[name](store_rows[name]).data


def test_parts_add_up_to_the_wall_time(store_rows: dict[str, Rows]) -> None:
    """Each interaction is a bar of stacked parts that is as long as its wall time."""
    rows = [*store_rows["time_split"], split_row(person=4 * SECOND, model=SECOND)]
    figure = time_split(rows)
    assert figure.layout.barmode == "stack"
    assert figure.layout.xaxis.title.text == "seconds"
    drawn = [sum(trace.x[at] for trace in figure.data) for at in range(len(rows))]
    assert drawn == pytest.approx([row["wall_ns"] / SECOND for row in rows])
    assert [trace.name for trace in figure.data] == [
        NAMES[part] for part in PARTS if any(row[f"{part}_ns"] for row in rows)
    ]
    [waited] = [trace for trace in figure.data if trace.name == "waiting for the user"]
    assert (
        waited.customdata[-1]
        == f"interaction {len(rows)}<br>waiting for the user: 4.00 s of 10.00 s (40%)"
    )
    drawing = svg(figure, title="Time", says="Time.")
    assert "interaction 1\n" in drawing
    assert "interaction 0" not in drawing


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(0, 10**15), min_size=1, max_size=3 * MOST_BARS))
def test_many_interactions_share_bars(walls: list[int]) -> None:
    """If there are many interactions, the number of bars is bounded, and no nanosecond is missing."""
    figure = time_split([split_row(wall, model=wall // 3) for wall in walls])
    assert_valid(figure)
    unit = {"hours": 3600, "minutes": 60, "seconds": 1, "ms": 1e-3}[figure.layout.xaxis.title.text]
    assert len(figure.layout.yaxis.ticktext) <= MOST_BARS
    assert sum(sum(trace.x) for trace in figure.data) * unit == pytest.approx(sum(walls) / SECOND)


def test_shared_bars_show_total_times() -> None:
    """The parts and the total of a shared bar are sums over its interactions."""
    figure = time_split([split_row(model=4 * SECOND)] * (2 * MOST_BARS))
    assert {text.partition("<br>")[2] for text in figure.data[0].customdata} == {
        "model: 8.00 s of 20.00 s (40%)"
    }
    assert figure.data[0].customdata[0].startswith("interaction 1 to 2<br>")


def test_labels_of_interactions() -> None:
    """The label of an interaction is its number, with the name of a background agent and a note if it did not end."""
    rows = [split_row(), split_row() | {"lane": "main/a"}, split_row() | {"has_ended": False}]
    assert list(time_split(rows).layout.yaxis.ticktext) == ["1", "2 (agent a)", "3 (did not end)"]
    many = time_split([split_row()] * (2 * MOST_BARS)).layout.yaxis.ticktext
    assert (many[0], many[-1]) == ("1 to 2", f"{2 * MOST_BARS - 1} to {2 * MOST_BARS}")


def test_approval_waits_by_resolver(tmp_path: Path) -> None:
    """Each approval request counts once, by wait time and resolver; unanswered requests are separate."""
    waits = {"a": 0.5, "b": 9.9, "c": 10, "d": 59, "e": 600}
    asked = [
        permission(1, name, at=T0 + at, approval_wait_ns=int(took * SECOND))
        for at, (name, took) in enumerate(waits.items())
    ]
    asked.append(
        permission(1, "f", at=T0, tool="mail", resolver="classifier", approval_wait_ns=SECOND)
    )
    home = a_home(tmp_path)
    write_facts(home, asked)
    with connect(home, ingest=False) as connection:
        rows = rows_of(connection, "waits_for_people")
    figure = blocked_on_user([*rows, wait_row("unattended", "send", unanswered=2)])
    assert_valid(figure)
    counted = {trace.name: dict(zip(trace.x, trace.y, strict=True)) for trace in figure.data}
    none = dict.fromkeys(BUCKETS.values())
    assert counted == {
        "person": none | {"under 1 s": 1, "1 to 10 s": 1, "10 to 60 s": 2, "longer": 1},
        "unattended": none | {"never answered": 2},
        "classifier": none | {"1 to 10 s": 1},
    }
    assert figure.data[0].customdata[2] == "2 approval requests, answered by person<br>weather: 2"


@pytest.mark.parametrize(("requests", "distance"), [(3, 1), (40, None)])
def test_numbers_of_requests_have_whole_ticks(requests: int, distance: int | None) -> None:
    """The axis of few approval requests has one tick for each number, so that no label is repeated."""
    figure = blocked_on_user([wait_row("person", "send", longer=requests)])
    assert figure.layout.yaxis.dtick == distance


def test_many_resolvers_share_a_trace() -> None:
    """If there are many resolvers, the last trace represents all others, so that no approval request is missing."""
    rows = [wait_row(f"r{n}", f"t{m}", longer=n + 1) for n in range(9) for m in range(9)]
    figure = blocked_on_user(rows)
    assert_valid(figure)
    assert len(figure.data) == MOST_RESOLVERS + 1
    assert figure.data[-1].name == "4 others"
    assert sum(y or 0 for trace in figure.data for y in trace.y) == sum(
        row["longer"] for row in rows
    )
    assert figure.data[0].customdata[4].endswith("and 3 others")


@pytest.mark.slow
def test_time_to_first_chunk_by_model(tmp_path: Path) -> None:
    """A bar shows the median of each model, and marks show the 95th and 99th percentiles in the same unit."""
    home = a_home(tmp_path)
    first = [2_000_000 * (n + 1) for n in range(100)]
    body = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    made = []
    for n, ns in enumerate(first):
        one = attempt(1, n + 1)
        answer = dataclasses.replace(
            one.answer,
            headers={"content-type": "text/event-stream"},
            chunks=(Chunk(STREAM + body, ns),),
        )
        made.append(dataclasses.replace(one, answer=answer, headers_ns=ns - 1, ended_ns=ns + 1))
    record(home, [start(1), *made])
    with connect(home, ingest=False) as connection:
        rows = rows_of(connection, "first_token_by_model")
    assert rows[0]["calls"] == 100
    figure = first_token(rows)
    assert_valid(figure)
    assert figure.layout.xaxis.title.text == "time to first chunk, ms"
    assert {trace.name: list(trace.x) for trace in figure.data} == {
        "p50 (median)": [100], "p95": [190], "p99": [198],
    }  # fmt: skip
    assert "50% of 100 responses started within 100 ms" in figure.data[0].customdata[0]


STREAM = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant",'
    b'"model":"claude-sonnet-5-5","content":[],"stop_reason":null,"usage":{"input_tokens":1,"output_tokens":1}}}\n\n'
    b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"},'
    b'"usage":{"output_tokens":2}}\n\n'
)
