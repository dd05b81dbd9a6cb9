"""Bars: their positions, grouped, stacked or overlaid as in plotly, and their drawing."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dashboards.drawing.axes import Axis
from dashboards.drawing.pen import Pen
from dashboards.drawing.text_layout import fitted, hover_text, line_width, lines_of, value_at

Trace = dict[str, Any]
THINNEST = 1.2
"""The minimum thickness of a bar in pixels, so that zero durations are visible."""
_PATTERNED = 5.0
"""The minimum thickness of a bar with a pattern, in pixels: in a thinner bar only the pattern would be visible."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar, in the coordinates of its axes."""

    at: int
    """The index of the bar in its trace."""
    value: Any
    """The length, as in the figure."""
    base: Any
    """The start, as in the figure; None if the bar starts at zero or on another bar."""
    low: float
    high: float
    """The edges along the axis of positions."""
    start: float
    end: float
    """The start and end along the axis of values."""


def is_horizontal(trace: Trace) -> bool:
    """Return whether the bars of a trace are horizontal."""
    return trace.get("orientation") == "h"


def place_bars(
    traces: Sequence[Trace], layout: dict[str, Any], across: Axis, along: Axis
) -> list[list[Bar]]:
    """Return the bars of each trace. All traces share the same two axes.

    Args:
        traces: the bar traces on these axes.
        layout: the layout of the figure.
        across: the axis of positions.
        along: the axis of values.
    """
    mode = layout.get("barmode") or "group"
    position_width = _position_width(traces, across)
    gap = layout.get("bargap")
    full_width = position_width * (1 - (0.2 if gap is None else float(gap)))
    stacks = mode in ("stack", "relative")
    grouped = [trace for trace in traces if "offset" not in trace] if mode == "group" else []
    groups = list(dict.fromkeys(str(t.get("offsetgroup") or id(t)) for t in grouped))
    found, stacked = [], {}  # type: list[list[Bar]], dict[tuple[float, bool], float]
    for trace in traces:
        bar_width, shift = full_width, 0.0
        if trace in grouped and len(groups) > 1:
            bar_width = full_width / len(groups)
            place = groups.index(str(trace.get("offsetgroup") or id(trace)))
            shift = (place + 0.5) * bar_width - full_width / 2
            bar_width *= 1 - float(layout.get("bargroupgap") or 0)
        bars = []
        for at, (position, value) in enumerate(_pairs(trace)):
            middle, length = across.place(position), _length(value)
            if middle is None or length is None:
                continue
            base = value_at(trace.get("base"), at)
            start = along.place(base) if base is not None else 0.0
            if stacks and "base" not in trace:
                key = (middle, mode == "relative" and length < 0)
                start = stacked.get(key, 0.0)
                stacked[key] = start + length
            if start is None:
                continue
            own_width, offset = value_at(trace.get("width"), at), value_at(trace.get("offset"), at)
            width = bar_width if own_width is None else float(own_width)
            low = middle + (shift - width / 2 if offset is None else float(offset))
            bars.append(Bar(at, value, base, low, low + width, start, start + length))
        found.append(bars)
    _report_extent(found, across, along, position_width)
    return found


def _pairs(trace: Trace) -> list[tuple[Any, Any]]:
    """Return the position and value of each bar."""
    values, positions = (
        (trace.get("x"), trace.get("y"))
        if is_horizontal(trace)
        else (trace.get("y"), trace.get("x"))
    )
    values = list(values or ())
    positions = list(range(len(values))) if positions is None else list(positions)
    return list(zip(positions, values, strict=False))


def _length(value: Any) -> float | None:
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):
        return None


def _position_width(traces: Sequence[Trace], across: Axis) -> float:
    """Return the width that is available for each position: the minimum distance of two positions."""
    if across.kind == "category":
        return 1.0
    found = {across.place(position) for trace in traces for position, _ in _pairs(trace)}
    places = sorted(place for place in found if place is not None)
    gaps = [b - a for a, b in itertools.pairwise(places)]
    return min(gaps, default=86_400_000.0 if across.kind == "date" else 1.0)


def _report_extent(
    found: Sequence[Sequence[Bar]], across: Axis, along: Axis, position_width: float
) -> None:
    """Report the extent of the bars to the axes."""
    for bar in (bar for bars in found for bar in bars):
        middle = (bar.low + bar.high) / 2
        half = max(position_width / 2, (bar.high - bar.low) / 2)
        across.extent.add(middle - half, padded=False)
        across.extent.add(middle + half, padded=False)
        for end in (bar.start, bar.end):
            along.extent.add(end, padded=end != 0 and bar.base is None)
    if across.kind == "category" and across.places:
        across.extent.add(-0.5, padded=False)
        across.extent.add(len(across.places) - 0.5, padded=False)


def draw(pen: Pen, trace: Trace, bars: Sequence[Bar], x: Axis, y: Axis) -> None:
    """Draw the bars of a trace, and their labels."""
    across, along = (y, x) if is_horizontal(trace) else (x, y)
    formats = {"x": x.formatted, "y": y.formatted}
    positions = [position for position, _ in _pairs(trace)]
    for bar in bars:
        low, high = sorted((across.pixel(bar.low), across.pixel(bar.high)))
        start, end = sorted((along.pixel(bar.start), along.pixel(bar.end)))
        if end - start < THINNEST:
            if bar.base is None and bar.start == bar.end:
                # Draw no bar for a zero sum. However, an interval of length zero is a point in time and must be
                # visible.
                continue
            middle = (start + end) / 2
            start, end = middle - THINNEST / 2, middle + THINNEST / 2
        position = positions[bar.at]
        values = (
            {"x": bar.value, "y": position}
            if is_horizontal(trace)
            else {"x": position, "y": bar.value}
        )
        values["base"] = bar.base
        pen.use_style(
            bar_style(pen, trace, bar.at, is_plain=min(end - start, high - low) < _PATTERNED)
        )
        tooltip = hover_text(trace, bar.at, values, formats)
        if is_horizontal(trace):
            pen.rect(start, low, end - start, high - low, tooltip)
        else:
            pen.rect(low, start, high - low, end - start, tooltip)
    for bar in bars:
        _draw_label(pen, trace, bar, x, y)


def bar_style(pen: Pen, trace: Trace, at: int, *, is_plain: bool = False) -> str:
    """Return the style of one bar of a trace; a plain one has no pattern."""
    marker = trace.get("marker") or {}
    line, pattern = marker.get("line") or {}, marker.get("pattern") or {}
    shape = value_at(pattern.get("shape"), at)
    return pen.style_attributes(
        fill=value_at(marker.get("color"), at) or "#1f5fa8",
        stroke=value_at(line.get("color"), at),
        width=float(value_at(line.get("width"), at) or 0),
        opacity=_opacity(value_at(marker.get("opacity"), at), trace.get("opacity")),
        pattern={
            "shape": shape,
            "size": value_at(pattern.get("size"), at),
            "solidity": value_at(pattern.get("solidity"), at),
            "fgcolor": value_at(pattern.get("fgcolor"), at),
        }
        if shape and not is_plain
        else None,
    )


def _opacity(*factors: Any) -> float | None:
    product = 1.0
    for factor in factors:
        product *= 1.0 if factor is None else float(factor)
    return product if product < 1 else None


def _draw_label(pen: Pen, trace: Trace, bar: Bar, x: Axis, y: Axis) -> None:
    """Draw the label of a bar: inside if it fits or the trace requires it, else at the end of the bar."""
    text, where = (
        value_at(trace.get("text"), bar.at),
        value_at(trace.get("textposition"), bar.at) or "auto",
    )
    lines = lines_of(text)
    if not lines or where == "none":
        return
    horizontal = is_horizontal(trace)
    font = trace.get("textfont") or {}
    size = float(value_at(font.get("size"), bar.at) or 12)
    across, along = (y, x) if horizontal else (x, y)
    start, end = along.pixel(bar.start), along.pixel(bar.end)
    middle = (across.pixel(bar.low) + across.pixel(bar.high)) / 2
    space = abs(end - start) if horizontal else abs(across.pixel(bar.high) - across.pixel(bar.low))
    width = max(line_width(line, size) for line in lines)
    fits = width + 6 <= space and (horizontal or abs(end - start) >= size * 1.3 * len(lines))
    inside = where == "inside" or (where == "auto" and fits)
    if inside and not fits:
        lines = [fitted(line, size, max(space - 6, 0)) for line in lines]
        if space < size * 2:
            return
    color = value_at(font.get("color"), bar.at) or ("#ffffff" if inside else "#1d2329")
    pen.use_style(pen.style_attributes(fill=color))
    direction = -1 if end < start else 1
    if horizontal:
        at = (start + end) / 2 if inside else end + 5 * direction
        anchor = "middle" if inside else ("start" if direction > 0 else "end")
        pen.text(at, middle, lines, size, anchor=anchor)
    else:
        at = (start + end) / 2 if inside else end + direction * size * 0.8
        pen.text(
            middle,
            at - (len(lines) - 1) * size * 0.6 * (1 if inside else 2),
            lines,
            size,
            anchor="middle",
        )
