"""Requests whose body takes long to send: what has been sent of it is never recorded as the whole body."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import aiohttp
import httpx
import pytest

import agentobs
from agentobs.recording.wire.transport import open_for
from tests.replay.raw_provider import JSON, play_chunks
from tests.replay.wire_recordings import message_json, recorded

HEADERS = {"anthropic-version": "2023-06-01", "x-api-key": "sk-ant-a-made-up-key-0123456789"}
PARTS = b'{"model": "claude-sonnet-5", ', b'"max_tokens": 9, "messages": []}'


class Watch:
    """What a check for open exchanges finds while a body is sent, and when the headers of the response arrived."""

    def __init__(self) -> None:
        self.while_sending: list[bytes] = []
        self.after_headers: list[bytes] = []

    def parts(self) -> Iterator[bytes]:
        for part in PARTS:
            self.while_sending += [each.question.body for each in open_for(0)]
            yield part

    async def parts_async(self) -> AsyncIterator[bytes]:
        for part in self.parts():
            yield part

    def note_headers(self) -> None:
        self.after_headers += [each.question.body for each in open_for(0)]


def with_httpx(url: str, watch: Watch) -> None:
    with agentobs.record(httpx.Client(headers=HEADERS)) as client:
        with client.stream("POST", url, content=watch.parts()) as response:
            watch.note_headers()
            response.read()


def with_async_httpx(url: str, watch: Watch) -> None:
    async def run() -> None:
        async with agentobs.record(httpx.AsyncClient(headers=HEADERS)) as client:
            async with client.stream("POST", url, content=watch.parts_async()) as response:
                watch.note_headers()
                await response.aread()

    asyncio.run(run())


def with_aiohttp(url: str, watch: Watch) -> None:
    async def run() -> None:
        async with aiohttp.ClientSession(headers=HEADERS) as session:
            async with session.post(url, data=watch.parts_async()) as response:
                watch.note_headers()
                await response.read()

    asyncio.run(run())


def with_http_client(url: str, watch: Watch) -> None:
    host, _, path = url.removeprefix("http://").partition("/")
    connection = http.client.HTTPConnection(host, timeout=5)
    connection.request("POST", f"/{path}", watch.parts(), HEADERS)
    with connection.getresponse() as response:
        watch.note_headers()
        response.read()
    connection.close()


@pytest.mark.parametrize("send", [with_httpx, with_async_httpx, with_aiohttp, with_http_client])
def test_a_body_is_recorded_when_it_was_sent(
    tmp_path: Path, send: Callable[[str, Watch], None]
) -> None:
    """An exchange is written before its end only if its request is complete."""
    watch = Watch()

    def run(url: str) -> None:
        with agentobs.record_all(), agentobs.session("upload"):
            send(f"{url}/v1/messages", watch)

    answer = play_chunks(200, JSON, message_json({"type": "text", "text": "hi"}))
    _, fixture, raw = recorded(tmp_path, [answer], run)
    body = b"".join(PARTS)
    assert watch.while_sending == []
    assert watch.after_headers == [body]
    assert [each.body for each in raw.requests] == [body]
    assert len(fixture.requests) == 1
