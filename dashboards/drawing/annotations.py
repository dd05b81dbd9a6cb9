"""Shapes and annotations of a figure."""

from __future__ import annotations

import math
from typing import Any

from dashboards import style
from dashboards.drawing.box import Plot
from dashboards.drawing.pen import LINE, SIZE, Pen, rounded
from dashboards.drawing.text_layout import fitted, line_width, lines_in_font, lines_of

_EDGE = 2.0


def shapes(pen: Pen, sheet: Plot, layer: str) -> None:
    """Draw the lines and rectangles of one layer."""
    for shape in sheet.layout.get("shapes") or ():
        shape_layer = "below" if shape.get("layer") in ("below", "between") else "above"
        if shape_layer != layer or shape.get("visible") is False:
            continue
        if shape.get("type") not in ("line", "rect"):
            raise ValueError(f"a shape of type {shape.get('type')} cannot be drawn")
        coordinates = [
            _pixel(sheet, shape.get(f"{c}ref"), c, shape.get(f"{c}{n}"))
            for n in (0, 1)
            for c in "xy"
        ]
        if any(end is None for end in coordinates):
            continue
        left, top, right, bottom = (
            _clipped(sheet, n % 2 == 0, float(end or 0)) for n, end in enumerate(coordinates)
        )
        line = shape.get("line") or {}
        width = line.get("width")
        look = pen.style_attributes(
            fill=shape.get("fillcolor") if shape["type"] == "rect" else None,
            stroke=line.get("color") or style.INK,
            width=2.0 if width is None else float(width),
            dash=str(line.get("dash") or ""),
            opacity=shape.get("opacity"),
        )
        pen.use_style(look)
        if shape["type"] == "line":
            pen.line(left, top, right, bottom)
        else:
            pen.rect(min(left, right), min(top, bottom), abs(right - left), abs(bottom - top))
        _draw_label(pen, shape.get("label") or {}, left, top, right, bottom)


def _clipped(sheet: Plot, is_x: bool, coordinate: float) -> float:
    """Return a coordinate clipped to the sheet."""
    return min(max(coordinate, 0.0), sheet.width if is_x else sheet.height)


def _draw_label(
    pen: Pen, label: dict[str, Any], left: float, top: float, right: float, bottom: float
) -> None:
    lines = lines_of(label.get("text"))
    if lines:
        font = label.get("font") or {}
        pen.use_style(pen.style_attributes(fill=font.get("color") or style.INK))
        size = float(font.get("size") or SIZE)
        middle = (top + bottom) / 2 - (len(lines) - 1) * size * LINE / 2
        pen.text((left + right) / 2, middle, lines, size, anchor="middle")


def _pixel(sheet: Plot, ref: Any, letter: str, value: Any) -> float | None:
    """Return a coordinate in pixels. `ref` is an axis, the domain of an axis, or `paper`, which means the plot."""
    name, _, share = str(ref or letter).partition(" ")
    is_x = letter == "x"
    if name == "paper":
        low, high = (sheet.box.left, sheet.box.right) if is_x else (sheet.box.bottom, sheet.box.top)
        return None if value is None else low + float(value) * (high - low)
    axis = sheet.axes.get(name)
    if axis is None:
        return None
    if share == "domain":
        return None if value is None else axis.start + float(value) * (axis.end - axis.start)
    return axis.pixel_of(value)


def texts(pen: Pen, sheet: Plot) -> None:
    """Draw the annotations; texts that do not fit on the sheet are cut."""
    for note in sheet.layout.get("annotations") or ():
        if note.get("visible") is not False:
            _draw_annotation(pen, sheet, note)


def _draw_annotation(pen: Pen, sheet: Plot, note: dict[str, Any]) -> None:
    x, y = (_pixel(sheet, note.get(f"{c}ref"), c, note.get(c)) for c in "xy")
    font = note.get("font") or {}
    size = float(font.get("size") or SIZE)
    lines = [fitted(line, size, sheet.width - 8) for line in lines_in_font(note.get("text"), font)]
    if x is None or y is None or not lines:
        return
    x += float(note.get("xshift") or 0)
    y -= float(note.get("yshift") or 0)
    tip = (x, y)
    has_arrow = note.get("showarrow") is not False
    if has_arrow:
        x += float(-10 if note.get("ax") is None else note["ax"])
        y += float(-30 if note.get("ay") is None else note["ay"])
    width = max(line_width(line, size) for line in lines)
    height = len(lines) * size * LINE
    rotation = float(note.get("textangle") or 0)
    angle = math.radians(rotation)
    outer_width = width * abs(math.cos(angle)) + height * abs(math.sin(angle))
    outer_height = width * abs(math.sin(angle)) + height * abs(math.cos(angle))
    left = x - outer_width * _anchor_share(note.get("xanchor"), "x", note, has_arrow)
    top = y - outer_height * _anchor_share(note.get("yanchor"), "y", note, has_arrow)
    left = min(max(left, _EDGE), max(sheet.width - outer_width - _EDGE, _EDGE))
    top = min(max(top, _EDGE), max(sheet.height - outer_height - _EDGE, _EDGE))
    if has_arrow:
        _draw_arrow(
            pen, note, (left + outer_width / 2, top + (outer_height if tip[1] > top else 0)), tip
        )
    if note.get("bgcolor") or note.get("bordercolor"):
        pen.use_style(
            pen.style_attributes(
                fill=note.get("bgcolor"),
                stroke=note.get("bordercolor"),
                opacity=note.get("opacity"),
            )
        )
        pen.rect(left - 2, top - 1, outer_width + 4, outer_height + 2)
    pen.use_style(
        pen.style_attributes(fill=font.get("color") or style.INK, opacity=note.get("opacity"))
    )
    align = {"left": 0.0, "right": 1.0}.get(str(note.get("align")), 0.5) if len(lines) > 1 else 0.5
    if len(lines) == 1 and not rotation:
        # Align the text with its anchor, because the actual font may be narrower than assumed.
        align = _anchor_share(note.get("xanchor"), "x", note, has_arrow)
    anchor = {0.0: "start", 1.0: "end"}.get(align, "middle")
    middle = top + outer_height / 2 - (len(lines) - 1) * size * LINE / 2 * math.cos(angle)
    pen.text(
        left + outer_width * (0.5 if rotation else align),
        middle,
        lines,
        size,
        anchor=anchor if not rotation else "middle",
        rotation=rotation,
    )


def _anchor_share(anchor: Any, letter: str, note: dict[str, Any], has_arrow: bool) -> float:
    """Return the fraction of a text that is to the left of, or above, its anchor."""
    shares = {"left": 0.0, "center": 0.5, "right": 1.0, "top": 0.0, "middle": 0.5, "bottom": 1.0}
    if anchor in shares:
        return shares[anchor]
    if str(note.get(f"{letter}ref") or letter) == "paper" and not has_arrow:
        share = float(note.get(letter) or 0)
        near_low, near_high = share <= 1 / 3, share >= 2 / 3
        if letter == "x":
            return 0.0 if near_low else 1.0 if near_high else 0.5
        return 1.0 if near_low else 0.0 if near_high else 0.5
    return 0.5


def _draw_arrow(
    pen: Pen, note: dict[str, Any], start: tuple[float, float], tip: tuple[float, float]
) -> None:
    """Draw the arrow from an annotation to its target."""
    width = float(note.get("arrowwidth") or 1)
    color = note.get("arrowcolor") or (note.get("font") or {}).get("color") or style.INK
    pen.use_style(pen.style_attributes(stroke=color, width=width))
    pen.line(*start, *tip)
    if note.get("arrowhead") == 0:
        return
    angle = math.atan2(tip[1] - start[1], tip[0] - start[0])
    head = 6.0
    commands = f"M{rounded(tip[0])} {rounded(tip[1])}"
    for turn in (2.7, -2.7):
        x, y = tip[0] + head * math.cos(angle + turn), tip[1] + head * math.sin(angle + turn)
        commands += f"L{rounded(x)} {rounded(y)}"
    pen.use_style(pen.style_attributes(fill=color))
    pen.path(f"{commands}z")
