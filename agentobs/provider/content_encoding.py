"""Content encodings: undone where nobody waits for it, and within bounds.

The agent's thread hands an answer over as it came; a few kilobytes of gzip may hold gigabytes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

import httpx2

from agentobs.records.exchanges import Answer, Chunk, ModelExchange

DECODED_BYTES = 32 * 1024 * 1024
"""How much of one body is decoded; what follows is lost, and leaves the session incomplete."""


def decoded(exchange: ModelExchange) -> ModelExchange:
    """Return an exchange with the content encoding of its answer undone; the same where it has none."""
    answer = exchange.answer
    if answer.encoding in ("", "identity"):
        return exchange
    chunks, lost = _decoded(answer)
    return replace(
        exchange,
        answer=replace(answer, chunks=chunks, encoding=""),
        lost_bytes=exchange.lost_bytes + lost,
    )


class Decoding:
    """Undoes the content encoding of one answer while it comes, as `decoded` does of a whole one."""

    def __init__(self, encoding: str) -> None:
        """Begin with an answer, of which nothing has come."""
        # A response undoes a stream only up to its end: its decoder alone can be asked again when more has come.
        headers = {"content-encoding": encoding} if encoding else {}
        self._decoder = httpx2.Response(200, headers=headers)._get_content_decoder()
        self._room = DECODED_BYTES
        self._has_ended = False

    def undone(self, data: bytes) -> Iterator[bytes]:
        """Yield what the next bytes mean; nothing more after bytes that cannot be decoded, or that are too many."""
        if self._has_ended:
            return
        try:
            for piece in self._decoder.decode(data):
                self._room -= len(piece)
                if self._room < 0:
                    self._has_ended = True
                    return
                if piece:
                    yield piece
        except httpx2.DecodingError:
            self._has_ended = True


def _decoded(answer: Answer) -> tuple[tuple[Chunk, ...], int]:
    """Undo gzip, deflate, br or zstd chunk by chunk, with the decoders that httpx2 has for the client.

    Bytes that cannot be decoded (a stream cut inside a block) end the body where they begin. Returns the
    chunks, and how many bytes of the first one that was too many are not in them.
    """
    stream = _Chunks(answer.chunks)
    whole = httpx2.Response(200, headers={"content-encoding": answer.encoding}, stream=stream)
    pieces: list[Chunk] = []
    room = DECODED_BYTES
    with contextlib.suppress(httpx2.DecodingError):
        for data in whole.iter_bytes():
            room -= len(data)
            if room < 0:
                return tuple(pieces), len(data)
            if data:
                pieces.append(Chunk(data, stream.now_ns))
    return tuple(pieces), 0


class _Chunks(httpx2.SyncByteStream):
    """The bytes of chunks as a stream that knows when the current one arrived."""

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self._chunks, self.now_ns = chunks, 0

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            self.now_ns = chunk.after_ns
            yield chunk.data
