"""After a lost connection, the next attempt does not use another idle connection of the pool."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic import AsyncAnthropic

import agentobs
from agentobs.agent import Hook, Result, Retry, live_world, run
from agentobs.agent.execution.idle_connections import _pools, close_idle_connections
from agentobs.agent.hooks import PromptHook
from tests.loopback import LoopbackServer

from .agent_objects import agent, asking, recorded_and_replayed
from .agent_runs import of_kind, options, result_of
from .provider import MODEL, Provider, Reply, message, streamed, text

DONE = b"".join(streamed(message(text("Done."))).chunks)
IDLE = 4
"""The number of idle connections that the server resets."""


class Gateway:
    """A provider that can drop all its open connections; it resets such a connection when it is used again."""

    def __init__(self) -> None:
        self.connections, self.requests = 0, 0
        self.dropped = 0
        """The connections up to this number are dropped."""
        self.expected = 1
        """Responses are sent when so many requests have arrived."""
        self.arrived = threading.Condition()
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self) -> None:
                super().setup()
                gateway.connections += 1
                self.number = gateway.connections

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                if self.number <= gateway.dropped:
                    no_linger = struct.pack("ii", 1, 0)
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, no_linger)
                    self.connection.close()
                    self.close_connection = True
                    return
                with gateway.arrived:
                    gateway.requests += 1
                    gateway.arrived.notify_all()
                    gateway.arrived.wait_for(lambda: gateway.requests >= gateway.expected, 20)
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("content-length", str(len(DONE)))
                self.end_headers()
                self.wfile.write(DONE)

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = LoopbackServer(Handler)

    def drop_connections(self) -> None:
        self.dropped = self.connections

    def expect(self, requests: int) -> None:
        """Hold responses until so many further requests have arrived."""
        self.expected = self.requests + requests

    def client(self) -> AsyncAnthropic:
        return AsyncAnthropic(api_key="made-up", base_url=self.server.base_url)


@contextmanager
def gateway() -> Iterator[Gateway]:
    serving = Gateway()
    serving.server.start()
    try:
        yield serving
    finally:
        serving.server.stop()


async def open_connections(serving: Gateway, client: AsyncAnthropic) -> None:
    """Send concurrent requests, so that the pool holds several idle connections, which the server then drops."""
    serving.expect(IDLE)
    first = agent(client)
    await asyncio.gather(*(first.fresh().run("Hello") for _ in range(IDLE)))
    assert serving.connections == IDLE
    serving.expect(1)
    serving.drop_connections()


@pytest.mark.slow
@pytest.mark.parametrize("is_recorded", [False, True])
def test_one_retry_after_idle_connections_were_reset(is_recorded: bool) -> None:
    """If all idle connections are dead, the first one fails, and the retry uses a new connection."""

    async def go(serving: Gateway) -> list[Any]:
        async with serving.client() as client:
            if is_recorded:
                agentobs.record(client)
            await open_connections(serving, client)
            return [event async for event in agent(client).stream("Go")]

    with gateway() as serving:
        events = asyncio.run(go(serving))
        assert serving.connections == IDLE + 1
    assert [(e.attempt, e.error) for e in of_kind(events, Retry)] == [(1, "APIConnectionError")]
    assert result_of(events).text == "Done."


def test_without_closing_each_dead_connection_fails() -> None:
    """The pool of httpx2 does not know that its connections are dead: each of them fails one attempt."""

    async def nothing(*_: Any) -> None:
        pass

    async def go(serving: Gateway) -> list[Any]:
        async with serving.client() as client:
            await open_connections(serving, client)
            world = replace(live_world(client), close_idle_connections=nothing, sleep=nothing)
            return [event async for event in run("Go", world=world, options=options())]

    with gateway() as serving:
        events = asyncio.run(go(serving))
    assert len(of_kind(events, Retry)) == IDLE


def test_a_failure_without_a_retry_closes_idle_connections() -> None:
    """If the failed attempt was the last one, the next run uses a new connection as well."""

    async def go(serving: Gateway) -> list[Result]:
        async with serving.client() as client:
            await open_connections(serving, client)
            asked = agent(client, max_retries=0)
            return [await asked.run("One"), await asked.run("Two")]

    with gateway() as serving:
        first, second = asyncio.run(go(serving))
    assert (first.error, second.text) == ("APIConnectionError", "Done.")


def test_connections_in_use_stay_open() -> None:
    """A response that arrives while idle connections are closed is not interrupted."""

    async def go(serving: Gateway) -> tuple[list[Any], Result]:
        async with serving.client() as client:
            await open_connections(serving, client)
            close = live_world(client).close_idle_connections
            await close()
            serving.expect(2)
            held = asyncio.create_task(agent(client).run("Held"))
            while serving.requests < serving.expected - 1:
                await asyncio.sleep(0.01)
            await close()
            events = [event async for event in agent(client).stream("Go")]
            return events, await held

    with gateway() as serving:
        events, held = asyncio.run(go(serving))
    assert of_kind(events, Retry) == []
    assert (result_of(events).text, held.text) == ("Done.", "Done.")


def test_requests_of_hooks_use_a_new_connection() -> None:
    """A request of a prompt hook also uses a new connection after a lost one."""
    hook = Hook("user_prompt_submit", PromptHook("Is it harmless?", model=MODEL))

    async def go(serving: Gateway) -> None:
        async with serving.client() as client:
            await open_connections(serving, client)
            await agent(client, parts={"hooks": [hook]}).run("Go")

    with gateway() as serving:
        asyncio.run(go(serving))
        assert serving.connections == IDLE + 1


def test_the_pools_of_a_client() -> None:
    """The pools of a client, of its proxies, and below the recording transport are found."""

    async def count(client: AsyncAnthropic) -> tuple[int, int]:
        async with client:
            before = len(list(_pools(client._client)))
            agentobs.record(client)
            await close_idle_connections(client)
            return before, len(list(_pools(client._client)))

    def client(**arguments: Any) -> AsyncAnthropic:
        http = anthropic.DefaultAsyncHttpxClient(**arguments)
        return AsyncAnthropic(api_key="made-up", http_client=http)

    transport = httpx2.MockTransport(lambda request: httpx2.Response(200))
    assert asyncio.run(count(client())) == (1, 1)
    assert asyncio.run(count(client(proxy="http://127.0.0.1:9"))) == (2, 2)
    assert asyncio.run(count(client(transport=transport))) == (0, 0)


@pytest.mark.slow
def test_a_reset_is_replayed(tmp_path: Path) -> None:
    """A run with a reset connection replays."""
    provider = Provider([Reply(is_reset=True), streamed(message(text("Done.")))])
    events = recorded_and_replayed(tmp_path, provider, asking())
    assert [each.status for each in of_kind(events, Retry)] == [None]
    assert result_of(events).text == "Done."
