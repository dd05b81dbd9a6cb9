"""The provider, in memory: answers from a list, so that what is measured is the client alone."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

import httpx2
from anthropic import Anthropic

URL = "https://api.anthropic.com/v1/messages"
"""Where requests go that never leave the process."""
KEY = "sk-ant-api03-a-key-of-no-account-0123456789"
HEADERS = {"content-type": "text/event-stream; charset=utf-8", "request-id": "req_0123456789"}


def client(http: httpx2.Client) -> Anthropic:
    """Return an SDK client that asks by `http`."""
    return Anthropic(api_key=KEY, http_client=http, max_retries=0)


def canned(answers: Sequence[list[bytes]]) -> Anthropic:
    """Return an SDK client that is answered from a list."""
    return client(httpx2.Client(transport=Canned(answers)))


class Canned(httpx2.BaseTransport):
    """Answers with one stream after another, and from the start again."""

    def __init__(self, answers: Sequence[list[bytes]]) -> None:
        """Answer with these, each in its pieces."""
        self._answers = answers
        self._asked = 0
        self.thinking_s = 0.0
        """After what time an answer begins."""

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Answer, whatever is asked."""
        pieces = self._answers[self._asked % len(self._answers)]
        self._asked += 1
        if self.thinking_s:
            time.sleep(self.thinking_s)
        return httpx2.Response(200, headers=HEADERS, stream=_Pieces(pieces))


class BareTee(httpx2.BaseTransport):
    """Keeps each piece of each answer with its time, and does nothing with them: the floor of recording."""

    def __init__(self, inner: httpx2.BaseTransport) -> None:
        """Tee what passes through `inner`."""
        self._inner = inner
        self.kept: list[tuple[bytes, int]] = []

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Pass the request on and tee the answer."""
        self.kept.clear()
        response = self._inner.handle_request(request)
        assert isinstance(response.stream, httpx2.SyncByteStream)
        response.stream = _Tee(response.stream, self.kept)
        return response


class _Pieces(httpx2.SyncByteStream):
    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        yield from self._pieces


class _Tee(httpx2.SyncByteStream):
    def __init__(self, inner: Iterable[bytes], kept: list[tuple[bytes, int]]) -> None:
        self._inner, self._kept = inner, kept

    def __iter__(self) -> Iterator[bytes]:
        for data in self._inner:
            self._kept.append((data, time.monotonic_ns()))
            yield data
