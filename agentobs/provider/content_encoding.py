"""Decode the content encoding of responses and requests, such as gzip.

The agent's thread records a response body as it arrived, so that it does not wait for the decoding. The size of a
decoded body is limited, because a few kilobytes of gzip can contain gigabytes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

import httpx2

from agentobs.records.exchanges import Answer, Chunk, ModelExchange

DECODED_BYTES = 32 * 1024 * 1024
"""Maximum size of a decoded body. The rest of a larger body is lost, and the session is incomplete."""


def decoded(exchange: ModelExchange) -> ModelExchange:
    """Return an exchange with a decoded response body; the same exchange if the body has no content encoding."""
    answer = exchange.answer
    if answer.encoding in ("", "identity"):
        return exchange
    chunks, lost = _decoded(answer)
    return replace(
        exchange,
        answer=replace(answer, chunks=chunks, encoding=""),
        lost_bytes=exchange.lost_bytes + lost,
    )


def decoded_body(body: bytes, encoding: str) -> bytes:
    """Return a decoded request body; the body itself if it has no content encoding, cannot be decoded or is too large.

    Args:
        body: the complete body.
        encoding: the value of the header `content-encoding`.
    """
    if encoding.strip().lower() in ("", "identity"):
        return body
    decoder = StreamDecoder(encoding)
    found = b"".join(decoder.decode(body))
    return body if decoder.has_ended else found


class StreamDecoder:
    """Decodes the body of one response while it arrives; `decoded` does the same for a complete response."""

    def __init__(self, encoding: str) -> None:
        """Create a decoder for a content encoding."""
        # An `httpx2.Response` decodes a stream only up to its end. Its decoder can be called again
        # when more data arrives.
        headers = {"content-encoding": encoding} if encoding else {}
        self._decoder = httpx2.Response(200, headers=headers)._get_content_decoder()
        self._bytes_left = DECODED_BYTES
        self.has_ended = False
        """Whether nothing more is decoded, because of invalid data or the maximum size."""

    def decode(self, data: bytes) -> Iterator[bytes]:
        """Yield the decoded form of the next bytes; nothing after invalid data or above the maximum size."""
        if self.has_ended:
            return
        try:
            for chunk in self._decoder.decode(data):
                self._bytes_left -= len(chunk)
                if self._bytes_left < 0:
                    self.has_ended = True
                    return
                if chunk:
                    yield chunk
        except httpx2.DecodingError:
            self.has_ended = True


def _decoded(answer: Answer) -> tuple[tuple[Chunk, ...], int]:
    """Decode gzip, deflate, br or zstd chunk by chunk, with the decoders that httpx2 has for clients.

    The body ends before the first bytes that cannot be decoded, for example because the stream was cut inside a block.
    Returns the chunks, and the number of lost bytes: the size of the first chunk that exceeded the maximum.
    """
    stream = _Chunks(answer.chunks)
    response = httpx2.Response(200, headers={"content-encoding": answer.encoding}, stream=stream)
    chunks: list[Chunk] = []
    bytes_left = DECODED_BYTES
    with contextlib.suppress(httpx2.DecodingError):
        for data in response.iter_bytes():
            bytes_left -= len(data)
            if bytes_left < 0:
                return tuple(chunks), len(data)
            if data:
                chunks.append(Chunk(data, stream.now_ns))
    return tuple(chunks), 0


class _Chunks(httpx2.SyncByteStream):
    """The bytes of chunks as a stream that keeps the arrival time of the current chunk."""

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self._chunks, self.now_ns = chunks, 0

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            self.now_ns = chunk.after_ns
            yield chunk.data
