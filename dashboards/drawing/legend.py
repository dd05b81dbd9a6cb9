"""The legend: its entries, size and position, and its drawing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dashboards import style
from dashboards.drawing import bars, points
from dashboards.drawing.box import Box
from dashboards.drawing.pen import SIZE, Pen
from dashboards.drawing.text_layout import Line, fitted, line_width, lines_of

Trace = dict[str, Any]
_SWATCH = 22.0
"""The width of the sample next to a name."""
_GAP = 16.0
_ROW = SIZE * 1.6
_LONGEST = 260.0
"""The maximum width of a name; a longer one is cut."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the legend."""

    trace: Trace
    line: Line

    @property
    def width(self) -> float:
        """The width in pixels, including the sample and the space before the next entry."""
        return _SWATCH + 6 + line_width(self.line, SIZE) + _GAP


def entries(traces: list[Trace], layout: dict[str, Any]) -> list[Entry]:
    """Return the entries of the legend: one per named trace that it shows."""
    shown = layout.get("showlegend")
    if shown is False or (
        shown is None and len(traces) < 2 and not any(t.get("showlegend") for t in traces)
    ):
        return []
    found = []
    for trace in traces:
        if trace.get("showlegend") is False or not trace.get("name"):
            continue
        line = next(iter(lines_of(trace["name"])), ())
        found.append(Entry(trace, fitted(line, SIZE, _LONGEST)))
    legend = layout.get("legend") or {}
    return found[::-1] if "reversed" in str(legend.get("traceorder") or "") else found


def _is_horizontal(layout: dict[str, Any]) -> bool:
    return (layout.get("legend") or {}).get("orientation") == "h"


def _rows(found: list[Entry], most: float) -> list[list[Entry]]:
    rows: list[list[Entry]] = []
    left = 0.0
    for entry in found:
        if not rows or left + entry.width - _GAP > most:
            rows.append([])
            left = 0.0
        rows[-1].append(entry)
        left += entry.width
    return rows


def space_needed(found: list[Entry], layout: dict[str, Any], width: float) -> dict[str, float]:
    """Return the space in pixels that the legend needs outside the plot, by side."""
    if not found:
        return {}
    legend = layout.get("legend") or {}
    if _is_horizontal(layout):
        height = len(_rows(found, width - 16)) * _ROW + 8
        y = legend.get("y")
        return {"b": height} if y is not None and float(y) < 0 else {"t": height}
    if legend.get("x") is None or float(legend["x"]) >= 1:
        return {"r": max(entry.width for entry in found) + 8}
    return {}


def draw(
    pen: Pen, found: list[Entry], layout: dict[str, Any], box: Box, width: float, height: float
) -> None:
    """Draw the legend."""
    if not found:
        return
    legend = layout.get("legend") or {}
    pen.start("legend")
    if _is_horizontal(layout):
        rows = _rows(found, width - 16)
        y = legend.get("y")
        is_below = y is not None and float(y) < 0
        top = height - len(rows) * _ROW if is_below else box.top - len(rows) * _ROW - 4
        widest = max(sum(entry.width for entry in row) for row in rows) - _GAP
        left = max(min(box.left, width - widest - 8), 8.0)
        if legend.get("xanchor") == "right":
            left = max(box.right - widest, 8.0)
        elif legend.get("xanchor") == "center":
            left = max((box.left + box.right - widest) / 2, 8.0)
    else:
        rows = [[entry] for entry in found]
        x, y = legend.get("x"), legend.get("y")
        left = box.right + 8
        if x is not None and float(x) < 1:
            left = box.left + float(x) * (box.right - box.left)
            if legend.get("xanchor") == "right":
                left -= max(entry.width for entry in found)
        share = 1.0 if y is None else min(max(float(y), 0.0), 1.0)
        top = box.bottom - share * (box.bottom - box.top)
        if legend.get("yanchor") == "bottom":
            top -= len(rows) * _ROW
    for number, row in enumerate(rows):
        across, middle = left, top + (number + 0.5) * _ROW
        for entry in row:
            _sample(pen, entry.trace, across, middle)
            pen.use_style(pen.style_attributes(fill=style.INK))
            pen.text(across + _SWATCH + 6, middle, [entry.line], SIZE)
            across += entry.width
    pen.end()


def _sample(pen: Pen, trace: Trace, left: float, middle: float) -> None:
    if trace.get("type") == "bar":
        pen.use_style(bars.bar_style(pen, trace, 0))
        pen.rect(left + _SWATCH - 13, middle - 6, 12, 12)
        return
    modes = points.drawn_modes(trace)
    if "lines" in modes:
        line = trace.get("line") or {}
        width = line.get("width")
        color = line.get("color") or style.BLUE
        dash = str(line.get("dash") or "")
        pen.use_style(
            pen.style_attributes(
                stroke=color, width=2.0 if width is None else float(width), dash=dash
            )
        )
        pen.line(left, middle, left + _SWATCH, middle)
    if "markers" in modes:
        size = (trace.get("marker") or {}).get("size")
        size = (
            max((each or 0 for each in size), default=6) if isinstance(size, list | tuple) else size
        )
        points.draw_symbol(pen, trace, 0, left + _SWATCH / 2, middle, min(float(size or 6), 12.0))
