"""Figures of money: rows in, a figure out, with what is not exact in its labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pytest

from agentobs.store.database import connect, named
from dashboards import figures
from tests.store.making import T0, a_home, session_id, usage_row, write_facts

Drawn = Callable[[Sequence[Mapping[str, Any]]], Any]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """The rows of each query that has a figure, over calls of every certainty."""
    home = a_home(tmp_path_factory.mktemp("figures"))
    day = 86_400 * 10**9
    write_facts(
        home,
        [
            usage_row(1, web_search_requests=1),
            usage_row(2, certainty="lower_bound", at_ns=T0 + day),
            usage_row(3, model="nobody", at_ns=T0 + 2 * day),
            usage_row(4, certainty="estimated", session_id=session_id(2)),
        ],
    )
    found = {}
    with connect(home) as connection:
        for name in ("cost_by_model", "cost_by_day", "cost_by_agent", "cache_efficiency"):
            answer = named(connection, name)
            columns = [column[0] for column in answer.description]
            found[name] = [dict(zip(columns, row, strict=True)) for row in answer.fetchall()]
    return found


@pytest.mark.parametrize("name", ["cost_by_model", "cost_by_day", "cost_by_agent"])
def test_bars_stack_up_to_the_cost(rows: dict[str, list[dict[str, Any]]], name: str) -> None:
    """One bar a row, a part each; together they are as high as the cost, and nothing is drawn without a price."""
    drawn: Drawn = getattr(figures, name)
    figure = drawn(rows[name])
    assert [bar.name for bar in figure.data] == list(figures.PARTS)
    heights = [value for bar in figure.data for value in bar.y if value is not None]
    total = sum((row["cost_usd"] for row in rows[name] if row["cost_usd"] is not None), Decimal(0))
    assert sum(heights) == pytest.approx(float(total))
    for at, row in enumerate(sorted(rows[name], key=lambda r: str(r.get("day")))):
        if row["cost_usd"] is None:
            assert all(bar.y[at] is None for bar in figure.data)


def test_doubts_stand_in_the_labels(rows: dict[str, list[dict[str, Any]]]) -> None:
    """Whatever is not exact says so beside its name; days run from left to right."""
    assert list(figures.cost_by_day(rows["cost_by_day"]).data[0].x) == [
        "2026-09-21 (1 estimated)",
        "2026-09-22 (1 at least)",
        "2026-09-23 (1 without a price)",
    ]
    names = list(figures.cache_efficiency(rows["cache_efficiency"]).data[0].x)
    assert sorted(name.partition(" (")[2] for name in names) == ["estimated)", "lower bound)"]


def test_many_agents_end_in_one_bar(rows: dict[str, list[dict[str, Any]]]) -> None:
    """Beyond what can be read the rest stands together, so that no money is missing."""
    many = rows["cost_by_agent"] * 50
    figure = figures.cost_by_agent(many)
    assert len(figure.data[0].x) == figures.MOST_AGENTS + 1
    assert figure.data[0].x[-1].startswith(f"{len(many) - figures.MOST_AGENTS} more")


@pytest.mark.parametrize(
    "name", ["cost_by_model", "cost_by_day", "cost_by_agent", "cache_efficiency"]
)
def test_no_rows_are_an_empty_figure(name: str) -> None:
    """Nothing recorded is an empty figure, not an error."""
    drawn: Drawn = getattr(figures, name)
    assert all(not bar.x for bar in drawn([]).data)
