"""Response progress: the bytes of a response in progress that have not been written yet.

A response may arrive in a hundred thousand chunks, and is processed every 200 ms. Each step adds only the new chunks
and drops the bytes that are written, so it costs no more at the end of a long response than at its start.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from agentobs.provider.content_encoding import StreamDecoder
from agentobs.records.exchanges import Answer, Chunk

FIRST_BYTES = 64 * 1024
"""The maximum number of bytes at the start of a response that are searched for usage. Our choice."""


@dataclass(slots=True)
class ResponseProgress:
    """The bytes of one response that have arrived and are not written yet, without their content encoding."""

    keeps_body: bool = True
    """Whether the bytes are kept; otherwise, only the first chunks and the size are kept."""
    size: int = 0
    """The number of bytes that have arrived."""
    first_chunks: list[Chunk] = field(default_factory=list, repr=False)
    """The first chunks of the response, at most `FIRST_BYTES`."""
    _has_first_chunks: bool = False
    _received: int = 0
    """The number of chunks that were added on arrival."""
    _first: int = 0
    """The offset of the bytes in memory."""
    _held: bytearray = field(default_factory=bytearray, repr=False)
    _arrived: list[tuple[int, int]] = field(default_factory=list)
    """The end of each chunk that is not completely written, and its arrival time."""
    _decoding: StreamDecoder | None = None

    def receive(self, answer: Answer) -> None:
        """Add the chunks that have arrived since the last call."""
        new = answer.chunks[self._received :]
        self._received += len(new)
        if new and self._decoding is None:
            self._decoding = StreamDecoder(answer.encoding)
        for chunk in new:
            assert self._decoding is not None
            for data in self._decoding.decode(chunk.data):
                self._add(Chunk(data, chunk.after_ns))

    def since(self, first: int) -> bytes:
        """Return the bytes from an offset on, and drop those before it."""
        del self._held[: first - self._first]
        self._first = first
        return bytes(self._held)

    def between(self, start: int, end: int) -> list[Chunk]:
        """Return the chunks, or parts of chunks, from `start` to `end`, and drop the chunks that end there."""
        found, at = [], start
        for until, after_ns in self._arrived:
            if at >= end:
                break
            last = min(until, end)
            if at < last:
                data = bytes(self._held[at - self._first : last - self._first])
                found.append(Chunk(data, after_ns))
                at = last
        self._arrived = [each for each in self._arrived if each[0] > end]
        return found

    def _add(self, chunk: Chunk) -> None:
        self.size += len(chunk.data)
        self._has_first_chunks = self._has_first_chunks or self.size > FIRST_BYTES
        if not self._has_first_chunks:
            self.first_chunks.append(chunk)
        if self.keeps_body:
            self._held += chunk.data
            self._arrived.append((self.size, chunk.after_ns))
