"""Content encodings, undone within bounds."""

from __future__ import annotations

import gzip
from dataclasses import replace

import pytest

from agentobs.provider import content_encoding
from agentobs.provider.content_encoding import decoded
from agentobs.records.exchanges import Answer, Chunk, ModelExchange, Place, Question

PACKED = gzip.compress(b"one two three " * 100)
PLAIN = ModelExchange(
    Place("s"), "a", 1, 2, 3, Question("GET", "/", {}, b""), Answer(200, {}, (), "complete")
)


def packed(*chunks: bytes) -> ModelExchange:
    pieces = tuple(Chunk(data, at) for at, data in enumerate(chunks, 1))
    return replace(PLAIN, answer=replace(PLAIN.answer, chunks=pieces, encoding="gzip"))


def test_an_encoding_is_undone_chunk_by_chunk() -> None:
    """What comes out of a chunk has its time; the answer has no encoding any more."""
    found = decoded(packed(PACKED[:20], PACKED[20:]))
    assert found.answer.body == gzip.decompress(PACKED)
    assert found.answer.chunks[-1].after_ns == 2
    assert (found.answer.encoding, found.lost_bytes) == ("", 0)
    assert decoded(PLAIN) is PLAIN


def test_a_bomb_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit is not decoded, and the session will say that something is missing."""
    monkeypatch.setattr(content_encoding, "DECODED_BYTES", 3 * 2**20)
    found = decoded(packed(gzip.compress(bytes(50 * 2**20))))
    assert len(found.answer.body) == 3 * 2**20
    assert found.lost_bytes > 0


def test_a_cut_body_is_decoded_as_far_as_it_goes() -> None:
    """Bytes that are no gzip end the body."""
    found = decoded(packed(PACKED, b"no gzip"))
    assert found.answer.body == gzip.decompress(PACKED)
