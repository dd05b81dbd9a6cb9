"""What our agent loop itself takes, per turn and per tool call, as the history grows.

The client is one that hands out canned responses: the SDK copies and writes the whole history with each
request, twenty times what the loop takes, and would hide it. The floor reads every event of the same
responses with the SDK's decoder, folds them into the message, and calls the same function where the answer
calls a tool. What the loop takes more is its own.
"""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Coroutine, Iterator
from typing import Any

import httpx2
from anthropic import AsyncStream

from agentobs.agent import Conversation, Options, Permissions, complete, live_world, tool
from agentobs.provider.anthropic.streams import fold
from benchmarks import conversation, measure
from benchmarks.report import Section, Verdict

HISTORIES = (10, 100, 1000)
"""Turns that the conversation holds already."""
TURNS = 20
"""Turns with tools that are run on top of it, and one that ends."""
CALLS = (1, 10)
"""Tool calls of each of these turns."""
ROUNDS = 7
FLAT = 1.5
"""What the loop may take with the longest history, as a multiple of what it takes with the shortest. Our choice."""


@tool(read_only=True)
async def peek(number: int) -> str:
    """Peek at a number."""
    return str(number)


def sections() -> Iterator[Section]:
    """Measure the loop's own time for each length of history and number of calls."""
    rows: list[tuple[str, ...]] = []
    own: dict[tuple[int, int], float] = {}
    for turns in HISTORIES:
        history = _history(turns)
        for calls in CALLS:
            rounds = _rounds(history, calls)
            floor = measure.milliseconds(rounds, "floor", "thread_ns") / TURNS
            taken = sorted(
                (each["loop"].thread_ns - each["floor"].thread_ns) / TURNS / 1e6 for each in rounds
            )[ROUNDS // 2]
            own[turns, calls] = taken
            ratio = measure.ratio(rounds, "loop", "floor", "thread_ns")
            rows.append((f"{turns:,}", str(calls), f"{floor:.2f}", f"{taken:.2f}", f"{ratio:.3f}"))
    first, last = HISTORIES[0], HISTORIES[-1]
    verdicts = [
        Verdict(
            f"the loop's own time per turn, {calls} to a turn: {last:,} turns of history against {first}",
            FLAT,
            own[last, calls] / own[first, calls],
            why="A run counts a history that it did not write once, at its first turn: it is part of all of them here.",
        )
        for calls in CALLS
    ]
    a_call = [(own[turns, 10] - own[turns, 1]) / 9 for turns in HISTORIES]
    told = ", ".join(
        f"{taken * 1000:.0f} µs at {n:,}" for n, taken in zip(HISTORIES, a_call, strict=True)
    )
    yield Section(
        "The agent loop",
        f"{TURNS} turns with tools on top of a history, CPU of the caller's thread per turn, median of "
        f"{ROUNDS} interleaved rounds. A further tool call takes {told} turns of history.",
        ("turns of history", "calls a turn", "floor, ms", "loop's own, ms", "loop / floor"),
        tuple(rows),
        tuple(verdicts),
    )


def _rounds(history: list[dict[str, Any]], calls: int) -> list[measure.Round]:
    def alone(_: int) -> measure.Cost:
        return _cost(_alone(history, calls))

    def looped(_: int) -> measure.Cost:
        return _cost(_looped(history, calls))

    return measure.compare({"floor": alone, "loop": looped}, range(ROUNDS))


def _cost(work: Coroutine[Any, Any, None]) -> measure.Cost:
    gc.collect()  # what the round before left behind is not this one's
    return measure.cost_of(lambda: asyncio.run(work))


def _history(turns: int) -> list[dict[str, Any]]:
    """Return a conversation of so many turns that called a tool, ended by the model."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Begin."}]
    for turn in range(turns):
        said = {"type": "text", "text": conversation.text(300, turn)}
        asked = {"type": "tool_use", "id": f"h{turn}", "name": "peek", "input": {"number": turn}}
        result = {"type": "tool_result", "tool_use_id": f"h{turn}", "content": str(turn)}
        messages += [
            {"role": "assistant", "content": [said, asked]},
            {"role": "user", "content": [result]},
        ]
    return [*messages, {"role": "assistant", "content": [{"type": "text", "text": "So far."}]}]


def _answers(calls: int) -> Iterator[bytes]:
    for turn in range(TURNS):
        blocks = [
            {"type": "tool_use", "id": f"t{turn}_{n}", "name": "peek", "input": {"number": n}}
            for n in range(calls)
        ]
        yield _stream([{"type": "text", "text": "Let me look."}, *blocks])
    yield _stream([{"type": "text", "text": "Done."}])


def _stream(blocks: list[dict[str, Any]]) -> bytes:
    usage = {"input_tokens": 10, "output_tokens": 5}
    message: dict[str, Any] = {
        "id": "msg",
        "type": "message",
        "role": "assistant",
        "model": conversation.MODEL,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }
    events: list[dict[str, Any]] = [{"type": "message_start", "message": message}]
    for index, block in enumerate(blocks):
        is_call = block["type"] == "tool_use"
        empty = {**block, "input": {}} if is_call else {**block, "text": ""}
        delta = (
            {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            if is_call
            else {"type": "text_delta", "text": block["text"]}
        )
        events += [
            {"type": "content_block_start", "index": index, "content_block": empty},
            {"type": "content_block_delta", "index": index, "delta": delta},
            {"type": "content_block_stop", "index": index},
        ]
    ending = {"stop_reason": "end_turn", "stop_sequence": None}
    events += [
        {"type": "message_delta", "delta": ending, "usage": usage},
        {"type": "message_stop"},
    ]
    return b"".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n".encode() for e in events)


class _Canned:
    """Stands for the SDK's client: gives a response for each request, and looks at none."""

    base_url = "http://localhost"

    def __init__(self, calls: int) -> None:
        self._answers = _answers(calls)
        self.messages = self

    def with_options(self, **_: object) -> _Canned:
        return self

    async def create(self, **_: object) -> _Canned:
        headers = {"content-type": "text/event-stream"}
        self.response = httpx2.Response(200, headers=headers, content=next(self._answers))
        return self


async def _alone(history: list[dict[str, Any]], calls: int) -> None:
    """Do without the loop what the loop does: ask, read, run, answer."""
    messages = [*history, {"role": "user", "content": "Go on."}]
    client = _Canned(calls)
    while True:
        streamed = await client.create(model=conversation.MODEL, messages=messages, stream=True)
        message: dict[str, Any] = {}
        async for event in AsyncStream.raw_events(streamed.response):
            fold(message, event.json())
        asked = [block for block in message["content"] if block["type"] == "tool_use"]
        if not asked:
            return
        results = [
            {
                "type": "tool_result",
                "tool_use_id": block["id"],
                "content": await peek.function(**block["input"]),
            }
            for block in asked
        ]
        messages += [
            {"role": "assistant", "content": message["content"]},
            {"role": "user", "content": results},
        ]


async def _looped(history: list[dict[str, Any]], calls: int) -> None:
    talk = Conversation(messages=tuple(history))
    options = Options(
        conversation.MODEL,
        max_tokens=1024,
        permissions=Permissions(mode="bypassPermissions", bypass_confirmed=True),
    )
    client: Any = _Canned(calls)
    world = live_world(client, [peek])
    result = await complete("Go on.", world=world, options=options, tools=[peek], conversation=talk)
    assert result.num_turns == TURNS + 1
