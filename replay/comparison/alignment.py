"""Two values as aligned lines of text, with carets below the differences.

Long equal parts are omitted. The lines are aligned in any terminal: characters whose width depends on their neighbors
(text direction, joined emoji, combining marks) are shown as escapes, and wide characters count as two columns.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from typing import Any

from agentobs.records.differences import Difference, Span, common_prefix, unequal_spans

CONTEXT = 24
"""The number of characters of an equal part that are shown next to a difference, if the equal part is too long. Our
choice.
"""
TOKENS_MAX = 400
"""The maximum number of words of two long texts that are compared, starting at the first difference. Our choice."""
LABEL = 10
"""The width of the label before a value: `recorded  `."""


def aligned(difference: Difference, columns: int = 86) -> list[str]:
    """Return a difference as lines: the recorded value, the live value, and carets below the characters that differ."""
    width_max = columns - LABEL
    if difference.change in ("added", "removed"):
        value = difference.actual if difference.change == "added" else difference.expected
        return [f"{difference.change:<{LABEL}}{_cut(_quoted(value), width_max)}{_size(difference)}"]
    old, new = _text(difference.expected), _text(difference.actual)
    if difference.lengths:
        old, new = (_with_ellipses(text, difference, at) for at, text in enumerate((old, new)))
    pair = _Pair(old, new, is_text(difference), width_max)
    lines = [f"{'recorded':<{LABEL}}{pair.old.text}"]
    if pair.is_many:
        lines.append(" " * LABEL + pair.old.marks)
    lines.append(f"{'now':<{LABEL}}{pair.new.text}")
    marks, notes = pair.new.marks.rstrip(), _notes(difference, pair.hidden)
    if notes and len(marks) + 1 + len(notes[0]) <= width_max:
        marks = f"{marks} {notes.pop(0)}"
    lines += [" " * LABEL + each for each in (marks, *notes)]
    return [line for each in lines if (line := each.rstrip())]


def _with_ellipses(text: str, difference: Difference, side: int) -> str:
    """Return a part of a text with an ellipsis at each end where text is omitted."""
    length = difference.lengths[side] if difference.lengths else 0
    before = "…" if difference.skipped else ""
    return f"{before}{text}{'…' if difference.skipped + len(text) < length else ''}"


def is_text(difference: Difference) -> bool:
    """Return whether both values are strings, which are shown in quotes."""
    return isinstance(difference.expected, str) and isinstance(difference.actual, str)


class _Line:
    """One side of a difference: the text that is shown, and the carets below it."""

    def __init__(self, width_max: int) -> None:
        self.text, self.marks, self._width_max = "", "", width_max
        self.is_full = False

    def add(self, text: str, mark: str = " ") -> None:
        """Append text, with a mark below each column. Text that does not fit is replaced by an ellipsis."""
        if self.is_full:
            return
        for cluster in _clusters(text):
            columns = width(cluster)
            if width(self.text) + columns > self._width_max - 1:
                self.text += "…"
                self.is_full = True
                return
            self.text += cluster
            self.marks += mark * columns

    def mark_position(self) -> None:
        """Put a caret at a position where this side has no text."""
        if not self.is_full:
            self.marks += "^"


class _Pair:
    """Both sides of a difference, built part by part."""

    def __init__(self, old: str, new: str, quoted: bool, width_max: int) -> None:
        self.old, self.new = _Line(width_max), _Line(width_max)
        self.hidden = 0
        """The number of differences that are not shown."""
        spans = _spans(old, new)
        self.is_many = len(spans) > 1
        self._context = CONTEXT
        if not self.is_many:
            changed = max(
                width(safe(old[s[0] : s[1]])) + width(safe(new[s[2] : s[3]])) for s in spans
            )
            self._context = max(CONTEXT, (width_max - min(changed, width_max // 2) - 8) // 2)
        self._shows_marks = _differ_in_marks(old, new, spans)
        self._shows_blanks = only_whitespace_differs(old, new)
        fits = max(width(safe(old)), width(safe(new))) + 3 <= width_max
        if quoted:
            self._add_both('"')
        at = 0
        for number, (a1, a2, b1, b2) in enumerate(spans):
            self._add_equal(old[at:a1], fits, first=number == 0)
            if self.old.is_full or self.new.is_full:
                self.hidden = len(spans) - number
                break
            columns = width_max if fits else max(width_max // 2, 16)
            self._add_changed(self.old, old[a1:a2], columns)
            self._add_changed(self.new, new[b1:b2], columns)
            at = a2
        else:
            self._add_equal(old[at:], fits, last=True)
            if quoted:
                self._add_both('"')

    def _add_both(self, text: str) -> None:
        self.old.add(text)
        self.new.add(text)

    def _add_equal(self, text: str, fits: bool, *, first: bool = False, last: bool = False) -> None:
        shown = self._shown(text)
        if not fits:
            near = 4 * self._context
            start = "" if first else _start(self._shown(text[:near]), self._context)
            end = "" if last else _end(self._shown(text[-near:]), self._context)
            if width(shown) > width(start) + width(end) + 1:
                shown = f"{start}…{end}"
        self._add_both(shown)

    def _add_changed(self, line: _Line, text: str, columns: int) -> None:
        if not text:
            if not self.is_many and line is self.new:
                line.mark_position()
            return
        shown = self._shown(text)
        if not text.strip():
            shown = shown.replace(" ", "·")
        elif text[0] == " " or text[-1] == " ":
            shown = _with_visible_edges(shown)
        line.add(_without_middle(shown, columns), "^")

    def _shown(self, text: str) -> str:
        shown = safe(text, marks=self._shows_marks)
        return shown.replace(" ", "·") if self._shows_blanks else shown


def _spans(old: str, new: str) -> list[Span]:
    """Return the spans in which two texts differ: first by words, then narrowed to the changed characters."""
    start = common_prefix(old, new)
    end = common_prefix(old[start:][::-1], new[start:][::-1])
    a, b = _words(old[start : len(old) - end]), _words(new[start : len(new) - end])
    is_long = len(a) > TOKENS_MAX or len(b) > TOKENS_MAX
    if not (a and b) or (is_long and a[0] != b[0] and len(a) * len(b) > TOKENS_MAX**2 * 100):
        return [(start, len(old) - end, start, len(new) - end)]
    start = _word_start(old, new, start)
    end = _word_end(old, end)
    a = _words(old[start : len(old) - end])[:TOKENS_MAX]
    b = _words(new[start : len(new) - end])[:TOKENS_MAX]
    found = [_placed(a, b, span) for span in unequal_spans(a, b)]
    compared = (len("".join(a)), len("".join(b)))
    lengths = (len(old) - start - end, len(new) - start - end)
    if compared != lengths:
        # Everything after the compared words is shown as one difference, because the texts end differently.
        found.append((compared[0], lengths[0], compared[1], lengths[1]))
    moved = [(start + w, start + x, start + y, start + z) for w, x, y, z in _merged(found)]
    return [_narrowed(old, new, span) for span in moved]


def _words(text: str) -> list[str]:
    limit = TOKENS_MAX * 40
    return _WORD.findall(text[:limit])


_WORD = re.compile(r"[^\W\u2e80-\U0010ffff]+|\s+|.", re.DOTALL)
"""A word, whitespace, or one character, which also covers scripts without spaces between words."""


def _word_start(old: str, new: str, at: int) -> int:
    """Return the start of the word in which two texts first differ."""
    limit = max(at - 40, 0)
    while at > limit and (_is_word(old, at) or _is_word(new, at)) and _is_letter(old[at - 1]):
        at -= 1
    return at


def _word_end(old: str, back: int) -> int:
    """Return the distance from the end of a text to the end of the word in which two texts last differ."""
    limit = max(back - 40, 0)
    while back > limit and _is_letter(old[len(old) - back]):
        back -= 1
    return back


def _is_word(text: str, at: int) -> bool:
    return at < len(text) and _is_letter(text[at])


def _is_letter(character: str) -> bool:
    return character.isalnum() or character == "_"


def _placed(a: list[str], b: list[str], span: Span) -> Span:
    a1, a2, b1, b2 = span
    start, other = sum(map(len, a[:a1])), sum(map(len, b[:b1]))
    return start, start + sum(map(len, a[a1:a2])), other, other + sum(map(len, b[b1:b2]))


def _merged(spans: list[Span]) -> list[Span]:
    """Merge spans that are separated by at most two equal characters."""
    found: list[Span] = []
    for span in spans:
        if found and span[0] - found[-1][1] <= 2 and span[2] - found[-1][3] <= 2:
            found[-1] = (found[-1][0], span[1], found[-1][2], span[3])
        else:
            found.append(span)
    return found


def _narrowed(old: str, new: str, span: Span) -> Span:
    """Return a span without the characters that are equal at the start and at the end of both sides."""
    a, b = old[span[0] : span[1]], new[span[2] : span[3]]
    start = common_prefix(a, b)
    end = common_prefix(a[start:][::-1], b[start:][::-1])
    return span[0] + start, span[1] - end, span[2] + start, span[3] - end


def width(text: str) -> int:
    """Return the number of terminal columns that a text occupies."""
    if text.isascii():
        return len(text)
    return sum(map(_columns, text))


def _columns(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def safe(text: str, *, marks: bool = False) -> str:
    """Return text for one terminal line, with visible escapes for characters that would change the line.

    These are control characters, text direction characters, and characters that combine with their neighbors.

    Args:
        text: any text.
        marks: whether to escape all non-ASCII characters, because two texts differ only in combining marks.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(c, marks) for c in text)


def _escaped(character: str, marks: bool) -> str:
    if character == "\n":
        return "⏎"
    if character == "\t":
        return "⇥"
    if (
        character.isprintable()
        and not _affects_neighbors(character)
        and not (marks and ord(character) > 127)
    ):
        return character
    number = ord(character)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _affects_neighbors(character: str) -> bool:
    """Return whether a character changes the order or the width of the characters next to it."""
    if character < "\u0300":
        return False
    number = ord(character)
    return (
        unicodedata.bidirectional(character) in ("R", "AL", "AN")
        or any(low <= number <= high for low, high in _COMBINING)
        or unicodedata.category(character) == "Mc"
    )


_COMBINING = (
    (0x1100, 0x11FF),
    (0x202A, 0x202E),
    (0x2066, 0x2069),
    (0xD7B0, 0xD7FF),
    (0xFE00, 0xFE0F),
    (0x1F1E6, 0x1F1FF),
    (0x1F3FB, 0x1F3FF),
    (0xE0100, 0xE01EF),
)
"""Hangul jamo, bidirectional controls, variation selectors, regional indicators and skin tones: characters that combine
with their neighbors, or reorder them.
"""


def _clusters(text: str) -> Iterator[str]:
    """Yield the parts of a text that must not be split: characters with their combining marks, and escapes."""
    return (match[0] for match in _CLUSTER.finditer(text))


_CLUSTER = re.compile(
    r"\\u[0-9a-f]{4}|\\U[0-9a-f]{8}|(?:.[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]*)",
    re.DOTALL,
)


def _with_visible_edges(text: str) -> str:
    """Return text whose leading and trailing spaces are shown as dots."""
    stripped = text.strip(" ")
    leading = len(text) - len(text.lstrip(" "))
    return "·" * leading + stripped + "·" * (len(text) - len(stripped) - leading)


def _without_middle(text: str, columns: int) -> str:
    """Return text without its middle part if it is too long."""
    clusters = (
        list(_clusters(text))
        if len(text) < 4 * columns
        else [*text[: columns * 2], *text[-columns:]]
    )
    if sum(map(width, clusters)) <= columns:
        return "".join(clusters)
    return _cut("".join(clusters), columns * 2 // 3) + _end("".join(clusters), columns // 3)


def _start(text: str, columns: int) -> str:
    """Return the longest prefix of a text that fits into the columns."""
    return "".join(_fitting(list(_clusters(text)), columns))


def _end(text: str, columns: int) -> str:
    """Return the longest suffix of a text that fits into the columns."""
    return "".join(reversed(_fitting(list(_clusters(text))[::-1], columns)))


def _fitting(clusters: list[str], columns: int) -> list[str]:
    for at, cluster in enumerate(clusters):
        columns -= width(cluster)
        if columns < 0:
            return clusters[:at]
    return clusters


def _cut(text: str, columns: int) -> str:
    """Return as much of a text as fits, with an ellipsis if text is omitted."""
    line = _Line(columns)
    line.add(text)
    return line.text


def _quoted(value: Any) -> str:
    shown = safe(_text(value))
    return f'"{shown}"' if isinstance(value, str) else shown


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _differ_in_marks(old: str, new: str, spans: list[Span]) -> bool:
    """Return whether texts differ only in combining marks or Unicode normalization, so that marks must be visible."""
    if unicodedata.normalize("NFC", old) == unicodedata.normalize("NFC", new):
        return True
    starts = [text[at : at + 1] for s in spans for text, at in ((old, s[0]), (new, s[2]))]
    return any(width(character) == 0 for character in starts if character)


def only_whitespace_differs(old: str, new: str) -> bool:
    """Return whether two texts differ only in whitespace."""
    return old != new and "".join(old.split()) == "".join(new.split())


def _size(difference: Difference) -> str:
    return f" ({max(difference.lengths):,} characters)" if difference.lengths else ""


def _notes(difference: Difference, hidden: int) -> list[str]:
    """Describe what carets do not show: hidden differences, extra or missing characters at an end, and the lengths."""
    notes = [f"and {hidden} more difference{'s' * (hidden != 1)} nearby"] if hidden else []
    old, new = difference.expected, difference.actual
    if difference.lengths:
        at = difference.skipped + common_prefix(_text(old), _text(new))
        old_length, new_length = difference.lengths
        notes.append(
            f"at character {at:,} (recorded: {old_length:,} characters, now: {new_length:,})"
        )
    elif is_text(difference) and old and new and old.startswith(new) != new.startswith(old):
        added = len(new) - len(old)
        plural = "" if abs(added) == 1 else "s"
        notes.append(f"{abs(added)} {'extra' if added > 0 else 'missing'} character{plural}")
    return notes
