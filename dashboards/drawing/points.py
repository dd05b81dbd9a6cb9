"""Lines and points: traces of type scatter, with error bars."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from dashboards.drawing.axes import Axis
from dashboards.drawing.pen import Pen, near
from dashboards.drawing.text_layout import hover_text, lines_of, one

Trace = dict[str, Any]
Spot = tuple[int, float, float]
"""The index within the trace, and the position along the axes."""

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
"""Symbols of plotly that are not circles, half as wide as 1."""


def spots(trace: Trace, x: Axis, y: Axis) -> list[Spot | None]:
    """Return the positions of the points of a trace; None for gaps."""
    ys = list(trace.get("y") or ())
    xs = trace.get("x")
    xs = list(range(len(ys))) if xs is None else list(xs)
    if not ys and trace.get("y") is None:
        ys = list(range(len(xs)))
    found: list[Spot | None] = []
    for at, (a, b) in enumerate(zip(xs, ys, strict=False)):
        left, top = x.place(a), y.place(b)
        found.append(None if left is None or top is None else (at, left, top))
    return found


def modes(trace: Trace) -> frozenset[str]:
    """Return what is drawn of a trace: lines, markers, text."""
    told = trace.get("mode")
    if told is None:
        told = "lines+markers" if len(trace.get("y") or ()) < 20 else "lines"
    return frozenset(str(told).split("+"))


def reach(trace: Trace, x: Axis, y: Axis) -> None:
    """Report the extent of a trace to the axes."""
    drawn = modes(trace)
    for spot in spots(trace, x, y):
        if spot is None:
            continue
        at, left, top = spot
        x.reach.add(left, padded="markers" in drawn and x.kind != "category")
        y.reach.add(top, padded=y.kind != "category")
        for axis, key, value in ((x, "error_x", left), (y, "error_y", top)):
            for end in _errors(trace, key, at, axis, value):
                axis.reach.add(end, padded=True)
        if str(trace.get("fill") or "").startswith("tozero"):
            (y if trace["fill"] == "tozeroy" else x).reach.add(0.0, padded=False)
    for axis in (x, y):
        if axis.kind == "category" and axis.places:
            axis.reach.add(-0.5, padded=False)
            axis.reach.add(len(axis.places) - 0.5, padded=False)


def _errors(trace: Trace, key: str, at: int, axis: Axis, place: float) -> list[float]:
    """Return the ends of an error bar, in one or both directions."""
    told = trace.get(key) or {}
    if not told or told.get("visible") is False:
        return []
    if told.get("type") == "constant":
        more = less = told.get("value")
    else:
        more = one(told.get("array"), at)
        less = more if told.get("arrayminus") is None else one(told.get("arrayminus"), at)
    value = 10**place if axis.kind == "log" else place
    ends = [value + sign * float(by) for sign, by in ((1, more), (-1, less)) if by is not None]
    return [end for each in ends if (end := axis.place(each)) is not None]


def draw(pen: Pen, trace: Trace, x: Axis, y: Axis, base_px: float) -> None:
    """Draw a trace: its fill, lines, error bars, points and texts.

    Args:
        pen: draws.
        trace: of type scatter.
        x: its horizontal axis.
        y: its vertical axis.
        base_px: the lower edge of the area under a line.
    """
    found, drawn = spots(trace, x, y), modes(trace)
    if "lines" in drawn or trace.get("fill") not in (None, "none"):
        for stretch in _stretches(found, bool(trace.get("connectgaps"))):
            _stretch(pen, trace, stretch, x, y, drawn, base_px)
    for spot in found:
        if spot is not None:
            _error_bars(pen, trace, spot, x, y)
    for spot in found:
        if spot is not None:
            _point(pen, trace, spot, x, y, drawn)


def _stretches(found: list[Spot | None], connects: bool) -> Iterator[list[Spot]]:
    stretch: list[Spot] = []
    for spot in found:
        if spot is not None:
            stretch.append(spot)
        elif stretch and not connects:
            yield stretch
            stretch = []
    if stretch:
        yield stretch


def _stretch(
    pen: Pen,
    trace: Trace,
    stretch: list[Spot],
    x: Axis,
    y: Axis,
    drawn: frozenset[str],
    base_px: float,
) -> None:
    line = trace.get("line") or {}
    color = line.get("color") or (trace.get("marker") or {}).get("color")
    color = one(color, 0) or "#1f5fa8"
    points = [(x.px(left), y.px(top)) for _, left, top in stretch]
    commands = _through(points, str(line.get("shape") or "linear"))
    if trace.get("fill") == "tozeroy":
        pen.styled(
            pen.look(
                fill=trace.get("fillcolor") or color,
                opacity=None if trace.get("fillcolor") else 0.5,
            )
        )
        pen.path(
            f"{commands}L{near(points[-1][0])} {near(base_px)}L{near(points[0][0])} {near(base_px)}z"
        )
    if "lines" in drawn:
        width = line.get("width")
        look = pen.look(
            stroke=color,
            width=2.0 if width is None else float(width),
            dash=str(line.get("dash") or ""),
            opacity=trace.get("opacity"),
        )
        pen.styled(look)
        pen.path(commands, "" if "markers" in drawn else str(trace.get("name") or ""))


def _through(points: list[tuple[float, float]], shape: str) -> str:
    """Return the commands of a path through points."""
    commands = [f"M{near(points[0][0])} {near(points[0][1])}"]
    for (ax, ay), (bx, by) in itertools.pairwise(points):
        middle = near((ax + bx) / 2)
        commands.append(
            {
                "hv": f"H{near(bx)}V{near(by)}",
                "vh": f"V{near(by)}H{near(bx)}",
                "hvh": f"H{middle}V{near(by)}H{near(bx)}",
                "vhv": f"V{near((ay + by) / 2)}H{near(bx)}V{near(by)}",
            }.get(shape, f"L{near(bx)} {near(by)}")
        )
    return "".join(commands)


def _error_bars(pen: Pen, trace: Trace, spot: Spot, x: Axis, y: Axis) -> None:
    at, left, top = spot
    for axis, key, place in ((x, "error_x", left), (y, "error_y", top)):
        told = trace.get(key) or {}
        color = told.get("color") or one((trace.get("marker") or {}).get("color"), at) or "#1f5fa8"
        cap = told.get("width")
        half = 4.0 if cap is None else float(cap)
        for end in _errors(trace, key, at, axis, place):
            pen.styled(pen.look(stroke=color, width=float(told.get("thickness") or 2)))
            a, b = axis.px(place), axis.px(end)
            if axis.is_x:
                middle = y.px(top)
                pen.path(
                    f"M{near(a)} {near(middle)}H{near(b)}M{near(b)} {near(middle - half)}v{near(2 * half)}"
                )
            else:
                middle = x.px(left)
                pen.path(
                    f"M{near(middle)} {near(a)}V{near(b)}M{near(middle - half)} {near(b)}h{near(2 * half)}"
                )


def _point(pen: Pen, trace: Trace, spot: Spot, x: Axis, y: Axis, drawn: frozenset[str]) -> None:
    at, left, top = spot
    across, down = x.px(left), y.px(top)
    size = 0.0
    if "markers" in drawn:
        size = one((trace.get("marker") or {}).get("size"), at)
        size = 6.0 if size is None else float(size)
        values = {"x": one(trace.get("x"), at), "y": one(trace.get("y"), at)}
        told = hover_text(trace, at, values, {"x": x.written, "y": y.written})
        symbol(pen, trace, at, across, down, size, told)
    lines = lines_of(one(trace.get("text"), at)) if "text" in drawn else []
    if lines:
        font = trace.get("textfont") or {}
        pen.styled(pen.look(fill=one(font.get("color"), at) or "#1d2329"))
        letters = float(one(font.get("size"), at) or 12)
        vertical, _, side = str(one(trace.get("textposition"), at) or "middle center").partition(
            " "
        )
        away = size / 2 + 3
        dx = {"left": -away, "right": away}.get(side, 0.0)
        below = size / 2 + letters * 0.7
        dy = {"top": -below - (len(lines) - 1) * letters * 1.25, "bottom": below}.get(vertical, 0.0)
        anchor = {"left": "end", "right": "start"}.get(side, "middle")
        pen.text(across + dx, down + dy, lines, letters, anchor=anchor)


def symbol(
    pen: Pen, trace: Trace, at: int, across: float, down: float, size: float, told: str = ""
) -> None:
    """Draw one marker of a trace."""
    marker = trace.get("marker") or {}
    line = marker.get("line") or {}
    name = str(one(marker.get("symbol"), at) or "circle")
    color = (
        one(marker.get("color"), at) or one((trace.get("line") or {}).get("color"), at) or "#1f5fa8"
    )
    width = one(line.get("width"), at)
    is_open = name.endswith("-open") or "-open-" in name
    kind = name.partition("-open")[0].removesuffix("-dot")
    thin = kind.startswith("line-") or kind.endswith("-thin")
    opacity = one(marker.get("opacity"), at)
    if opacity is None:
        opacity = trace.get("opacity")
    if thin or is_open:
        outline = (one(line.get("color"), at) if thin else None) or color
        thick = float(width) if width else (2.0 if thin else 1.5)
        look = pen.look(stroke=outline, width=thick, opacity=opacity)
    else:
        look = pen.look(
            fill=color, stroke=one(line.get("color"), at), width=float(width or 0), opacity=opacity
        )
    pen.styled(look)
    shape = _OUTLINES.get(kind)
    if shape is None:
        pen.circle(across, down, size / 2, told)
    else:
        pen.path(_moved(shape, across, down, size / 2), told)


def _moved(shape: str, across: float, down: float, by: float) -> str:
    """Return the commands of a shape at a position, in a size: absolute coordinates are moved, too."""
    commands: list[str] = []
    number, pending, letter = "", [], ""  # type: str, list[float], str

    def flush() -> None:
        if not letter:
            return
        absolute = letter.isupper()
        words = []
        for place, value in enumerate(pending):
            is_x = letter in "Hh" or (letter not in "Vv" and place % 2 == 0)
            moved = value * by + ((across if is_x else down) if absolute else 0.0)
            words.append(near(moved))
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
