"""Clients of httpx, which SDKs before 1.0 and other programs use: recorded and replayed like those of httpx2."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator, Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests

import agentobs
from agentobs.errors import UsageError
from tests.marks import mark_all_but_first
from tests.provider_script import streamed, text
from tests.replay.raw_provider import JSON, Play, no_response, play, play_chunks, raw_provider
from tests.replay.wire_recordings import REQUEST, message_json, recorded, recording, replayed

HEADERS = {"anthropic-version": "2023-06-01", "x-api-key": "sk-ant-a-made-up-key-0123456789"}
UPLOADED = b'{"model": "claude-sonnet-5", ', b'"max_tokens": 9, "messages": []}'
MESSAGE = play_chunks(200, JSON, message_json(text("hi")))


def post(url: str) -> str:
    with agentobs.record(httpx.Client(headers=HEADERS)) as client:
        return str(client.post(f"{url}/v1/messages", json=REQUEST).json()["content"][0]["text"])


def stream(url: str) -> str:
    with agentobs.record(httpx.Client(headers=HEADERS)) as client:
        body = {**REQUEST, "stream": True}
        with client.stream("POST", f"{url}/v1/messages", json=body) as response:
            return "".join(response.iter_text())


def stream_async(url: str) -> str:
    async def run() -> str:
        async with agentobs.record(httpx.AsyncClient(headers=HEADERS)) as client:
            body = {**REQUEST, "stream": True}
            async with client.stream("POST", f"{url}/v1/messages", json=body) as response:
                return "".join([part async for part in response.aiter_text()])

    return asyncio.run(run())


def upload_async(url: str) -> str:
    """Send a body in chunks."""

    async def chunks() -> AsyncIterator[bytes]:
        for part in UPLOADED:
            yield part

    async def run() -> str:
        async with agentobs.record(httpx.AsyncClient(headers=HEADERS)) as client:
            response = await client.post(f"{url}/v1/messages", content=chunks())
            return str(response.json()["content"][0]["text"])

    return asyncio.run(run())


def time_out(url: str) -> str:
    with agentobs.record(httpx.Client(headers=HEADERS, timeout=0.05)) as client:
        with pytest.raises(httpx.ReadTimeout) as caught:
            client.post(f"{url}/v1/messages", json=REQUEST)
        return type(caught.value).__name__


def drop(call: Any) -> None:
    call.send_headers()
    call.send(b"event: ping\n\n")
    call.drop()


def be_cut_off(url: str) -> str:
    try:
        return stream(url)
    except httpx.RemoteProtocolError as error:
        return type(error).__name__


CALLS: dict[str, tuple[Callable[[str], str], Play]] = {
    "post": (post, MESSAGE),
    "stream": (stream, play(streamed(text("hi")))),
    "async stream": (stream_async, play(streamed(text("hi")))),
    "chunked upload": (upload_async, MESSAGE),
    "timeout": (time_out, no_response),
    "cut off": (be_cut_off, drop),
}


@pytest.mark.parametrize("name", mark_all_but_first(CALLS, pytest.mark.slow, kept=4))
def test_a_client_of_httpx_is_recorded_and_replayed(tmp_path: Path, name: str) -> None:
    """The client gets the same response, or the same exception of httpx, live and in a replay."""
    call, response = CALLS[name]

    def run(url: str) -> str:
        with agentobs.session("httpx"):
            return call(url)

    live, fixture, raw = recorded(tmp_path, [response], run)
    assert len(raw.requests) == len(fixture.requests) == 1
    assert fixture.body(1) == raw.requests[0].body
    assert replayed(fixture, run) == live


class OwnTransport(httpx.AsyncBaseTransport):
    """A transport of a framework."""

    def __init__(self) -> None:
        self._inner = httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self._inner.handle_async_request(request)


def test_record_all_records_clients_of_httpx(tmp_path: Path) -> None:
    """Clients that are created inside of `record_all` are recorded once, even with a transport of a framework. Requests
    to other servers are not recorded, and afterwards no client is.
    """

    async def ask(url: str) -> str:
        async with httpx.AsyncClient(headers=HEADERS, transport=OwnTransport()) as client:
            response = await client.post(f"{url}/v1/messages", json=REQUEST)
        return str(response.json()["content"][0]["text"])

    def run(url: str) -> str:
        with agentobs.record_all(), agentobs.session("all"):
            if not url.endswith(":9"):
                httpx.post(f"{url}/v1/messages", json={"messages": []})
            first = httpx.post(f"{url}/v1/messages", json=REQUEST, headers=HEADERS).json()
            return str(first["content"][0]["text"]) + asyncio.run(ask(url))

    before = httpx.HTTPTransport.handle_request, httpx.AsyncClient._transport_for_url
    live, fixture, raw = recorded(tmp_path, [MESSAGE] * 3, run)
    assert live == "hihi"
    assert (len(raw.requests), len(fixture.requests)) == (3, 2)
    assert replayed(fixture, run) == live
    assert (httpx.HTTPTransport.handle_request, httpx.AsyncClient._transport_for_url) == before


LATE = """
import sys
import agentobs
assert "httpx" not in sys.modules
with agentobs.record_all(home=sys.argv[1]):
    assert "httpx" not in sys.modules
    import httpx
    with agentobs.session("late"):
        httpx.post(sys.argv[2] + "/v1/messages", json={"messages": []}, headers={"anthropic-version": "1"})
"""


@pytest.mark.slow
def test_record_all_records_a_library_that_is_imported_later(tmp_path: Path) -> None:
    """httpx is not imported by agentobs, and is recorded although the program imports it after `record_all`."""
    with raw_provider([MESSAGE]) as raw:
        command = [sys.executable, "-c", LATE, str(tmp_path / "home"), raw.url]
        subprocess.run(command, check=True)
    with agentobs.connect(tmp_path / "home") as store:
        assert store.execute("SELECT turns FROM sessions").fetchall() == [(1,)]


def test_clients_of_other_providers_are_rejected(tmp_path: Path) -> None:
    """A client of another provider's SDK is rejected, because its requests could not be interpreted."""
    other: Any = type("OpenAI", (), {"__module__": "openai"})()
    other._client = httpx.Client()
    with recording(tmp_path / "home"):
        with pytest.raises(UsageError, match=r"cannot record .*OpenAI.*: it is a client of openai"):
            agentobs.record(other)


def test_the_error_names_what_was_passed(tmp_path: Path) -> None:
    """The error names the class, its package and version, and `record_all`, which works for such a client."""
    with recording(tmp_path / "home"):
        with pytest.raises(UsageError) as raised:
            agentobs.record(requests.Session())
    assert f"cannot record Session of requests {version('requests')}: it " in str(raised.value)
    assert "use record_all(), which also sees the clients of requests" in str(raised.value)


def send_bytes(host: str, port: int) -> bytes:
    """Send a request with a client of no known library."""
    with socket.create_connection((host, port)) as connection:
        lines = [
            "POST /v1/messages HTTP/1.1",
            "content-length: 2",
            "anthropic-version: 1",
            "",
            "{}",
        ]
        connection.sendall("\r\n".join(lines).encode())
        return connection.recv(9)


def test_record_all_warns_if_it_saw_nothing(tmp_path: Path) -> None:
    """A `record_all` during which no request to the provider was seen warns, because its session looks complete."""
    with raw_provider([MESSAGE]) as raw, recording(tmp_path / "home"):
        with pytest.warns(RuntimeWarning, match="saw no request.*agentobs record --") as warned:
            with agentobs.record_all(), agentobs.session("unseen"):
                send_bytes("127.0.0.1", int(raw.url.rpartition(":")[2]))
    assert len(warned) == 1
    assert len(raw.requests) == 1


def test_record_all_does_not_name_a_host_that_it_saw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the requests to a provider were recorded, its host is not reported as missed."""
    resolve = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda _host, *rest, **named: resolve("127.0.0.1", *rest, **named)
    )
    with raw_provider([MESSAGE]) as raw, recording(tmp_path / "home"):
        url = raw.url.replace("127.0.0.1", "api.anthropic.com")
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            with agentobs.record_all(), agentobs.session("seen"):
                httpx.post(f"{url}/v1/messages", json=REQUEST, headers=HEADERS)
    assert len(raw.requests) == 1
    assert [str(each.message) for each in warned if each.category is RuntimeWarning] == []


def test_record_all_names_a_host_that_it_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a provider was only reached by a client of no known library, the warning names the host and the way out, even
    if other requests were recorded.
    """
    with raw_provider([MESSAGE] * 2) as raw, recording(tmp_path / "home"):
        port = int(raw.url.rpartition(":")[2])
        local = socket.getaddrinfo("127.0.0.1", port, type=socket.SOCK_STREAM)
        real = socket.getaddrinfo
        monkeypatch.setattr(
            socket,
            "getaddrinfo",
            lambda host, *args, **options: (
                local if host == "api.anthropic.com" else real(host, *args, **options)
            ),
        )
        with pytest.warns(RuntimeWarning, match=r"to api\.anthropic\.com.*agentobs record --"):
            with agentobs.record_all(), agentobs.session("missed"):
                httpx.post(f"{raw.url}/v1/messages", json=REQUEST, headers=HEADERS)
                send_bytes("api.anthropic.com", port)
    assert len(raw.requests) == 2


def test_record_all_does_not_warn_after_an_exception(tmp_path: Path) -> None:
    """A program that failed may not have reached its requests, so only its exception is reported."""
    with recording(tmp_path / "home"), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with pytest.raises(LookupError), agentobs.record_all():
            raise LookupError
    assert [str(each.message) for each in warned if each.category is RuntimeWarning] == []
