"""Response progress: the part of a response in progress that has not been processed yet.

A response may arrive in a hundred thousand chunks, and is processed every 200 ms. Each step takes what is new and drops
what is written, so that it costs no more at the end of a long response than at its start.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from agentobs.provider.content_encoding import Decoding
from agentobs.records.exchanges import Answer, Chunk

HEAD_BYTES = 64 * 1024
"""How many bytes of a response are searched for its first usage."""


@dataclass(slots=True)
class Coming:
    """The part of one response between what is written and what has arrived, after its content encoding was removed."""

    keeps: bool = True
    """Whether more than its start and its size is needed."""
    size: int = 0
    """Bytes that have come."""
    head: list[Chunk] = field(default_factory=list, repr=False)
    """Its first chunks."""
    _is_head_full: bool = False
    _heard: int = 0
    """Chunks of the response that were processed, as they arrived."""
    _first: int = 0
    """The offset of the bytes in memory."""
    _held: bytearray = field(default_factory=bytearray, repr=False)
    _arrived: list[tuple[int, int]] = field(default_factory=list)
    """The end of each chunk that is not completely written, and its arrival time."""
    _decoding: Decoding | None = None

    def hear(self, answer: Answer) -> None:
        """Take the chunks that have arrived since the last call."""
        new = answer.chunks[self._heard :]
        self._heard += len(new)
        if new and self._decoding is None:
            self._decoding = Decoding(answer.encoding)
        for chunk in new:
            assert self._decoding is not None
            for data in self._decoding.undone(chunk.data):
                self._add(Chunk(data, chunk.after_ns))

    def since(self, first: int) -> bytes:
        """Return the bytes from an offset on, and drop those before it."""
        del self._held[: first - self._first]
        self._first = first
        return bytes(self._held)

    def between(self, start: int, end: int) -> list[Chunk]:
        """Return the chunks, or parts of chunks, that hold some bytes, and drop those that end there."""
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
        self._is_head_full = self._is_head_full or self.size > HEAD_BYTES
        if not self._is_head_full:
            self.head.append(chunk)
        if self.keeps:
            self._held += chunk.data
            self._arrived.append((self.size, chunk.after_ns))
