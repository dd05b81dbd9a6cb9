"""Panels: each question with its figure, the answer in words, and the numbers. Pages and reports show the same ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
from markupsafe import Markup

from dashboards.pages import figure_json

Row = Mapping[str, Any]
SHOWN = 200
"""How many rows the table of a panel has at most. Our choice: more is a question for SQL."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A question that is answered with a figure."""

    name: str
    """The name of its figure; its place in the page."""
    title: str
    says: str
    """What the figure shows, in words: for whoever cannot see it, and for everybody else."""
    figure: go.Figure | None
    """None where there is nothing to draw."""
    columns: Sequence[str] = ()
    rows: Sequence[Row] = ()
    """What is drawn, in numbers; at most SHOWN."""
    more: int = 0
    """How many rows there are beyond those."""

    def json(self) -> Markup:
        """Return the figure as it stands in a page."""
        assert self.figure is not None
        return figure_json(self.figure)


def panel(
    name: str, title: str, says: str, figure: go.Figure, columns: Sequence[str], rows: Sequence[Row]
) -> Panel:
    """Return a panel whose table is bounded."""
    return Panel(name, title, says, figure, columns, rows[:SHOWN], max(0, len(rows) - SHOWN))
