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
"""The custom property of each color, as in assets/style.css."""
SIZE = 12.0
"""The default font size in pixels; as in `style.layout`."""
LINE = 1.25
"""The line height, relative to the font size."""


def css() -> str:
    """Return the style that drawings in a page need.

    A drawing has the colors of the light theme in its attributes, so it is complete without this style. With it, the
    custom properties of the page (`--blue`) select the colors: light, dark or print.
    """
    return "".join(
        f".drawing .f{color[1:]}{{fill:var(--{name},{color})}}"
        f".drawing .s{color[1:]}{{stroke:var(--{name},{color})}}"
        for color, name in _NAMES.items()
    )


def near(value: float) -> str:
    """Return a coordinate with one decimal."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def escaped(text: str) -> str:
    """Return text escaped for an element or a double-quoted attribute."""
    for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        text = text.replace(character, entity)
    return text


def color_of(given: Any) -> str:
    """Return a color in CSS, `none` if it is transparent or not a color."""
    text = str(given or "").strip()
    is_one = _COLOR.fullmatch(text) and not _CLEAR.fullmatch(text)
    return text.lower() if is_one else _NONE


class Pen:
    """Collects the elements of one drawing. IDs in it begin with `prefix`."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._parts: list[str] = []
        self._patterns: dict[tuple[Any, ...], str] = {}
        self._styled = ""

    def body(self) -> str:
        """Return the elements, patterns first."""
        self.styled("")
        defined = "".join(self._patterns.values())
        return f"{f'<defs>{defined}</defs>' if defined else ''}{''.join(self._parts)}"

    def styled(self, attributes: str) -> None:
        """Draw the following elements with these attributes; consecutive equal ones share a group."""
        if attributes != self._styled:
            if self._styled:
                self._parts.append("</g>")
            if attributes:
                self._parts.append(f"<g{attributes}>")
            self._styled = attributes

    def start(self, name: str, more: str = "") -> None:
        """Begin a group with a class and further attributes."""
        self.styled("")
        self._parts.append(f'<g class="{name}"{more}>')

    def end(self) -> None:
        """End the group."""
        self.styled("")
        self._parts.append("</g>")

    def clip(self, x: float, y: float, width: float, height: float) -> str:
        """Return the attribute that clips to a rectangle."""
        key = ("clip", near(x), near(y), near(width), near(height))
        name = f"{self.prefix}c{[*self._patterns, key].index(key)}"
        self._patterns.setdefault(
            key,
            f'<clipPath id="{name}"><rect x="{near(x)}" y="{near(y)}" width="{near(width)}" '
            f'height="{near(height)}"/></clipPath>',
        )
        return f' clip-path="url(#{name})"'

    def rect(self, x: float, y: float, width: float, height: float, told: str = "") -> None:
        """Draw a rectangle whose edges are rounded individually, so that neighbors stay adjacent."""
        left, top = float(near(x)), float(near(y))
        right, bottom = float(near(x + width)), float(near(y + height))
        self._mark(
            "rect",
            f'x="{near(left)}" y="{near(top)}" width="{near(right - left)}" height="{near(bottom - top)}"',
            told,
        )

    def path(self, commands: str, told: str = "") -> None:
        """Draw a path."""
        self._mark("path", f'd="{commands}"', told)

    def circle(self, x: float, y: float, radius: float, told: str = "") -> None:
        """Draw a circle."""
        self._mark("circle", f'cx="{near(x)}" cy="{near(y)}" r="{near(radius)}"', told)

    def line(self, x0: float, y0: float, x1: float, y1: float) -> None:
        """Draw a straight line."""
        self.path(f"M{near(x0)} {near(y0)}L{near(x1)} {near(y1)}")

    def _mark(self, element: str, attributes: str, told: str) -> None:
        end = f"><title>{escaped(clean(told))}</title></{element}>" if told else "/>"
        self._parts.append(f"<{element} {attributes}{end}")

    def text(
        self,
        x: float,
        y: float,
        lines: Sequence[Line],
        size: float,
        *,
        anchor: str = "start",
        turned: float = 0,
        told: str = "",
    ) -> None:
        """Draw lines of text, one below the other; `y` is the middle of the first one's letters.

        Args:
            x: their start, middle or end, depending on `anchor`.
            y: the middle of the first line's lowercase letters.
            lines: the text.
            size: the font size in pixels.
            anchor: start, middle or end.
            turned: clockwise rotation in degrees around this point.
            told: the tooltip.
        """
        attributes = f' font-size="{near(size)}"' if size != SIZE else ""
        attributes += f' text-anchor="{anchor}"' if anchor != "start" else ""
        if turned:
            attributes += f' transform="rotate({near(turned)} {near(x)} {near(y)})"'
        drawn = "".join(
            f'<tspan x="{near(x)}" y="{near(y + size * (0.35 + LINE * number))}">{_runs(line)}</tspan>'
            for number, line in enumerate(lines)
        )
        if len(lines) == 1:
            attributes += f' x="{near(x)}" y="{near(y + size * 0.35)}"'
            drawn = _runs(lines[0])
        title = f"<title>{escaped(clean(told))}</title>" if told else ""
        self._parts.append(f"<text{attributes}>{title}{drawn}</text>")

    def look(
        self,
        *,
        fill: Any = None,
        stroke: Any = None,
        width: float = 1,
        dash: str = "",
        opacity: Any = None,
        pattern: dict[str, Any] | None = None,
    ) -> str:
        """Return the attributes for a fill and an outline in these colors."""
        filled, drawn = color_of(fill), color_of(stroke)
        classes = [
            f"{kind}{color[1:]}"
            for kind, color in (("f", filled), ("s", drawn))
            if color in style.DARK
        ]
        if pattern and filled != _NONE:
            classes = [name for name in classes if name != f"f{filled[1:]}"]
            filled = self._pattern(filled, pattern)
        told = f' class="{" ".join(classes)}"' if classes else ""
        told += f' fill="{filled}"'
        if drawn != _NONE and width > 0:
            told += f' stroke="{drawn}"'
            told += f' stroke-width="{near(width)}"' if width != 1 else ""
            told += f' stroke-dasharray="{_DASHES[dash]}"' if dash in _DASHES else ""
        shown = 1.0 if opacity is None else float(opacity)
        return told + (f' opacity="{shown:.3g}"' if shown < 1 else "")

    def _pattern(self, color: str, pattern: dict[str, Any]) -> str:
        """Return a fill that is a color with a pattern."""
        shape, size = str(pattern.get("shape")), float(pattern.get("size") or 8)
        front = color_of(pattern.get("fgcolor"))
        if front == _NONE:
            front = style.PAPER
        solidity = float(pattern.get("solidity") or 0.3)
        key = (shape, color, front, size, solidity)
        name = f"{self.prefix}p{[*self._patterns, key].index(key)}"
        if key not in self._patterns:
            self._patterns[key] = self._woven(name, shape, color, front, size, solidity)
        return f"url(#{name})"

    def _woven(
        self, name: str, shape: str, color: str, front: str, size: float, solidity: float
    ) -> str:
        edge = near(size)
        half = size / 2
        thick = size * solidity
        ways = {
            "/": f"M{near(-half)} {near(half)}l{edge} {near(-size)}M0 {edge}L{edge} 0"
            f"M{near(half)} {near(size + half)}l{edge} {near(-size)}",
            "\\": f"M{near(half)} {near(-half)}l{edge} {edge}M0 0L{edge} {edge}"
            f"M{near(-half)} {near(half)}l{edge} {edge}",
            "-": f"M0 {near(half)}H{edge}",
            "|": f"M{near(half)} 0V{edge}",
            "+": f"M0 {near(half)}H{edge}M{near(half)} 0V{edge}",
            "x": f"M0 0L{edge} {edge}M0 {edge}L{edge} 0",
        }
        # As in plotly: diagonal and crossing patterns cover more with the same line width.
        slim = {"/": 0.7, "\\": 0.7, "x": 0.4, "+": 0.6}.get(shape, 1.0)
        drawn = (
            f'<circle cx="{near(half)}" cy="{near(half)}" r="{near(size * (solidity / 3.1416) ** 0.5)}"'
            f"{self.look(fill=front)}/>"
            if shape == "."
            else f'<path d="{ways.get(shape, "")}"{self.look(stroke=front, width=max(thick * slim, 0.6))}/>'
        )
        return (
            f'<pattern id="{name}" width="{edge}" height="{edge}" patternUnits="userSpaceOnUse">'
            f'<rect width="{edge}" height="{edge}"{self.look(fill=color)}/>{drawn}</pattern>'
        )


_DASHES = {
    "dot": "2 3",
    "dash": "7 5",
    "longdash": "11 6",
    "dashdot": "7 4 2 4",
    "longdashdot": "11 5 2 5",
}


def _runs(line: Line) -> str:
    return "".join(
        f'<tspan font-weight="700">{escaped(run.text)}</tspan>' if run.bold else escaped(run.text)
        for run in line
    )
