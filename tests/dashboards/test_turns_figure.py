"""The figure of turns draws all tokens and costs, and marks turns without a price."""

from __future__ import annotations

from decimal import Decimal

import pytest

from agentobs.store.duckdb.connection import connect
from dashboards.drawing import svg
from dashboards.figures.tokens import MOST_TURNS, NAMES, session_turns, with_unfinished
from tests.dashboards.figure_checks import (
    Rows,
    assert_valid,
    figure_text,
    hostile,
    rows_of,
    rows_of_nulls,
)
from tests.store.recordings import a_home, attempt, end, record, session_id, start

pytestmark = pytest.mark.xdist_group("dashboards_tokens")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """The turns of a session; the second turn failed first, and the model of the third turn has no price."""
    home = a_home(tmp_path_factory.mktemp("tokens"))
    turns = [
        attempt(1, 1, cache_creation_input_tokens=1_000),
        attempt(1, 2, cache_read_input_tokens=1_000, cache_creation_input_tokens=70),
        attempt(1, 3, model="in-house"),
    ]
    record(home, [start(1), *turns, end(1)])
    with connect(home) as connection:
        return rows_of(connection, "session_turns", session_id=session_id(1))


def test_all_tokens_and_costs_are_drawn(rows: Rows) -> None:
    """Each turn has a bar with four stacked classes of tokens, and a line above shows the cost of each turn."""
    figure = session_turns(rows)
    assert_valid(figure)
    *bars, spent, without = figure.data
    assert [each.name for each in bars] == list(NAMES.values())
    for column, bar in zip(NAMES, bars, strict=True):
        drawn = dict(zip(bar.x, bar.y, strict=True))
        assert [drawn.get(n, 0) for n in (1, 2, 3)] == [row[column] for row in rows]
    assert list(spent.y) == [*(float(row["cost_usd"]) for row in rows[:2]), None]
    total = rows[0]["cost_usd"] + rows[1]["cost_usd"]
    assert spent.hovertext[1].endswith(f"${rows[1]['cost_usd']:.4f}, ${total:.4f} so far")
    assert (spent.yaxis, figure.layout.yaxis2.title.text) == ("y2", "US dollars")
    assert (list(without.x), without.hovertext[0]) == ([3], spent.hovertext[2])
    assert without.hovertext[0].endswith(f"no price, ${total:.4f} so far")


@pytest.mark.parametrize(("turns", "size"), [(MOST_TURNS, 1), (MOST_TURNS + 1, 2), (10_000, 32)])
def test_many_turns_share_bars(rows: Rows, turns: int, size: int) -> None:
    """If there are too many turns, several share a bar; the axis title states how many, and no data is lost."""
    many = [{**rows[n % 2], "unpriced_calls": 1} for n in range(turns)]
    figure = session_turns(many)
    assert_valid(figure)
    assert len(figure.data[0].x) == -(-turns // size)
    for column, bar in zip(NAMES, figure.data, strict=False):
        total = sum(mean * number for mean, number in zip(bar.y, bar.width, strict=True))
        assert total == pytest.approx(sum(row[column] for row in many))
    spent = next(each for each in figure.data if each.name == "money")
    assert max(spent.y) == pytest.approx(float(max(row["cost_usd"] for row in many)))
    titles = (figure.layout.yaxis.title.text, figure.layout.yaxis2.title.text)
    assert titles == (
        (f"tokens per turn, mean of {size}", f"$ per turn,<br>highest of {size}")
        if size > 1
        else ("tokens", "US dollars")
    )
    assert (f"; each bar represents {size} turns" in figure.layout.xaxis.title.text) == (size > 1)
    assert spent.hovertext[0].startswith(f"{size} turns of main" if size > 1 else "main, turn 1")


def test_sub_agents_are_shaded(rows: Rows) -> None:
    """The turns of all lanes are ordered by time, and the turns of sub-agents have a shaded background."""
    lanes = ["main", *["main/toolu_0123456789abcd"] * 3, "main", "main/toolu_0123456789abce"]
    figure = session_turns([{**rows[0], "lane": lane} for lane in lanes])
    assert_valid(figure)
    assert [(each.x0, each.x1) for each in figure.layout.shapes] == [(1.5, 4.5), (5.5, 6.5)]
    assert [each.text for each in figure.layout.annotations] == ["agent …89abcd", "agent …89abce"]
    torn = [{**rows[0], "lane": f"main/{n}" if n % 2 else "main"} for n in range(MOST_TURNS)]
    assert_valid(session_turns(torn))


def test_missing_values_and_markup(rows: Rows) -> None:
    """Rows of nulls are drawn without an error, and names with markup are shown as text."""
    assert_valid(session_turns([]))
    assert_valid(session_turns(rows_of_nulls(rows)))
    assert_valid(session_turns(rows_of_nulls(rows) * 10_000))
    assert_valid(session_turns(hostile(rows)))
    assert_valid(session_turns([*hostile(rows), *rows_of_nulls(rows)] * 3_000))


def test_a_turn_with_a_partial_price_is_a_lower_bound(rows: Rows) -> None:
    """If some calls of a turn have no price, the turn's cost is marked as a lower bound."""
    figure = session_turns([{**rows[0], "unpriced_calls": 1, "cost_usd": Decimal("0.5")}])
    assert "at least $0.5000" in figure_text(figure)
    assert figure.data[-1].name == "without a price"
    assert list(figure.data[-1].y) == [0.5]


def test_counts_have_all_digits(rows: Rows) -> None:
    """Even a large count has all of its digits."""
    figure = session_turns([{**rows[0], "output_tokens": 10**12}])
    [template] = [each.hovertemplate for each in figure.data if each.name == "output"]
    assert template == "output: %{y:,d} tokens<extra></extra>"
    assert "output: 1,000,000,000,000 tokens" in svg(figure, title="Turns", says="Turns.")


def test_turns_without_a_complete_response(rows: Rows) -> None:
    """A turn whose response was cut has a bar and a mark, and the axis shows the numbers of the turns."""
    complete = [{**rows[0], "turn": turn, "started_ns": turn} for turn in (1, 2, 4)]
    cut = {
        **rows[1],
        "turn": 3,
        "started_ns": 3,
        "stop_reason": "cut",
        "cost_status": "lower_bound",
    }
    figure = session_turns(with_unfinished(complete, [cut]))
    assert_valid(figure)
    assert list(figure.layout.xaxis.ticktext) == ["1", "2", "3", "4"]
    [mark] = [each for each in figure.data if each.name == "no complete response"]
    assert list(mark.x) == [3]
    [spent] = [each for each in figure.data if each.name == "money"]
    assert "response cut" in spent.hovertext[2]
    # Without the turn that was cut, the other turns keep their numbers.
    figure = session_turns(complete)
    [spent] = [each for each in figure.data if each.name == "money"]
    assert list(spent.x) == list(figure.layout.xaxis.tickvals) == [1, 2, 4]


def test_the_axis_shows_the_turns_of_each_agent(rows: Rows) -> None:
    """With several agents, each turn has its number in its agent, and narrow areas have a label as well."""
    order = [("main", 1), *((f"main/{n}", 1) for n in range(5)), ("main/4", 2), ("main", 2)]
    figure = session_turns([{**rows[0], "lane": lane, "turn": turn} for lane, turn in order])
    assert_valid(figure)
    assert list(figure.layout.xaxis.ticktext) == ["1", "1", "1", "1", "1", "1", "2", "2"]
    labels = figure.layout.annotations
    assert [each.text for each in labels] == [f"agent {n}" for n in range(5)]
    assert [each.textangle for each in labels] == [0] * 5
    many = [{**rows[0], "lane": f"main/{n % 2}", "turn": 1 + n // 2} for n in range(30)]
    figure = session_turns(many)
    assert {each.textangle for each in figure.layout.annotations} == {-90}
    assert figure.layout.xaxis.showticklabels is False


def test_an_axis_of_many_turns(rows: Rows) -> None:
    """The axis of many turns of one agent shows their numbers, even if several share a bar and some are missing."""
    numbers = [n for n in range(1, 400) if n != 200]
    figure = session_turns([{**rows[0], "turn": n} for n in numbers])
    assert_valid(figure)
    [spent] = [each for each in figure.data if each.name == "money"]
    assert (spent.x[0], spent.x[-1]) == (1.5, 398.5)
    assert figure.layout.xaxis.showticklabels is None
