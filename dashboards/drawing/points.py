"""Lines and points: traces of type scatter, with error bars."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from dashboards.drawing.axes import Axis
from dashboards.drawing.pen import Pen, rounded
from dashboards.drawing.text_layout import hover_text, lines_of, value_at

Trace = dict[str, Any]
Position = tuple[int, float, float]
"""The position of a point: its index in the trace, and its coordinates on both axes."""

_OUTLINES = {
    "square": "M-1-1h2v2h-2z",
    "diamond": "M0-1.3L1.3 0L0 1.3L-1.3 0z",
    "triangle-up": "M0-1.2L1.1 .8H-1.1z",
    "triangle-down": "M0 1.2L1.1-.8H-1.1z",
    "triangle-left": "M-1.2 0L.8-1.1V1.1z",
    "triangle-right": "M1.2 0L-.8-1.1V1.1z",
    "cross": "M-.4-1.2h.8v.8h.8v.8h-.8v.8h-.8v-.8h-.8v-.8h.8z",
    "x": "M0-.55L.65-1.2L1.2-.65L.55 0L1.2 .65L.65 1.2L0 .55L-.65 1.2L-1.2 .65L-.55 0L-1.2-.65L-.65-1.2z",
    "star": "M0-1.4L.33-.45H1.33L.53 .17L.82 1.13L0 .55L-.82 1.13L-.53 .17L-1.33-.45H-.33z",
    "line-ns": "M0-1.4V1.4",
    "line-ew": "M-1.4 0H1.4",
    "cross-thin": "M0-1.4V1.4M-1.4 0H1.4",
    "x-thin": "M-1-1L1 1M-1 1L1-1",
}
"""The outlines of plotly's symbols, except circles, with a radius of about 1."""


def positions(trace: Trace, x: Axis, y: Axis) -> list[Position | None]:
    """Return the positions of the points of a trace; None for a gap."""
    ys = list(trace.get("y") or ())
    xs = trace.get("x")
    xs = list(range(len(ys))) if xs is None else list(xs)
    if not ys and trace.get("y") is None:
        ys = list(range(len(xs)))
    found: list[Position | None] = []
    for at, (a, b) in enumerate(zip(xs, ys, strict=False)):
        left, top = x.place(a), y.place(b)
        found.append(None if left is None or top is None else (at, left, top))
    return found


def drawn_modes(trace: Trace) -> frozenset[str]:
    """Return the parts of a trace that are drawn: `lines`, `markers`, `text`."""
    mode = trace.get("mode")
    if mode is None:
        mode = "lines+markers" if len(trace.get("y") or ()) < 20 else "lines"
    return frozenset(str(mode).split("+"))


def report_extent(trace: Trace, x: Axis, y: Axis) -> None:
    """Report the extent of a trace to the axes."""
    modes = drawn_modes(trace)
    for position in positions(trace, x, y):
        if position is None:
            continue
        at, left, top = position
        x.extent.add(left, padded="markers" in modes and x.kind != "category")
        y.extent.add(top, padded=y.kind != "category")
        for axis, key, value in ((x, "error_x", left), (y, "error_y", top)):
            for end in _error_ends(trace, key, at, axis, value):
                axis.extent.add(end, padded=True)
        if str(trace.get("fill") or "").startswith("tozero"):
            (y if trace["fill"] == "tozeroy" else x).extent.add(0.0, padded=False)
    for axis in (x, y):
        if axis.kind == "category" and axis.places:
            axis.extent.add(-0.5, padded=False)
            axis.extent.add(len(axis.places) - 0.5, padded=False)


def _error_ends(trace: Trace, key: str, at: int, axis: Axis, place: float) -> list[float]:
    """Return the ends of an error bar, in one or both directions."""
    bar = trace.get(key) or {}
    if not bar or bar.get("visible") is False:
        return []
    if bar.get("type") == "constant":
        plus = minus = bar.get("value")
    else:
        plus = value_at(bar.get("array"), at)
        minus = plus if bar.get("arrayminus") is None else value_at(bar.get("arrayminus"), at)
    value = 10**place if axis.kind == "log" else place
    ends = [value + sign * float(by) for sign, by in ((1, plus), (-1, minus)) if by is not None]
    return [end for each in ends if (end := axis.place(each)) is not None]


def draw(pen: Pen, trace: Trace, x: Axis, y: Axis, base_px: float) -> None:
    """Draw a trace: its fill, lines, error bars, points and texts.

    Args:
        pen: the pen of the drawing.
        trace: a trace of type scatter.
        x: the horizontal axis.
        y: the vertical axis.
        base_px: the lower edge of the area under a line, in pixels.
    """
    found_positions, modes = positions(trace, x, y), drawn_modes(trace)
    if "lines" in modes or trace.get("fill") not in (None, "none"):
        for segment in _segments(found_positions, bool(trace.get("connectgaps"))):
            _draw_segment(pen, trace, segment, x, y, modes, base_px)
    for position in found_positions:
        if position is not None:
            _draw_error_bars(pen, trace, position, x, y)
    for position in found_positions:
        if position is not None:
            _draw_point(pen, trace, position, x, y, modes)


def _segments(positions: list[Position | None], connects: bool) -> Iterator[list[Position]]:
    segment: list[Position] = []
    for position in positions:
        if position is not None:
            segment.append(position)
        elif segment and not connects:
            yield segment
            segment = []
    if segment:
        yield segment


def _draw_segment(
    pen: Pen,
    trace: Trace,
    segment: list[Position],
    x: Axis,
    y: Axis,
    modes: frozenset[str],
    base_px: float,
) -> None:
    line = trace.get("line") or {}
    color = line.get("color") or (trace.get("marker") or {}).get("color")
    color = value_at(color, 0) or "#1f5fa8"
    points = [(x.pixel(left), y.pixel(top)) for _, left, top in segment]
    commands = _path_through(points, str(line.get("shape") or "linear"))
    if trace.get("fill") == "tozeroy":
        pen.use_style(
            pen.style_attributes(
                fill=trace.get("fillcolor") or color,
                opacity=None if trace.get("fillcolor") else 0.5,
            )
        )
        pen.path(
            f"{commands}L{rounded(points[-1][0])} {rounded(base_px)}L{rounded(points[0][0])} {rounded(base_px)}z"
        )
    if "lines" in modes:
        width = line.get("width")
        look = pen.style_attributes(
            stroke=color,
            width=2.0 if width is None else float(width),
            dash=str(line.get("dash") or ""),
            opacity=trace.get("opacity"),
        )
        pen.use_style(look)
        pen.path(commands, "" if "markers" in modes else str(trace.get("name") or ""))


def _path_through(points: list[tuple[float, float]], shape: str) -> str:
    """Return the SVG commands of a path through points."""
    commands = [f"M{rounded(points[0][0])} {rounded(points[0][1])}"]
    for (ax, ay), (bx, by) in itertools.pairwise(points):
        middle = rounded((ax + bx) / 2)
        commands.append(
            {
                "hv": f"H{rounded(bx)}V{rounded(by)}",
                "vh": f"V{rounded(by)}H{rounded(bx)}",
                "hvh": f"H{middle}V{rounded(by)}H{rounded(bx)}",
                "vhv": f"V{rounded((ay + by) / 2)}H{rounded(bx)}V{rounded(by)}",
            }.get(shape, f"L{rounded(bx)} {rounded(by)}")
        )
    return "".join(commands)


def _draw_error_bars(pen: Pen, trace: Trace, position: Position, x: Axis, y: Axis) -> None:
    at, left, top = position
    for axis, key, place in ((x, "error_x", left), (y, "error_y", top)):
        error_bar = trace.get(key) or {}
        color = (
            error_bar.get("color")
            or value_at((trace.get("marker") or {}).get("color"), at)
            or "#1f5fa8"
        )
        cap = error_bar.get("width")
        half = 4.0 if cap is None else float(cap)
        for end in _error_ends(trace, key, at, axis, place):
            pen.use_style(
                pen.style_attributes(stroke=color, width=float(error_bar.get("thickness") or 2))
            )
            a, b = axis.pixel(place), axis.pixel(end)
            if axis.is_x:
                middle = y.pixel(top)
                pen.path(
                    f"M{rounded(a)} {rounded(middle)}H{rounded(b)}"
                    f"M{rounded(b)} {rounded(middle - half)}v{rounded(2 * half)}"
                )
            else:
                middle = x.pixel(left)
                pen.path(
                    f"M{rounded(middle)} {rounded(a)}V{rounded(b)}"
                    f"M{rounded(middle - half)} {rounded(b)}h{rounded(2 * half)}"
                )


def _draw_point(
    pen: Pen, trace: Trace, position: Position, x: Axis, y: Axis, modes: frozenset[str]
) -> None:
    at, left, top = position
    across, down = x.pixel(left), y.pixel(top)
    size = 0.0
    if "markers" in modes:
        size = value_at((trace.get("marker") or {}).get("size"), at)
        size = 6.0 if size is None else float(size)
        values = {"x": value_at(trace.get("x"), at), "y": value_at(trace.get("y"), at)}
        tooltip = hover_text(trace, at, values, {"x": x.formatted, "y": y.formatted})
        draw_symbol(pen, trace, at, across, down, size, tooltip)
    lines = lines_of(value_at(trace.get("text"), at)) if "text" in modes else []
    if lines:
        font = trace.get("textfont") or {}
        pen.use_style(pen.style_attributes(fill=value_at(font.get("color"), at) or "#1d2329"))
        letters = float(value_at(font.get("size"), at) or 12)
        vertical, _, side = str(
            value_at(trace.get("textposition"), at) or "middle center"
        ).partition(" ")
        distance = size / 2 + 3
        dx = {"left": -distance, "right": distance}.get(side, 0.0)
        below = size / 2 + letters * 0.7
        dy = {"top": -below - (len(lines) - 1) * letters * 1.25, "bottom": below}.get(vertical, 0.0)
        anchor = {"left": "end", "right": "start"}.get(side, "middle")
        pen.text(across + dx, down + dy, lines, letters, anchor=anchor)


def draw_symbol(
    pen: Pen, trace: Trace, at: int, across: float, down: float, size: float, tooltip: str = ""
) -> None:
    """Draw the marker of one point of a trace."""
    marker = trace.get("marker") or {}
    line = marker.get("line") or {}
    name = str(value_at(marker.get("symbol"), at) or "circle")
    color = (
        value_at(marker.get("color"), at)
        or value_at((trace.get("line") or {}).get("color"), at)
        or "#1f5fa8"
    )
    width = value_at(line.get("width"), at)
    is_open = name.endswith("-open") or "-open-" in name
    kind = name.partition("-open")[0].removesuffix("-dot")
    thin = kind.startswith("line-") or kind.endswith("-thin")
    opacity = value_at(marker.get("opacity"), at)
    if opacity is None:
        opacity = trace.get("opacity")
    if thin or is_open:
        outline = (value_at(line.get("color"), at) if thin else None) or color
        thick = float(width) if width else (2.0 if thin else 1.5)
        look = pen.style_attributes(stroke=outline, width=thick, opacity=opacity)
    else:
        look = pen.style_attributes(
            fill=color,
            stroke=value_at(line.get("color"), at),
            width=float(width or 0),
            opacity=opacity,
        )
    pen.use_style(look)
    shape = _OUTLINES.get(kind)
    if shape is None:
        pen.circle(across, down, size / 2, tooltip)
    else:
        pen.path(_moved_outline(shape, across, down, size / 2), tooltip)


def _moved_outline(shape: str, x: float, y: float, scale: float) -> str:
    """Return the commands of an outline, scaled and moved to a position. Only absolute coordinates are moved."""
    commands: list[str] = []
    number, pending, letter = "", [], ""  # type: str, list[float], str

    def flush() -> None:
        if not letter:
            return
        absolute = letter.isupper()
        words = []
        for place, value in enumerate(pending):
            is_x = letter in "Hh" or (letter not in "Vv" and place % 2 == 0)
            moved = value * scale + ((x if is_x else y) if absolute else 0.0)
            words.append(rounded(moved))
        commands.append(letter + " ".join(words))

    for c in f"{shape} ":
        if c.isdigit() or c == "." or (c == "-" and not number):
            number += c
            continue
        if number and not math.isnan(float(number)):
            pending.append(float(number))
            number = ""
        if c == "-":
            number = c
        elif c.isalpha():
            flush()
            pending, letter = [], c
    flush()
    return "".join(commands)
