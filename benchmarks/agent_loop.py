"""The cost of the agent loop per turn and per tool call, as the history grows.

The client returns canned responses, because the real SDK copies and serializes the complete history for each request.
This takes twenty times as long as the loop and would hide its cost. The floor decodes every event of the same responses
with the SDK, folds the events into the message, and calls the same tool function. The difference is the cost of the
loop itself.
"""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Coroutine, Iterator
from typing import Any

import httpx2
from anthropic import AsyncStream

from agentobs.agent import AgentOptions, Conversation, Permissions, complete, live_world, tool
from agentobs.provider.anthropic.streams import fold
from benchmarks import conversation, measure
from benchmarks.report import Section, Verdict

HISTORIES = (10, 100, 1000)
"""The number of turns in the history before the run."""
TURNS = 20
"""The number of turns with tools in a run, which a further turn without tools ends."""
CALLS = (1, 10)
"""The number of tool calls in each of these turns."""
ROUNDS = 7
MAX_GROWTH = 1.5
"""The target: the maximum cost with the longest history, as a multiple of the cost with the shortest."""


@tool(read_only=True)
async def peek(number: int) -> str:
    """Return a number as text."""
    return str(number)


def sections() -> Iterator[Section]:
    """Measure the time of the loop itself for each length of history and number of calls."""
    rows: list[tuple[str, ...]] = []
    loop_times: dict[tuple[int, int], float] = {}
    for turns in HISTORIES:
        history = _history(turns)
        for calls in CALLS:
            rounds = _rounds(history, calls)
            floor = measure.milliseconds(rounds, "floor", "thread_ns") / TURNS
            loop_ms = sorted(
                (each["loop"].thread_ns - each["floor"].thread_ns) / TURNS / 1e6 for each in rounds
            )[ROUNDS // 2]
            loop_times[turns, calls] = loop_ms
            ratio = measure.ratio(rounds, "loop", "floor", "thread_ns")
            rows.append(
                (f"{turns:,}", str(calls), f"{floor:.2f}", f"{loop_ms:.2f}", f"{ratio:.3f}")
            )
    first, last = HISTORIES[0], HISTORIES[-1]
    verdicts = [
        Verdict(
            f"growth of the loop's time per turn from {first} to {last:,} turns of history, "
            f"tool calls per turn: {calls}",
            MAX_GROWTH,
            loop_times[last, calls] / loop_times[first, calls],
            why="The first turn also estimates the size of the existing history; this is included here.",
        )
        for calls in CALLS
    ]
    per_call = [(loop_times[turns, 10] - loop_times[turns, 1]) / 9 for turns in HISTORIES]
    call_times = ", ".join(
        f"{each * 1000:.0f} µs at {n:,}" for n, each in zip(HISTORIES, per_call, strict=True)
    )
    yield Section(
        "The agent loop",
        f"{TURNS} turns with tools after an existing history; CPU of the caller's thread per turn, median of "
        f"{ROUNDS} interleaved rounds. Each additional tool call takes {call_times} turns of history.",
        ("turns of history", "calls per turn", "floor, ms", "loop alone, ms", "loop / floor"),
        tuple(rows),
        tuple(verdicts),
    )


def _rounds(history: list[dict[str, Any]], calls: int) -> list[measure.Round]:
    def floor(_: int) -> measure.Cost:
        return _cost(_run_floor(history, calls))

    def loop(_: int) -> measure.Cost:
        return _cost(_run_loop(history, calls))

    return measure.compare({"floor": floor, "loop": loop}, range(ROUNDS))


def _cost(work: Coroutine[Any, Any, None]) -> measure.Cost:
    gc.collect()  # the garbage of the previous round must not count in this round
    return measure.cost_of(lambda: asyncio.run(work))


def _history(turns: int) -> list[dict[str, Any]]:
    """Return a conversation of `turns` turns with one tool call each, and a final response of the model."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Begin."}]
    for turn in range(turns):
        text = {"type": "text", "text": conversation.text(300, turn)}
        call = {"type": "tool_use", "id": f"h{turn}", "name": "peek", "input": {"number": turn}}
        result = {"type": "tool_result", "tool_use_id": f"h{turn}", "content": str(turn)}
        messages += [
            {"role": "assistant", "content": [text, call]},
            {"role": "user", "content": [result]},
        ]
    return [*messages, {"role": "assistant", "content": [{"type": "text", "text": "So far."}]}]


def _responses(calls: int) -> Iterator[bytes]:
    for turn in range(TURNS):
        blocks = [
            {
                "type": "tool_use",
                "id": f"t{turn}_{n}",
                "name": "peek",
                "input": {"number": turn * 10 + n},
            }
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
    """Replaces the SDK's client, and returns the next response regardless of the request."""

    base_url = "http://localhost"

    def __init__(self, calls: int) -> None:
        self._responses = _responses(calls)
        self.messages = self

    def with_options(self, **_: object) -> _Canned:
        return self

    async def create(self, **_: object) -> _Canned:
        headers = {"content-type": "text/event-stream"}
        self.response = httpx2.Response(200, headers=headers, content=next(self._responses))
        return self


async def _run_floor(history: list[dict[str, Any]], calls: int) -> None:
    """Do the work of a turn without the loop: send the request, read the response, execute the tools, add results."""
    messages = [*history, {"role": "user", "content": "Go on."}]
    client = _Canned(calls)
    while True:
        streamed = await client.create(model=conversation.MODEL, messages=messages, stream=True)
        message: dict[str, Any] = {}
        async for event in AsyncStream.raw_events(streamed.response):
            fold(message, event.json())
        calls_of_turn = [block for block in message["content"] if block["type"] == "tool_use"]
        if not calls_of_turn:
            return
        results = [
            {
                "type": "tool_result",
                "tool_use_id": block["id"],
                "content": await peek.function(**block["input"]),
            }
            for block in calls_of_turn
        ]
        messages += [
            {"role": "assistant", "content": message["content"]},
            {"role": "user", "content": results},
        ]


async def _run_loop(history: list[dict[str, Any]], calls: int) -> None:
    conversation_so_far = Conversation(messages=tuple(history))
    options = AgentOptions(
        conversation.MODEL,
        max_tokens=1024,
        permissions=Permissions(mode="bypassPermissions", bypass_confirmed=True),
    )
    client: Any = _Canned(calls)
    world = live_world(client, [peek])
    result = await complete(
        "Go on.", world=world, options=options, tools=[peek], conversation=conversation_so_far
    )
    assert result.num_turns == TURNS + 1
