"""Checks that every figure must pass, and rows that could break figures."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import duckdb
import plotly.graph_objects as go

from agentobs.store.duckdb.connection import named
from dashboards.style import DARK

MOST_MARKS = 2_000
HOSTILE = "<b>x</b><br><a href='javascript:alert(1)'>\u202e\x1b[31m</script>&amp; " + "y" * 5_000
Draw = Callable[..., go.Figure]
Rows = list[dict[str, Any]]


def rows_of(connection: duckdb.DuckDBPyConnection, name: str, **parameters: Any) -> Rows:
    """Return the rows of a named query as dicts."""
    answer = named(connection, name, **parameters)
    columns = [column[0] for column in answer.description]
    return [dict(zip(columns, row, strict=True)) for row in answer.fetchall()]


def rows_of_nulls(rows: Sequence[Mapping[str, Any]]) -> Rows:
    """Return a single row with the same columns, in which all values are None."""
    return [dict.fromkeys(rows[0])]


def hostile(rows: Sequence[Mapping[str, Any]]) -> Rows:
    """Return the rows with each text replaced by one with markup and control characters."""
    return [
        {key: HOSTILE if isinstance(value, str) else value for key, value in row.items()}
        for row in rows
    ]


def mark_count(figure: go.Figure) -> int:
    """Return the number of points, shapes and annotations of a figure."""
    points = sum(
        sum(x is not None for x in (each.y if each.y is not None else ())) for each in figure.data
    )
    return points + len(figure.layout.shapes) + len(figure.layout.annotations)


def figure_text(figure: go.Figure) -> str:
    """Return all texts of a figure, one per line."""
    return "\n".join(texts(json.loads(figure.to_json())))


def texts(value: Any, key: str = "") -> Iterator[str]:
    """Yield the texts that a figure shows: hover texts, axes, legends and annotations."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from texts(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner, key)
    elif isinstance(value, str) and key in (
        "text",
        "ticktext",
        "hovertext",
        "hovertemplate",
        "name",
    ):
        yield value


def assert_valid(figure: go.Figure) -> None:
    """Assert the properties on which pages rely.

    These are supported types of traces, bounds, colors with a dark counterpart, and no foreign markup.
    """
    assert {each.type for each in figure.data} <= {"bar", "scatter"}
    assert mark_count(figure) <= MOST_MARKS
    assert figure.layout.title.text is None
    assert figure.layout.height
    for each in figure.data:
        assert each.hoverinfo != "all"
        if each.hoverinfo != "skip":
            assert each.hovertemplate.endswith("<extra></extra>")
    colors = set(re.findall(r'"(#[0-9a-fA-F]{3,8})"', figure.to_json()))
    assert colors <= set(DARK), colors - set(DARK)
    for text in texts(json.loads(figure.to_json())):
        bare = text.replace("<br>", "").replace("<extra></extra>", "")
        assert "<" not in bare, text
        assert ">" not in bare, text
        assert not re.search("[\\x00-\\x1f\u202a-\u202e\u2066-\u2069]", bare), text
        assert len(text) < 3_000
