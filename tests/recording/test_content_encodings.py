"""Decoding of content encodings, and its limits."""

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
    parts = tuple(Chunk(data, at) for at, data in enumerate(chunks, 1))
    return replace(PLAIN, answer=replace(PLAIN.answer, chunks=parts, encoding="gzip"))


def test_an_encoding_is_decoded_chunk_by_chunk() -> None:
    """Decoded bytes keep the arrival time of their chunk, and the decoded response has no content encoding."""
    found = decoded(packed(PACKED[:20], PACKED[20:]))
    assert found.answer.body == gzip.decompress(PACKED)
    assert found.answer.chunks[-1].after_ns == 2
    assert (found.answer.encoding, found.lost_bytes) == ("", 0)
    assert decoded(PLAIN) is PLAIN


def test_a_decompression_bomb_is_truncated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes beyond the limit are not decoded, and the session is marked incomplete."""
    monkeypatch.setattr(content_encoding, "DECODED_BYTES", 3 * 2**20)
    found = decoded(packed(gzip.compress(bytes(50 * 2**20))))
    assert len(found.answer.body) == 3 * 2**20
    assert found.lost_bytes > 0


def test_a_truncated_body_is_decoded_up_to_its_end() -> None:
    """A body that is not valid gzip from some byte on is decoded up to that byte."""
    found = decoded(packed(PACKED, b"no gzip"))
    assert found.answer.body == gzip.decompress(PACKED)
