"""Input similarity: a keyed number for the input of a tool call. Similar inputs have numbers that differ in few bits.

The number is a simhash. Each argument has the same weight, which is divided among the words of its value. Each word is
hashed, and each of the 64 bits is the weighted majority of the hashes. Two inputs are therefore similar only if all
arguments are similar: two identical arguments of three are not enough. A short argument counts as one word, because
another file, page or city is a different request even if most of its path is the same; only case, whitespace and
punctuation are ignored. Two long arguments that differ in one word differ in a few bits.

Rejected: pairs of neighboring words, and equal treatment of short and long arguments. On logs of real work, with
forty keys, these methods confused files whose long paths differ in one word; this method confuses none.

The number reveals no content. The hashes are keyed with the home's key, so without the key, an attacker cannot try
inputs until one matches. The words cannot be reconstructed from 64 majorities over all of them. The similarity of two
inputs, which the number is meant to show, reveals neither input. With the key, a guess of a complete input can be
tested, as with every digest among the facts. The key is in the home, is readable only by its owner, and is never
copied.
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
"""The maximum number of characters of an argument that are used at its start, and at its end. Our choice: a complete
file would take too long.
"""
WORDS_MAX = 512
"""The maximum number of words of an argument that are hashed, in less than a millisecond. Our choice."""
SHORT_WORDS_MAX = 16
"""An argument with at most this many words counts as one word; nearly all paths are shorter. Our choice."""
ARGUMENTS_MAX = 16
"""The number of arguments that have a separate weight; all others share one weight. Our choice."""

_WORDS = re.compile(r"\w+")
_BITS, _COUNTER = 64, 32
"""The bits of a hash, and the width of the counter of each bit, which exceeds the total weight."""
_WEIGHT = 1 << 20
"""The weight of an argument."""

_SPREAD = tuple(
    sum(1 << (_COUNTER * bit) for bit in range(8) if value >> bit & 1) for value in range(256)
)
"""For each byte a number in which each of its bits is a separate counter; adding two numbers adds eight counters."""


def similarity(value: Any, key: bytes) -> int:
    """Return the similarity number of an input, from -2**63 to 2**63 - 1.

    Args:
        value: the parsed JSON input, or its text if it is not JSON.
        key: the home's key, at most 64 bytes.
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


def _arguments(value: Any) -> Iterator[tuple[str, str]]:
    """Yield the name and canonical text of each argument; an input without arguments is one argument without a name."""
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
    """Return the words of an argument that are hashed; a short argument is one word.

    Repeated words are numbered. If there are too many words, some are selected by their characters.
    """
    if len(text) > 2 * CHARACTERS_MAX:
        text = f"{text[:CHARACTERS_MAX]} {text[-CHARACTERS_MAX:]}"
    found = _WORDS.findall(text.casefold())
    if len(found) <= SHORT_WORDS_MAX:
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
