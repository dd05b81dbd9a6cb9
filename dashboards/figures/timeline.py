"""The drawing of the waterfall: bars on tracks, their names, labels and hover texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import plotly.graph_objects as go

from agentobs.records.display import seconds
from agentobs.store.analysis.wall_time import PARTS, Part
from dashboards.figures.durations import NAMES
from dashboards.figures.elapsed_time import PLOT, Elapsed, ticks
from dashboards.figures.lane_tracks import BANDS, Track
from dashboards.figures.phrases import plain
from dashboards.figures.tracks import NO_END, Interval
from dashboards.style import FAINT, GRID, INK, ON_BRIGHT, PAPER, PARTS_OF_TIME, RED, bar, layout

THINNEST = 0.002
"""The minimum width of a bar, as a fraction of the plot width, if there is space. Our choice."""
TRACK_HEIGHT = 20
"""The height of a track. [pixels]"""
LEFT = 158
"""The width of the space for the names of tracks. [pixels]"""
LETTER = 5.8
"""The approximate width of a letter on a bar. [pixels]"""
MOST_TITLES = 300
"""The maximum number of bars with a label. Our choice."""
LEAST_CUT = 4.4
"""The minimum total height of the tracks if the axis has cuts, because the labels of cuts are vertical. [track heights]
"""
PALEST = 0.2
"""The minimum opacity of a bar that represents several intervals; otherwise it is the part of the bar that they cover.
Our choice: the bar is still visible."""
PALE = 0.6
"""If the opacity of a bar is lower than this, its label has the color of text on the page. Our choice."""
OUTLINED = 0.005
"""The minimum width of a bar with a full outline, as a fraction of the plot width: the outline also takes space."""
_LANE_FONT: Final = dict(size=12, color=INK, weight=700)
_TRACK_FONT: Final = dict(size=11, color=FAINT)
KIND_NAMES: Final = {
    "request": ("request", "requests"),
    "tool": ("tool call", "tool calls"),
    "agent": ("sub-agent call", "sub-agent calls"),
    "person": ("wait for the user", "waits for the user"),
    "queued": ("wait in the queue", "waits in the queue"),
    "retry_wait": ("retry backoff", "retry backoffs"),
    "hook": ("hook", "hooks"),
    "compaction": ("compaction", "compactions"),
    "upkeep": ("auxiliary request", "auxiliary requests"),
    "span": ("span", "spans"),
    "interaction": ("interaction", "interactions"),
    "sub_agent": ("agent run", "agent runs"),
    "path": ("segment of the critical path", "segments of the critical path"),
}
"""The name of each kind, singular and plural."""
_LABEL_COLORS: Final[dict[Part, str]] = {"model": PAPER, "tool": ON_BRIGHT, "own": INK}
"""The color of labels on bars; text on a pattern would be unreadable."""
_STATES: Final = {
    "failed": "failed",
    "stopped": "did not complete",
    "open": "has not ended yet",
    "orphaned": "never ended",
}


def draw_tracks(tracks: Sequence[Track], axis: Elapsed, *, has_path: bool) -> go.Figure:
    """Return the figure of tracks along an axis. With `has_path`, the legend explains the outline of critical bars."""
    # The vertical labels of cuts need a minimum height.
    bottom = max(tracks[-1].y, LEAST_CUT if axis.cuts else 0) + 0.6
    figure = go.Figure(
        layout=layout(
            height=int(TRACK_HEIGHT * (bottom + 0.6)) + 96,
            barmode="overlay",
            margin=dict(l=LEFT, r=16, t=36, b=48),
            hovermode="closest",
        )
    )
    bars = [
        (track, each, at, wide)
        for track in tracks
        for each, (at, wide) in zip(track.bars, _edges(track.bars, axis), strict=True)
    ]
    for part in PARTS:
        part_bars = [each for each in bars if each[1].part == part]
        if part_bars:
            figure.add_trace(_bars(part, part_bars, axis))
            # In the legend, a trace looks like its first bar, which may have an outline. So use an empty trace instead.
            figure.add_trace(
                go.Bar(
                    name=NAMES[part], legendgroup=part, x=[None], y=[None], orientation="h", hoverinfo="skip",
                    marker=bar(PARTS_OF_TIME[part]),
                )
            )  # fmt: skip
    _add_labels(figure, bars, axis)
    _add_marks(figure, bars, axis, has_path=has_path)
    _add_names(figure, tracks)
    _add_cuts(figure, axis)
    places, texts = ticks(axis)
    width = axis.drawn_ns / 1e9
    if len(figure.data) > 12:
        # On a narrow page, such a long legend takes two lines.
        figure.layout.height += 20
    figure.update_xaxes(
        title_text="time since the start of the session",
        tickvals=places,
        ticktext=texts,
        range=[-0.004 * width, 1.006 * width],
        zeroline=False,
        automargin=False,
        tickangle=0,
    )
    figure.update_yaxes(
        range=[bottom, -0.6], showticklabels=False, showgrid=False, zeroline=False, fixedrange=True
    )
    figure.update_layout(legend=dict(y=1.0, yanchor="bottom", x=0, xref="paper", font_size=11))
    return figure


_Bar = tuple[Track, Interval, float, float]
"""A bar: its track, its interval, and its start and width in seconds along the axis."""


def _edges(bars: Sequence[Interval], axis: Elapsed) -> list[tuple[float, float]]:
    """Return the start and width of each bar of a track. Bars are wide enough to be visible, if there is space."""
    minimum_width = axis.drawn_ns / 1e9 * THINNEST
    found: list[tuple[float, float]] = []
    previous_end = float("-inf")
    for number, each in enumerate(bars):
        bar_start, bar_end = axis.at(each.started_ns), axis.at(each.ended_ns)
        next_start = (
            axis.at(bars[number + 1].started_ns) if number + 1 < len(bars) else float("inf")
        )
        bar_start = max(bar_start, previous_end)
        bar_end = max(bar_end, min(bar_start + minimum_width, next_start), bar_start)
        if bar_end - bar_start < minimum_width:
            bar_start = max(previous_end, bar_end - minimum_width)
        found.append((bar_start, bar_end - bar_start))
        previous_end = bar_end
    return found


def _bars(part: Part, bars: Sequence[_Bar], axis: Elapsed) -> go.Bar:
    marker: dict[str, Any] = bar(PARTS_OF_TIME[part])
    outline_width = axis.drawn_ns / 1e9 * OUTLINED
    outlines = [_outline(each, is_wide=wide > outline_width) for _, each, _, wide in bars]
    marker["line"] = {
        "color": [color for color, _ in outlines],
        "width": [width for _, width in outlines],
    }
    opacities = [_opacity(each) for _, each, _, _ in bars]
    if min(opacities) < 1:
        marker["opacity"] = opacities
    return go.Bar(
        name=NAMES[part],
        legendgroup=part,
        showlegend=False,
        orientation="h",
        y=[track.y for track, _, _, _ in bars],
        base=[at for _, _, at, _ in bars],
        x=[wide for _, _, _, wide in bars],
        width=[0.52 if each.kind in BANDS else 0.74 for _, each, _, _ in bars],
        marker=marker,
        # The count, then the numbers of the nodes of the tree that a bar shows: a click on the bar selects the first.
        customdata=[[each.count, *each.numbers] for _, each, _, _ in bars],
        hovertext=[_hover_text(each, axis) for _, each, _, _ in bars],
        hovertemplate="%{hovertext}<extra></extra>",
    )


def _opacity(each: Interval) -> float:
    """Return the opacity of a bar: the part of it that its intervals cover, so that many short ones look pale."""
    return max(PALEST, each.coverage)


def _outline(each: Interval, *, is_wide: bool) -> tuple[str, float]:
    """Return the color and the width of the outline of a bar."""
    if each.failed and 2 * each.failed >= each.count:
        return RED, 2.0 if is_wide else 1.0
    if each.is_critical and is_wide and each.count == 1:
        return INK, 1.2
    return PAPER, 0.5 if is_wide else 0.0


def _add_labels(figure: go.Figure, bars: Sequence[_Bar], axis: Elapsed) -> None:
    """Add labels to the bars on which they fit even on a narrow page."""
    pixel = axis.drawn_ns / 1e9 / PLOT
    known = [
        (at + 4 * pixel, track.y, plain(title, 40), _label_color(each))
        for track, each, at, wide in bars
        if each.part in _LABEL_COLORS
        and each.kind != "path"
        and (title := _label(each))
        and len(title) * LETTER + 8 < wide / pixel
    ]
    if known:
        x, y, texts, colors = zip(*known[:MOST_TITLES], strict=True)
        figure.add_trace(
            go.Scatter(
                mode="text", x=x, y=y, text=texts, textposition="middle right", hoverinfo="skip",
                textfont=dict(size=10, color=colors), showlegend=False, cliponaxis=True,
            )
        )  # fmt: skip


def _label_color(each: Interval) -> str:
    return INK if _opacity(each) < PALE else _LABEL_COLORS[each.part]


def _label(each: Interval) -> str:
    """Return the label of a bar."""
    if each.count > 1:
        return f"{each.count:,} x"
    if each.kind in BANDS:
        return f"{each.label or ''} {seconds(each.took_ns)}".strip()
    return each.label or ""


def _hover_text(each: Interval, axis: Elapsed) -> str:
    """Return the hover text of a bar."""
    start_text = seconds(each.started_ns - axis.zero_ns)
    if each.count > 1:
        return _merged_hover_text(each, axis, start_text)
    noun, _ = KIND_NAMES[each.kind]
    duration = "" if each.state in NO_END else f", took {seconds(each.took_ns)}"
    lines = [plain(each.label or noun), f"{noun}, started at {start_text}{duration}"]
    if each.kind == "path":
        lines[1] = (
            f"{NAMES[each.part]} ({plain(each.details)}), started at {start_text}, took {seconds(each.took_ns)}"
        )
    else:
        if each.state in _STATES:
            lines.append(_STATES[each.state])
        if each.details:
            lines.append(each.details)
    if each.is_critical:
        lines.append("on the critical path")
    lines.append(plain(each.agent))
    return "<br>".join(lines)


def _merged_hover_text(each: Interval, axis: Elapsed, start_text: str) -> str:
    end_text = seconds(each.ended_ns - axis.zero_ns)
    _, noun = KIND_NAMES[each.kind]
    lines = [
        f"{each.count:,} {noun}",
        f"from {start_text} to {end_text}, {seconds(each.took_ns)} in total",
    ]
    named = [(name, times) for name, times in each.labels if name]
    if named and each.kind != "path":
        names = ", ".join(f"{plain(name, 30)} {times:,}" for name, times in named[:4])
        lines.append(names + (f" and {len(named) - 4:,} others" if len(named) > 4 else ""))
    if len(each.durations) > 1:
        lines.append(", ".join(f"{NAMES[part]} {seconds(ns)}" for part, ns in each.durations))
    if each.failed:
        lines.append(f"{each.failed:,} failed")
    lines.append("too short to be drawn separately")
    return "<br>".join(lines)


def _add_marks(figure: go.Figure, bars: Sequence[_Bar], axis: Elapsed, *, has_path: bool) -> None:
    """Mark failed and unfinished intervals with symbols, because color is not enough. Add outlines to the legend."""
    failed = [
        (max(at, axis.at(each.failed_ns)), track.y)
        for track, each, at, _ in bars
        if each.failed_ns is not None
    ]
    if failed:
        marker = dict(symbol="x", size=8, color=RED, line=dict(color=PAPER, width=1))
        figure.add_trace(
            go.Scatter(
                name="failed", mode="markers", x=[at for at, _ in failed], y=[y for _, y in failed],
                marker=marker, hoverinfo="skip",
            )
        )  # fmt: skip
    x: list[float | None] = []
    y: list[float | None] = []
    for track, each, at, wide in bars:
        if each.state in NO_END:
            x += [at + wide, at + wide, None]
            y += [track.y - 0.48, track.y + 0.48, None]
    if x:
        figure.add_trace(
            go.Scatter(
                name="the end is unknown", mode="lines", x=x, y=y, hoverinfo="skip",
                line=dict(color=INK, width=2, dash="dot"),
            )
        )  # fmt: skip
    if has_path:
        figure.add_trace(
            go.Scatter(
                name="on the critical path", mode="markers", x=[None], y=[None], hoverinfo="skip",
                marker=dict(symbol="square-open", size=10, color=INK, line=dict(width=2)),
            )
        )  # fmt: skip


def _add_names(figure: go.Figure, tracks: Sequence[Track]) -> None:
    """Write the names of the tracks, the names of lanes in bold, and draw a line above each lane."""
    for number, track in enumerate(tracks):
        indent = 12 * min(track.depth, 4) + (0 if track.is_head else 12)
        if track.name:
            figure.add_annotation(
                text=track.name,
                x=0, xref="paper", xanchor="left", xshift=indent - LEFT + 4, y=track.y, yanchor="middle",
                showarrow=False, font=_LANE_FONT if track.is_head else _TRACK_FONT,
            )  # fmt: skip
        if track.is_head and number:
            figure.add_shape(
                type="line", xref="paper", x0=0, x1=1, y0=track.y - 0.68, y1=track.y - 0.68,
                line=dict(color=GRID, width=1), layer="below",
            )  # fmt: skip


def _add_cuts(figure: go.Figure, axis: Elapsed) -> None:
    """Draw each cut, with its length as a label."""
    for cut in axis.cuts:
        low, high = axis.at(cut.started_ns), axis.at(cut.ended_ns)
        figure.add_shape(
            type="rect",
            x0=low,
            x1=high,
            yref="paper",
            y0=0,
            y1=1,
            fillcolor=GRID,
            line=dict(color=GRID, width=0),
            layer="below",
        )
        if len(axis.cuts) <= 12:
            figure.add_annotation(
                text=f"idle {seconds(cut.ended_ns - cut.started_ns)}", x=(low + high) / 2, y=0.5, yref="paper",
                textangle=-90, showarrow=False, font=dict(size=10, color=FAINT),
            )  # fmt: skip
