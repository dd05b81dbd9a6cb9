"""An in-memory provider that responds from a list, so that benchmarks measure only the client."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

import httpx2
from anthropic import Anthropic

URL = "https://api.anthropic.com/v1/messages"
"""The URL of requests, which never leave the process."""
KEY = "sk-ant-api03-a-key-of-no-account-0123456789"
HEADERS = {"content-type": "text/event-stream; charset=utf-8", "request-id": "req_0123456789"}


def client(http: httpx2.Client) -> Anthropic:
    """Return an SDK client that sends its requests with `http`."""
    return Anthropic(api_key=KEY, http_client=http, max_retries=0)


def canned_client(responses: Sequence[list[bytes]]) -> Anthropic:
    """Return an SDK client that receives its responses from a list."""
    return client(httpx2.Client(transport=Canned(responses)))


class Canned(httpx2.BaseTransport):
    """A transport that returns the responses of a list in turn, and restarts at the end of the list."""

    def __init__(self, responses: Sequence[list[bytes]]) -> None:
        """Set the responses to return; each is a list of chunks."""
        self._responses = responses
        self._requests = 0
        self.latency_s = 0.0
        """The time until a response begins, in seconds."""

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Return the next response, regardless of the request."""
        chunks = self._responses[self._requests % len(self._responses)]
        self._requests += 1
        if self.latency_s:
            time.sleep(self.latency_s)
        return httpx2.Response(200, headers=HEADERS, stream=_Chunks(chunks))


class ChunkStore(httpx2.BaseTransport):
    """A transport that stores each chunk of a response with its time, which is the minimum cost of a recording."""

    def __init__(self, inner: httpx2.BaseTransport) -> None:
        """Set the transport that sends the requests."""
        self._inner = inner
        self.chunks: list[tuple[bytes, int]] = []

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Forward the request and store the chunks of the response."""
        self.chunks.clear()
        response = self._inner.handle_request(request)
        assert isinstance(response.stream, httpx2.SyncByteStream)
        response.stream = _StoringStream(response.stream, self.chunks)
        return response


class _Chunks(httpx2.SyncByteStream):
    def __init__(self, chunks: list[bytes]) -> None:
        self._chunks = chunks

    def __iter__(self) -> Iterator[bytes]:
        yield from self._chunks


class _StoringStream(httpx2.SyncByteStream):
    def __init__(self, inner: Iterable[bytes], chunks: list[tuple[bytes, int]]) -> None:
        self._inner, self._chunks = inner, chunks

    def __iter__(self) -> Iterator[bytes]:
        for data in self._inner:
            self._chunks.append((data, time.monotonic_ns()))
            yield data
