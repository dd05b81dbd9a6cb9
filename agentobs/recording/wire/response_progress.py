"""Coming: what has come of an answer that has not ended, as far as it is still to be looked at.

An answer may come in a hundred thousand pieces, and is looked at every 200 ms. Each look takes what is new and lets go
of what is written, so that it costs no more at the end of a long answer than at its beginning.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from agentobs.provider.content_encoding import Decoding
from agentobs.records.exchanges import Answer, Chunk

HEAD_BYTES = 64 * 1024
"""How far into an answer its first counts are looked for."""


@dataclass(slots=True)
class Coming:
    """The part of one answer between what is written and what has come, its content encoding undone."""

    keeps: bool = True
    """Whether anything but its beginning and its size is wanted."""
    size: int = 0
    """Bytes that have come."""
    head: list[Chunk] = field(default_factory=list, repr=False)
    """Its first chunks."""
    _is_head_full: bool = False
    _heard: int = 0
    """Chunks of the answer that were looked at, as they came."""
    _first: int = 0
    """Where the bytes that are held begin."""
    _held: bytearray = field(default_factory=bytearray, repr=False)
    _arrived: list[tuple[int, int]] = field(default_factory=list)
    """Where each chunk ends that is not written whole, and when it came."""
    _decoding: Decoding | None = None

    def hear(self, answer: Answer) -> None:
        """Take what has come since this was called last."""
        new = answer.chunks[self._heard :]
        self._heard += len(new)
        if new and self._decoding is None:
            self._decoding = Decoding(answer.encoding)
        for chunk in new:
            assert self._decoding is not None
            for data in self._decoding.undone(chunk.data):
                self._add(Chunk(data, chunk.after_ns))

    def since(self, first: int) -> bytes:
        """Return what has come from a byte on, and let go of what is before it."""
        del self._held[: first - self._first]
        self._first = first
        return bytes(self._held)

    def between(self, start: int, end: int) -> list[Chunk]:
        """Return the chunks, or parts of chunks, that hold some bytes, and let go of those that end there."""
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
