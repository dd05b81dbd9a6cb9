"""Agents on the SDK that start other agents, and a provider that responds according to the messages of a request."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from anthropic import Anthropic, AsyncAnthropic

import agentobs
from tests.replay.raw_provider import JSON, Call, play_chunks

MODEL = "claude-sonnet-5"
KEY = "sk-ant-a-made-up-key-0123456789"
TRIPS = {
    "Plan a trip": [("ask", "Study Rome"), ("ask", "Study Oslo")],
    "Plan a long trip": [("delegate", "Plan a trip")],
    "Plan one trip twice": [("ask", "Study Rome"), ("ask", "Study Rome")],
    "Study Rome": [("look", "Rome")],
    "Study Oslo": [("look", "Oslo")],
}
"""The calls in the first response to a prompt: the tool, and its only argument. The second response is a text."""


class TripProvider:
    """Responds to each conversation according to its first message. Each response has new IDs."""

    def __init__(self, overloaded: Sequence[str] = ()) -> None:
        """Start; the first request with each of the prompts `overloaded` is rejected."""
        self._overloaded = list(overloaded)
        self._count = 0
        self._lock = threading.Lock()

    def play(self, call: Call) -> None:
        """Respond to one request."""
        if call.path.endswith("/count_tokens"):
            return play_chunks(200, JSON, b'{"input_tokens":3}')(call)
        request = json.loads(call.body)
        prompt = _first_text(request["messages"][0]["content"])
        with self._lock:
            self._count += 1
            number = self._count
            is_refused = prompt in self._overloaded
            if is_refused:
                self._overloaded.remove(prompt)
        if is_refused:
            body = b'{"type":"error","error":{"type":"overloaded_error","message":"no"}}'
            return play_chunks(529, {**JSON, "retry-after-ms": "1"}, body)(call)
        message = _message(number, _content(request, prompt, number))
        return play_chunks(200, JSON, json.dumps(message).encode())(call)


def _content(request: Mapping[str, Any], prompt: str, number: int) -> list[dict[str, Any]]:
    calls = TRIPS.get(prompt, [])
    if not calls or not request.get("tools") or len(request["messages"]) > 1:
        return [{"type": "text", "text": f"Answer to {prompt}."}]
    return [
        {"type": "tool_use", "id": f"toolu_{number}_{at}", "name": name, "input": {"text": text}}
        for at, (name, text) in enumerate(calls)
    ]


def _message(number: int, content: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": content,
        "stop_reason": "tool_use" if content[0]["type"] == "tool_use" else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }


def _first_text(content: Any) -> str:
    return str(content if isinstance(content, str) else content[0]["text"])


def request(prompt: str, *tools: str) -> dict[str, Any]:
    """Return the arguments of a first request."""
    declared = [{"name": name, "input_schema": {"type": "object"}} for name in tools]
    return {
        "model": MODEL,
        "max_tokens": 64,
        "messages": [{"role": "user", "content": prompt}],
        **({"tools": declared} if tools else {}),
    }


def _with_results(sent: Mapping[str, Any], message: Any, results: Sequence[str]) -> dict[str, Any]:
    calls = [block for block in message.content if block.type == "tool_use"]
    answered = [
        {"type": "tool_result", "tool_use_id": block.id, "content": result}
        for block, result in zip(calls, results, strict=True)
    ]
    response = {"role": "assistant", "content": [block.to_dict() for block in message.content]}
    answer = {"role": "user", "content": answered}
    return {**sent, "messages": [*sent["messages"], response, answer]}


async def _all(*runs: Coroutine[Any, Any, str]) -> list[str]:
    return list(await asyncio.gather(*runs))


class AsyncAgents:
    """Agents that run their tools, and thus the agents that they start, as concurrent tasks."""

    def __init__(self, client: AsyncAnthropic, *, in_steps: bool = False) -> None:
        """Create agents that use a client; with `in_steps`, requests and tools run in separate tasks, as in some
        frameworks.
        """
        self._client, self._in_steps = client, in_steps

    async def answer(self, prompt: str, *tools: str) -> str:
        """Run an agent until its final answer."""
        sent = request(prompt, *tools)
        while True:
            message = await self._step(self._step(self._client.messages.create(**sent)))
            calls = [block for block in message.content if block.type == "tool_use"]
            if not calls:
                return str(message.content[0].text)
            runs = (self.run(block.name, block.input["text"]) for block in calls)
            results = await self._step(_all(*runs))
            sent = _with_results(sent, message, results)

    async def _step(self, work: Coroutine[Any, Any, Any]) -> Any:
        return await (asyncio.create_task(work) if self._in_steps else work)

    async def run(self, tool: str, text: str) -> str:
        """Run a tool; two of the tools start an agent."""
        if tool == "ask":
            return await self.answer(text, "look")
        if tool == "delegate":
            return await self.answer(text, "ask")
        return f"sun in {text}"


class ThreadAgents:
    """Agents that run their tools, and thus the agents that they start, in a pool of threads or one after another."""

    def __init__(self, client: Anthropic, *, threads: bool) -> None:
        """Create agents that use a client; without `threads`, tools run one after another."""
        self._client, self._threads = client, threads

    def answer(self, prompt: str, *tools: str) -> str:
        """Run an agent until its final answer."""
        sent = request(prompt, *tools)
        while True:
            message = self._client.messages.create(**sent)
            calls = [block for block in message.content if block.type == "tool_use"]
            if not calls:
                return message.content[0].text
            sent = _with_results(sent, message, self._results(calls))

    def _results(self, calls: Sequence[Any]) -> list[str]:
        if not self._threads:
            return [self.run(block.name, block.input["text"]) for block in calls]
        with ThreadPoolExecutor(len(calls)) as pool:
            return list(pool.map(lambda block: self.run(block.name, block.input["text"]), calls))

    def run(self, tool: str, text: str) -> str:
        """Run a tool; two of the tools start an agent."""
        if tool == "ask":
            return self.answer(text, "look")
        if tool == "delegate":
            return self.answer(text, "ask")
        return f"sun in {text}"


def run_tasks(
    url: str, *prompts: str, tools: Sequence[str] = ("ask",), in_steps: bool = False
) -> list[str]:
    """Run one agent for each prompt, concurrently in one session."""
    client = agentobs.record(AsyncAnthropic(api_key=KEY, base_url=url))
    agents = AsyncAgents(client, in_steps=in_steps)

    async def run_all() -> list[str]:
        return list(await asyncio.gather(*(agents.answer(each, *tools) for each in prompts)))

    with agentobs.session("trips"):
        return asyncio.run(run_all())


def run_threads(url: str, prompt: str, *, threads: bool, tools: Sequence[str] = ("ask",)) -> str:
    """Run one agent, whose tools run in threads or one after another."""
    client = agentobs.record(Anthropic(api_key=KEY, base_url=url))
    with agentobs.session("trips"):
        return ThreadAgents(client, threads=threads).answer(prompt, *tools)


Run = Callable[[str], Any]
