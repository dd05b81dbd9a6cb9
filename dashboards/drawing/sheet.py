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
from dashboards.drawing.pen import LINE, SIZE, Pen, escaped, rounded
from dashboards.drawing.text_layout import clean, fitted, line_width, lines_of

HEIGHT = 380
"""The default height of a figure in pixels. Our choice."""
_GAP = 6.0
"""The space between an axis and its labels, in pixels."""
_MOST_NAME_SHARE = 0.42
"""The maximum fraction of the width for the labels of a vertical axis; longer labels are cut."""
_EDGE = 4.0
"""The minimum distance of texts from the edge of the drawing, in pixels."""


@dataclass(slots=True)
class Labels:
    """The labels of an axis."""

    ticks: list[Tick] = field(default_factory=list)
    rotation: float = 0
    """The clockwise rotation in degrees."""
    depth: float = 0
    """The space next to the axis for the labels and the title, in pixels."""
    title_at: float = 0
    """The distance of the middle of the title from the axis, in pixels."""


def svg(figure: go.Figure, *, title: str, says: str, width: int = 960) -> str:
    """Return a figure as static SVG, without a script or a browser.

    Args:
        figure: a figure of bar and scatter traces; see `dashboards.figures`.
        title: a short title, for screen readers; it is not drawn.
        says: a summary in one sentence, for screen readers; it is not drawn.
        width: the width in pixels; the drawing shrinks with the page.

    Raises:
        ValueError: the figure has a type of trace or shape that cannot be drawn.
    """
    sheet = _Sheet(figure.to_plotly_json(), float(width))
    known = json.dumps([title, width, len(sheet.traces), sheet.height])
    prefix = f"d{hashlib.sha256(known.encode()).hexdigest()[:8]}"
    pen = Pen(prefix)
    sheet.draw(pen)
    size = f'width="{rounded(width)}" height="{rounded(sheet.height)}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="drawing" {size} viewBox="0 0 {rounded(width)} '
        f'{rounded(sheet.height)}" role="img" aria-labelledby="{prefix}t {prefix}d" '
        f'font-family="{escaped(style.FONT)}" font-size="{rounded(SIZE)}">'
        f'<title id="{prefix}t">{escaped(clean(title))}</title>'
        f'<desc id="{prefix}d">{escaped(clean(says))}</desc>{pen.elements()}</svg>'
    )


class _Sheet:
    """A figure that is being laid out."""

    def __init__(self, figure_json: dict[str, Any], width: float) -> None:
        self.layout: dict[str, Any] = figure_json.get("layout") or {}
        self.traces = [
            trace
            for trace in figure_json.get("data") or ()
            if trace.get("visible") not in (False, "legendonly")
        ]
        for trace in self.traces:
            if trace.get("type", "scatter") not in ("bar", "scatter"):
                raise ValueError(f"a trace of type {trace.get('type')} cannot be drawn")
        self.width = width
        self.height = float(self.layout.get("height") or HEIGHT)
        self.axes = self._axes()
        self.bars = self._place_bars()
        self._determine_extents()
        self.legend = legends.entries(self.traces, self.layout)
        self.box = Box(0, 0, width, self.height)
        self.labels: dict[str, Labels] = {}
        self._fit_plot()

    def draw(self, pen: Pen) -> None:
        """Draw all parts of the figure, the foreground last."""
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
            axis_traces = [t for t in self.traces if (t.get(f"{name[0]}axis") or name[0]) == name]
            values = [value for trace in axis_traces for value in trace.get(name[0]) or ()]
            values += [
                value
                for trace in axis_traces
                if trace.get("type") == "bar" and bars.is_horizontal(trace) == axis.is_x
                for value in _as_sequence(trace.get("base"))
                if isinstance(value, str) or hasattr(value, "isoformat")
            ]
            axis.determine_kind(values)
        return axes

    def _place_bars(self) -> dict[int, list[Bar]]:
        found: dict[int, list[Bar]] = {}
        bar_traces = [
            (at, trace) for at, trace in enumerate(self.traces) if trace.get("type") == "bar"
        ]
        keys = {
            (t.get("xaxis"), t.get("yaxis"), bars.is_horizontal(t)): None for _, t in bar_traces
        }
        for key in keys:
            group = [
                (at, t)
                for at, t in bar_traces
                if (t.get("xaxis"), t.get("yaxis"), bars.is_horizontal(t)) == key
            ]
            x, y = self.pair(group[0][1])
            across, along = (y, x) if key[2] else (x, y)
            place_bars = bars.place_bars([trace for _, trace in group], self.layout, across, along)
            found |= {at: each for (at, _), each in zip(group, place_bars, strict=True)}
        return found

    def _determine_extents(self) -> None:
        for trace in self.traces:
            if trace.get("type", "scatter") == "scatter":
                points.report_extent(trace, *self.pair(trace))
        for shape in self.layout.get("shapes") or ():
            for letter in "xy":
                axis = self.axes.get(shape.get(f"{letter}ref") or letter)
                for end in (0, 1):
                    if axis is not None and axis.kind != "category":
                        axis.extent.add(axis.place(shape.get(f"{letter}{end}")), padded=False)
        for name, axis in self.axes.items():
            other = self.axes.get(str(axis.settings.get("matches") or name), axis)
            low = min(axis.extent.low, other.extent.low)
            high = max(axis.extent.high, other.extent.high)
            for each in (axis, other):
                each.extent.low, each.extent.high = low, high
        for name, axis in self.axes.items():
            other = self.axes.get(str(axis.settings.get("matches") or name), axis)
            axis.extent = other.extent
            axis.determine_ends()

    # -- space -----------------------------------------------------------------------------------

    def _fit_plot(self) -> None:
        """Determine the area of the plot. This is iterative, because the space for labels depends on the area."""
        least_margins = {
            side: float((self.layout.get("margin") or {}).get(side, 40)) for side in "lrtb"
        }
        margins = dict(least_margins)
        for _ in range(4):
            self.box = Box(
                margins["l"],
                margins["t"],
                max(self.width - margins["r"], margins["l"] + 40),
                max(self.height - margins["b"], margins["t"] + 30),
            )
            self._assign_pixels()
            self.labels = {name: self._axis_labels(axis) for name, axis in self.axes.items()}
            margins = dict(least_margins)
            legend = legends.space_needed(self.legend, self.layout, self.width)
            for side in "lrtb":
                margins[side] = max(least_margins[side], *self._outer_space(side), 0.0)
            for side, more in legend.items():
                outside = max(self._outer_space(side)) if side in "lb" else 0.0
                margins[side] = max(margins[side], more + (outside if side == "b" else 0.0))

    def _assign_pixels(self) -> None:
        """Assign pixels to each axis."""
        box = self.box
        for axis in self.axes.values():
            settings = axis.settings
            if not settings.get("domain") and settings.get("overlaying"):
                settings = self.axes[str(settings["overlaying"])].settings
            low, high = settings.get("domain") or (0.0, 1.0)
            if axis.is_x:
                across = box.right - box.left
                axis.start, axis.end = box.left + low * across, box.left + high * across
            else:
                down = box.bottom - box.top
                axis.start, axis.end = box.bottom - low * down, box.bottom - high * down

    def _outer_space(self, side: str) -> list[float]:
        """Return the space that each axis and its labels need on one side of the plot."""
        found = [_EDGE]
        box = self.box
        for name, axis in self.axes.items():
            labels = self.labels[name]
            if not axis.is_shown:
                continue
            if axis.is_x == (side in "tb"):
                if axis.is_opposite == (side in "tr"):
                    inner = self._axis_position(axis)
                    edge = {"l": box.left, "r": box.right, "t": box.top, "b": box.bottom}[side]
                    inside = abs(inner - edge)
                    found.append(labels.depth - inside + _EDGE)
            else:
                found.append(self._overhang(axis, labels, side) + _EDGE)
        return found

    def _overhang(self, axis: Axis, labels: Labels, side: str) -> float:
        """Return how far labels along an axis extend beyond its end."""
        largest = 0.0
        for tick in labels.ticks:
            at = axis.pixel(tick.at)
            before = _rotated_width(tick, labels.rotation) / 2 if axis.is_x else SIZE * 0.6
            after = before
            if axis.is_x and labels.rotation:
                # Rotated labels extend to the left of their tick.
                before, after = before * 2, SIZE * 0.6
            if labels.rotation < 0:
                before, after = after, before
            low, high = at - before, at + after
            overhang = {
                "l": self.box.left - low,
                "r": high - self.box.right,
                "t": self.box.top - low,
                "b": high - self.box.bottom,
            }[side]
            largest = max(largest, overhang)
        return largest

    def _axis_position(self, axis: Axis) -> float:
        """Return the position of an axis line in pixels: x of a vertical axis, y of a horizontal axis."""
        box = self.box
        if axis.settings.get("anchor") == "free":
            share = float(axis.settings.get("position") or 0)
            if axis.is_x:
                return box.bottom - share * (box.bottom - box.top)
            return box.left + share * (box.right - box.left)
        anchor = str(axis.settings.get("anchor") or "")
        other = self.axes.get(anchor) or self.axes["y" if axis.is_x else "x"]
        return other.end if axis.is_opposite else other.start

    def _axis_labels(self, axis: Axis) -> Labels:
        """Return the labels of an axis, with their layout."""
        labels = Labels()
        if not axis.is_shown:
            return labels
        ticks = axis.ticks() if axis.settings.get("showticklabels") is not False else []
        ticks = [tick for tick in ticks if any(tick.lines)]
        if axis.is_x:
            depth = self._layout_horizontal(axis, ticks, labels)
        else:
            most = self.width * _MOST_NAME_SHARE
            labels.ticks = [
                Tick(t.at, tuple(fitted(line, SIZE, most) for line in t.lines))
                for t in _without_overlaps(axis, ticks)
            ]
            width = max(
                (line_width(line, SIZE) for t in labels.ticks for line in t.lines), default=0
            )
            depth = width + _GAP + _standoff(axis) if labels.ticks else 0.0
        labels.depth = depth
        title = lines_of(_title(axis))
        if title:
            labels.title_at = depth + _GAP + SIZE * 0.6
            labels.depth = labels.title_at + SIZE * (0.7 + LINE * (len(title) - 1))
        return labels

    def _layout_horizontal(self, axis: Axis, ticks: list[Tick], labels: Labels) -> float:
        """Lay out the labels of a horizontal axis, rotated if they would overlap; return their height."""
        labels.ticks = ticks
        if not ticks:
            return 0.0
        places = [axis.pixel(tick.at) for tick in ticks]
        space = min((abs(b - a) for a, b in itertools.pairwise(places)), default=math.inf)
        width = max(_rotated_width(tick, 0) for tick in ticks)
        height = max(len(tick.lines) for tick in ticks) * SIZE * LINE
        requested_angle = axis.settings.get("tickangle")
        if requested_angle is not None:
            labels.rotation = float(requested_angle)
        elif axis.kind != "category" and axis.settings.get("ticktext") is None:
            labels.ticks = _every_nth(ticks, places, width + 8)
        elif width + 6 > space:
            labels.rotation = 35 if space > 22 else 90
            step = max(math.ceil(SIZE * 1.3 / max(space, 0.1)), 1)
            labels.ticks = ticks[::step]
        if not labels.rotation:
            return height + _GAP
        most = self.height * 0.4 / max(math.sin(math.radians(abs(labels.rotation))), 0.2)
        labels.ticks = [
            Tick(t.at, tuple(fitted(line, SIZE, most) for line in t.lines)) for t in labels.ticks
        ]
        width = max(_rotated_width(tick, 0) for tick in labels.ticks)
        angle = math.radians(abs(labels.rotation))
        return width * math.sin(angle) + SIZE * math.cos(angle) + _GAP

    # -- drawing ---------------------------------------------------------------------------------

    def _draw_grid(self, pen: Pen, axis: Axis) -> None:
        if not axis.is_shown or axis.settings.get("showgrid") is False or axis.kind == "category":
            return
        other = self.axes.get(
            str(axis.settings.get("anchor") or ""), self.axes["y" if axis.is_x else "x"]
        )
        pen.use_style(pen.style_attributes(stroke=axis.settings.get("gridcolor") or style.GRID))
        low, high = sorted((other.start, other.end))
        commands = []
        for tick in axis.ticks():
            at = rounded(axis.pixel(tick.at))
            commands.append(
                f"M{at} {rounded(low)}V{rounded(high)}"
                if axis.is_x
                else f"M{rounded(low)} {at}H{rounded(high)}"
            )
        if commands:
            pen.path("".join(commands))

    def _draw_marks(self, pen: Pen) -> None:
        """Draw the traces: bars first, then lines and points, as in plotly."""
        margin = 8
        clip = pen.clip_attribute(
            self.box.left - margin,
            self.box.top - margin,
            self.box.right - self.box.left + 2 * margin,
            self.box.bottom - self.box.top + 2 * margin,
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
                    points.draw(pen, trace, x, y, y.pixel(max(min(low, y.high), y.low)))
                pen.end()

    def _draw_axis(self, pen: Pen, axis: Axis) -> None:
        if not axis.is_shown:
            return
        at, labels = self._axis_position(axis), self.labels[axis.name]
        if axis.settings.get("showline"):
            pen.use_style(pen.style_attributes(stroke=axis.settings.get("linecolor") or style.GRID))
            ends = (axis.start, at, axis.end, at) if axis.is_x else (at, axis.start, at, axis.end)
            pen.line(*ends)
        self._draw_zero(pen, axis)
        font = axis.settings.get("tickfont") or {}
        pen.use_style(pen.style_attributes(fill=font.get("color") or style.FAINT))
        out = 1 if axis.is_opposite != axis.is_x else -1
        for tick in labels.ticks:
            place = axis.pixel(tick.at)
            if axis.is_x:
                self._write_horizontal(pen, labels, tick, place, at, out)
            else:
                anchor = "start" if axis.is_opposite else "end"
                top = place - (len(tick.lines) - 1) * SIZE * LINE / 2
                pen.text(at + out * (_GAP + _standoff(axis)), top, tick.lines, SIZE, anchor=anchor)
        self._write_title(pen, axis, labels, at, out)

    def _write_horizontal(
        self, pen: Pen, labels: Labels, tick: Tick, place: float, at: float, out: int
    ) -> None:
        if labels.rotation:
            anchor = "start" if labels.rotation > 0 else "end"
            pen.text(
                place,
                at + out * (_GAP + SIZE * 0.4),
                tick.lines,
                SIZE,
                anchor=anchor,
                rotation=labels.rotation,
            )
            return
        lines = len(tick.lines)
        top = at + _GAP + SIZE * 0.6 if out > 0 else at - _GAP - SIZE * (0.4 + LINE * (lines - 1))
        pen.text(place, top, tick.lines, SIZE, anchor="middle")

    def _draw_zero(self, pen: Pen, axis: Axis) -> None:
        """Draw the zero line if it is within the plot, as in plotly."""
        if axis.kind != "linear" or axis.settings.get("zeroline") is False:
            return
        if not min(axis.low, axis.high) <= 0 <= max(axis.low, axis.high):
            return
        color = axis.settings.get("zerolinecolor") or style.GRID
        pen.use_style(pen.style_attributes(stroke=color, width=1.5))
        other = self.axes.get(
            str(axis.settings.get("anchor") or ""), self.axes["y" if axis.is_x else "x"]
        )
        at = axis.pixel(0)
        pen.line(
            *((at, other.start, at, other.end) if axis.is_x else (other.start, at, other.end, at))
        )

    def _write_title(self, pen: Pen, axis: Axis, labels: Labels, at: float, out: int) -> None:
        lines = lines_of(_title(axis))
        if not lines:
            return
        title = axis.settings.get("title")
        font = (title.get("font") if isinstance(title, dict) else None) or {}
        pen.use_style(pen.style_attributes(fill=font.get("color") or style.INK))
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
            pen.text(at + out * labels.title_at, middle, lines, SIZE, anchor="middle", rotation=-90)


def _title(axis: Axis) -> Any:
    title = axis.settings.get("title")
    return title.get("text") if isinstance(title, dict) else title


def _standoff(axis: Axis) -> float:
    """Return the additional distance of the labels from their axis, as set in the layout."""
    return float(axis.settings.get("ticklabelstandoff") or 0)


def _as_sequence(value: Any) -> Sequence[Any]:
    if value is None:
        return ()
    return value if isinstance(value, list | tuple) else (value,)


def _rotated_width(tick: Tick, turned: float) -> float:
    wide = max((line_width(line, SIZE) for line in tick.lines), default=0.0)
    return wide * abs(math.cos(math.radians(turned))) if turned else wide


def _every_nth(ticks: list[Tick], places: list[float], label_width: float) -> list[Tick]:
    """Return every n-th tick, so that no label overlaps the next."""
    if len(ticks) < 2:
        return ticks
    step = max(math.ceil(label_width / max(abs(places[1] - places[0]), 0.1)), 1)
    return ticks[::step]


def _without_overlaps(axis: Axis, ticks: list[Tick]) -> list[Tick]:
    """Return the ticks of a vertical axis without those whose label would overlap the previous one."""
    kept: list[Tick] = []
    last = -math.inf
    for tick in sorted(ticks, key=lambda tick: axis.pixel(tick.at)):
        half = len(tick.lines) * SIZE * 0.5
        at = axis.pixel(tick.at)
        if at - half >= last - 0.5:
            kept.append(tick)
            last = at + half
    return kept
