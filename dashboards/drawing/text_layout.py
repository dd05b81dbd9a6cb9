"""Texts of a figure: parsing of plotly's markup, text width without a font, and hover templates."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from dashboards.drawing import number_formats

_TAGS = frozenset(("a", "b", "br", "em", "i", "s", "span", "strong", "sub", "sup", "u"))
"""The tags that plotly knows (its src/lib/svg_text_utils.js); only bold and line breaks are drawn."""
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
"""Character widths relative to the font size: of DejaVu Sans, which is wider than the fonts of most systems."""


BOLD = 600
"""The font weight from which text is drawn bold."""


@dataclass(frozen=True, slots=True)
class Run:
    """Some text of a line."""

    text: str
    bold: bool = False


Line = tuple[Run, ...]


def lines_of(told: Any) -> list[Line]:
    """Return the lines of a text with plotly's markup: its tags are removed, other markup is unchanged."""
    if told is None or told == "":
        return []
    lines: list[list[Run]] = [[]]
    bold = 0
    for part in _SPLIT.split(str(told)):
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


def in_font(told: Any, font: dict[str, Any]) -> list[Line]:
    """Return the lines of a text, bold if its font is."""
    weight = font.get("weight")
    if weight != "bold" and not (number_formats.is_number(weight) and float(str(weight)) >= BOLD):
        return lines_of(told)
    return [tuple(Run(run.text, True) for run in line) for line in lines_of(told)]


def plain_of(told: Any) -> str:
    """Return a text with plotly's markup as plain text, its lines separated by newlines."""
    return "\n".join("".join(run.text for run in line) for line in lines_of(told))


def clean(text: str) -> str:
    """Return text without characters that XML does not allow: control characters and lone surrogates."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c == "\n" or _is_xml(ord(c)) else "\ufffd" for c in text)


def _is_xml(code: int) -> bool:
    """Return whether XML 1.0 (production 2) allows a character, and it is not a control character."""
    return 0x20 <= code < 0x7F or 0xA0 <= code < 0xD800 or 0xE000 <= code < 0xFFFE or code > 0xFFFF


def width_of(text: str, size: float, bold: bool = False) -> float:
    """Return the maximum width of a text in pixels, computed with a wide font."""
    em = sum(_WIDTH.get(c, 1.0 if ord(c) > 0x2E80 or c in "mMW%@…—" else 0.85) for c in text)
    return em * size * (1.08 if bold else 1.0)


def line_width(line: Line, size: float) -> float:
    """Return the maximum width of a line in pixels."""
    return sum(width_of(run.text, size, run.bold) for run in line)


def fitted(line: Line, size: float, most: float) -> Line:
    """Return a line with a maximum width; an ellipsis replaces the rest."""
    if line_width(line, size) <= most:
        return line
    letters = [(c, run.bold) for run in line for c in run.text]
    left = most - width_of("…", size)
    kept: list[tuple[str, bool]] = []
    for c, bold in letters:
        left -= width_of(c, size, bold)
        if left < 0:
            break
        kept.append((c, bold))
    kept.append(("…", kept[-1][1] if kept else False))
    return tuple(
        Run("".join(c for c, _ in group), bold) for bold, group in groupby(kept, key=lambda k: k[1])
    )


Written = Callable[[Any, str], str]
"""The format of a coordinate of an axis; without one, that of the axis."""


def hover_text(
    trace: dict[str, Any], at: int, values: dict[str, Any], written: Mapping[str, Written]
) -> str:
    """Return the hover text of a mark as plain lines; empty if it has none.

    Args:
        trace: the trace, as plotly's JSON.
        at: the index of the mark.
        values: the mark's own `x`, `y`, `base` and so on.
        written: the formatted `x` and `y`.
    """
    if trace.get("hoverinfo") in ("skip", "none"):
        return ""
    template = one(trace.get("hovertemplate"), at)
    if not template:
        told = one(trace.get("hovertext"), at) or one(trace.get("text"), at)
        where = [written[name](values[name], "") for name in ("x", "y") if name in values]
        named = [str(trace["name"])] if trace.get("name") else []
        return plain_of(told) if told else plain_of(": ".join([*named, ", ".join(where)]))
    filled = _FIELD.sub(
        lambda field: _filled(field[1].strip(), field[2] or "", trace, at, values, written),
        _EXTRA.sub("", str(template)),
    )
    return plain_of(filled).strip()


def one(given: Any, at: int) -> Any:
    """Return a property of a mark that is either common to all marks or individual."""
    if isinstance(given, list | tuple):
        return given[at] if at < len(given) else None
    return given


def _filled(
    field: str,
    form: str,
    trace: dict[str, Any],
    at: int,
    values: dict[str, Any],
    written: Mapping[str, Written],
) -> str:
    if field in written:
        return written[field](values.get(field), form)
    if field in ("fullData.name", "data.name"):
        return str(trace.get("name") or "")
    name, *inner = re.split(r"[.\[\]]+", field.rstrip("]"))
    value: Any = values[name] if name in values else one(trace.get(name), at)
    for key in inner:
        if isinstance(value, dict):
            value = one(value.get(key), at)
        elif isinstance(value, Sequence) and not isinstance(value, str) and key.isdigit():
            value = value[int(key)] if int(key) < len(value) else None
        else:
            return ""
    if value is None:
        return ""
    return number_formats.number(value, form) if number_formats.is_number(value) else str(value)
