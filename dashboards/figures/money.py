"""Figures of money: what models, days and agents cost, and what caching saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

Row = Mapping[str, Any]

PARTS = {
    "input": "input_usd",
    "output": "output_usd",
    "cache read": "cache_read_usd",
    "cache write 5 m": "cache_write_5m_usd",
    "cache write 1 h": "cache_write_1h_usd",
    "server tools": "server_tools_usd",
}
"""The parts of a cost, and the columns that hold them."""

MOST_AGENTS = 40
"""How many agents are drawn; the rest stands together in the last bar."""


def cost_by_model(rows: Sequence[Row]) -> go.Figure:
    """Return bars of what each model cost, stacked by part.

    Args:
        rows: the rows of the query `cost_by_model`; money in US dollars, None where a price is unknown.
    """
    return _stacked("Cost by model", [f"{row['model']}{_doubt(row)}" for row in rows], rows)


def cost_by_day(rows: Sequence[Row]) -> go.Figure:
    """Return bars of what each day (UTC) cost, stacked by part, the first day to the left.

    Args:
        rows: the rows of the query `cost_by_day`.
    """
    days = sorted(rows, key=lambda row: str(row["day"]))
    names = [f"{row['day']}{_doubt(row)}" for row in days]
    figure = _stacked("Cost by day (UTC)", names, days)
    # Names that look like days would be drawn on a scale of time, and their doubts lost.
    figure.update_xaxes(type="category")
    return figure


def cost_by_agent(rows: Sequence[Row]) -> go.Figure:
    """Return bars of what each agent of each session cost, stacked by part, the dearest first.

    Args:
        rows: the rows of the query `cost_by_agent`.
    """
    first, rest = list(rows[:MOST_AGENTS]), rows[MOST_AGENTS:]
    names = [f"{_agent(row)}{_doubt(row)}" for row in first]
    if rest:
        together = _together(rest)
        first.append(together)
        names.append(f"{len(rest)} more{_doubt(together)}")
    figure = _stacked("Cost by agent", names, first)
    figure.update_xaxes(type="category")
    return figure


def cache_efficiency(rows: Sequence[Row]) -> go.Figure:
    """Return bars of what caching saved each session, with the share of its input that the cache served.

    Args:
        rows: the rows of the query `cache_efficiency`, or of `cache_by_session`.
    """
    names = [f"{row.get('name') or row['session_id']}{_doubt(row)}" for row in rows]
    ratios = ["-" if row["hit_ratio"] is None else f"{row['hit_ratio']:.0%}" for row in rows]
    bars = go.Bar(name="saved", x=names, y=[_number(row["saved_usd"]) for row in rows], text=ratios)
    figure = go.Figure([bars])
    figure.update_layout(
        title="What caching saved, and the share of input read from the cache",
        yaxis_title="US dollars",
    )
    figure.update_xaxes(type="category")
    return figure


def _stacked(title: str, names: Sequence[str], rows: Sequence[Row]) -> go.Figure:
    bars = [
        go.Bar(name=part, x=list(names), y=[_number(row[column]) for row in rows])
        for part, column in PARTS.items()
    ]
    figure = go.Figure(bars)
    figure.update_layout(
        barmode="stack", title=title, yaxis_title="US dollars", legend_title="part"
    )
    return figure


def _number(value: Any) -> float | None:
    """Return money as a height; nothing is drawn, not a bar of height 0, where there is no price."""
    return None if value is None else float(value)


def _agent(row: Row) -> str:
    return f"{row.get('name') or row['session_id']} {row['lane']}"


def _together(rows: Sequence[Row]) -> dict[str, Any]:
    columns = (*PARTS.values(), "unpriced_calls", "lower_bound_calls", "estimated_calls")
    found: dict[str, Any] = {}
    for column in columns:
        known = [row[column] for row in rows if row[column] is not None]
        found[column] = sum(known) if known else None
    return found


def _doubt(row: Row) -> str:
    """Return a note where the sum is not the whole truth."""
    told = (
        ("unpriced_calls", "without a price"),
        ("lower_bound_calls", "at least"),
        ("estimated_calls", "estimated"),
    )
    notes = [f"{row[column]} {text}" for column, text in told if row.get(column)]
    if not notes and row.get("cost_status", "exact") != "exact":
        notes = [str(row["cost_status"]).replace("_", " ")]
    return f" ({', '.join(notes)})" if notes else ""
