"""Bars: their positions next to, on top of or in front of others, as in plotly."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dashboards.drawing.axes import Axis
from dashboards.drawing.pen import Pen
from dashboards.drawing.text_layout import fitted, hover_text, line_width, lines_of, one

Trace = dict[str, Any]
THINNEST = 1.2
"""The minimum thickness of a bar in pixels, so that zero durations are visible."""
_PATTERNED = 5.0
"""The minimum thickness of a bar with a pattern: in a thinner one only the pattern would be visible."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar, along its axes."""

    at: int
    """Which of its trace."""
    value: Any
    """Its length as given."""
    base: Any
    low: float
    high: float
    """Its edges along the axis of positions."""
    start: float
    end: float
    """Its start and end along the axis of values."""


def is_flat(trace: Trace) -> bool:
    """Return whether bars are horizontal: their lengths are along x."""
    return trace.get("orientation") == "h"


def put(
    traces: Sequence[Trace], layout: dict[str, Any], across: Axis, along: Axis
) -> list[list[Bar]]:
    """Return the bars of each trace that shares two axes.

    Args:
        traces: of bars.
        layout: the figure's.
        across: the axis of positions.
        along: the axis of values.
    """
    mode = layout.get("barmode") or "group"
    unit = _unit(traces, across)
    gap = layout.get("bargap")
    wide = unit * (1 - (0.2 if gap is None else float(gap)))
    stacks = mode in ("stack", "relative")
    beside = [trace for trace in traces if "offset" not in trace] if mode == "group" else []
    groups = list(dict.fromkeys(str(t.get("offsetgroup") or id(t)) for t in beside))
    found, heaped = [], {}  # type: list[list[Bar]], dict[tuple[float, bool], float]
    for trace in traces:
        share, shift = wide, 0.0
        if trace in beside and len(groups) > 1:
            share = wide / len(groups)
            place = groups.index(str(trace.get("offsetgroup") or id(trace)))
            shift = (place + 0.5) * share - wide / 2
            share *= 1 - float(layout.get("bargroupgap") or 0)
        bars = []
        for at, (position, value) in enumerate(_pairs(trace)):
            middle, length = across.place(position), _length(value)
            if middle is None or length is None:
                continue
            base = one(trace.get("base"), at)
            start = along.place(base) if base is not None else 0.0
            if stacks and "base" not in trace:
                key = (middle, mode == "relative" and length < 0)
                start = heaped.get(key, 0.0)
                heaped[key] = start + length
            if start is None:
                continue
            own, offset = one(trace.get("width"), at), one(trace.get("offset"), at)
            width = share if own is None else float(own)
            low = middle + (shift - width / 2 if offset is None else float(offset))
            bars.append(Bar(at, value, base, low, low + width, start, start + length))
        found.append(bars)
    _reach(found, across, along, unit)
    return found


def _pairs(trace: Trace) -> list[tuple[Any, Any]]:
    """Return position and value of each bar."""
    values, positions = (
        (trace.get("x"), trace.get("y")) if is_flat(trace) else (trace.get("y"), trace.get("x"))
    )
    values = list(values or ())
    positions = list(range(len(values))) if positions is None else list(positions)
    return list(zip(positions, values, strict=False))


def _length(value: Any) -> float | None:
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):
        return None


def _unit(traces: Sequence[Trace], across: Axis) -> float:
    """Return the width available to one position: the minimum distance of two."""
    if across.kind == "category":
        return 1.0
    found = {across.place(position) for trace in traces for position, _ in _pairs(trace)}
    places = sorted(place for place in found if place is not None)
    gaps = [b - a for a, b in itertools.pairwise(places)]
    return min(gaps, default=86_400_000.0 if across.kind == "date" else 1.0)


def _reach(found: Sequence[Sequence[Bar]], across: Axis, along: Axis, unit: float) -> None:
    """Report the extent of the bars to the axes."""
    for bar in (bar for bars in found for bar in bars):
        middle = (bar.low + bar.high) / 2
        half = max(unit / 2, (bar.high - bar.low) / 2)
        across.reach.add(middle - half, padded=False)
        across.reach.add(middle + half, padded=False)
        for end in (bar.start, bar.end):
            along.reach.add(end, padded=end != 0 and bar.base is None)
    if across.kind == "category" and across.places:
        across.reach.add(-0.5, padded=False)
        across.reach.add(len(across.places) - 0.5, padded=False)


def draw(pen: Pen, trace: Trace, bars: Sequence[Bar], x: Axis, y: Axis) -> None:
    """Draw the bars of a trace, and their labels."""
    across, along = (y, x) if is_flat(trace) else (x, y)
    written = {"x": x.written, "y": y.written}
    positions = [position for position, _ in _pairs(trace)]
    for bar in bars:
        low, high = sorted((across.px(bar.low), across.px(bar.high)))
        start, end = sorted((along.px(bar.start), along.px(bar.end)))
        if end - start < THINNEST:
            if bar.base is None and bar.start == bar.end:
                # A zero sum has no bar; an interval of length zero is a point in time.
                continue
            middle = (start + end) / 2
            start, end = middle - THINNEST / 2, middle + THINNEST / 2
        position = positions[bar.at]
        values = (
            {"x": bar.value, "y": position} if is_flat(trace) else {"x": position, "y": bar.value}
        )
        values["base"] = bar.base
        pen.styled(look_of(pen, trace, bar.at, is_plain=min(end - start, high - low) < _PATTERNED))
        told = hover_text(trace, bar.at, values, written)
        if is_flat(trace):
            pen.rect(start, low, end - start, high - low, told)
        else:
            pen.rect(low, start, high - low, end - start, told)
    for bar in bars:
        _label(pen, trace, bar, x, y)


def look_of(pen: Pen, trace: Trace, at: int, *, is_plain: bool = False) -> str:
    """Return the style of one bar of a trace; a plain one has no pattern."""
    marker = trace.get("marker") or {}
    line, pattern = marker.get("line") or {}, marker.get("pattern") or {}
    shape = one(pattern.get("shape"), at)
    return pen.look(
        fill=one(marker.get("color"), at) or "#1f5fa8",
        stroke=one(line.get("color"), at),
        width=float(one(line.get("width"), at) or 0),
        opacity=_opacity(one(marker.get("opacity"), at), trace.get("opacity")),
        pattern={
            "shape": shape,
            "size": one(pattern.get("size"), at),
            "solidity": one(pattern.get("solidity"), at),
            "fgcolor": one(pattern.get("fgcolor"), at),
        }
        if shape and not is_plain
        else None,
    )


def _opacity(*shares: Any) -> float | None:
    found = 1.0
    for share in shares:
        found *= 1.0 if share is None else float(share)
    return found if found < 1 else None


def _label(pen: Pen, trace: Trace, bar: Bar, x: Axis, y: Axis) -> None:
    """Draw a bar's label, inside if it fits or must, else at its end."""
    told, where = one(trace.get("text"), bar.at), one(trace.get("textposition"), bar.at) or "auto"
    lines = lines_of(told)
    if not lines or where == "none":
        return
    flat = is_flat(trace)
    font = trace.get("textfont") or {}
    size = float(one(font.get("size"), bar.at) or 12)
    across, along = (y, x) if flat else (x, y)
    start, end = along.px(bar.start), along.px(bar.end)
    middle = (across.px(bar.low) + across.px(bar.high)) / 2
    room = abs(end - start) if flat else abs(across.px(bar.high) - across.px(bar.low))
    wide = max(line_width(line, size) for line in lines)
    fits = wide + 6 <= room and (flat or abs(end - start) >= size * 1.3 * len(lines))
    inside = where == "inside" or (where == "auto" and fits)
    if inside and not fits:
        lines = [fitted(line, size, max(room - 6, 0)) for line in lines]
        if room < size * 2:
            return
    color = one(font.get("color"), bar.at) or ("#ffffff" if inside else "#1d2329")
    pen.styled(pen.look(fill=color))
    up = -1 if end < start else 1
    if flat:
        at = (start + end) / 2 if inside else end + 5 * up
        anchor = "middle" if inside else ("start" if up > 0 else "end")
        pen.text(at, middle, lines, size, anchor=anchor)
    else:
        at = (start + end) / 2 if inside else end + up * size * 0.8
        pen.text(
            middle,
            at - (len(lines) - 1) * size * 0.6 * (1 if inside else 2),
            lines,
            size,
            anchor="middle",
        )
