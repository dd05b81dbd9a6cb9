"""Texts of a figure: plotly's markup, hover templates, and the width of text without a font."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from dashboards.drawing import number_formats

_TAGS = frozenset(("a", "b", "br", "em", "i", "s", "span", "strong", "sub", "sup", "u"))
"""The tags that plotly supports (see its src/lib/svg_text_utils.js); only bold and line breaks are drawn."""
_SPLIT = re.compile(r"(</?[A-Za-z]+(?:\s[^<>]*)?/?>)")
_TAG = re.compile(r"<(/?)([A-Za-z]+)")
_FIELD = re.compile(r"%\{([^{}:|]+)(?:[:|]([^{}]*))?\}")
_EXTRA = re.compile(r"<extra>.*?</extra>", re.DOTALL)

_WIDTHS = (
    (0.30, " ,.'ijlIJ·"),
    (0.40, "/:;\\|f-()[]t!r"),
    (0.53, '"*_`–sz?cL'),
    (0.64, "FkvxyPTYaoe0123456789${}SEbdghnpqu"),
    (0.73, "KAVBRXZC"),
    (0.82, "UHNDG&OQw"),
)
_WIDTH = {character: width for width, characters in _WIDTHS for character in characters}
"""Character widths relative to the font size. Source: DejaVu Sans, which is wider than the fonts of most systems."""


BOLD = 600
"""The minimum font weight of text that is drawn bold."""


@dataclass(frozen=True, slots=True)
class Run:
    """A part of a line with the same weight."""

    text: str
    bold: bool = False


Line = tuple[Run, ...]


def lines_of(text: Any) -> list[Line]:
    """Return the lines of a text with plotly's markup.

    Tags that plotly supports are removed; other tags are kept as text.
    """
    if text is None or text == "":
        return []
    lines: list[list[Run]] = [[]]
    bold = 0
    for part in _SPLIT.split(str(text)):
        tag = _TAG.match(part)
        name = tag[2].lower() if tag else ""
        if tag is None or name not in _TAGS:
            if part:
                lines[-1].append(Run(clean(html.unescape(part)), bold > 0))
        elif name == "br":
            lines.append([])
        elif name in ("b", "strong"):
            bold = max(bold + (-1 if tag[1] else 1), 0)
    return [tuple(line) for line in lines]


def lines_in_font(text: Any, font: dict[str, Any]) -> list[Line]:
    """Return the lines of a text, in bold if the font is bold."""
    weight = font.get("weight")
    if weight != "bold" and not (number_formats.is_number(weight) and float(str(weight)) >= BOLD):
        return lines_of(text)
    return [tuple(Run(run.text, True) for run in line) for line in lines_of(text)]


def plain_of(text: Any) -> str:
    """Return a text with plotly's markup as plain text, its lines separated by newlines."""
    return "\n".join("".join(run.text for run in line) for line in lines_of(text))


def clean(text: str) -> str:
    """Return text with the characters that XML does not allow, such as control characters, replaced by U+FFFD."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c == "\n" or _is_xml(ord(c)) else "\ufffd" for c in text)


def _is_xml(code: int) -> bool:
    """Return whether XML 1.0 (production 2) allows a character and the character is not a control character."""
    return 0x20 <= code < 0x7F or 0xA0 <= code < 0xD800 or 0xE000 <= code < 0xFFFE or code > 0xFFFF


def width_of(text: str, size: float, bold: bool = False) -> float:
    """Return an upper estimate of the width of a text in pixels, computed with a wide font."""
    em = sum(_WIDTH.get(c, 1.0 if ord(c) > 0x2E80 or c in "mMW%@…—" else 0.85) for c in text)
    return em * size * (1.08 if bold else 1.0)


def line_width(line: Line, size: float) -> float:
    """Return an upper estimate of the width of a line in pixels."""
    return sum(width_of(run.text, size, run.bold) for run in line)


def fitted(line: Line, size: float, most: float) -> Line:
    """Return a line cut to a maximum width in pixels; an ellipsis replaces the rest."""
    if line_width(line, size) <= most:
        return line
    letters = [(c, run.bold) for run in line for c in run.text]
    remaining = most - width_of("…", size)
    kept_letters: list[tuple[str, bool]] = []
    for c, bold in letters:
        remaining -= width_of(c, size, bold)
        if remaining < 0:
            break
        kept_letters.append((c, bold))
    kept_letters.append(("…", kept_letters[-1][1] if kept_letters else False))
    return tuple(
        Run("".join(c for c, _ in group), bold)
        for bold, group in groupby(kept_letters, key=lambda k: k[1])
    )


Format = Callable[[Any, str], str]
"""A function that formats a value of an axis. Its second argument is a format; if it is empty, the format of the axis
is used.
"""


def hover_text(
    trace: dict[str, Any], at: int, values: dict[str, Any], formats: Mapping[str, Format]
) -> str:
    """Return the hover text of a mark as plain lines; empty if it has none.

    Args:
        trace: the trace, in plotly's JSON.
        at: the index of the mark in the trace.
        values: the values of the mark: `x`, `y` and so on.
        formats: the functions that format `x` and `y`.
    """
    if trace.get("hoverinfo") in ("skip", "none"):
        return ""
    template = value_at(trace.get("hovertemplate"), at)
    if not template:
        text = value_at(trace.get("hovertext"), at) or value_at(trace.get("text"), at)
        coordinates = [formats[name](values[name], "") for name in ("x", "y") if name in values]
        prefix = [str(trace["name"])] if trace.get("name") else []
        return plain_of(text) if text else plain_of(": ".join([*prefix, ", ".join(coordinates)]))
    filled = _FIELD.sub(
        lambda field: _field_text(field[1].strip(), field[2] or "", trace, at, values, formats),
        _EXTRA.sub("", str(template)),
    )
    return plain_of(filled).strip()


def value_at(values: Any, at: int) -> Any:
    """Return a property of the mark at an index. The property is a list with a value per mark, or one common value."""
    if isinstance(values, list | tuple):
        return values[at] if at < len(values) else None
    return values


def _field_text(
    field: str,
    number_format: str,
    trace: dict[str, Any],
    at: int,
    values: dict[str, Any],
    formats: Mapping[str, Format],
) -> str:
    if field in formats:
        return formats[field](values.get(field), number_format)
    if field in ("fullData.name", "data.name"):
        return str(trace.get("name") or "")
    name, *path = re.split(r"[.\[\]]+", field.rstrip("]"))
    value: Any = values[name] if name in values else value_at(trace.get(name), at)
    for key in path:
        if isinstance(value, dict):
            value = value_at(value.get(key), at)
        elif isinstance(value, Sequence) and not isinstance(value, str) and key.isdigit():
            value = value[int(key)] if int(key) < len(value) else None
        else:
            return ""
    if value is None:
        return ""
    return (
        number_formats.number(value, number_format)
        if number_formats.is_number(value)
        else str(value)
    )
