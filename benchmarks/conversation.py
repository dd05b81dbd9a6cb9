"""A synthetic conversation of an agent that reads files, in the provider's format, identical in every run.

Each turn has some text and one tool call. The next request contains the tool result and the complete history, and its
cache breakpoint is at its end, as in requests of real agents.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from anthropic import Anthropic

MODEL = "claude-sonnet-5"


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a turn."""

    deltas: int
    """The number of deltas in a response; three of four are text, and the others are the input of the call."""
    result_bytes: int
    """The number of bytes of a tool result."""


_random = random.Random(20261121)
_WORDS = ["".join(_random.choices("abcdefghijklmnopqrstuvwxyz", k=k)) for k in range(2, 10)] + [
    "".join(_random.choices("etaoinshrdlu", k=k % 8 + 2)) for k in range(500)
]


def text(length: int, seed: int) -> str:
    """Return words of about `length` bytes that depend on the seed."""
    chosen = random.Random(seed).choices(_WORDS, k=length // 4 + 1)
    return " ".join(chosen)[:length]


SYSTEM = text(6000, 1)
TOOLS = [
    {
        "name": f"tool_{number}",
        "description": text(400, number),
        "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}},
    }
    for number in range(12)
]


def send(client: Anthropic, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Send a request with the SDK's streaming helper, read every event, and return the assistant's message."""
    with client.messages.stream(**_arguments(messages)) as stream:
        for _ in stream:
            pass
        return {"role": "assistant", "content": _content(stream.get_final_message())}


def send_plain(client: Anthropic, messages: list[dict[str, Any]]) -> None:
    """Send a request with `create(stream=True)`, the SDK's cheapest way to stream, and read every event."""
    for _ in client.messages.create(**_arguments(messages), stream=True):
        pass


def request_body(messages: list[dict[str, Any]]) -> bytes:
    """Return the bytes that the SDK sends for a streamed request with these messages."""
    return _compact({**_arguments(messages), "stream": True}).encode()


def _arguments(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the arguments of a request, in the order in which the SDK sends them."""
    return {
        "max_tokens": 1024,
        "messages": [*messages[:-1], _with_breakpoint(messages[-1])],
        "model": MODEL,
        "system": SYSTEM,
        "tools": TOOLS,
    }


def _with_breakpoint(message: dict[str, Any]) -> dict[str, Any]:
    *others, last = message["content"]
    return {**message, "content": [*others, {**last, "cache_control": {"type": "ephemeral"}}]}


def _content(message: Any) -> list[dict[str, Any]]:
    keys = {"text": ("type", "text"), "tool_use": ("type", "id", "name", "input")}
    return [{key: getattr(b, key) for key in keys[b.type]} for b in message.content]


def prompt() -> dict[str, Any]:
    """Return the first message of a conversation."""
    return {"role": "user", "content": [{"type": "text", "text": text(400, 2)}]}


def result(turn: int, size: Size) -> dict[str, Any]:
    """Return the message with the tool result of a turn."""
    block = {
        "type": "tool_result",
        "tool_use_id": f"toolu_{turn:08}",
        "content": text(size.result_bytes, turn),
    }
    return {"role": "user", "content": [block]}


def history(turns: int, size: Size) -> list[dict[str, Any]]:
    """Return the messages of a conversation with `turns` turns; the last message is a tool result."""
    messages = [prompt()]
    for turn in range(1, turns + 1):
        messages += turn_of(turn, size)
    return messages


def turn_of(turn: int, size: Size) -> list[dict[str, Any]]:
    """Return the two messages that a turn adds: the response with its tool call, and the tool result."""
    return [_response_message(turn, size), result(turn, size)]


def steps(client: Anthropic, turns: int, size: Size) -> Iterator[int]:
    """Run an agent for `turns` turns; yield after each turn, which sends a request and adds a tool result."""
    messages = [prompt()]
    for turn in range(1, turns + 1):
        messages += [send(client, messages), result(turn, size)]
        yield turn


def run(client: Anthropic, turns: int, size: Size) -> None:
    """Run an agent for `turns` turns."""
    for _ in steps(client, turns, size):
        pass


def response_chunks(turn: int, size: Size) -> list[bytes]:
    """Return the response of a turn as the provider streams it, one chunk per event."""
    return [f"event: {e['type']}\ndata: {_compact(e)}\n\n".encode() for e in _events(turn, size)]


def _response_message(turn: int, size: Size) -> dict[str, Any]:
    """Return the message that results from the events of a turn."""
    content = "".join(_text_chunks(turn, size))
    arguments = json.loads("".join(_argument_chunks(turn, size)))
    call = {"type": "tool_use", "id": f"toolu_{turn:08}", "name": "tool_1", "input": arguments}
    return {"role": "assistant", "content": [{"type": "text", "text": content}, call]}


def _events(turn: int, size: Size) -> Iterator[dict[str, Any]]:
    usage = {"input_tokens": 12, "cache_read_input_tokens": 900 * turn, "output_tokens": 1}
    yield {
        "type": "message_start",
        "message": {
            "id": f"msg_{turn:08}",
            "type": "message",
            "role": "assistant",
            "model": MODEL,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        },
    }
    text_deltas = [{"type": "text_delta", "text": chunk} for chunk in _text_chunks(turn, size)]
    yield from _block(0, {"type": "text", "text": ""}, text_deltas)
    call = {"type": "tool_use", "id": f"toolu_{turn:08}", "name": "tool_1", "input": {}}
    argument_deltas = [
        {"type": "input_json_delta", "partial_json": chunk}
        for chunk in _argument_chunks(turn, size)
    ]
    yield from _block(1, call, argument_deltas)
    yield {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use", "stop_sequence": None},
        "usage": {"output_tokens": size.deltas * 5},
    }
    yield {"type": "message_stop"}


def _block(
    index: int, start: dict[str, Any], deltas: list[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    yield {"type": "content_block_start", "index": index, "content_block": start}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


def _text_chunks(turn: int, size: Size) -> list[str]:
    return _split(text(size.deltas * 3 // 4 * 20, turn), 20)


def _argument_chunks(turn: int, size: Size) -> list[str]:
    count = size.deltas - size.deltas * 3 // 4
    return _split(_compact({"path": text(count * 20 - 11, turn)}), 20)


def _split(data: str, length: int) -> list[str]:
    return [data[start : start + length] for start in range(0, len(data), length)]


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
