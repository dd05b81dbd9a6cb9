"""Figures of time: each nanosecond in one part of one bar, each answer in one bucket, each model in one row."""

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
from tests.dashboards.drawn import hold, hostile, nobody, rows_of
from tests.exporters.making_rich import rich_home
from tests.store.making import SECOND, T0, a_home, attempt, permission, record, start, write_facts

Rows = list[dict[str, Any]]


def split(wall_ns: int = 10 * SECOND, **parts: int) -> dict[str, Any]:
    """Return the fields of a split; what no part took is the program's own."""
    spent = {f"{part}_ns": parts.get(part, 0) for part in PARTS}
    spent["own_ns"] += wall_ns - sum(spent.values())
    return {
        "interaction_id": "1" * 32, "lane": "main", "started_ns": T0, "wall_ns": wall_ns, "has_ended": True,
        "timing_source": "spans", **spent,
    }  # fmt: skip


def wait(resolver: str = "person", about: str = "weather", **counts: int) -> dict[str, Any]:
    """Return a row of the query about waits."""
    return {"about": about, "resolver": resolver, **dict.fromkeys(BUCKETS, 0), **counts}


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Rows]:
    """What the store answers of a session of our loop, by figure."""
    home = rich_home(tmp_path_factory.mktemp("rich"))
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
def test_all_keep_to_what_figures_keep_to(rich: dict[str, Rows], name: str) -> None:
    """Real rows, none, rows of nothing, and texts that want to be markup: each gives a figure that a page can show."""
    for rows in (rich[name], [], nobody(rich[name]), hostile(rich[name])):
        hold(DRAW[name](rows))
    assert DRAW[name]([]).layout.annotations[0].text == "nothing to show"
    assert DRAW[name](rich[name]).data


def test_parts_add_up_to_the_wall_time(rich: dict[str, Rows]) -> None:
    """One bar an interaction, stacked by part in the order of the parts, as long as it took."""
    rows = [*rich["time_split"], split(person=4 * SECOND, model=SECOND)]
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
    """However many there are, no more bars than can be read, and not a nanosecond is missing."""
    figure = time_split([split(wall, model=wall // 3) for wall in walls])
    hold(figure)
    unit = {"hours": 3600, "minutes": 60, "seconds": 1, "ms": 1e-3}[figure.layout.xaxis.title.text]
    assert len(figure.layout.yaxis.ticktext) <= MOST_BARS
    assert sum(sum(trace.x) for trace in figure.data) * unit == pytest.approx(sum(walls) / SECOND)


def test_bars_that_are_shared_say_what_they_took_together() -> None:
    """Their part and their whole are those of all interactions that they stand for."""
    figure = time_split([split(model=4 * SECOND)] * (2 * MOST_BARS))
    assert {text.partition("<br>")[2] for text in figure.data[0].customdata} == {
        "model: 8.00 s of 20.00 s (40%)"
    }
    assert figure.data[0].customdata[0].startswith("interaction 1 to 2<br>")


def test_what_interactions_are_called() -> None:
    """By their numbers; those of agents in the background by their lane, too, and what has no end says so."""
    rows = [split(), split() | {"lane": "main/a"}, split() | {"has_ended": False}]
    assert list(time_split(rows).layout.yaxis.ticktext) == ["1", "2 (main/a)", "3 (no end)"]
    many = time_split([split()] * (2 * MOST_BARS)).layout.yaxis.ticktext
    assert (many[0], many[-1]) == ("1 to 2", f"{2 * MOST_BARS - 1} to {2 * MOST_BARS}")


def test_how_long_people_took(tmp_path: Path) -> None:
    """Each question counts once, by how long it took and who answered; those that nobody answered are told apart."""
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
    figure = blocked_on_user([*rows, wait("unattended", "send", unanswered=2)])
    hold(figure)
    counted = {trace.name: dict(zip(trace.x, trace.y, strict=True)) for trace in figure.data}
    none = dict.fromkeys(BUCKETS.values())
    assert counted == {
        "person": none | {"under 1 s": 1, "1 to 10 s": 1, "10 to 60 s": 2, "longer": 1},
        "unattended": none | {"never": 2},
        "classifier": none | {"1 to 10 s": 1},
    }
    assert figure.data[0].customdata[2] == "2 questions, answered by person<br>weather: 2"


def test_many_who_answer() -> None:
    """Beyond those who can be told apart the rest stands together, so that no question is missing."""
    rows = [wait(f"r{n}", f"t{m}", longer=n + 1) for n in range(9) for m in range(9)]
    figure = blocked_on_user(rows)
    hold(figure)
    assert len(figure.data) == MOST_RESOLVERS + 1
    assert figure.data[-1].name == "4 others"
    assert sum(y or 0 for trace in figure.data for y in trace.y) == sum(
        row["longer"] for row in rows
    )
    assert figure.data[0].customdata[4].endswith("and 3 others")


def test_how_soon_models_answer(tmp_path: Path) -> None:
    """A bar up to the median of each model, and marks for the 95th and the 99th of a hundred, in the same unit."""
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
    hold(figure)
    assert figure.layout.xaxis.title.text == "ms to the first chunk"
    assert {trace.name: list(trace.x) for trace in figure.data} == {
        "half of them": [100], "95 of 100": [190], "99 of 100": [198],
    }  # fmt: skip
    assert "half started within: 100 ms, of 100 answers" in figure.data[0].customdata[0]


STREAM = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant",'
    b'"model":"claude-sonnet-5-5","content":[],"stop_reason":null,"usage":{"input_tokens":1,"output_tokens":1}}}\n\n'
    b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"},'
    b'"usage":{"output_tokens":2}}\n\n'
)
