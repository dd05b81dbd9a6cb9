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

from agentobs.redaction import CONTEXT, FAILED_KIND, Finding, Redactor, disjoint

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


_PLAIN_REDACTOR = Redactor()


def find_in_stream(
    body: bytes, known: Sequence[bytes] = (), redactor: Redactor = _PLAIN_REDACTOR
) -> list[Finding]:
    """Return the secrets that an event stream tells in pieces, as replacements of its bytes, in order.

    Secrets that stand whole in one piece are among them. `known` holds literal secrets to look for.
    """
    told = _TOLD.findall(body)
    text = b"".join(told)
    usual = len(told) == body.count(b'_delta"') - sum(body.count(other) for other in _OTHERS)
    if usual and not _PLAIN.search(text) and not redactor.find(text, known=known):
        return []
    found = [each for block in _blocks(body) for each in _in_block(block, known, redactor)]
    return disjoint(found)


def find_in_answer(
    body: bytes, known: Sequence[bytes] = (), redactor: Redactor = _PLAIN_REDACTOR
) -> list[Finding]:
    """Return all secrets of a response body, those that are told in pieces among them."""
    # What is found in pieces goes first: of two findings in one place it knows better what to write.
    return disjoint(find_in_stream(body, known, redactor) + redactor.find(body, known=known))


HELD_BYTES_MAX = 1 << 20
"""However little is told in them, no more bytes of a stream than these are unsettled. Our choice."""


def settled(raw: bytes, found: Sequence[Finding]) -> int:
    """Return how much of a stream can be written before more of it has come: up to the end of an event.

    What is told in the last 4 KiB of text may be the beginning of a secret, and of a secret in pieces none is written
    before all of it has come. `found` are the secrets in what has come.
    """
    if any(each.kind == FAILED_KIND for each in found):
        return len(raw)
    safe, told = max(len(raw) - CONTEXT, 0), 0
    for match in reversed(list(_TOLD.finditer(raw))):
        told += len(match[1])
        safe = min(safe, match.start())
        if told >= CONTEXT:
            break
    else:
        safe = 0 if told else safe
    safe = _event_end(raw, max(safe, len(raw) - HELD_BYTES_MAX))
    end = 0
    for each in reversed(found):
        # The pieces of a secret follow the one that is replaced; they go together.
        end = max(end, each.end)
        if each.written:
            if each.start < safe < end:
                safe = _event_end(raw, each.start)
            end = 0
    return safe


def _event_end(raw: bytes, at: int) -> int:
    """Return where the last event ends before a byte; the byte itself where this is no stream of events."""
    ends = max(raw.rfind(b"\n\n", 0, at) + 2, raw.rfind(b"\r\n\r\n", 0, at) + 4)
    if ends > 4 or raw[:2] in (b"\n\n", b"\r\n"):
        return ends
    return 0 if raw.lstrip()[:5] in (b"event", b"data:", b": ") else at


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


def _in_block(block: _Block, known: Sequence[bytes], redactor: Redactor) -> Iterator[Finding]:
    """Yield the secrets of one block, each as one replacement for each delta that it touches."""
    ends = list(accumulate(len(run) for run in block.runs))
    for secret in redactor.find(b"".join(block.runs), known=known):
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
