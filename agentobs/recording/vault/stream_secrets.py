"""Secrets in streamed responses: a model sends a key in several deltas, each in a JSON value of its own.

The texts of the deltas of a block are joined, secrets are searched in the joined text, and each
finding is mapped back to bytes of the stream: the first delta gets the placeholder, the later ones lose their part.
So the stream stays a list of complete JSON values, and adds up to the redacted text.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from agentobs.provider.dialect import DeltaShape
from agentobs.provider.registry import delta_shapes
from agentobs.redaction import CONTEXT, FAILED_KIND, Finding, Redactor, disjoint

_LINE_END = re.compile(rb"[\r\n]|\Z")
_ESCAPE = re.compile(rb"(?:\\u[0-9A-Fa-f]{4})+|\\.")
_SHORT = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}
_PLAIN = re.compile(rb"\\u00[2-7]|\\/")
"""Escape sequences for characters that need none; they could hide a secret from a search in the bytes."""


@dataclass(slots=True)
class _Block:
    """The text of one block of the response, and where each of its runs of bytes is in the stream."""

    runs: list[bytes] = field(default_factory=list)
    """Decoded bytes: a stretch without escapes, or the character of one escape."""
    places: list[tuple[int, int, int]] = field(default_factory=list)
    """For each run its first byte in the stream, its end there, and the number of its delta."""


_PLAIN_REDACTOR = Redactor()


def find_in_stream(
    body: bytes, known: Sequence[bytes] = (), redactor: Redactor = _PLAIN_REDACTOR
) -> list[Finding]:
    """Return the secrets in an event stream, as replacements of its bytes, in order.

    This includes secrets that are spread over deltas and those within one delta. `known` holds literal secrets to look
    for.
    """
    found = [each for shape in delta_shapes() for each in _find(body, known, redactor, shape)]
    return disjoint(found)


def _find(
    body: bytes, known: Sequence[bytes], redactor: Redactor, shape: DeltaShape
) -> Iterator[Finding]:
    told = shape.text.findall(body)
    text = b"".join(told)
    usual = len(told) == body.count(shape.marker) - sum(body.count(o) for o in shape.others)
    if usual and not _PLAIN.search(text) and not redactor.find(text, known=known):
        return
    for block in _blocks(body, shape):
        yield from _in_block(block, known, redactor)


def find_in_answer(
    body: bytes, known: Sequence[bytes] = (), redactor: Redactor = _PLAIN_REDACTOR
) -> list[Finding]:
    """Return all secrets of a response body, including those that are spread over deltas."""
    # A finding across deltas takes precedence over another one in the same place, because it covers the whole secret.
    return disjoint(find_in_stream(body, known, redactor) + redactor.find(body, known=known))


HELD_BYTES_MAX = 1 << 20
"""At most this many bytes of a stream are held back, however little text they contain. Our choice."""


def settled(raw: bytes, found: Sequence[Finding]) -> int:
    """Return how much of a stream can be written before more of it has arrived: up to the end of an event.

    The last 4 KiB of text may contain the start of a secret, and no part of a secret that is spread over deltas is
    written before all of it has arrived. `found` are the secrets in the bytes so far.
    """
    if any(each.kind == FAILED_KIND for each in found):
        return len(raw)
    safe, told = max(len(raw) - CONTEXT, 0), 0
    for match in reversed(_deltas(raw)):
        told += len(match[1])
        safe = min(safe, match.start())
        if told >= CONTEXT:
            break
    else:
        safe = 0 if told else safe
    safe = _event_end(raw, max(safe, len(raw) - HELD_BYTES_MAX))
    end = 0
    for each in reversed(found):
        # The parts of a secret follow the one that is replaced; they belong together.
        end = max(end, each.end)
        if each.written:
            if each.start < safe < end:
                safe = _event_end(raw, each.start)
            end = 0
    return safe


def _deltas(raw: bytes) -> list[re.Match[bytes]]:
    """Return the deltas of a stream in their order."""
    found = [match for shape in delta_shapes() for match in shape.text.finditer(raw)]
    return sorted(found, key=lambda match: match.start())


def _event_end(raw: bytes, at: int) -> int:
    """Return where the last event before a byte ends; the byte itself if this is not an event stream."""
    ends = max(raw.rfind(b"\n\n", 0, at) + 2, raw.rfind(b"\r\n\r\n", 0, at) + 4)
    if ends > 4 or raw[:2] in (b"\n\n", b"\r\n"):
        return ends
    return 0 if raw.lstrip()[:5] in (b"event", b"data:", b": ") else at


def _blocks(body: bytes, shape: DeltaShape) -> list[_Block]:
    """Return the blocks of a response, joined from the lines that hold their deltas."""
    blocks: dict[bytes, _Block] = {}
    for number, line in enumerate(_lines(body, shape.marker)):
        value = shape.field.search(body, *line)
        index = shape.index.search(body, *line) if shape.index else None
        if value:
            block = blocks.setdefault(index[1] if index else b"", _Block())
            for start, end, run in _runs(body, *value.span(1)):
                block.runs.append(run)
                block.places.append((start, end, number))
    return list(blocks.values())


def _lines(body: bytes, marker: bytes) -> Iterator[tuple[int, int]]:
    """Yield the position of each line that holds a delta."""
    last = 0
    while (at := body.find(marker, last)) != -1:
        start = max(body.rfind(b"\n", last, at), body.rfind(b"\r", last, at), last - 1) + 1
        ended = _LINE_END.search(body, at)
        last = ended.start() if ended else len(body)
        yield start, last


def _runs(body: bytes, start: int, end: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield the stretches of a JSON string: the position of each, and its decoded bytes."""
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
    """Yield the secrets of one block, each as one replacement per delta that it touches."""
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
    """Return which bytes of the stream a secret covers in one run; an escape is replaced completely."""
    start, end, number = block.places[at]
    size = len(block.runs[at])
    if end - start == size:
        begins_at = ends_at - size
        start, end = start + max(secret.start - begins_at, 0), end - max(ends_at - secret.end, 0)
    return start, end, number
