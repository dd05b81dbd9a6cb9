"""SVG elements as text, with colors that a page can change and coordinates with one decimal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from dashboards import style
from dashboards.drawing.text_layout import Line, clean

_COLOR = re.compile(r"#[0-9a-f]{3,8}|rgba?\([0-9., %]{1,40}\)|[a-z]{3,24}", re.IGNORECASE)
_CLEAR = re.compile(r"transparent|none|rgba\([^)]*,\s*0(?:\.0*)?\)|", re.IGNORECASE)
_NONE = "none"
_NAMES = {
    color: name.lower()
    for name, color in vars(style).items()
    if isinstance(color, str) and color in style.DARK
}
"""The name of the CSS custom property of each color, as in assets/style.css."""
SIZE = 12.0
"""The default font size in pixels, as in `style.layout`."""
LINE = 1.25
"""The line height, relative to the font size."""


def css() -> str:
    """Return the CSS for drawings in a page.

    A drawing has the colors of the light theme in its attributes, so it is complete without this CSS. With it, the
    custom properties of the page (such as `--blue`) select the colors for light, dark or print.
    """
    return "".join(
        f".drawing .f{color[1:]}{{fill:var(--{name},{color})}}"
        f".drawing .s{color[1:]}{{stroke:var(--{name},{color})}}"
        for color, name in _NAMES.items()
    )


def rounded(value: float) -> str:
    """Return a coordinate with one decimal."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def escaped(text: str) -> str:
    """Return text escaped for an element or a double-quoted attribute."""
    for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        text = text.replace(character, entity)
    return text


def color_of(value: Any) -> str:
    """Return a color for CSS; `none` if it is transparent or not a color."""
    text = str(value or "").strip()
    is_color = _COLOR.fullmatch(text) and not _CLEAR.fullmatch(text)
    return text.lower() if is_color else _NONE


class Pen:
    """Collects the elements of one drawing. Their IDs start with `prefix`."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._parts: list[str] = []
        self._patterns: dict[tuple[Any, ...], str] = {}
        self._style = ""

    def elements(self) -> str:
        """Return the elements, patterns first."""
        self.use_style("")
        defined = "".join(self._patterns.values())
        return f"{f'<defs>{defined}</defs>' if defined else ''}{''.join(self._parts)}"

    def use_style(self, attributes: str) -> None:
        """Draw the following elements with these attributes; elements with equal attributes share a group."""
        if attributes != self._style:
            if self._style:
                self._parts.append("</g>")
            if attributes:
                self._parts.append(f"<g{attributes}>")
            self._style = attributes

    def start(self, name: str, attributes: str = "") -> None:
        """Begin a group with a class and further attributes."""
        self.use_style("")
        self._parts.append(f'<g class="{name}"{attributes}>')

    def end(self) -> None:
        """End the group."""
        self.use_style("")
        self._parts.append("</g>")

    def clip_attribute(self, x: float, y: float, width: float, height: float) -> str:
        """Return the attribute that clips an element to a rectangle."""
        key = ("clip", rounded(x), rounded(y), rounded(width), rounded(height))
        name = f"{self.prefix}c{[*self._patterns, key].index(key)}"
        self._patterns.setdefault(
            key,
            f'<clipPath id="{name}"><rect x="{rounded(x)}" y="{rounded(y)}" width="{rounded(width)}" '
            f'height="{rounded(height)}"/></clipPath>',
        )
        return f' clip-path="url(#{name})"'

    def rect(self, x: float, y: float, width: float, height: float, tooltip: str = "") -> None:
        """Draw a rectangle. Its edges are rounded individually, so that neighbors stay adjacent."""
        left, top = float(rounded(x)), float(rounded(y))
        right, bottom = float(rounded(x + width)), float(rounded(y + height))
        self._append(
            "rect",
            f'x="{rounded(left)}" y="{rounded(top)}" width="{rounded(right - left)}" height="{rounded(bottom - top)}"',
            tooltip,
        )

    def path(self, commands: str, tooltip: str = "") -> None:
        """Draw a path."""
        self._append("path", f'd="{commands}"', tooltip)

    def circle(self, x: float, y: float, radius: float, tooltip: str = "") -> None:
        """Draw a circle."""
        self._append(
            "circle", f'cx="{rounded(x)}" cy="{rounded(y)}" r="{rounded(radius)}"', tooltip
        )

    def line(self, x0: float, y0: float, x1: float, y1: float) -> None:
        """Draw a straight line."""
        self.path(f"M{rounded(x0)} {rounded(y0)}L{rounded(x1)} {rounded(y1)}")

    def _append(self, element: str, attributes: str, tooltip: str) -> None:
        end = f"><title>{escaped(clean(tooltip))}</title></{element}>" if tooltip else "/>"
        self._parts.append(f"<{element} {attributes}{end}")

    def text(
        self,
        x: float,
        y: float,
        lines: Sequence[Line],
        size: float,
        *,
        anchor: str = "start",
        rotation: float = 0,
        tooltip: str = "",
    ) -> None:
        """Draw lines of text, one below the other.

        Args:
            x: the start, middle or end of the lines, depending on `anchor`.
            y: the middle of the lowercase letters of the first line.
            lines: the text.
            size: the font size in pixels.
            anchor: `start`, `middle` or `end`.
            rotation: the clockwise rotation around (x, y), in degrees.
            tooltip: the tooltip; empty for none.
        """
        attributes = f' font-size="{rounded(size)}"' if size != SIZE else ""
        attributes += f' text-anchor="{anchor}"' if anchor != "start" else ""
        if rotation:
            attributes += f' transform="rotate({rounded(rotation)} {rounded(x)} {rounded(y)})"'
        spans = "".join(
            f'<tspan x="{rounded(x)}" y="{rounded(y + size * (0.35 + LINE * number))}">{_run_elements(line)}</tspan>'
            for number, line in enumerate(lines)
        )
        if len(lines) == 1:
            attributes += f' x="{rounded(x)}" y="{rounded(y + size * 0.35)}"'
            spans = _run_elements(lines[0])
        title = f"<title>{escaped(clean(tooltip))}</title>" if tooltip else ""
        self._parts.append(f"<text{attributes}>{title}{spans}</text>")

    def style_attributes(
        self,
        *,
        fill: Any = None,
        stroke: Any = None,
        width: float = 1,
        dash: str = "",
        opacity: Any = None,
        pattern: dict[str, Any] | None = None,
    ) -> str:
        """Return the attributes of an element with this fill and outline."""
        fill_color, stroke_color = color_of(fill), color_of(stroke)
        classes = [
            f"{kind}{color[1:]}"
            for kind, color in (("f", fill_color), ("s", stroke_color))
            if color in style.DARK
        ]
        if pattern and fill_color != _NONE:
            classes = [name for name in classes if name != f"f{fill_color[1:]}"]
            fill_color = self._pattern(fill_color, pattern)
        attributes = f' class="{" ".join(classes)}"' if classes else ""
        attributes += f' fill="{fill_color}"'
        if stroke_color != _NONE and width > 0:
            attributes += f' stroke="{stroke_color}"'
            attributes += f' stroke-width="{rounded(width)}"' if width != 1 else ""
            attributes += (
                f' stroke-dasharray="{_DASH_ARRAYS[dash]}"' if dash in _DASH_ARRAYS else ""
            )
        visible_opacity = 1.0 if opacity is None else float(opacity)
        return attributes + (f' opacity="{visible_opacity:.3g}"' if visible_opacity < 1 else "")

    def _pattern(self, color: str, pattern: dict[str, Any]) -> str:
        """Return the `fill` value for a color with a pattern."""
        shape, size = str(pattern.get("shape")), float(pattern.get("size") or 8)
        front = color_of(pattern.get("fgcolor"))
        if front == _NONE:
            front = style.PAPER
        solidity = float(pattern.get("solidity") or 0.3)
        key = (shape, color, front, size, solidity)
        name = f"{self.prefix}p{[*self._patterns, key].index(key)}"
        if key not in self._patterns:
            self._patterns[key] = self._pattern_element(name, shape, color, front, size, solidity)
        return f"url(#{name})"

    def _pattern_element(
        self, name: str, shape: str, color: str, front: str, size: float, solidity: float
    ) -> str:
        edge = rounded(size)
        half = size / 2
        thickness = size * solidity
        paths = {
            "/": f"M{rounded(-half)} {rounded(half)}l{edge} {rounded(-size)}M0 {edge}L{edge} 0"
            f"M{rounded(half)} {rounded(size + half)}l{edge} {rounded(-size)}",
            "\\": f"M{rounded(half)} {rounded(-half)}l{edge} {edge}M0 0L{edge} {edge}"
            f"M{rounded(-half)} {rounded(half)}l{edge} {edge}",
            "-": f"M0 {rounded(half)}H{edge}",
            "|": f"M{rounded(half)} 0V{edge}",
            "+": f"M0 {rounded(half)}H{edge}M{rounded(half)} 0V{edge}",
            "x": f"M0 0L{edge} {edge}M0 {edge}L{edge} 0",
        }
        # As in plotly: with the same line width, diagonal and crossing patterns would cover more.
        width_factor = {"/": 0.7, "\\": 0.7, "x": 0.4, "+": 0.6}.get(shape, 1.0)
        line_width = max(thickness * width_factor, 0.6)
        foreground = (
            f'<circle cx="{rounded(half)}" cy="{rounded(half)}" r="{rounded(size * (solidity / 3.1416) ** 0.5)}"'
            f"{self.style_attributes(fill=front)}/>"
            if shape == "."
            else f'<path d="{paths.get(shape, "")}"{self.style_attributes(stroke=front, width=line_width)}/>'
        )
        return (
            f'<pattern id="{name}" width="{edge}" height="{edge}" patternUnits="userSpaceOnUse">'
            f'<rect width="{edge}" height="{edge}"{self.style_attributes(fill=color)}/>{foreground}</pattern>'
        )


_DASH_ARRAYS = {
    "dot": "2 3",
    "dash": "7 5",
    "longdash": "11 6",
    "dashdot": "7 4 2 4",
    "longdashdot": "11 5 2 5",
}


def _run_elements(line: Line) -> str:
    return "".join(
        f'<tspan font-weight="700">{escaped(run.text)}</tspan>' if run.bold else escaped(run.text)
        for run in line
    )
