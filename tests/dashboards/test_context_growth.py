"""The figure of the context shows every request in order, the largest of several neighbors, and each compaction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentobs.records.exchanges import Place
from agentobs.records.facts import Event
from agentobs.records.labels import Label
from agentobs.store.duckdb.connection import connect
from dashboards.figures import context_growth
from dashboards.figures.window_growth import MOST_LANES, MOST_POINTS
from tests.dashboards.figure_checks import (
    assert_valid,
    figure_text,
    hostile,
    mark_count,
    rows_of,
    rows_of_nulls,
)
from tests.store.recordings import SECOND, T0, a_home, record, session_id
from tests.store.wire_conversations import WireConversation

Rows = list[dict[str, Any]]


def row(tokens: int | None, lane: str = "main", **more: Any) -> dict[str, Any]:
    """Return a row as the query returns it."""
    return {
        "lane": lane, "turn": 1, "attempt_id": "a", "started_ns": T0, "model": "claude-sonnet-5-5",
        "input_tokens": tokens, "cache_read_tokens": 0, "cache_write_tokens": 0, "context_tokens": tokens,
        "window_tokens": None, "compacted": None, "was_tokens": None, **more,
    }  # fmt: skip


def context_event(kind: str, second: float, label: str | None = None, **numbers: float) -> Event:
    """Return an event of our agent loop about the context, a number of seconds after the start."""
    at = T0 + int(second * SECOND)
    return Event(
        session_id(1),
        None,
        Label("main"),
        None,
        at,
        Label(kind),
        Label(label) if label else None,
        numbers,
    )


def growing_session(tmp_path: Path, *events: Event, model: str = "claude-sonnet-5-5") -> Rows:
    """Return the rows of a session of four requests, with the events of the agent loop."""
    talk = WireConversation(model=model)
    talk.says("One.", input_tokens=1_000, cache_read_input_tokens=50_000)
    talk.says(
        "Two.", input_tokens=10, cache_read_input_tokens=151_000, cache_creation_input_tokens=2_000
    )
    talk.says("Three.", input_tokens=30_000)
    talk.says("Four.", input_tokens=31_000)
    home = a_home(tmp_path)
    record(home, [*talk.records, *events])
    with connect(home, ingest=False) as connection:
        return rows_of(connection, "context_growth", session_id=session_id(1))


def test_each_request_is_a_point(tmp_path: Path) -> None:
    """Each request is a point in sending order, with all input tokens: new tokens, cache reads, and cache writes."""
    figure = context_growth(growing_session(tmp_path))
    assert_valid(figure)
    [line] = figure.data
    assert (line.name, list(line.x), list(line.y)) == (
        "main",
        [1, 2, 3, 4],
        [51_000, 153_010, 30_000, 31_000],
    )
    assert "10 new, 151,000 from the cache, 2,000 written to the cache" in line.customdata[1]
    assert figure.layout.yaxis.title.text == "tokens in the prompt"
    assert "at most 15% of the 1,000,000-token context window" in figure.layout.xaxis.title.text


def test_a_compaction_is_a_line_before_the_next_request(tmp_path: Path) -> None:
    """A compaction is a line before the request that followed.

    The hover text shows its trigger and the tokens before it.
    """
    made = context_event("compaction", 2.6, "auto", tokens_before=153_500)
    rows = growing_session(tmp_path, made)
    assert [(each["compacted"], each["was_tokens"]) for each in rows] == [
        (None, None), (None, None), ("auto", 153_500), (None, None),
    ]  # fmt: skip
    figure = context_growth(rows)
    assert_valid(figure)
    [line] = figure.layout.shapes
    assert (line.type, line.x0, line.x1) == ("line", 2.5, 2.5)
    assert [each.text for each in figure.layout.annotations] == ["compacted (auto)"]
    assert (
        "compacted before this request (auto), from 153,500 tokens" in figure.data[0].customdata[2]
    )


def test_the_context_window_is_the_recorded_one(tmp_path: Path) -> None:
    """The context window that our agent loop recorded takes precedence over the known one.

    It is drawn as a line if the prompts come near it.
    """
    result = [
        context_event("context", 0.5, window=200_000.0),
        context_event("context", 2.8, window=160_000.0),
    ]
    rows = growing_session(tmp_path, *result)
    assert [each["window_tokens"] for each in rows] == [200_000, 200_000, 160_000, 160_000]
    figure = context_growth(rows)
    assert_valid(figure)
    [window] = [trace for trace in figure.data if trace.name == "context window"]
    assert window.line.shape == "hv"
    at = dict(zip(window.x, window.y, strict=True))
    assert (at[0.5], at[2], at[3], at[4.5]) == (200_000, 200_000, 160_000, 160_000)
    assert "77% of the window of 200,000" in figure.data[0].customdata[1]


def test_an_unknown_context_window_is_not_drawn(tmp_path: Path) -> None:
    """If the context window of a model is unknown, there is neither a line nor a note."""
    rows = growing_session(tmp_path, model="in-house-1")
    assert [each["window_tokens"] for each in rows] == [None] * 4
    assert "window" not in figure_text(context_growth(rows))


def test_auxiliary_requests_are_left_out(tmp_path: Path) -> None:
    """A request that writes a summary is left out, because it is not part of the conversation that it summarizes."""
    talk = WireConversation()
    talk.says("One.", input_tokens=100)
    talk.says("A summary.", input_tokens=90_000)
    asked = talk.records[-1]
    place = Place(session_id(1), lane="main/compaction:1", query_source="compaction")
    home = a_home(tmp_path)
    record(home, [*talk.records[:-1], _in_lane(asked, place)])
    with connect(home, ingest=False) as connection:
        rows = rows_of(connection, "context_growth", session_id=session_id(1))
    assert [each["context_tokens"] for each in rows] == [100]


def _in_lane(exchange: Any, place: Place) -> Any:
    """Return an exchange in another lane."""
    return type(exchange)(
        **{name: getattr(exchange, name) for name in exchange.__slots__} | {"place": place}
    )


def test_lanes_have_separate_lines() -> None:
    """Each sub-agent has a separate line.

    Many sub-agents share one trace with gaps, whose name contains their number.
    """
    rows = [row(100 + n, "main" if n % 2 else "main/toolu_0123456789abc") for n in range(6)]
    figure = context_growth(rows)
    assert [(trace.name, list(trace.x)) for trace in figure.data] == [
        ("main", [2, 4, 6]), ("agent …789abc", [1, 3, 5]),
    ]  # fmt: skip
    many = [row(100, "main"), *(row(n, f"main/{n}") for n in range(MOST_LANES + 1))]
    figure = context_growth(many)
    assert_valid(figure)
    assert [trace.name for trace in figure.data] == ["main", f"{MOST_LANES + 1} agents"]
    assert list(figure.data[1].y).count(None) == MOST_LANES + 1


def test_missing_values_and_markup() -> None:
    """Without rows the figure contains a message. Rows of nulls, and texts with markup, are drawn safely."""
    for rows in ([], rows_of_nulls([row(1)])):
        assert context_growth(rows).layout.annotations[0].text == "nothing to show"
    assert_valid(
        context_growth(hostile([row(5, compacted="auto", was_tokens=7, window_tokens=10)] * 3))
    )
    assert_valid(context_growth([row(0), row(0, window_tokens=0)]))


REQUESTS = st.lists(
    st.tuples(st.integers(0, 10**6), st.sampled_from(["main", "main/a", "main/b"]), st.booleans()),
    min_size=1,
)


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(REQUESTS, st.integers(1, 200))
def test_the_largest_request_is_always_drawn(
    requests: list[tuple[int, str, bool]], times: int
) -> None:
    """Of many requests, a bounded number is drawn, including the largest request of each lane."""
    rows = [
        row(tokens, lane, compacted="auto" if made else None)
        for n in range(times)
        for tokens, lane, made in requests
    ]
    figure = context_growth(rows)
    assert mark_count(figure) <= 2 * MOST_POINTS
    for lane in {lane for _, lane, _ in requests}:
        name = lane if lane == "main" else f"agent {lane[-1]}"
        [line] = [trace for trace in figure.data if trace.name == name]
        assert max(line.y) == max(tokens for tokens, of, _ in requests if of == lane)
