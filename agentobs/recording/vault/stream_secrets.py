"""Secrets in streamed responses: a model may send a key in several deltas, each in a separate JSON value.

The texts of the deltas of a block are joined, and the joined text is searched. Each finding is mapped back to bytes of
the stream: in the first delta, the placeholder replaces the start of the secret; the rest of the secret is removed from
the later deltas. The stream therefore remains a list of complete JSON values, and its deltas add up to the redacted
text.
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
"""Escape sequences of characters that do not need to be escaped. They could hide a secret from a search in the bytes.
"""


@dataclass(slots=True)
class _Block:
    """The text of one block of the response, in runs of bytes, and the position of each run in the stream."""

    runs: list[bytes] = field(default_factory=list)
    """Decoded bytes: text without escape sequences, or the character of one escape sequence."""
    places: list[tuple[int, int, int]] = field(default_factory=list)
    """For each run its start and end in the stream, and the number of its delta."""


_PLAIN_REDACTOR = Redactor()


def find_in_stream(
    body: bytes, known: Sequence[bytes] = (), redactor: Redactor = _PLAIN_REDACTOR
) -> list[Finding]:
    """Return the secrets in an event stream, as replacements of its bytes, in order.

    This includes secrets that are spread over deltas and secrets within one delta. `known` holds literal secrets to
    look for.
    """
    found = [each for shape in delta_shapes() for each in _find(body, known, redactor, shape)]
    return disjoint(found)


def _find(
    body: bytes, known: Sequence[bytes], redactor: Redactor, shape: DeltaShape
) -> Iterator[Finding]:
    texts = [each for piece in _pieces(body) for each in shape.text.findall(piece)]
    text = b"".join(texts)
    is_usual = len(texts) == body.count(shape.marker) - sum(
        body.count(o) for o in shape.other_markers
    )
    if is_usual and not _PLAIN.search(text) and not redactor.find(text, known=known):
        return
    for block in _blocks(body, shape):
        yield from _findings_in_block(block, known, redactor)


def find_in_answer(
    body: bytes, known: Sequence[bytes] = (), redactor: Redactor = _PLAIN_REDACTOR
) -> list[Finding]:
    """Return all secrets of a response body, including those that are spread over deltas."""
    found = find_in_stream(body, known, redactor)
    # A rule may match anything, such as the whole body.
    parts = b"" if found or redactor.rules else _distinct_parts(body)
    if parts and not redactor.find(parts, known=known):
        return []
    # A finding across deltas takes precedence over another finding in the same place: it covers the complete secret.
    return disjoint(found + redactor.find(body, known=known))


def _distinct_parts(body: bytes) -> bytes:
    """Return the texts of the deltas of a stream, and its events without them, each of these once; empty if the stream
    has no deltas in the usual form.

    If they contain no secret, the stream contains none. The search is faster, because most of a stream is repeated.
    """
    texts: list[bytes] = []
    events: dict[bytes, None] = {}
    for piece in _pieces(body):
        for shape in delta_shapes():
            texts += shape.text.findall(piece)
            piece = shape.text.sub(b"", piece)
        events.update(dict.fromkeys(piece.split(b"\n\n")))
    if not texts:
        return b""
    return b"\n\n".join(events) + b'\n"%b"' % b'"\n"'.join(texts)


def _pieces(body: bytes) -> Iterator[bytes]:
    """Yield a stream in pieces of whole events, about `PIECE_BYTES` long: a longer search would keep other threads
    waiting, because it cannot be interrupted.
    """
    start = 0
    while len(body) - start > PIECE_BYTES:
        end = body.find(b"\n\n", start + PIECE_BYTES)
        if end == -1:
            break
        yield body[start : end + 2]
        start = end + 2
    yield body[start:]


PIECE_BYTES = 64 * 1024
"""Our choice: the search of a piece takes a fraction of a millisecond."""
HELD_BYTES_MAX = 1 << 20
"""At most this many bytes of a stream are held back, even if they contain little text. Our choice."""


def writable_length(raw: bytes, found: Sequence[Finding]) -> int:
    """Return how many bytes of an unfinished stream can be written now; they end with the end of an event.

    The last 4 KiB of text are held back, because they may contain the start of a secret. No part of a secret that is
    spread over deltas is written before all of it has arrived. `found` are the secrets in the bytes so far.
    """
    if any(each.kind == FAILED_KIND for each in found):
        return len(raw)
    safe, held_text = max(len(raw) - CONTEXT, 0), 0
    for match in reversed(_deltas(raw)):
        held_text += len(match[1])
        safe = min(safe, match.start())
        if held_text >= CONTEXT:
            break
    else:
        safe = 0 if held_text else safe
    safe = _event_end(raw, max(safe, len(raw) - HELD_BYTES_MAX))
    end = 0
    for each in reversed(found):
        # In a stream, the part of a secret that the placeholder replaces comes before the other parts. All of them must
        # be written together.
        end = max(end, each.end)
        if each.replacement_bytes:
            if each.start < safe < end:
                safe = _event_end(raw, each.start)
            end = 0
    return safe


def _deltas(raw: bytes) -> list[re.Match[bytes]]:
    """Return the deltas of a stream, in order."""
    found = [match for shape in delta_shapes() for match in shape.text.finditer(raw)]
    return sorted(found, key=lambda match: match.start())


def _event_end(raw: bytes, at: int) -> int:
    """Return the end of the last event before a byte; the byte itself if this is not an event stream."""
    ends = max(raw.rfind(b"\n\n", 0, at) + 2, raw.rfind(b"\r\n\r\n", 0, at) + 4)
    if ends > 4 or raw[:2] in (b"\n\n", b"\r\n"):
        return ends
    return 0 if raw.lstrip().startswith((b"event", b"data:", b":")) else at


def _blocks(body: bytes, shape: DeltaShape) -> list[_Block]:
    """Return the blocks of a response, joined from the lines with their deltas."""
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
    """Yield start and end of each line that contains a delta."""
    last = 0
    while (at := body.find(marker, last)) != -1:
        start = max(body.rfind(b"\n", last, at), body.rfind(b"\r", last, at), last - 1) + 1
        ended = _LINE_END.search(body, at)
        last = ended.start() if ended else len(body)
        yield start, last


def _runs(body: bytes, start: int, end: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield the runs of a JSON string: start, end and decoded bytes of each."""
    for escape in _ESCAPE.finditer(body, start, end):
        if escape.start() > start:
            yield start, escape.start(), body[start : escape.start()]
        yield escape.start(), escape.end(), _unescaped(escape[0])
        start = escape.end()
    if start < end:
        yield start, end, body[start:end]


def _unescaped(escape: bytes) -> bytes:
    if escape[1:2] != b"u":
        return _SHORT.get(escape[1:2], escape[1:2])
    units = bytes.fromhex(escape.replace(b"\\u", b"").decode())
    return units.decode("utf-16-be", "replace").encode()


def _findings_in_block(
    block: _Block, known: Sequence[bytes], redactor: Redactor
) -> Iterator[Finding]:
    """Yield the secrets of one block, each as one replacement per delta that it touches."""
    ends = list(accumulate(len(run) for run in block.runs))
    for secret in redactor.find(b"".join(block.runs), known=known):
        first, last = bisect_right(ends, secret.start), bisect_right(ends, secret.end - 1)
        by_delta: dict[int, tuple[int, int]] = {}
        for at in range(first, last + 1):
            start, end, number = _covered_bytes(block, at, ends[at], secret)
            by_delta[number] = (by_delta.get(number, (start,))[0], end)
        for count, (start, end) in enumerate(by_delta.values()):
            yield Finding(start, end, secret.kind, b"" if count else secret.replacement_bytes)


def _covered_bytes(block: _Block, at: int, ends_at: int, secret: Finding) -> tuple[int, int, int]:
    """Return the bytes of the stream that a secret covers in one run, and the number of its delta.

    An escape sequence is replaced completely.
    """
    start, end, number = block.places[at]
    size = len(block.runs[at])
    if end - start == size:
        begins_at = ends_at - size
        start, end = start + max(secret.start - begins_at, 0), end - max(ends_at - secret.end, 0)
    return start, end, number
