"""Figures of costs show the certainty of each sum."""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import pytest

from agentobs.store.duckdb.connection import connect
from dashboards import figures
from tests.dashboards.figure_checks import (
    Draw,
    Rows,
    assert_valid,
    figure_text,
    hostile,
    rows_of,
    rows_of_nulls,
)
from tests.store.recordings import T0, a_home, record, session_id, start, usage_row, write_facts
from tests.store.test_money import call, history, read

pytestmark = pytest.mark.xdist_group("dashboards_figures")
STACKED = ("cost_by_model", "cost_by_day", "cost_by_agent", "cost_by_name")
QUERIES = (*STACKED, "cache_efficiency", "cache_waste")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Rows]:
    """The rows of each query that has a cost figure, with calls of every certainty."""
    home, wasteful = (a_home(tmp_path_factory.mktemp(name)) for name in ("figures", "waste"))
    day = 86_400 * 10**9
    write_facts(
        home,
        [
            start(1).start,
            usage_row(1, web_search_requests=1),
            usage_row(2, certainty="lower_bound", at_ns=T0 + day),
            usage_row(3, model="nobody", at_ns=T0 + 3 * day),
            usage_row(4, certainty="estimated", session_id=session_id(2)),
        ],
    )
    calls = [
        call(1, history(1), at=0, **read(0, 1000)),
        call(2, history(3), at=60, head={"tools": []}, **read(0, 1100)),
        call(3, history(5), at=120, head={"model": "nobody"}, **read(0, 1200)),
    ]
    record(wasteful, [start(1), *calls])
    found = {}
    with connect(home) as connection, connect(wasteful) as other:
        for name in QUERIES:
            found[name] = rows_of(other if name == "cache_waste" else connection, name)
    return found


def draw(name: str) -> Draw:
    return getattr(figures, name)


@pytest.mark.parametrize("name", STACKED)
def test_bars_add_up_to_the_cost(rows: dict[str, Rows], name: str) -> None:
    """The bar of each row consists of parts that add up to its cost; rows without a price have no bar."""
    figure = draw(name)(rows[name])
    assert_valid(figure)
    bars = [each for each in figure.data if each.type == "bar"]
    assert [bar.name for bar in bars] == list(figures.PARTS)
    lengths = [[*(bar.x if bar.orientation == "h" else bar.y)] for bar in bars]
    total = sum((row["cost_usd"] for row in rows[name] if row["cost_usd"] is not None), Decimal(0))
    assert sum(x for each in lengths for x in each if x is not None) == pytest.approx(float(total))
    order = sorted(rows[name], key=lambda r: str(r["day"])) if name == "cost_by_day" else rows[name]
    for at, row in enumerate(order):
        drawn = [each[at] for each in lengths]
        assert sum(x or 0 for x in drawn) == pytest.approx(float(row["cost_usd"] or 0))
        assert (row["cost_usd"] is None) == all(x is None for x in drawn)


def test_uncertainty_is_next_to_the_sums(rows: dict[str, Rows]) -> None:
    """A sum that is not exact is marked at the end of its bar, and the hover text explains the mark."""
    figure = figures.cost_by_model(rows["cost_by_model"])
    assert [note.text for note in figure.layout.annotations] == [
        "at least about $0.0119",
        "no price",
    ]
    assert "1 call partly unknown: at least this amount; 1 call estimated" in figure_text(figure)
    named = figures.cost_by_agent(rows["cost_by_agent"])
    assert named.layout.yaxis.ticktext == ("story …010001", "…020002")


def test_days_are_on_a_date_axis(rows: dict[str, Rows]) -> None:
    """Days are sorted from left to right, days without calls are gaps, and inexact bars have a mark above them."""
    figure = figures.cost_by_day(rows["cost_by_day"])
    assert figure.layout.xaxis.type == "date"
    assert list(figure.data[0].x) == ["2026-09-21", "2026-09-22", "2026-09-24"]
    found = {each.name: list(each.x) for each in figure.data if each.type == "scatter"}
    assert found == {
        "calls without a price": ["2026-09-24"],
        "at least": ["2026-09-22"],
        "estimated": ["2026-09-21"],
    }


@pytest.mark.parametrize(
    ("days", "title", "bars"),
    [(1, "day (UTC)", 1), (120, "day (UTC)", 120), (121, "week, starting on Monday (UTC)", 18),
     (3_000, "month (UTC)", 100), (10_000, "year (UTC)", 29)],
)  # fmt: skip
def test_many_days_are_grouped(rows: dict[str, Rows], days: int, title: str, bars: int) -> None:
    """The days of a long period are grouped by week, month or year, and the total cost stays the same."""
    first = rows["cost_by_day"][-1]
    many = [{**first, "day": date(2026, 9, 21) + timedelta(days=n)} for n in range(days)]
    figure = figures.cost_by_day(many)
    assert_valid(figure)
    assert figure.layout.xaxis.title.text == title
    assert len(figure.data[0].x) == bars
    total = sum(y for each in figure.data if each.type == "bar" for y in each.y)
    assert total == pytest.approx(float(first["cost_usd"]) * days)
    assert 1 <= len(figure.layout.xaxis.tickvals) <= 8


@pytest.mark.parametrize(
    "name", ["cost_by_model", "cost_by_agent", "cost_by_name", "cache_efficiency"]
)
def test_many_names_share_the_last_bar(rows: dict[str, Rows], name: str) -> None:
    """If there are too many names, the last bar represents all others, so that the total cost stays the same."""
    many = rows[name] * 5_000
    figure = draw(name)(many)
    assert_valid(figure)
    left = len(many) - figures.MOST_AGENTS
    assert figure.layout.yaxis.ticktext[-1] == f"{left:,} more"
    assert len(figure.data[0].x) == figures.MOST_AGENTS + 1
    if name != "cache_efficiency":
        drawn = sum(x for each in figure.data for x in each.x if x is not None)
        assert drawn == pytest.approx(sum(float(row["cost_usd"] or 0) for row in many))


def test_cache_efficiency_adds_up_to_all_input(rows: dict[str, Rows]) -> None:
    """The bars of a session add up to all of its input, and the note at their end contains the savings by caching."""
    asked = rows["cache_efficiency"]
    figure = figures.cache_efficiency(asked)
    assert_valid(figure)
    for at, row in enumerate(asked):
        assert sum(bar.x[at] for bar in figure.data) == pytest.approx(100)
        assert [bar.customdata[at] for bar in figure.data] == [
            row["cache_read_tokens"], row["cache_write_tokens"], row["input_tokens"]
        ]  # fmt: skip
        assert figure.data[0].x[at] == pytest.approx(100 * row["hit_ratio"])
    assert all(note.text.startswith("saved $") for note in figure.layout.annotations)
    [note] = figures.cache_efficiency(
        [{**asked[0], "saved_usd": Decimal("-0.5")}]
    ).layout.annotations
    assert note.text == "caching cost $0.5000 extra"


def test_cache_waste_is_summed_by_reason(rows: dict[str, Rows]) -> None:
    """Tokens that were billed again are summed by reason, in dollars and tokens; calls without a price are counted."""
    asked = rows["cache_waste"]
    assert len(asked) == 2
    figure = figures.cache_waste(asked)
    assert_valid(figure)
    wasted = sum(float(row["wasted_usd"] or 0) for row in asked)
    assert sum(x for x in figure.data[0].x if x) == pytest.approx(wasted)
    notes = [note.text for note in figure.layout.annotations]
    assert notes == ["$0.0023 · 1,000 tokens", "no price · 1,100 tokens"]
    assert figure.layout.yaxis.ticktext == ("tools changed", "model changed")
    assert "1 call without a price" in figure_text(figure)
    mixed = figures.cache_waste([{**row, "reason": "expired"} for row in asked])
    assert mixed.layout.annotations[0].text == "at least $0.0023 · 2,100 tokens"
    unpriced = figures.cache_waste(
        [{**row, "wasted_usd": None, "unpriced_calls": 1} for row in asked]
    )
    assert sum(unpriced.data[0].x) == 2_100
    assert unpriced.layout.xaxis.title.text == "tokens"


@pytest.mark.parametrize("name", QUERIES)
def test_a_figure_without_rows_has_a_message(name: str) -> None:
    """A figure without rows contains a message and is not an error."""
    figure = draw(name)([])
    assert_valid(figure)
    assert not figure.data
    assert len(figure.layout.annotations) == 1


@pytest.mark.parametrize("name", QUERIES)
def test_missing_values_and_markup(rows: dict[str, Rows], name: str) -> None:
    """Rows of nulls are drawn, and names with markup are shown as text."""
    for odd in (rows_of_nulls(rows[name]), hostile(rows[name]), hostile(rows[name]) * 3_000):
        assert_valid(draw(name)(odd))


def test_small_amounts_are_in_dollars(rows: dict[str, Rows]) -> None:
    """The axes show dollars and never micro-dollars."""
    for name in STACKED:
        figure = draw(name)(rows[name])
        axis = figure.layout.yaxis if name == "cost_by_day" else figure.layout.xaxis
        assert (axis.tickprefix, axis.exponentformat) == ("$", "none")


def test_a_merged_sum_has_the_lowest_certainty(rows: dict[str, Rows]) -> None:
    """The certainty of a sum is the lowest certainty of its parts."""
    [model, nobodys] = rows["cost_by_model"]
    sure: dict[str, Any] = {
        **model,
        "cost_status": "exact",
        "lower_bound_calls": 0,
        "estimated_calls": 0,
    }
    many = [sure] * figures.MOST_AGENTS + [sure, {**nobodys, "unpriced_calls": 7}]
    last = figures.cost_by_model(many).layout.annotations[-1].text
    assert last.startswith("at least $")
