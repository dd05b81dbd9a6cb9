"""The figure of the context: its size at each request, the compactions, and the context window of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Final

import plotly.graph_objects as go

from agentobs.records.display import share
from dashboards.figures.phrases import Row, count, empty_figure, lane_of, plain
from dashboards.style import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, RED, SKY, STEEL, layout

MOST_POINTS = 900
"""The maximum number of requests that are drawn. If there are more, the largest of several neighbors represents them.
Our choice."""
MOST_LANES = 8
"""If there are more lanes than this, the lanes of sub-agents share a trace. Our choice."""
MOST_LINES = 40
"""The maximum number of compactions that are drawn as a line. Our choice."""
MOST_LABELS = 10
"""If there are at most this many compactions, their lines have labels. Our choice."""
FULL = 0.2
"""The context window is drawn as a line only if the context reaches this fraction of it. Otherwise the line would be so
high that the rest of the figure would look flat. Our choice."""
_LINES: Final = (
    (BLUE, "solid"), (ORANGE, "solid"), (GREEN, "solid"), (PURPLE, "solid"),
    (SKY, "dash"), (RED, "dash"), (STEEL, "dash"), (GREEN, "dot"),
)  # fmt: skip


def context_growth(rows: Sequence[Row]) -> go.Figure:
    """Return the context size of each request of a session, in the order in which they were sent, with a line per lane.

    Args:
        rows: the rows of the query `context_growth`.
    """
    known = [
        (number, row)
        for number, row in enumerate(rows, 1)
        if row["context_tokens"] is not None and row["lane"] is not None
    ]
    if not known:
        return empty_figure()
    lanes: dict[str, list[tuple[int, Row]]] = {}
    for number, row in known:
        lanes.setdefault(row["lane"], []).append((number, row))
    order = sorted(lanes, key=lambda lane: (lane != "main", -_largest_context(lanes[lane]), lane))
    size = -(-len(known) // MOST_POINTS)
    compacted = [(number, row) for number, row in known if row["compacted"]][:MOST_LINES]
    compacted_numbers = {number for number, _ in compacted}
    figure = go.Figure(layout=layout(height=320, margin=dict(l=8, r=16, t=36, b=8)))
    own_lines = (
        order
        if len(order) <= MOST_LANES
        else [lane for lane in order[:MOST_LANES] if "/" not in lane]
    )
    for lane, (color, dash) in zip(own_lines, _LINES, strict=False):
        figure.add_trace(
            _line(
                _lane_name(lanes[lane]), _thinned(lanes[lane], size, compacted_numbers), color, dash
            )
        )
    if other_lanes := [lane for lane in order if lane not in own_lines]:
        figure.add_trace(_other_lanes(other_lanes, lanes, size, compacted_numbers))
    note = _add_window(figure, known, lanes[order[0]])
    _add_compactions(figure, compacted)
    figure.update_layout(showlegend=len(figure.data) > 1)
    figure.update_xaxes(
        title_text="requests, in the order in which they were sent"
        + (f"<br>{note}" if note else ""),
        range=[0.5 - 0.01 * len(rows), len(rows) + 0.5 + 0.01 * len(rows)],
        tickformat=",d",
        dtick=1 if len(rows) <= 12 else None,
        showgrid=False,
        zeroline=False,
    )
    highest = max(y for trace in figure.data for y in trace.y if y is not None)
    # Leave space for labels at the top.
    figure.update_yaxes(
        title_text="tokens in the prompt", range=[0, max(highest, 1) * 1.2], tickformat=",d"
    )
    return figure


Numbered = Sequence[tuple[int, Row]]
"""Requests with their numbers within the session."""


def _lane_name(requests: Numbered) -> str:
    """Return the display name of the lane of some requests."""
    return plain(lane_of(requests[0][1]), 24)


def _largest_context(requests: Numbered) -> int:
    return int(max(row["context_tokens"] for _, row in requests))


def _thinned(requests: Numbered, size: int, kept: Set[int]) -> list[tuple[int, Row, int]]:
    """Return the largest of each `size` consecutive requests, with its group's size, and the requests in `kept`."""
    thinned: list[tuple[int, Row, int]] = []
    for at in range(0, len(requests), size):
        group = requests[at : at + size]
        numbers = {max(group, key=lambda each: each[1]["context_tokens"])[0]}
        numbers |= {number for number, _ in group if number in kept}
        thinned += [(number, row, len(group)) for number, row in group if number in numbers]
    return thinned


def _line(name: str, requests: Sequence[tuple[int, Row, int]], color: str, dash: str) -> go.Scatter:
    return go.Scatter(
        name=name,
        mode="lines+markers" if len(requests) < 120 else "lines",
        x=[number for number, _, _ in requests],
        y=[row["context_tokens"] for _, row, _ in requests],
        line=dict(color=color, width=2, dash=dash),
        marker=dict(size=5, color=color),
        customdata=[_hover_text(number, row, represented) for number, row, represented in requests],
        hovertemplate="%{customdata}<extra></extra>",
    )


def _other_lanes(
    other_lanes: Sequence[str], lanes: Mapping[str, Numbered], size: int, kept: Set[int]
) -> go.Scatter:
    """Return one trace for many lanes, with a gap between two lanes."""
    x: list[int | None] = []
    y: list[int | None] = []
    hover_texts: list[str] = []
    for lane in other_lanes:
        for number, row, represented in _thinned(lanes[lane], size, kept):
            x.append(number)
            y.append(row["context_tokens"])
            hover_texts.append(_hover_text(number, row, represented))
        x.append(None)
        y.append(None)
        hover_texts.append("")
    return go.Scatter(
        name=count(len(other_lanes), "agent"), mode="lines+markers", x=x, y=y, connectgaps=False,
        line=dict(color=STEEL, width=1), marker=dict(size=4, color=STEEL), customdata=hover_texts,
        hovertemplate="%{customdata}<extra></extra>",
    )  # fmt: skip


def _hover_text(number: int, row: Row, represented: int) -> str:
    """Return the hover text of a request."""
    lines = [f"request {number:,}: {row['context_tokens']:,} tokens"]
    parts = (
        ("input_tokens", "new"),
        ("cache_read_tokens", "from the cache"),
        ("cache_write_tokens", "written to the cache"),
    )
    lines.append(", ".join(f"{row[key]:,} {text}" for key, text in parts if row.get(key)))
    if row.get("window_tokens"):
        part = plain(share(row["context_tokens"], row["window_tokens"]))
        lines.append(f"{part} of the window of {row['window_tokens']:,}")
    if row.get("compacted"):
        context_before = f", from {row['was_tokens']:,} tokens" if row.get("was_tokens") else ""
        lines.append(
            f"compacted before this request ({plain(row['compacted'], 20)}){context_before}"
        )
    if row.get("model"):
        lines.append(plain(row["model"]))
    turn = f", turn {row['turn']:,}" if row.get("turn") is not None else ""
    lines.append(f"{plain(lane_of(row))}{turn}")
    if represented > 1:
        lines.append(f"the largest of {represented:,} requests")
    return "<br>".join(line for line in lines if line)


def _add_window(figure: go.Figure, known: Numbered, main: Numbered) -> str:
    """Draw the context window, or return a note about it if it is much larger than the context."""
    window_sizes = [(number, row["window_tokens"]) for number, row in main if row["window_tokens"]]
    if not window_sizes:
        return ""
    largest, window = _largest_context(known), max(tokens for _, tokens in window_sizes)
    if largest < FULL * window:
        most = plain(share(max(largest, 0.01 * window), window))
        return f"at most {most} of the {window:,}-token context window"
    steps = [
        each
        for at, each in enumerate(window_sizes)
        if at in (0, len(window_sizes) - 1)
        or each[1] != window_sizes[at - 1][1]
        or each[1] != window_sizes[at + 1][1]
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


def _add_compactions(figure: go.Figure, compacted: Numbered) -> None:
    """Draw a line before each request whose conversation was compacted."""
    for number, row in compacted:
        figure.add_shape(
            type="line", x0=number - 0.5, x1=number - 0.5, y0=0, y1=1, yref="paper",
            line=dict(color=FAINT, width=1, dash="dot"),
        )  # fmt: skip
        if len(compacted) <= MOST_LABELS:
            lane = f" {plain(lane_of(row), 24)}" if "/" in row["lane"] else ""
            figure.add_annotation(
                text=f"compacted{lane} ({plain(row['compacted'], 12)})", x=number - 0.5, y=0.99, yref="paper",
                xanchor="left", yanchor="top", textangle=-90, showarrow=False, font=dict(size=10, color=FAINT),
            )  # fmt: skip
