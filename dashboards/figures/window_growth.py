"""The figure of the context: its size at each request, the compactions, and the limit of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Final

import plotly.graph_objects as go

from dashboards.figures.phrases import Row, count, nothing, plain
from dashboards.style import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, RED, SKY, STEEL, layout

MOST_POINTS = 900
"""How many requests are drawn; if there are more, the largest of neighbors represents them. Our choice."""
MOST_LANES = 8
"""If there are more lanes than this, those of agents share a trace. Our choice."""
MOST_LINES = 40
"""How many compactions have a line. Our choice."""
MOST_LABELS = 10
"""Up to this number of compactions, their lines have labels. Our choice."""
FULL = 0.2
"""The context window is a line if the context reaches this fraction of it: otherwise it would flatten the rest. Our
choice.
"""
_LINES: Final = (
    (BLUE, "solid"), (ORANGE, "solid"), (GREEN, "solid"), (PURPLE, "solid"),
    (SKY, "dash"), (RED, "dash"), (STEEL, "dash"), (GREEN, "dot"),
)  # fmt: skip


def context_growth(rows: Sequence[Row]) -> go.Figure:
    """Return the context size of each request of a session, in the order in which they were sent, one line per lane.

    Args:
        rows: the rows of the query `context_growth`.
    """
    known = [
        (number, row)
        for number, row in enumerate(rows, 1)
        if row["context_tokens"] is not None and row["lane"] is not None
    ]
    if not known:
        return nothing()
    lanes: dict[str, list[tuple[int, Row]]] = {}
    for number, row in known:
        lanes.setdefault(row["lane"], []).append((number, row))
    order = sorted(lanes, key=lambda lane: (lane != "main", -_fullest(lanes[lane]), lane))
    size = -(-len(known) // MOST_POINTS)
    shorter = [(number, row) for number, row in known if row["compacted"]][:MOST_LINES]
    stay = {number for number, _ in shorter}
    figure = go.Figure(layout=layout(height=320, margin=dict(l=8, r=16, t=36, b=8)))
    apart = (
        order
        if len(order) <= MOST_LANES
        else [lane for lane in order[:MOST_LANES] if "/" not in lane]
    )
    for lane, (color, dash) in zip(apart, _LINES, strict=False):
        figure.add_trace(_line(_called(lane), _thinned(lanes[lane], size, stay), color, dash))
    if rest := [lane for lane in order if lane not in apart]:
        figure.add_trace(_rest(rest, lanes, size, stay))
    note = _add_window(figure, known, lanes[order[0]])
    _add_compactions(figure, shorter)
    figure.update_layout(showlegend=len(figure.data) > 1)
    figure.update_xaxes(
        title_text="request, in the order in which they were sent"
        + (f"<br>{note}" if note else ""),
        range=[0.5 - 0.01 * len(rows), len(rows) + 0.5 + 0.01 * len(rows)],
        tickformat=",d",
        dtick=1 if len(rows) <= 12 else None,
        showgrid=False,
        zeroline=False,
    )
    highest = max(y for trace in figure.data for y in trace.y if y is not None)
    # The top has space for labels.
    figure.update_yaxes(
        title_text="tokens in the prompt", range=[0, max(highest, 1) * 1.2], tickformat=",d"
    )
    return figure


Numbered = Sequence[tuple[int, Row]]
"""Requests with their numbers within the session."""


def _called(lane: str) -> str:
    """Return the display name of a lane: a suffix that identifies it."""
    tail = lane.rpartition("/")[2]
    return plain(
        f"agent {tail if len(tail) <= 12 else f'…{tail[-6:]}'}" if "/" in lane else lane, 24
    )


def _fullest(requests: Numbered) -> int:
    return int(max(row["context_tokens"] for _, row in requests))


def _thinned(requests: Numbered, size: int, stay: Set[int]) -> list[tuple[int, Row, int]]:
    """Return the largest of each `size` neighbors, with the number that it represents, and those with the numbers
    `stay`.
    """
    found: list[tuple[int, Row, int]] = []
    for at in range(0, len(requests), size):
        group = requests[at : at + size]
        keep = {max(group, key=lambda each: each[1]["context_tokens"])[0]}
        keep |= {number for number, _ in group if number in stay}
        found += [(number, row, len(group)) for number, row in group if number in keep]
    return found


def _line(name: str, requests: Sequence[tuple[int, Row, int]], color: str, dash: str) -> go.Scatter:
    return go.Scatter(
        name=name,
        mode="lines+markers" if len(requests) < 120 else "lines",
        x=[number for number, _, _ in requests],
        y=[row["context_tokens"] for _, row, _ in requests],
        line=dict(color=color, width=2, dash=dash),
        marker=dict(size=5, color=color),
        customdata=[_says(number, row, stands_for) for number, row, stands_for in requests],
        hovertemplate="%{customdata}<extra></extra>",
    )


def _rest(
    rest: Sequence[str], lanes: Mapping[str, Numbered], size: int, stay: Set[int]
) -> go.Scatter:
    """Return one trace of many lanes, with gaps between them."""
    x: list[int | None] = []
    y: list[int | None] = []
    told: list[str] = []
    for lane in rest:
        for number, row, stands_for in _thinned(lanes[lane], size, stay):
            x.append(number)
            y.append(row["context_tokens"])
            told.append(_says(number, row, stands_for))
        x.append(None)
        y.append(None)
        told.append("")
    return go.Scatter(
        name=count(len(rest), "agent"), mode="lines+markers", x=x, y=y, connectgaps=False,
        line=dict(color=STEEL, width=1), marker=dict(size=4, color=STEEL), customdata=told,
        hovertemplate="%{customdata}<extra></extra>",
    )  # fmt: skip


def _says(number: int, row: Row, stands_for: int) -> str:
    """Return the hover text of a request."""
    lines = [f"request {number:,}: {row['context_tokens']:,} tokens"]
    parts = (
        ("input_tokens", "new"),
        ("cache_read_tokens", "from the cache"),
        ("cache_write_tokens", "written to it"),
    )
    lines.append(", ".join(f"{row[key]:,} {text}" for key, text in parts if row.get(key)))
    if row.get("window_tokens"):
        share = row["context_tokens"] / row["window_tokens"]
        lines.append(f"{share:.0%} of the window of {row['window_tokens']:,}")
    if row.get("compacted"):
        was = f", {row['was_tokens']:,} tokens up to this point" if row.get("was_tokens") else ""
        lines.append(f"compacted before ({plain(row['compacted'], 20)}){was}")
    if row.get("model"):
        lines.append(plain(row["model"]))
    turn = f", turn {row['turn']:,}" if row.get("turn") is not None else ""
    lines.append(f"lane {plain(row['lane'])}{turn}")
    if stands_for > 1:
        lines.append(f"the largest of {stands_for:,} requests")
    return "<br>".join(line for line in lines if line)


def _add_window(figure: go.Figure, known: Numbered, main: Numbered) -> str:
    """Draw the context context window, or return a note about it if it is far away."""
    told = [(number, row["window_tokens"]) for number, row in main if row["window_tokens"]]
    if not told:
        return ""
    fullest, widest = _fullest(known), max(tokens for _, tokens in told)
    if fullest < FULL * widest:
        share = f"{fullest / widest:.0%}" if fullest >= 0.01 * widest else "1%"
        return f"at most {share} of the window of {widest:,} tokens"
    steps = [
        each
        for at, each in enumerate(told)
        if at in (0, len(told) - 1) or each[1] != told[at - 1][1] or each[1] != told[at + 1][1]
    ][:MOST_POINTS]
    last = max(number for number, _ in known)
    figure.add_trace(
        go.Scatter(
            name="context window", mode="lines",
            x=[0.5, *(number for number, _ in steps), last + 0.5],
            y=[steps[0][1], *(tokens for _, tokens in steps), steps[-1][1]],
            line=dict(color=INK, width=1.5, dash="dash", shape="hv"),
            hovertemplate="the context window is %{y:,d} tokens<extra></extra>",
        )
    )  # fmt: skip
    return ""


def _add_compactions(figure: go.Figure, shorter: Numbered) -> None:
    """Draw a line where a conversation was compacted."""
    for number, row in shorter:
        figure.add_shape(
            type="line", x0=number - 0.5, x1=number - 0.5, y0=0, y1=1, yref="paper",
            line=dict(color=FAINT, width=1, dash="dot"),
        )  # fmt: skip
        if len(shorter) <= MOST_LABELS:
            lane = f" {_called(row['lane'])}" if "/" in row["lane"] else ""
            figure.add_annotation(
                text=f"compacted{lane} ({plain(row['compacted'], 12)})", x=number - 0.5, y=0.99, yref="paper",
                xanchor="left", yanchor="top", textangle=-90, showarrow=False, font=dict(size=10, color=FAINT),
            )  # fmt: skip
