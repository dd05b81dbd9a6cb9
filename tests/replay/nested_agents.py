"""Nested sub-agents under scheduling noise: a provider that makes agents start other agents, and an agent of the agent
loop.

As with a real provider, a response depends on the request and on the order of arrival, so agents that send the same
request concurrently receive different responses.
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from typing import Any, Literal

import httpx2
from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient

import agentobs
from agentobs import tracing
from agentobs.agent import (
    Abort,
    AgentDefinition,
    AgentOptions,
    Conversation,
    Event,
    Permissions,
    SubAgent,
    Tool,
    live_world,
    run,
    sub_agents,
    tool,
)
from agentobs.agent.hooks import Hook, table
from agentobs.agent.sub_agents.starter import finish
from agentobs.provider.dialect import text_of
from agentobs.records.exchanges import ToolAnswer, ToolQuestion, WorldQuestion
from agentobs.world import World
from tests.agent.provider import MODEL, call, event_bytes, message, stream_events, text
from tests.agent.scenarios import line
from tests.loopback import serving
from tests.replay.agents import KEY

ANYTHING = Permissions(mode="bypassPermissions", bypass_confirmed=True)


class Noise(random.Random):
    """Random numbers that determine how often a task yields to the event loop; for even seeds, the background agent is
    slow.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.slow = ("main/b", "nobody")[seed % 2]


class RandomProvider:
    """A provider that generates a different response for each request; safe to share between threads."""

    def __init__(self, width: int, seed: int, background_s: float = 0.01) -> None:
        self.width, self.background_s = width, background_s
        self._chance, self._lock = random.Random(seed), threading.Lock()
        self._nested = {0, 3}
        """Depths at which agents start no further agents. At the two other depths, only the first agent starts agents.
        """

    def answer(self, request: dict[str, Any]) -> tuple[dict[str, Any], float]:
        """Return the response message for a request, and its delay in seconds."""
        with self._lock:
            is_slow = "slowly" in text_of(request["messages"][0]["content"])
            longest_s = self.background_s if is_slow else 0.01
            return self._message(request), self._chance.random() * longest_s

    def _message(self, request: dict[str, Any]) -> dict[str, Any]:
        task = text_of(request["messages"][0]["content"])
        turn = sum(each["role"] == "assistant" for each in request["messages"]) + 1
        depth, draw = int(task.split()[1]), self._chance.random()
        if turn == 1 and depth == 0:
            others = self._starts(turn, depth, self.width)
            depth = 1 + self.width % 2 * 2
            slow = {"prompt": f"Dig {depth} deep, slowly", "run_in_background": True}
            return message(*others, call("b", "agent", agent="digger", **slow))
        if turn == 1 and depth not in self._nested:
            self._nested.add(depth)
            return message(*self._starts(turn, depth, 3 - depth))
        if turn == 2 - bool(depth) and (draw < 0.5 or depth == 0):
            looks = [call(f"t{turn}_{n}", "look", where=f"{draw:.4f}") for n in range(2)]
            return message(text(f"Looking {draw:.6f}"), *looks)
        return message(text(f"Found {draw:.12f} at depth {depth}."))

    def _starts(self, turn: int, depth: int, count: int) -> list[dict[str, Any]]:
        return [self._start(f"t{turn}_{number}", depth + 1) for number in range(count)]

    def _start(self, name: str, depth: int) -> dict[str, Any]:
        return call(name, "agent", agent="digger", prompt=f"Dig {depth} deep")


@contextmanager
def serve_random_provider(provider: RandomProvider) -> Iterator[str]:
    """Serve a random provider over HTTP on the loopback interface, and yield its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            answer, takes_s = provider.answer(request)
            time.sleep(takes_s)
            body = b"".join(event_bytes(event) for event in stream_events(answer))
            self.send_response(200)
            self.send_header("content-type", "text/event-stream; charset=utf-8")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    with serving(Handler) as url:
        yield url


@tool(read_only=True)
async def look(where: str) -> str:
    """Look somewhere."""
    await asyncio.sleep(0.002)
    return f"nothing in {where}"


DIGGERS = sub_agents([AgentDefinition("digger", "Digs.", system="You dig.")], depth_max=3)
TOOLS = (look, DIGGERS)
HOOKS = table(
    [
        Hook("post_tool_use", lambda payload: {"context": "Look closer."}, when="look", once=True),
        Hook("sub_agent_stop", lambda payload: None),
    ]
)


Ending = Literal["finish", "cancel", "abort"]
"""What happens after the first interaction: background agents finish or are canceled; or the whole run is aborted."""

TLS = ssl.create_default_context()
"""The TLS context of all clients, because creating a context takes longer than creating the rest of a client."""


async def dig(
    url: str | None,
    noise: Noise | None = None,
    ending: Ending = "finish",
    stop_after_s: float | None = None,
) -> list[Event]:
    """Run the agent and all sub-agents that it starts. With noise, each call to the world yields to the event loop
    several times.
    """
    events: list[Event] = []
    inner = DefaultAsyncHttpxClient(verify=TLS)
    async with AsyncAnthropic(api_key=KEY, base_url=url, http_client=inner) as client:
        agentobs.record(client)
        if noise is not None:
            inner._transport = Noisy(inner._transport, noise)
        abort = Abort()
        world = live_world(client, TOOLS, hooks=HOOKS, abort=abort)
        world = world if noise is None else noisy(world, noise)
        options = AgentOptions(model=MODEL, max_tokens=99, permissions=ANYTHING, hooks=HOOKS)
        conversation = Conversation()
        with agentobs.session("crowd"):
            if stop_after_s is not None:
                asyncio.get_running_loop().call_later(stop_after_s, abort.stop)
            for prompt in ("Dig 0 deep", "And now?"):
                running = run(
                    prompt, world=world, options=options, tools=TOOLS, conversation=conversation
                )
                events += [event async for event in running]
                await finish(conversation, cancel=ending == "cancel")
                abort.clear()
    return events


def by_lane(events: list[Event]) -> dict[str, list[str]]:
    """Return the events of each lane, in order."""
    lanes: dict[str, list[str]] = {}
    for event in events:
        lane, inner = (event.lane, event.event) if isinstance(event, SubAgent) else ("main", event)
        lanes.setdefault(lane, []).append(line(inner))
    return lanes


def have_same_path(events: list[Event], others: list[Event]) -> bool:
    """Return whether two runs took the same path. The events of a background agent that is stopped at the end are
    yielded if they happen before the run ends, so the events of one run may be a prefix of the events of the other.
    """
    one, other = by_lane(events), by_lane(others)
    pairs = [(lines, other[lane]) for lane, lines in one.items() if lane != "main"]
    return (
        one.keys() == other.keys()
        and one["main"] == other["main"]
        and all(a == b[: len(a)] or b == a[: len(b)] for a, b in pairs)
    )


def noisy(world: World, noise: Noise) -> World:
    """Return a world that yields to the event loop several times before and after each of its answers."""

    async def ask(question: WorldQuestion) -> Any:
        await _turns(noise)
        answer = await world.ask(question)
        await _turns(noise)
        return answer

    async def run_tool(question: ToolQuestion) -> ToolAnswer:
        await _turns(noise)
        answer = await world.run_tool(question)
        await _turns(noise)
        return answer

    return replace(world, ask=ask, run_tool=run_tool)


async def _turns(noise: Noise) -> None:
    here = tracing.place()
    times = 20 if here is not None and here.lane.startswith(noise.slow) else 1
    for _ in range(times * noise.choice((0, 0, 1, 2, 5, 15))):
        await asyncio.sleep(0)


class Noisy(httpx2.AsyncBaseTransport):
    """A transport that yields to the event loop before each response and before each of its chunks."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, noise: Noise) -> None:
        self._inner, self._noise = inner, noise

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await _turns(self._noise)
        response = await self._inner.handle_async_request(request)
        response.stream = _NoisyStream(response.stream, self._noise)
        return response


class _NoisyStream(httpx2.AsyncByteStream):
    def __init__(self, inner: Any, noise: Noise) -> None:
        self._inner, self._noise = inner, noise

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for data in self._inner:
            await _turns(self._noise)
            yield data

    async def aclose(self) -> None:
        await self._inner.aclose()


__all__ = ["RandomProvider", "Tool", "by_lane", "dig", "serve_random_provider"]
