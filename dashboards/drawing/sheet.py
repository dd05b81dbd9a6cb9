"""A complete drawing: space around the plot, axes, legend, marks, shapes and annotations."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import plotly.graph_objects as go

from dashboards import style
from dashboards.drawing import annotations as notes
from dashboards.drawing import bars, points
from dashboards.drawing import legend as legends
from dashboards.drawing.axes import Axis, Tick
from dashboards.drawing.bars import Bar, Trace
from dashboards.drawing.box import Box
from dashboards.drawing.pen import LINE, SIZE, Pen, escaped, near
from dashboards.drawing.text_layout import clean, fitted, line_width, lines_of

HEIGHT = 380
"""The default height of a figure in pixels; our choice."""
_GAP = 6.0
"""Between an axis and its labels."""
_MOST_SHARE = 0.42
"""The fraction of the width that names on one side may take; longer ones are cut."""
_EDGE = 4.0
"""The minimum distance of texts from the edge."""


@dataclass(slots=True)
class Labels:
    """The labels of an axis."""

    ticks: list[Tick] = field(default_factory=list)
    turned: float = 0
    """Clockwise, in degrees."""
    deep: float = 0
    """The space that they take next to the axis, with its title."""
    title_at: float = 0
    """The distance of the middle of the title from the axis."""


def svg(figure: go.Figure, *, title: str, says: str, width: int = 960) -> str:
    """Return a figure as static SVG, without a script or a browser.

    Args:
        figure: of bars and scatter traces; see `dashboards.figures`.
        title: a short title; for screen readers, not drawn.
        says: one sentence on its content; for screen readers, not drawn.
        width: in pixels; it shrinks with the page.

    Raises:
        ValueError: the figure has a kind of trace that cannot be drawn.
    """
    sheet = _Sheet(figure.to_plotly_json(), float(width))
    known = json.dumps([title, width, len(sheet.traces), sheet.height])
    prefix = f"d{hashlib.sha256(known.encode()).hexdigest()[:8]}"
    pen = Pen(prefix)
    sheet.draw(pen)
    size = f'width="{near(width)}" height="{near(sheet.height)}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="drawing" {size} viewBox="0 0 {near(width)} '
        f'{near(sheet.height)}" role="img" aria-labelledby="{prefix}t {prefix}d" '
        f'font-family="{escaped(style.FONT)}" font-size="{near(SIZE)}">'
        f'<title id="{prefix}t">{escaped(clean(title))}</title>'
        f'<desc id="{prefix}d">{escaped(clean(says))}</desc>{pen.body()}</svg>'
    )


class _Sheet:
    """A figure that is being laid out."""

    def __init__(self, told: dict[str, Any], width: float) -> None:
        self.layout: dict[str, Any] = told.get("layout") or {}
        self.traces = [
            trace
            for trace in told.get("data") or ()
            if trace.get("visible") not in (False, "legendonly")
        ]
        for trace in self.traces:
            if trace.get("type", "scatter") not in ("bar", "scatter"):
                raise ValueError(f"a trace of type {trace.get('type')} cannot be drawn")
        self.width = width
        self.height = float(self.layout.get("height") or HEIGHT)
        self.axes = self._axes()
        self.bars = self._put_bars()
        self._reach()
        self.legend = legends.entries(self.traces, self.layout)
        self.box = Box(0, 0, width, self.height)
        self.labels: dict[str, Labels] = {}
        self._make_room()

    def draw(self, pen: Pen) -> None:
        """Draw everything, foreground last."""
        for axis in self.axes.values():
            self._draw_grid(pen, axis)
        notes.shapes(pen, self, "below")
        self._draw_marks(pen)
        for axis in self.axes.values():
            self._draw_axis(pen, axis)
        notes.shapes(pen, self, "above")
        legends.draw(pen, self.legend, self.layout, self.box, self.width, self.height)
        notes.texts(pen, self)

    def pair(self, trace: Trace) -> tuple[Axis, Axis]:
        """Return the two axes of a trace."""
        return self.axes[trace.get("xaxis") or "x"], self.axes[trace.get("yaxis") or "y"]

    def _axes(self) -> dict[str, Axis]:
        names = {
            trace.get(f"{letter}axis") or letter: None for trace in self.traces for letter in "xy"
        }
        names |= {"x": None, "y": None}
        for key in self.layout:
            if key[1:5] == "axis" and key[0] in "xy":
                names[key[0] + key[5:]] = None
        axes = {
            name: Axis(name, self.layout.get(f"{name[0]}axis{name[1:]}") or {})
            for name in sorted(names)
        }
        for name, axis in axes.items():
            own = [t for t in self.traces if (t.get(f"{name[0]}axis") or name[0]) == name]
            values = [value for trace in own for value in trace.get(name[0]) or ()]
            values += [
                value
                for trace in own
                if trace.get("type") == "bar" and bars.is_flat(trace) == axis.is_x
                for value in _listed(trace.get("base"))
                if isinstance(value, str) or hasattr(value, "isoformat")
            ]
            axis.learn(values)
        return axes

    def _put_bars(self) -> dict[int, list[Bar]]:
        found: dict[int, list[Bar]] = {}
        drawn = [(at, trace) for at, trace in enumerate(self.traces) if trace.get("type") == "bar"]
        keys = {(t.get("xaxis"), t.get("yaxis"), bars.is_flat(t)): None for _, t in drawn}
        for key in keys:
            group = [
                (at, t)
                for at, t in drawn
                if (t.get("xaxis"), t.get("yaxis"), bars.is_flat(t)) == key
            ]
            x, y = self.pair(group[0][1])
            across, along = (y, x) if key[2] else (x, y)
            put = bars.put([trace for _, trace in group], self.layout, across, along)
            found |= {at: each for (at, _), each in zip(group, put, strict=True)}
        return found

    def _reach(self) -> None:
        for trace in self.traces:
            if trace.get("type", "scatter") == "scatter":
                points.reach(trace, *self.pair(trace))
        for shape in self.layout.get("shapes") or ():
            for letter in "xy":
                axis = self.axes.get(shape.get(f"{letter}ref") or letter)
                for end in (0, 1):
                    if axis is not None and axis.kind != "category":
                        axis.reach.add(axis.place(shape.get(f"{letter}{end}")), padded=False)
        for name, axis in self.axes.items():
            other = self.axes.get(str(axis.told.get("matches") or name), axis)
            low = min(axis.reach.low, other.reach.low)
            high = max(axis.reach.high, other.reach.high)
            for each in (axis, other):
                each.reach.low, each.reach.high = low, high
        for name, axis in self.axes.items():
            other = self.axes.get(str(axis.told.get("matches") or name), axis)
            axis.reach = other.reach
            axis.settle()

    # -- room ------------------------------------------------------------------------------------

    def _make_room(self) -> None:
        """Determine the area of the plot iteratively, because the space for labels depends on it."""
        margin = {side: float((self.layout.get("margin") or {}).get(side, 40)) for side in "lrtb"}
        wanted = dict(margin)
        for _ in range(4):
            self.box = Box(
                wanted["l"],
                wanted["t"],
                max(self.width - wanted["r"], wanted["l"] + 40),
                max(self.height - wanted["b"], wanted["t"] + 30),
            )
            self._stretch()
            self.labels = {name: self._label(axis) for name, axis in self.axes.items()}
            wanted = dict(margin)
            legend = legends.room(self.legend, self.layout, self.width)
            for side in "lrtb":
                wanted[side] = max(margin[side], *self._around(side), 0.0)
            for side, more in legend.items():
                outside = max(self._around(side)) if side in "lb" else 0.0
                wanted[side] = max(wanted[side], more + (outside if side == "b" else 0.0))

    def _stretch(self) -> None:
        """Assign pixels to each axis."""
        box = self.box
        for axis in self.axes.values():
            told = axis.told
            if not told.get("domain") and told.get("overlaying"):
                told = self.axes[str(told["overlaying"])].told
            low, high = told.get("domain") or (0.0, 1.0)
            if axis.is_x:
                across = box.right - box.left
                axis.start, axis.end = box.left + low * across, box.left + high * across
            else:
                down = box.bottom - box.top
                axis.start, axis.end = box.bottom - low * down, box.bottom - high * down

    def _around(self, side: str) -> list[float]:
        """Return the space that each axis, or overhanging labels, need on one side."""
        found = [_EDGE]
        box = self.box
        for name, axis in self.axes.items():
            labels = self.labels[name]
            if not axis.is_shown:
                continue
            if axis.is_x == (side in "tb"):
                if axis.is_opposite == (side in "tr"):
                    inner = self._line_at(axis)
                    edge = {"l": box.left, "r": box.right, "t": box.top, "b": box.bottom}[side]
                    inside = abs(inner - edge)
                    found.append(labels.deep - inside + _EDGE)
            else:
                found.append(self._overhang(axis, labels, side) + _EDGE)
        return found

    def _overhang(self, axis: Axis, labels: Labels, side: str) -> float:
        """Return how far labels along an axis extend beyond its end."""
        most = 0.0
        for tick in labels.ticks:
            at = axis.px(tick.at)
            half = _turned_width(tick, labels.turned) / 2 if axis.is_x else SIZE * 0.6
            ahead = half
            if axis.is_x and labels.turned:
                # Rotated labels extend to the left of their tick.
                half, ahead = half * 2, SIZE * 0.6
            if labels.turned < 0:
                half, ahead = ahead, half
            low, high = at - half, at + ahead
            over = {
                "l": self.box.left - low,
                "r": high - self.box.right,
                "t": self.box.top - low,
                "b": high - self.box.bottom,
            }[side]
            most = max(most, over)
        return most

    def _line_at(self, axis: Axis) -> float:
        """Return the position of an axis: its x, or its y."""
        box = self.box
        if axis.told.get("anchor") == "free":
            share = float(axis.told.get("position") or 0)
            if axis.is_x:
                return box.bottom - share * (box.bottom - box.top)
            return box.left + share * (box.right - box.left)
        anchor = str(axis.told.get("anchor") or "")
        other = self.axes.get(anchor) or self.axes["y" if axis.is_x else "x"]
        return other.end if axis.is_opposite else other.start

    def _label(self, axis: Axis) -> Labels:
        """Determine the labels of an axis, and their layout."""
        labels = Labels()
        if not axis.is_shown:
            return labels
        ticks = axis.ticks() if axis.told.get("showticklabels") is not False else []
        ticks = [tick for tick in ticks if any(tick.lines)]
        if axis.is_x:
            deep = self._lay_beneath(axis, ticks, labels)
        else:
            most = self.width * _MOST_SHARE
            labels.ticks = [
                Tick(t.at, tuple(fitted(line, SIZE, most) for line in t.lines))
                for t in _apart(axis, ticks)
            ]
            wide = max(
                (line_width(line, SIZE) for t in labels.ticks for line in t.lines), default=0
            )
            deep = wide + _GAP + _standoff(axis) if labels.ticks else 0.0
        labels.deep = deep
        title = lines_of(_title(axis))
        if title:
            labels.title_at = deep + _GAP + SIZE * 0.6
            labels.deep = labels.title_at + SIZE * (0.7 + LINE * (len(title) - 1))
        return labels

    def _lay_beneath(self, axis: Axis, ticks: list[Tick], labels: Labels) -> float:
        """Lay out labels under an axis, rotated if they would overlap; return their depth."""
        labels.ticks = ticks
        if not ticks:
            return 0.0
        places = [axis.px(tick.at) for tick in ticks]
        room = min((abs(b - a) for a, b in itertools.pairwise(places)), default=math.inf)
        wide = max(_turned_width(tick, 0) for tick in ticks)
        tall = max(len(tick.lines) for tick in ticks) * SIZE * LINE
        asked = axis.told.get("tickangle")
        if asked is not None:
            labels.turned = float(asked)
        elif axis.kind != "category" and axis.told.get("ticktext") is None:
            labels.ticks = _thinned(ticks, places, wide + 8)
        elif wide + 6 > room:
            labels.turned = 35 if room > 22 else 90
            step = max(math.ceil(SIZE * 1.3 / max(room, 0.1)), 1)
            labels.ticks = ticks[::step]
        if not labels.turned:
            return tall + _GAP
        most = self.height * 0.4 / max(math.sin(math.radians(abs(labels.turned))), 0.2)
        labels.ticks = [
            Tick(t.at, tuple(fitted(line, SIZE, most) for line in t.lines)) for t in labels.ticks
        ]
        wide = max(_turned_width(tick, 0) for tick in labels.ticks)
        angle = math.radians(abs(labels.turned))
        return wide * math.sin(angle) + SIZE * math.cos(angle) + _GAP

    # -- drawing ---------------------------------------------------------------------------------

    def _draw_grid(self, pen: Pen, axis: Axis) -> None:
        if not axis.is_shown or axis.told.get("showgrid") is False or axis.kind == "category":
            return
        other = self.axes.get(
            str(axis.told.get("anchor") or ""), self.axes["y" if axis.is_x else "x"]
        )
        pen.styled(pen.look(stroke=axis.told.get("gridcolor") or style.GRID))
        low, high = sorted((other.start, other.end))
        commands = []
        for tick in axis.ticks():
            at = near(axis.px(tick.at))
            commands.append(
                f"M{at} {near(low)}V{near(high)}"
                if axis.is_x
                else f"M{near(low)} {at}H{near(high)}"
            )
        if commands:
            pen.path("".join(commands))

    def _draw_marks(self, pen: Pen) -> None:
        """Draw the traces: bars first, then lines and points, as in plotly."""
        slack = 8
        clip = pen.clip(
            self.box.left - slack,
            self.box.top - slack,
            self.box.right - self.box.left + 2 * slack,
            self.box.bottom - self.box.top + 2 * slack,
        )
        for kind in ("bar", "scatter"):
            for at, trace in enumerate(self.traces):
                if trace.get("type", "scatter") != kind:
                    continue
                pen.start(f"marks m{at}", clip)
                x, y = self.pair(trace)
                if kind == "bar":
                    bars.draw(pen, trace, self.bars[at], x, y)
                else:
                    low = 0.0 if y.kind == "linear" else y.low
                    points.draw(pen, trace, x, y, y.px(max(min(low, y.high), y.low)))
                pen.end()

    def _draw_axis(self, pen: Pen, axis: Axis) -> None:
        if not axis.is_shown:
            return
        at, labels = self._line_at(axis), self.labels[axis.name]
        if axis.told.get("showline"):
            pen.styled(pen.look(stroke=axis.told.get("linecolor") or style.GRID))
            ends = (axis.start, at, axis.end, at) if axis.is_x else (at, axis.start, at, axis.end)
            pen.line(*ends)
        self._draw_zero(pen, axis)
        font = axis.told.get("tickfont") or {}
        pen.styled(pen.look(fill=font.get("color") or style.FAINT))
        out = 1 if axis.is_opposite != axis.is_x else -1
        for tick in labels.ticks:
            place = axis.px(tick.at)
            if axis.is_x:
                self._write_beneath(pen, labels, tick, place, at, out)
            else:
                anchor = "start" if axis.is_opposite else "end"
                top = place - (len(tick.lines) - 1) * SIZE * LINE / 2
                pen.text(at + out * (_GAP + _standoff(axis)), top, tick.lines, SIZE, anchor=anchor)
        self._write_title(pen, axis, labels, at, out)

    def _write_beneath(
        self, pen: Pen, labels: Labels, tick: Tick, place: float, at: float, out: int
    ) -> None:
        if labels.turned:
            anchor = "start" if labels.turned > 0 else "end"
            pen.text(
                place,
                at + out * (_GAP + SIZE * 0.4),
                tick.lines,
                SIZE,
                anchor=anchor,
                turned=labels.turned,
            )
            return
        lines = len(tick.lines)
        top = at + _GAP + SIZE * 0.6 if out > 0 else at - _GAP - SIZE * (0.4 + LINE * (lines - 1))
        pen.text(place, top, tick.lines, SIZE, anchor="middle")

    def _draw_zero(self, pen: Pen, axis: Axis) -> None:
        """Draw the zero line if it is within the plot, as in plotly."""
        if axis.kind != "linear" or axis.told.get("zeroline") is False:
            return
        if not min(axis.low, axis.high) <= 0 <= max(axis.low, axis.high):
            return
        color = axis.told.get("zerolinecolor") or style.GRID
        pen.styled(pen.look(stroke=color, width=1.5))
        other = self.axes.get(
            str(axis.told.get("anchor") or ""), self.axes["y" if axis.is_x else "x"]
        )
        at = axis.px(0)
        pen.line(
            *((at, other.start, at, other.end) if axis.is_x else (other.start, at, other.end, at))
        )

    def _write_title(self, pen: Pen, axis: Axis, labels: Labels, at: float, out: int) -> None:
        lines = lines_of(_title(axis))
        if not lines:
            return
        told = axis.told.get("title")
        font = (told.get("font") if isinstance(told, dict) else None) or {}
        pen.styled(pen.look(fill=font.get("color") or style.INK))
        middle = (axis.start + axis.end) / 2
        if axis.is_x:
            lines = [fitted(line, SIZE, self.width - 2 * _EDGE) for line in lines]
            wide = max(line_width(line, SIZE) for line in lines) / 2
            middle = min(max(middle, wide + _EDGE), self.width - wide - _EDGE)
            pen.text(middle, at + out * labels.title_at, lines, SIZE, anchor="middle")
        else:
            lines = [fitted(line, SIZE, self.height - 2 * _EDGE) for line in lines]
            wide = max(line_width(line, SIZE) for line in lines) / 2
            middle = min(max(middle, wide + _EDGE), self.height - wide - _EDGE)
            pen.text(at + out * labels.title_at, middle, lines, SIZE, anchor="middle", turned=-90)


def _title(axis: Axis) -> Any:
    told = axis.told.get("title")
    return told.get("text") if isinstance(told, dict) else told


def _standoff(axis: Axis) -> float:
    """Return the additional distance of labels from their axis in the layout."""
    return float(axis.told.get("ticklabelstandoff") or 0)


def _listed(given: Any) -> Sequence[Any]:
    if given is None:
        return ()
    return given if isinstance(given, list | tuple) else (given,)


def _turned_width(tick: Tick, turned: float) -> float:
    wide = max((line_width(line, SIZE) for line in tick.lines), default=0.0)
    return wide * abs(math.cos(math.radians(turned))) if turned else wide


def _thinned(ticks: list[Tick], places: list[float], room: float) -> list[Tick]:
    """Return every n-th tick, so that none overlaps the next."""
    if len(ticks) < 2:
        return ticks
    step = max(math.ceil(room / max(abs(places[1] - places[0]), 0.1)), 1)
    return ticks[::step]


def _apart(axis: Axis, ticks: list[Tick]) -> list[Tick]:
    """Return the ticks of a vertical axis that do not overlap."""
    kept: list[Tick] = []
    last = -math.inf
    for tick in sorted(ticks, key=lambda tick: axis.px(tick.at)):
        half = len(tick.lines) * SIZE * 0.5
        at = axis.px(tick.at)
        if at - half >= last - 0.5:
            kept.append(tick)
            last = at + half
    return kept
