"""Two values as aligned lines for people: equal parts are elided, and every character takes up its own columns.

Carets point at differences. This works in any terminal: characters whose width depends on their neighbors
(directions, joined emoji, combining marks) are shown as escapes, and wide characters count two columns.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from typing import Any

from agentobs.records.differences import Difference, Span, common, unequal

CONTEXT = 24
"""Characters of an equal part that are shown next to a difference, if the whole does not fit. Our choice."""
TOKENS_MAX = 400
"""How many words of two long texts are compared completely, from the first difference on. Our choice."""
LABEL = 10
"""Columns of the label before a value: `recorded  `."""


def aligned(difference: Difference, columns: int = 86) -> list[str]:
    """Return a difference as lines: the recorded value, the live one, and carets where they differ."""
    room = columns - LABEL
    if difference.change in ("added", "removed"):
        value = difference.actual if difference.change == "added" else difference.expected
        return [f"{difference.change:<{LABEL}}{_cut(_quoted(value), room)}{_size(difference)}"]
    old, new = _text(difference.expected), _text(difference.actual)
    if difference.lengths:
        old, new = (_cut_off(text, difference, at) for at, text in enumerate((old, new)))
    pair = _Pair(old, new, is_text(difference), room)
    lines = [f"{'recorded':<{LABEL}}{pair.old.text}"]
    if pair.is_many:
        lines.append(" " * LABEL + pair.old.marks)
    lines.append(f"{'now':<{LABEL}}{pair.new.text}")
    marks, told = pair.new.marks.rstrip(), _amounts(difference, pair.left)
    if told and len(marks) + 1 + len(told[0]) <= room:
        marks = f"{marks} {told.pop(0)}"
    lines += [" " * LABEL + each for each in (marks, *told)]
    return [line for each in lines if (line := each.rstrip())]


def _cut_off(text: str, difference: Difference, side: int) -> str:
    """Return a part of a text with marks where something is elided."""
    whole = difference.lengths[side] if difference.lengths else 0
    before = "…" if difference.skipped else ""
    return f"{before}{text}{'…' if difference.skipped + len(text) < whole else ''}"


def is_text(difference: Difference) -> bool:
    """Return whether both values are strings, which are shown in quotes."""
    return isinstance(difference.expected, str) and isinstance(difference.actual, str)


class _Line:
    """One side: the shown text, and the marks below it."""

    def __init__(self, room: int) -> None:
        self.text, self.marks, self._room = "", "", room
        self.is_full = False

    def put(self, text: str, mark: str = " ") -> None:
        """Show text, and mark all of it; what does not fit is elided visibly."""
        if self.is_full:
            return
        for piece in _pieces(text):
            wide = width(piece)
            if width(self.text) + wide > self._room - 1:
                self.text += "…"
                self.is_full = True
                return
            self.text += piece
            self.marks += mark * wide

    def point(self) -> None:
        """Mark a position where this side has no text."""
        if not self.is_full:
            self.marks += "^"


class _Pair:
    """Both sides of a difference, built part by part."""

    def __init__(self, old: str, new: str, quoted: bool, room: int) -> None:
        self.old, self.new = _Line(room), _Line(room)
        self.left = 0
        """Differences that are not shown."""
        spans = _spans(old, new)
        self.is_many = len(spans) > 1
        self._context = CONTEXT
        if not self.is_many:
            changed = max(
                width(safe(old[s[0] : s[1]])) + width(safe(new[s[2] : s[3]])) for s in spans
            )
            self._context = max(CONTEXT, (room - min(changed, room // 2) - 8) // 2)
        self._forms = _differ_in_marks(old, new, spans)
        self._blanks = only_blanks(old, new)
        fits = max(width(safe(old)), width(safe(new))) + 3 <= room
        if quoted:
            self._both('"')
        at = 0
        for number, (a1, a2, b1, b2) in enumerate(spans):
            self._equal(old[at:a1], fits, first=number == 0)
            if self.old.is_full or self.new.is_full:
                self.left = len(spans) - number
                break
            most = room if fits else max(room // 2, 16)
            self._changed(self.old, old[a1:a2], most)
            self._changed(self.new, new[b1:b2], most)
            at = a2
        else:
            self._equal(old[at:], fits, last=True)
            if quoted:
                self._both('"')

    def _both(self, text: str) -> None:
        self.old.put(text)
        self.new.put(text)

    def _equal(self, text: str, fits: bool, *, first: bool = False, last: bool = False) -> None:
        shown = self._shown(text)
        if not fits:
            near = 4 * self._context
            begin = "" if first else _head(self._shown(text[:near]), self._context)
            end = "" if last else _tail(self._shown(text[-near:]), self._context)
            if width(shown) > width(begin) + width(end) + 1:
                shown = f"{begin}…{end}"
        self._both(shown)

    def _changed(self, line: _Line, text: str, most: int) -> None:
        if not text:
            if not self.is_many and line is self.new:
                line.point()
            return
        shown = self._shown(text)
        if not text.strip():
            shown = shown.replace(" ", "·")
        elif text[0] == " " or text[-1] == " ":
            shown = _edges(shown)
        line.put(_middle(shown, most), "^")

    def _shown(self, text: str) -> str:
        shown = safe(text, marks=self._forms)
        return shown.replace(" ", "·") if self._blanks else shown


def _spans(old: str, new: str) -> list[Span]:
    """Return where two texts differ, by words; a changed word is shown by its changed part."""
    start = common(old, new)
    end = common(old[start:][::-1], new[start:][::-1])
    a, b = _words(old[start : len(old) - end]), _words(new[start : len(new) - end])
    rest = len(a) > TOKENS_MAX or len(b) > TOKENS_MAX
    if not (a and b) or (rest and a[0] != b[0] and len(a) * len(b) > TOKENS_MAX**2 * 100):
        return [(start, len(old) - end, start, len(new) - end)]
    begin = _word_start(old, new, start)
    tail = _word_end(old, end)
    a = _words(old[begin : len(old) - tail])[:TOKENS_MAX]
    b = _words(new[begin : len(new) - tail])[:TOKENS_MAX]
    found = [_placed(a, b, span) for span in unequal(a, b)]
    compared, whole = (len("".join(a)), len("".join(b))), (len(old) - begin, len(new) - begin)
    if compared != (whole[0] - tail, whole[1] - tail):
        # Everything after the compared words counts as one difference: the texts end differently.
        found.append((compared[0], whole[0] - tail, compared[1], whole[1] - tail))
    moved = [(begin + w, begin + x, begin + y, begin + z) for w, x, y, z in _joined(found)]
    return [narrowed for span in moved for narrowed in [_narrowed(old, new, span)]]


def _words(text: str) -> list[str]:
    limit = TOKENS_MAX * 40
    return _WORD.findall(text[:limit])


_WORD = re.compile(r"[^\W\u2e80-\U0010ffff]+|\s+|.", re.DOTALL)
"""A word, blanks, or one character: also for scripts that put no blanks between words."""


def _word_start(old: str, new: str, at: int) -> int:
    """Return where the word starts in which two texts first differ."""
    limit = max(at - 40, 0)
    while at > limit and (_is_word(old, at) or _is_word(new, at)) and _is_letter(old[at - 1]):
        at -= 1
    return at


def _word_end(old: str, back: int) -> int:
    """Return how far from their ends the word ends in which two texts last differ."""
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


def _joined(spans: list[Span]) -> list[Span]:
    """Return spans, joined if only one or two equal characters separate them."""
    found: list[Span] = []
    for span in spans:
        if found and span[0] - found[-1][1] <= 2 and span[2] - found[-1][3] <= 2:
            found[-1] = (found[-1][0], span[1], found[-1][2], span[3])
        else:
            found.append(span)
    return found


def _narrowed(old: str, new: str, span: Span) -> Span:
    """Return a span without the characters that both sides start and end with."""
    a, b = old[span[0] : span[1]], new[span[2] : span[3]]
    start = common(a, b)
    end = common(a[start:][::-1], b[start:][::-1])
    return span[0] + start, span[1] - end, span[2] + start, span[3] - end


def width(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(map(_columns, text))


def _columns(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def safe(text: str, *, marks: bool = False) -> str:
    """Return text for one terminal line: control and direction characters as visible escapes.

    Args:
        text: any text.
        marks: whether combining marks are escaped as well, because only they differ.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(c, marks) for c in text)


def _escaped(character: str, marks: bool) -> str:
    if character == "\n":
        return "⏎"
    if character == "\t":
        return "⇥"
    if character.isprintable() and not _moves(character) and not (marks and ord(character) > 127):
        return character
    number = ord(character)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _moves(character: str) -> bool:
    """Return whether a character moves its neighbors, or has another width next to others."""
    if character < "\u0300":
        return False
    number = ord(character)
    return (
        unicodedata.bidirectional(character) in ("R", "AL", "AN")
        or any(low <= number <= high for low, high in _JOINED)
        or unicodedata.category(character) == "Mc"
    )


_JOINED = (
    (0x1100, 0x11FF),
    (0x202A, 0x202E),
    (0x2066, 0x2069),
    (0xD7B0, 0xD7FF),
    (0xFE00, 0xFE0F),
    (0x1F1E6, 0x1F1FF),
    (0x1F3FB, 0x1F3FF),
    (0xE0100, 0xE01EF),
)
"""Conjoining syllables, directions, variation selectors, halves of flags and skin tones: characters that join their
neighbors.
"""


def _pieces(text: str) -> Iterator[str]:
    """Yield characters, each with its combining marks, and escapes as a whole."""
    return (match[0] for match in _PIECE.finditer(text))


_PIECE = re.compile(
    r"\\u[0-9a-f]{4}|\\U[0-9a-f]{8}|(?:.[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]*)",
    re.DOTALL,
)


def _edges(text: str) -> str:
    """Return text whose leading and trailing blanks are visible."""
    bare = text.strip(" ")
    before = len(text) - len(text.lstrip(" "))
    return "·" * before + bare + "·" * (len(text) - len(bare) - before)


def _middle(text: str, most: int) -> str:
    """Return text whose middle is elided if it is too long."""
    pieces = list(_pieces(text)) if len(text) < 4 * most else [*text[: most * 2], *text[-most:]]
    if sum(map(width, pieces)) <= most:
        return "".join(pieces)
    return _cut("".join(pieces), most * 2 // 3) + _tail("".join(pieces), most // 3)


def _head(text: str, most: int) -> str:
    """Return the longest start of a text that fits into the columns."""
    return "".join(_within(list(_pieces(text)), most))


def _tail(text: str, most: int) -> str:
    """Return the longest end of a text that fits into the columns."""
    return "".join(reversed(_within(list(_pieces(text))[::-1], most)))


def _within(pieces: list[str], most: int) -> list[str]:
    for at, piece in enumerate(pieces):
        most -= width(piece)
        if most < 0:
            return pieces[:at]
    return pieces


def _cut(text: str, room: int) -> str:
    """Return as much of a text as fits, with a mark if something is elided."""
    line = _Line(room)
    line.put(text)
    return line.text


def _quoted(value: Any) -> str:
    shown = safe(_text(value))
    return f'"{shown}"' if isinstance(value, str) else shown


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _differ_in_marks(old: str, new: str, spans: list[Span]) -> bool:
    """Return whether texts differ only in combining marks, which must then be shown separately."""
    if unicodedata.normalize("NFC", old) == unicodedata.normalize("NFC", new):
        return True
    begins = [text[at : at + 1] for s in spans for text, at in ((old, s[0]), (new, s[2]))]
    return any(width(character) == 0 for character in begins if character)


def only_blanks(old: str, new: str) -> bool:
    """Return whether two texts differ only in blanks."""
    return old != new and "".join(old.split()) == "".join(new.split())


def _size(difference: Difference) -> str:
    return f" ({max(difference.lengths):,} characters)" if difference.lengths else ""


def _amounts(difference: Difference, left: int) -> list[str]:
    """Describe what carets do not show: hidden differences, characters at an end, the lengths."""
    told = [f"and {left} more place{'s' * (left != 1)} near it"] if left else []
    old, new = difference.expected, difference.actual
    if difference.lengths:
        at = difference.skipped + common(_text(old), _text(new))
        then, now = difference.lengths
        told.append(f"at character {at:,} of {then:,} then and {now:,} now")
    elif is_text(difference) and old and new and old.startswith(new) != new.startswith(old):
        gained = len(new) - len(old)
        plural = "" if abs(gained) == 1 else "s"
        told.append(f"{abs(gained)} character{plural} {'more' if gained > 0 else 'missing'}")
    return told
