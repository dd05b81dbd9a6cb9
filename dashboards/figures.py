"""Figures: one function per question, named like its query; rows in, a plotly figure out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

PARTS = {
    "input": "input_usd",
    "output": "output_usd",
    "cache read": "cache_read_usd",
    "cache write 5 m": "cache_write_5m_usd",
    "cache write 1 h": "cache_write_1h_usd",
    "server tools": "server_tools_usd",
}
"""The parts of a cost, and the columns that hold them."""


def cost_by_model(rows: Sequence[Mapping[str, Any]]) -> go.Figure:
    """Return bars of what each model cost, stacked by part.

    Args:
        rows: the rows of the query `cost_by_model`; money in US dollars, None where a price is unknown.
    """
    models = [f"{row['model']}{_doubt(row)}" for row in rows]
    bars = [
        go.Bar(name=name, x=models, y=[float(row[column] or 0) for row in rows])
        for name, column in PARTS.items()
    ]
    figure = go.Figure(bars)
    figure.update_layout(
        barmode="stack", title="Cost by model", yaxis_title="US dollars", legend_title="part"
    )
    return figure


def _doubt(row: Mapping[str, Any]) -> str:
    """Return a note where the sum is not the whole truth."""
    notes = [
        f"{row[column]} {told}"
        for column, told in (
            ("unpriced_calls", "without a price"),
            ("lower_bound_calls", "at least"),
            ("estimated_calls", "estimated"),
        )
        if row[column]
    ]
    return f" ({', '.join(notes)})" if notes else ""
