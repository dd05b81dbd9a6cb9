"""IDs that are new in each run: of tool calls, responses, requests and sessions.

Texts of two sessions are compared without them. In the shape of a text, each ID is replaced by its number in this text,
and `PairedIds` then checks that each ID of one session corresponds to exactly one ID of the other. So two runs have
equal texts although all their IDs differ, and a text that names another call is still a difference.

The patterns are applied to JSON text, in which a line feed is a backslash and an `n`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from agentobs.provider.registry import call_id_prefixes


def after(characters: str) -> str:
    r"""Return a lookbehind for the start of a value: none of these characters may precede it.

    However, the letter of a JSON escape such as `\n` may precede the value.
    """
    return rf"(?:(?<![{characters}])|(?<=\\[nrtbf]))"


SEPARATOR = r"[\s\"':=\\#(\[]{1,6}"
"""The characters between a label and its value: `pid 1`, `pid=1`, `"pid": 1`."""
UUID = "(?:" + "|".join((
    r"(?<![0-9a-fA-F])[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}(?![0-9a-fA-F])",
    after("0-9A-Za-z") + r"[0-9a-f]{12}[1-8][0-9a-f]{3}[89ab][0-9a-f]{15}(?![0-9A-Za-z])",
)) + ")"  # fmt: skip
ULID = after("0-9A-Za-z") + r"01(?:[0-9A-HJKMNP-TV-Z]{24}|[0-9a-hjkmnp-tv-z]{24})(?![0-9A-Za-z])"
_HEX = r"(?=\d{0,39}[a-f])(?=[a-f]{0,39}\d)[0-9a-f]{7,40}(?![\w-])"
_LABEL = (
    r"(?i:session|request|run|trace|span|message|call|tool[_ ]?use|agent|interaction|invocation)"
    rf"(?:[_ -]?[iI][dD]{SEPARATOR}|_(?=[0-9a-f]{{8}}-))"
)
"""The label of an ID, such as `session_id: `. A UUID without such a label may be data of the task."""
_RESPONSE = r"(?:msg|req)_(?:bdrk_|vrtx_)?(?=[A-Za-z]{0,30}\d)[0-9A-Za-z]{16,64}"


class Shape(NamedTuple):
    """A text without the IDs that are new in each run."""

    text: str
    """The text, with the number of each ID in place of the ID."""
    ids: tuple[str, ...]
    """The different IDs, in the order in which they first occur."""


def shape_of(text: str, session_ids: Sequence[str] = ()) -> Shape:
    """Return a text without the IDs that are new in each run.

    Args:
        text: the text, or the JSON text of a value.
        session_ids: other IDs that are new in each run, such as the ID of the session.
    """
    numbers: dict[str, int] = {}

    def numbered(match: re.Match[str]) -> str:
        label, found = match["label"] or "", match[0]
        number = numbers.setdefault(found[len(label) :], len(numbers) + 1)
        return f"{label}<id:{number}>"

    shape = _pattern(tuple(session_ids)).sub(numbered, text)
    return Shape(shape, tuple(numbers))


@lru_cache(maxsize=16)
def _pattern(session_ids: tuple[str, ...]) -> re.Pattern[str]:
    """Return the pattern of IDs; an ID with a label has the label in the group `label`."""
    calls = f"(?:{'|'.join(call_id_prefixes())})_[0-9A-Za-z_-]{{1,80}}"
    exact = "".join(f"|{re.escape(each)}" for each in session_ids)
    labeled = f"(?P<label>{_LABEL})(?:{UUID}|{ULID}|{_HEX})"
    return re.compile(
        f"{after('0-9A-Za-z_')}(?:{calls}|{_RESPONSE}{exact})|{after('0-9A-Za-z')}{labeled}"
    )


class PairedIds:
    """The IDs of two sessions that correspond to each other."""

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        """Start with known pairs, such as the IDs of aligned tool calls. The first pair of an ID counts."""
        self._of_a: dict[str, str] = {}
        self._of_b: dict[str, str] = {}
        for a, b in pairs:
            self._add(a, b)

    def match(self, a: Sequence[str], b: Sequence[str]) -> bool:
        """Return whether the IDs of two texts correspond to each other; if so, remember their pairs."""
        if len(a) != len(b) or not all(map(self._fits, a, b)):
            return False
        for one, other in zip(a, b, strict=True):
            self._add(one, other)
        return True

    def _fits(self, a: str, b: str) -> bool:
        return self._of_a.get(a, b) == b and self._of_b.get(b, a) == a

    def _add(self, a: str, b: str) -> None:
        if a not in self._of_a and b not in self._of_b:
            self._of_a[a], self._of_b[b] = b, a
