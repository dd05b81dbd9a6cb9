"""Likeness: a keyed number for the input of a tool call, near to that of any input that is nearly the same.

It is a simhash. Each argument counts the same, by the words in its value; each of these is hashed, and each of the
64 bits is what most of the weight has there. So an input is like another one when every argument nearly is: two
arguments of three that are the same are not enough. A short argument counts as a whole, for another file, page or city
is another question however much of its path is the same; only case, blanks and punctuation do not count. Of two long
ones that differ in a word a few bits differ.

Rejected: pairs of neighbouring words, and no difference between short and long arguments. On logs of people at work, by
forty keys, those took files for each other whose long paths differ in a word; this takes none.

It tells nothing of what was said. The hashes are keyed with the home's own key, so that nobody without it can try
inputs until one fits; 64 majorities over all words cannot be turned back into any of them; and that two inputs are
alike, which it is made to tell, says nothing of either. With the key a guess of a whole input can be tried, as with
every digest among the facts: the key lies in the home, readable by its owner alone, and is copied nowhere.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from agentobs.records.canonical_json import canonical

CHARACTERS_MAX = 4_096
"""How much of an argument is looked at: so many characters of its start and as many of its end. Our choice: a
whole file is not read for the sake of a number."""
WORDS_MAX = 512
"""How many words of an argument are hashed: less than a millisecond. Our choice."""
WHOLE_MAX = 16
"""An argument of so many words or fewer counts as a whole: longer than nearly all paths. Our choice."""
ARGUMENTS_MAX = 16
"""How many arguments have a weight of their own; all others share one. Our choice."""

_WORDS = re.compile(r"\w+")
_BITS, _COUNTER = 64, 32
"""The bits of a hash, and the width of the counter of each: more than all the weight fits in."""
_WEIGHT = 1 << 20
"""The weight of an argument."""

_SPREAD = tuple(
    sum(1 << (_COUNTER * bit) for bit in range(8) if value >> bit & 1) for value in range(256)
)
"""A byte with each bit as a counter of its own, so that adding two numbers adds eight."""


def similarity(value: Any, key: bytes) -> int:
    """Return the number of an input, from -2**63 to 2**63 - 1.

    Args:
        value: the parsed JSON input, or its text where that is no JSON.
        key: the home's own key, at most 64 bytes.
    """
    keyed = hashlib.blake2b(digest_size=_BITS // 8, key=key, person=b"likeness")
    counts, total = [0] * (_BITS // 8), 0
    for name, text in _arguments(value):
        words = _words(name, text)
        weight = _WEIGHT // math.isqrt(len(words))
        total += weight * len(words)
        for word in words:
            hashed = keyed.copy()
            hashed.update(word.encode("utf-8", "surrogatepass"))
            for place, byte in enumerate(hashed.digest()):
                counts[place] += _SPREAD[byte] * weight
    number = 0
    for place, count in enumerate(counts):
        for bit in range(8):
            if 2 * (count >> (_COUNTER * bit) & ((1 << _COUNTER) - 1)) > total:
                number |= 1 << (8 * place + bit)
    return number - (1 << _BITS) if number >> (_BITS - 1) else number


def apart(one: int, other: int) -> int:
    """Return in how many of the 64 bits two such numbers differ; in SQL `bit_count(xor(one, other))`."""
    return ((one ^ other) & ((1 << _BITS) - 1)).bit_count()


def _arguments(value: Any) -> Iterator[tuple[str, str]]:
    """Yield each argument's name and canonical text; the whole without a name where there are no arguments."""
    if not isinstance(value, dict) or not value:
        yield "", _text(value)
        return
    names = sorted(value, key=str)
    yield from ((str(name), _text(value[name])) for name in names[:ARGUMENTS_MAX])
    if rest := names[ARGUMENTS_MAX:]:
        yield "", _text({str(name): value[name] for name in rest})


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return canonical(value)
    except (TypeError, ValueError, RecursionError):
        return ""


def _words(name: str, text: str) -> list[str]:
    """Return what is hashed of an argument: a short one as a whole, else its words with how often each came; of too
    many some, by what they are.
    """
    if len(text) > 2 * CHARACTERS_MAX:
        text = f"{text[:CHARACTERS_MAX]} {text[-CHARACTERS_MAX:]}"
    found = _WORDS.findall(text.casefold())
    if len(found) <= WHOLE_MAX:
        return [f"{name} {' '.join(found) or text}"]
    times: Counter[str] = Counter()
    words = []
    for word in found:
        times[word] += 1
        words.append(f"{name} {word} {times[word]}")
    if len(words) <= WORDS_MAX:
        return words
    step = -(-len(words) // WORDS_MAX)
    return [word for word in words if sum(map(ord, word)) % step == 0][:WORDS_MAX] or words[:1]
