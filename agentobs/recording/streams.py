"""Secrets in streamed answers: a model says a key in pieces, each in a JSON value of its own.

The texts of the deltas of a block are put together, secrets are looked for in the whole, and what is
found is said in bytes of the stream: the first piece gets the placeholder, the later ones lose their part.
So the stream stays what it was, a list of whole JSON values, and adds up to the redacted text.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from agentobs.redaction import Finding, disjoint, find

_STRING = rb'"([^"\\\r\n]*+(?:\\.[^"\\\r\n]*+)*+)"'
_FIELD = rb'"(?:text|thinking|partial_json|content)"\s*:\s*' + _STRING
_TOLD = re.compile(rb'_delta"\s*,\s*' + _FIELD)
"""The text of a delta as the provider writes it. Parsing each as JSON would cost more than all else."""
_OTHERS = (b'"content_block_delta"', b'"message_delta"', b'"signature_delta"')
"""What ends like a delta and has no text of its own."""
_LINE_END = re.compile(rb"[\r\n]|\Z")
_TEXT = re.compile(_FIELD)
_INDEX = re.compile(rb'"index"\s*:\s*(\d{1,9})')
_ESCAPE = re.compile(rb"(?:\\u[0-9A-Fa-f]{4})+|\\.")
_SHORT = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}
_PLAIN = re.compile(rb"\\u00[2-7]|\\/")
"""Characters that need no escape, escaped all the same: they would hide a secret from a look at the bytes."""


@dataclass(slots=True)
class _Block:
    """The text of one block of the answer, and where each of its runs of bytes stands in the stream."""

    runs: list[bytes] = field(default_factory=list)
    """Decoded bytes: a stretch without escapes, or what one escape stands for."""
    places: list[tuple[int, int, int]] = field(default_factory=list)
    """Of each run its first byte in the stream, its end there, and the number of its delta."""


def find_in_stream(body: bytes, known: Sequence[bytes] = ()) -> list[Finding]:
    """Return the secrets that an event stream tells in pieces, as replacements of its bytes, in order.

    Secrets that stand whole in one piece are among them. `known` holds literal secrets to look for.
    """
    told = _TOLD.findall(body)
    text = b"".join(told)
    usual = len(told) == body.count(b'_delta"') - sum(body.count(other) for other in _OTHERS)
    if usual and not _PLAIN.search(text) and not find(text, known=known):
        return []
    found = [each for block in _blocks(body) for each in _in_block(block, known)]
    return disjoint(found)


def _blocks(body: bytes) -> list[_Block]:
    """Return the blocks of an answer, put together from the lines that hold their deltas."""
    blocks: dict[bytes, _Block] = {}
    for number, line in enumerate(_lines(body)):
        value, index = _TEXT.search(body, *line), _INDEX.search(body, *line)
        if value:
            block = blocks.setdefault(index[1] if index else b"", _Block())
            for start, end, run in _runs(body, *value.span(1)):
                block.runs.append(run)
                block.places.append((start, end, number))
    return list(blocks.values())


def _lines(body: bytes) -> Iterator[tuple[int, int]]:
    """Yield where each line stands that holds a delta."""
    last = 0
    while (at := body.find(b'_delta"', last)) != -1:
        start = max(body.rfind(b"\n", last, at), body.rfind(b"\r", last, at), last - 1) + 1
        ended = _LINE_END.search(body, at)
        last = ended.start() if ended else len(body)
        yield start, last


def _runs(body: bytes, start: int, end: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield the stretches of a JSON string: where each stands, and the bytes that it means."""
    for escape in _ESCAPE.finditer(body, start, end):
        if escape.start() > start:
            yield start, escape.start(), body[start : escape.start()]
        yield escape.start(), escape.end(), _meant(escape[0])
        start = escape.end()
    if start < end:
        yield start, end, body[start:end]


def _meant(escape: bytes) -> bytes:
    if escape[1:2] != b"u":
        return _SHORT.get(escape[1:2], escape[1:2])
    units = bytes.fromhex(escape.replace(b"\\u", b"").decode())
    return units.decode("utf-16-be", "replace").encode()


def _in_block(block: _Block, known: Sequence[bytes]) -> Iterator[Finding]:
    """Yield the secrets of one block, each as one replacement for each delta that it touches."""
    ends = list(accumulate(len(run) for run in block.runs))
    for secret in find(b"".join(block.runs), known=known):
        first, last = bisect_right(ends, secret.start), bisect_right(ends, secret.end - 1)
        pieces: dict[int, tuple[int, int]] = {}
        for at in range(first, last + 1):
            start, end, number = _touched(block, at, ends[at], secret)
            pieces[number] = (pieces.get(number, (start,))[0], end)
        for count, (start, end) in enumerate(pieces.values()):
            yield Finding(start, end, secret.kind, b"" if count else secret.written)


def _touched(block: _Block, at: int, ends_at: int, secret: Finding) -> tuple[int, int, int]:
    """Return which bytes of the stream a secret takes of one run; an escape goes as a whole."""
    start, end, number = block.places[at]
    size = len(block.runs[at])
    if end - start == size:
        begins_at = ends_at - size
        start, end = start + max(secret.start - begins_at, 0), end - max(ends_at - secret.end, 0)
    return start, end, number
