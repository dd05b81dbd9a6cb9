"""Sessions of aiohttp: recorded and replayed like clients of httpx."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import httpx2
import pytest

import agentobs
from agentobs.records.exchanges import ModelExchange
from tests.marks import mark_all_but_first
from tests.provider_script import streamed, text
from tests.replay.agents import KEY, last_session
from tests.replay.raw_provider import (
    JSON,
    Play,
    drop,
    hang_up,
    no_response,
    play,
    play_chunks,
    raw_provider,
)
from tests.replay.wire_recordings import REQUEST, message_json, recorded, replayed

HEADERS = {"anthropic-version": "2023-06-01", "x-api-key": "sk-ant-a-made-up-key-0123456789"}
STREAMED = {**REQUEST, "stream": True}
UPLOADED = b'{"model": "claude-sonnet-5", ', b'"max_tokens": 9, "messages": []}'
MESSAGE = play_chunks(200, JSON, message_json(text("hi")))
Read = Callable[[aiohttp.ClientResponse], Awaitable[Any]]


async def post(session: aiohttp.ClientSession, url: str) -> Any:
    async with session.post(f"{url}/v1/messages", json=REQUEST) as response:
        return (await response.json())["content"][0]["text"], response.status


def reading(read: Read) -> Callable[[aiohttp.ClientSession, str], Awaitable[Any]]:
    async def run(session: aiohttp.ClientSession, url: str) -> Any:
        async with session.post(f"{url}/v1/messages", json=STREAMED) as response:
            return await read(response)

    return run


async def lines(response: aiohttp.ClientResponse) -> Any:
    return [line async for line in response.content]


async def pieces(response: aiohttp.ClientResponse) -> Any:
    found = [part async for part in response.content.iter_chunked(50)]
    return b"".join(found), max(map(len, found))


async def http_chunks(response: aiohttp.ClientResponse) -> Any:
    return b"".join([part async for part, _ in response.content.iter_chunks()])


async def until_end(response: aiohttp.ClientResponse) -> Any:
    found = [await response.content.readuntil(b"\n\n"), await response.content.readexactly(9)]
    while not response.content.at_eof():
        found.append(await response.content.readany())
    return b"".join(found), response.content.is_eof(), response.content.exception()


async def first_event(response: aiohttp.ClientResponse) -> Any:
    return await response.content.readuntil(b"\n\n")


async def upload(session: aiohttp.ClientSession, url: str) -> Any:
    async def chunks() -> AsyncIterator[bytes]:
        for part in UPLOADED:
            yield part

    async with session.post(f"{url}/v1/messages", data=chunks()) as response:
        return await response.json()


async def time_out(session: aiohttp.ClientSession, url: str) -> Any:
    timeout = aiohttp.ClientTimeout(sock_read=0.05)
    return await session.post(f"{url}/v1/messages", json=REQUEST, timeout=timeout)


async def time_out_in_total(session: aiohttp.ClientSession, url: str) -> Any:
    timeout = aiohttp.ClientTimeout(total=0.05)
    return await session.post(f"{url}/v1/messages", json=REQUEST, timeout=timeout)


async def undecoded(session: aiohttp.ClientSession, url: str) -> Any:
    """Read a compressed response without decoding; a replay serves it decoded, as for every client."""
    body: dict[str, Any] = {"json": REQUEST, "auto_decompress": False}
    async with session.post(f"{url}/v1/messages", **body) as response:
        data = await response.read()
    packed = response.headers.get("content-encoding") == "gzip"
    return gzip.decompress(data) if packed else data


async def cancelled(session: aiohttp.ClientSession, url: str) -> Any:
    """Stop waiting in the middle of a response."""
    async with session.post(f"{url}/v1/messages", json=STREAMED) as response:
        first = await response.content.readuntil(b"\n\n")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(response.content.read(), 0.05)
    return first


def packed(call: Any) -> None:
    call.send_headers(200, {**JSON, "content-encoding": "gzip"})
    data = gzip.compress(message_json(text("hi")))
    call.send(data[:20], data[20:])
    call.end()


def stall(call: Any) -> None:
    call.send_headers()
    call.send(b"event: ping\ndata: {}\n\n")
    call.wait_until_gone()


HI = play(streamed(text("hi")))
CALLS: dict[str, tuple[Callable[[aiohttp.ClientSession, str], Awaitable[Any]], Play]] = {
    "post": (post, MESSAGE),
    "lines": (reading(lines), HI),
    "pieces": (reading(pieces), HI),
    "http chunks": (reading(http_chunks), HI),
    "until the end": (reading(until_end), HI),
    "first event": (reading(first_event), HI),
    "chunked upload": (upload, MESSAGE),
    "timeout": (time_out, no_response),
    "total timeout": (time_out_in_total, no_response),
    "gzip": (post, packed),
    "gzip, not decoded": (undecoded, packed),
    "cancelled": (cancelled, stall),
    "cut off": (reading(lines), drop),
    "no response": (post, hang_up),
}


@pytest.mark.parametrize("name", mark_all_but_first(CALLS, pytest.mark.slow, kept=5))
def test_a_session_is_recorded_and_replayed(tmp_path: Path, name: str) -> None:
    """The program gets the same response, or the same exception of aiohttp, live and in a replay."""
    call, response = CALLS[name]

    async def run_async(url: str) -> Any:
        async with agentobs.record(aiohttp.ClientSession(headers=HEADERS)) as session:
            assert agentobs.record(session) is session
            try:
                return await call(session, url)
            except (aiohttp.ClientError, TimeoutError) as error:
                return type(error), str(error)

    def run(url: str) -> Any:
        with agentobs.session("aiohttp"):
            return asyncio.run(run_async(url))

    live, fixture, raw = recorded(tmp_path, [response], run)
    assert len(raw.requests) == len(fixture.requests) == 1
    assert fixture.body(1) == raw.requests[0].body
    if response is packed:
        [exchange] = last_session(tmp_path / "home").exchanges
        assert isinstance(exchange, ModelExchange)
        assert exchange.answer.body == message_json(text("hi"))
    assert replayed(fixture, run) == live


class OverAiohttp(httpx2.AsyncBaseTransport):
    """A transport of a framework that sends requests with aiohttp."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        async with aiohttp.ClientSession() as session:
            sent: dict[str, Any] = {"headers": request.headers, "data": await request.aread()}
            async with session.post(str(request.url), **sent) as response:
                headers = {"content-type": response.headers["content-type"]}
                return httpx2.Response(
                    response.status, headers=headers, content=await response.read()
                )


def test_record_all_records_each_request_once(tmp_path: Path) -> None:
    """Sessions that are created while `record_all` is active are recorded, and a request is recorded once if a
    transport of httpx2 sends it with aiohttp. Other requests of a session are not recorded.
    """

    async def ask(url: str) -> Any:
        async with aiohttp.ClientSession() as session:
            if not url.endswith(":9"):
                await session.post(f"{url}/v1/files", json={})
            first = await post(session, url)
        sdk = anthropic.AsyncAnthropic(
            api_key=KEY, base_url=url, http_client=anthropic.DefaultAioHttpClient()
        )
        async with sdk, httpx2.AsyncClient(transport=OverAiohttp(), headers=HEADERS) as client:
            second = await sdk.messages.create(**REQUEST)
            third = await client.post(f"{url}/v1/messages", json=REQUEST)
        return first, second.to_dict(), third.json()

    def run(url: str) -> Any:
        with agentobs.record_all():
            client = httpx2.AsyncClient(transport=OverAiohttp())
            asyncio.run(client.aclose())
            with agentobs.session("all"):
                return asyncio.run(ask(url))

    live, fixture, raw = recorded(tmp_path, [MESSAGE] * 4, run)
    assert (len(raw.requests), len(fixture.requests)) == (4, 3)
    assert replayed(fixture, run) == live


def test_a_transport_over_aiohttp_is_recorded_once(tmp_path: Path) -> None:
    """If a client and the session that its transport uses are both recorded, each request is recorded once."""

    async def ask(url: str) -> Any:
        async with httpx2.AsyncClient(transport=OverAiohttp(), headers=HEADERS) as client:
            return (await agentobs.record(client).post(f"{url}/v1/messages", json=REQUEST)).json()

    def run(url: str) -> Any:
        with agentobs.record_all(), agentobs.session("once"):
            return asyncio.run(ask(url))

    live, fixture, raw = recorded(tmp_path, [MESSAGE], run)
    assert len(raw.requests) == len(fixture.requests) == 1
    assert replayed(fixture, run) == live


LATE = """
import asyncio
import sys
import agentobs
with agentobs.record_all(home=sys.argv[1]):
    assert not {"aiohttp", "urllib3", "requests", "httpx"} & set(sys.modules)
    import aiohttp
    async def ask():
        async with aiohttp.ClientSession(headers={"anthropic-version": "1"}) as session:
            async with session.post(sys.argv[2] + "/v1/messages", json={"messages": []}) as response:
                await response.read()
    with agentobs.session("late"):
        asyncio.run(ask())
"""


@pytest.mark.slow
def test_aiohttp_may_be_imported_later(tmp_path: Path) -> None:
    """aiohttp and other optional libraries are not imported by agentobs, and aiohttp is recorded although the program
    imports it after `record_all`.
    """
    with raw_provider([MESSAGE]) as raw:
        command = [sys.executable, "-c", LATE, str(tmp_path / "home"), raw.url]
        subprocess.run(command, check=True)
    with agentobs.connect(tmp_path / "home") as store:
        assert store.execute("SELECT turns FROM sessions").fetchall() == [(1,)]
