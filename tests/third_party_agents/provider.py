"""A provider with the script of one trip.

The trip has an overload, parallel tools, two parallel sub-agents, and a tool that fails. Each response depends only on
the messages of its request, so the order of requests does not matter.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from tests.provider_script import message_events
from tests.replay.raw_provider import JSON, SSE, Call, play_chunks

PROMPT = "Trip: where does the sun shine?"
PLACES = {"Oslo": "rain", "Rome": "cloudless", "Cairo": "heat", "Quito": "fog"}
"""The results of the tool `weather`, which fails for all other places."""
PRICES = {
    "input_tokens": Decimal(2),
    "output_tokens": Decimal(10),
    "cache_read_input_tokens": Decimal("0.2"),
}
"""The prices of claude-sonnet-5 in USD per million tokens (the provider's price list, November 2026)."""
TOPICS = {"desert": "Cairo", "mountain": "Quito"}
"""The place whose weather a sub-agent looks up, by the topic of the sub-agent."""
FINAL_TEXT = "Rome it is."
STREAM_USAGE = {"input_tokens": 10, "output_tokens": 7, "cache_read_input_tokens": 3}
"""The usage of a streamed message, see `message_events`."""


@dataclass(frozen=True)
class Counts:
    """The size of one conversation and its sub-agents, as the provider or a recording counts it."""

    requests: int
    """HTTP requests, including rejected ones."""
    turns: int
    """Complete messages of the model."""
    tool_calls: int
    """Tool calls in these messages."""
    interactions: int
    """Tasks that the user gave; the tasks of sub-agents are not included."""
    cost_usd: Decimal


class Provider:
    """The responses of one conversation, and of the sub-agents that it starts."""

    def __init__(self, *, has_threads: bool = False) -> None:
        """Start without a history; unless `threads` is set, reject requests that continue an earlier response."""
        self.overloads = 1
        self._has_threads = has_threads
        self._histories: dict[str, list[Any]] = {}
        self._lock = threading.Lock()
        self.continued = self.refused = 0
        """The number of requests that continued an earlier response, and the number of rejected requests."""
        self._requests = 0
        self._messages: list[dict[str, Any]] = []
        self._usage: list[dict[str, int]] = []
        self._tasks: set[str] = set()

    def counts(self) -> Counts:
        """Return what this provider has received and sent."""
        blocks = [block for message in self._messages for block in message["content"]]
        tokens = [(PRICES[kind], count) for each in self._usage for kind, count in each.items()]
        return Counts(
            requests=self._requests,
            turns=len(self._messages),
            tool_calls=sum(block["type"] == "tool_use" for block in blocks),
            interactions=len(self._tasks),
            cost_usd=sum((price * count for price, count in tokens), Decimal()) / 1_000_000,
        )

    def play(self, call: Call) -> None:
        """Return the response to one request."""
        request = json.loads(call.body)
        with self._lock:
            self._requests += 1
            if call.path.partition("?")[0].endswith("/count_tokens"):
                respond = play_chunks(200, JSON, b'{"input_tokens": 10}')
            else:
                respond = self._response(request)
        respond(call)

    def _response(self, request: dict[str, Any]) -> Any:
        if self.overloads:
            self.overloads -= 1
            headers = {**JSON, "retry-after-ms": "1", "request-id": "req_overloaded"}
            return play_chunks(529, headers, _error("overloaded_error", "Overloaded"))
        thread = request.get("thread")
        if thread and not self._has_threads:
            self.refused += 1
            details = {"error_code": "thread_unsupported_request", "unsupported": []}
            body = _error("invalid_request_error", "threads are not supported", details=details)
            return play_chunks(400, {**JSON, "x-should-retry": "false"}, body)
        messages = list(request["messages"])
        if thread and thread.get("type") == "continue":
            self.continued += 1
            messages = [*self._histories[thread["previous_message_id"]], *messages]
        return self._turn(request, messages)

    def _turn(self, request: dict[str, Any], messages: list[Any]) -> Any:
        task = _text(messages[0]["content"])
        # Some frameworks add instructions before and after the task.
        topic = next((each for each in TOPICS if f"Research the {each}" in task), None)
        turn = _turns(messages, _TRIP_TURNS if topic is None else [call_id(f"look_{topic}")])
        if not request.get("tools") and not request.get("thread"):
            turn = 2  # the agent has no tools
        content = _trip(turn) if topic is None else _research(topic, turn)
        if content[-1]["type"] == "text":
            content = _ending(request, topic, content[-1]["text"])
        name = f"{topic or 'trip'}_{turn}"
        message = _message(name, content)
        if topic is None:
            self._tasks.add(task)
        self._messages.append(message)
        self._histories[message["id"]] = [*messages, {"role": "assistant", "content": content}]
        headers = {"request-id": f"req_{name}"}
        if request.get("stream"):
            self._usage.append(STREAM_USAGE)
            events = message_events(*content, number=0)
            events = [
                each.replace(b'"msg_0"', json.dumps(message["id"]).encode()) for each in events
            ]
            return play_chunks(200, {**SSE, **headers}, *events)
        self._usage.append(message["usage"])
        return play_chunks(200, {**JSON, **headers}, json.dumps(message).encode())


def call_id(name: str) -> str:
    """Return the ID of a tool call, in the form of the provider's IDs."""
    return f"toolu_01{name.replace('_', ''):0>22}"


_TRIP_TURNS = (call_id("look0"), "Atlantis")
"""Texts in the history by which the turn of the main agent is recognized."""
ENDINGS = ("final_answer", "submit")
"""Tools whose argument `answer` is the final text, in frameworks whose agents end with a call (smolagents, dspy)."""


def _turns(messages: list[Any], marks: Sequence[str]) -> int:
    """Return how many of the texts a history contains.

    Messages are not counted, because some frameworks send each block of a response as a message, or calls as text.
    """
    history = json.dumps(messages)
    return sum(mark in history for mark in marks)


def _ending(request: dict[str, Any], topic: str | None, text: str) -> list[dict[str, Any]]:
    """Return the content of a last response: a text, or a call of the tool that ends the agent."""
    tools = {tool.get("name") for tool in request.get("tools") or ()}
    ending = next((name for name in ENDINGS if name in tools), None)
    if ending is None:
        return [{"type": "text", "text": text}]
    return [_call(f"end_{topic or 'trip'}", ending, answer=text)]


def has_weather_in_rome(body: bytes) -> bool:
    """Return whether a request contains the result of the tool call for Rome."""
    return PLACES["Rome"].encode() in body


def _trip(turn: int) -> list[dict[str, Any]]:
    if turn == 0:
        lookups = [
            _call(f"look{n}", "weather", city=city) for n, city in enumerate(("Oslo", "Rome"))
        ]
        research = [_call(f"ask_{topic}", "research", topic=topic) for topic in TOPICS]
        return [{"type": "text", "text": "Looking."}, *lookups, *research]
    if turn == 1:
        return [_call("fails", "weather", city="Atlantis")]
    return [{"type": "text", "text": FINAL_TEXT}]


def _research(topic: str, turn: int) -> list[dict[str, Any]]:
    if turn == 0:
        return [_call(f"look_{topic}", "weather", city=TOPICS[topic])]
    return [{"type": "text", "text": f"There is weather in the {topic}."}]


def _call(name: str, tool: str, **arguments: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id(name), "name": tool, "input": arguments}


def _message(name: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    stop = "tool_use" if any(block["type"] == "tool_use" for block in content) else "end_turn"
    return {
        "id": f"msg_{name}",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-5",
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 7},
    }


def _error(kind: str, message: str, **fields: Any) -> bytes:
    error = {"type": kind, "message": message, **fields}
    return json.dumps({"type": "error", "error": error}).encode()


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return next(block["text"] for block in content if block["type"] == "text")
