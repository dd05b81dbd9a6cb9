"""What differences look like: blanks, secrets, an order, values of each run; and the rule that is missing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agentobs.records.differing import Difference, unequal
from replay.aligning import only_blanks
from replay.renaming import bare

Nature = Literal[
    "",
    "whitespace",
    "redaction",
    "element order",
    "normaliser gap",
    "number",
    "schema",
    "SDK version",
    "timing",
]
"""What all differences of a divergence have in common:

- `whitespace`: only blanks differ;
- `redaction`: only what stands for secrets differs;
- `element order`: the same elements in another order;
- `normaliser gap`: values that are drawn or read anew in each run, which no rule names yet;
- `number`: only numbers differ;
- `schema`: what a tool declares;
- `SDK version`: what the SDK writes, and it is another version;
- `timing`: it depends on when something happened;
- the empty word: nothing of these.
"""

NATURES: dict[Nature, str] = {
    "whitespace": "whitespace only",
    "redaction": "redaction only",
    "element order": "same elements, other order",
    "normaliser gap": "a value of each run",
    "number": "a number",
    "schema": "schema of a tool",
    "SDK version": "SDK version",
    "timing": "timing",
}
"""The natures in the words of the report."""

LOOKED_AT = 1_000
"""How many differences are looked at, so that thousands cost no time. Our choice."""


@dataclass(frozen=True, slots=True)
class Look:
    """A form of values that are new in each run."""

    name: str
    """In a word, as rules are called: `uuid`."""
    words: str
    """As people say it: `a uuid`."""
    pattern: re.Pattern[str]


LOOKS = tuple(
    Look(name, words, re.compile(pattern))
    for name, words, pattern in (
        (
            "uuid",
            "a uuid",
            r"(?<![0-9a-fA-F-])[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}",
        ),
        (
            "time",
            "a time",
            r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?(?:Z|[+-]\d\d:?\d\d)?)?"
            r"|(?<!\d)\d\d:\d\d:\d\d(?:\.\d{1,9})?(?!\d)",
        ),
        (
            "timestamp",
            "seconds since 1970",
            r"(?<![\d.])1[6-9]\d{8}(?:\d{3}|\d{6}|\d{9})?(?:\.\d{1,9})?(?!\d)",
        ),
        ("tmp_path", "a temporary path", r"/tmp/[\w./-]{1,400}|/var/folders/[\w./-]{1,400}"),
        (
            "address",
            "a memory address",
            r"(?:(?<![0-9a-zA-Z])|(?<=\\[nrt]))0x[0-9a-fA-F]{6,16}",
        ),
        ("port", "an address with a port", r"(?:127\.0\.0\.1|localhost|\[::1\]):\d{1,5}"),
        (
            "pid",
            "the id of a process",
            r"(?i)(?:(?<=\bpid[ =:])|(?<=\\[nrt]pid[ =:])|(?<=\bprocess )|(?<=\\[nrt]process ))\s{0,2}\d{1,7}",
        ),
    )
)
"""Values that are new in each run, the most telling form first. The patterns also hold in JSON text, where a line feed
before a value is a backslash and an n."""
_NUMBER = re.compile(r"-?\d{1,30}(?:[.,]\d{1,30})?(?:[eE][+-]?\d{1,4})?")


@dataclass(frozen=True, slots=True)
class Proposal:
    """A rule that would make values of each run the same."""

    rule: str
    """Its name, for `normalise`."""
    words: str
    """What the values look like."""
    leaves: int
    """How many of the differences it would hide."""
    of: int
    """How many differences there are."""

    @property
    def text(self) -> str:
        """The proposal in one sentence."""
        which = "the leaf looks" if self.of == 1 else f"{self.leaves} of {self.of} leaves look"
        return f"{which} like {self.words}"


def look_of(difference: Difference) -> Look | None:
    """Return what form of value of each run a difference has on both sides, all else being equal."""
    old, new = difference.expected, difference.actual
    if difference.change != "changed":
        return None
    if isinstance(old, int | float) and isinstance(new, int | float):
        old, new = str(old), str(new)
    if not (isinstance(old, str) and isinstance(new, str)):
        return None
    for look in LOOKS:
        if look.pattern.search(old) and look.pattern.sub("#", old) == look.pattern.sub("#", new):
            return look
    return None


def proposals(found: Sequence[Difference]) -> tuple[Proposal, ...]:
    """Return the rules that would hide differences, each with how many of them."""
    looks = [look for each in found[:LOOKED_AT] if (look := look_of(each))]
    counts = {look: looks.count(look) for look in dict.fromkeys(looks)}
    return tuple(Proposal(k.name, k.words, count, len(found)) for k, count in counts.items())


def nature_of(found: Sequence[Difference]) -> Nature:
    """Return what all differences have in common; the empty word where it is nothing that has a name."""
    looked = found[:LOOKED_AT]
    if not looked:
        return ""
    for nature, holds in _COMMON:
        if all(holds(each) for each in looked):
            return nature
    return ""


def _is_whitespace(each: Difference) -> bool:
    return _texts(each) and only_blanks(each.expected, each.actual)


def _is_redaction(each: Difference) -> bool:
    """Return whether only secrets differ: another one, another kind, or one that only one side took out."""
    if not _texts(each):
        return False
    if "[redacted:" not in each.expected and "[redacted:" not in each.actual:
        return False
    old, new = (_TOKEN.findall(bare(text)) for text in (each.expected, each.actual))
    places = [("".join(old[a:b]), "".join(new[c:d])) for a, b, c, d in unequal(old, new)]
    # Each place by itself: what stands behind a secret is none of it.
    return all(_is_masked(*place) or _is_masked(*place[::-1]) for place in places)


_TOKEN = re.compile(r"\[redacted\]|\s+|(?:(?!\[redacted\])\S)+")
"""A placeholder, blanks, or a word up to either of them."""


def _is_masked(masked: str, plain: str) -> bool:
    """Return whether a text is another one, some of which was taken out."""
    parts = masked.split("[redacted]")
    if len(parts) < 2 or not (plain.startswith(parts[0]) and plain.endswith(parts[-1])):
        return False
    at = len(parts[0])
    for part in parts[1:-1]:
        at = plain.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return at <= len(plain) - len(parts[-1])


def _is_reordered(each: Difference) -> bool:
    if each.change == "reordered":
        return True
    if not _texts(each):
        return False
    return each.expected != each.actual and _elements(each.expected) == _elements(each.actual)


def _is_number(each: Difference) -> bool:
    old, new = each.expected, each.actual
    if isinstance(old, int | float) and isinstance(new, int | float):
        return not (isinstance(old, bool) or isinstance(new, bool))
    if not _texts(each):
        return False
    return bool(_NUMBER.search(old)) and _NUMBER.sub("#", old) == _NUMBER.sub("#", new)


_COMMON: tuple[tuple[Nature, Any], ...] = (
    ("whitespace", _is_whitespace),
    ("redaction", _is_redaction),
    ("element order", _is_reordered),
    ("normaliser gap", look_of),
    ("number", _is_number),
)


def _texts(each: Difference) -> bool:
    if each.change != "changed":
        return False
    return isinstance(each.expected, str) and isinstance(each.actual, str)


_WORD = re.compile(r"[^\s,;\[\]{}()'\"]+")


def _elements(text: str) -> list[str]:
    return sorted(_WORD.findall(text))
