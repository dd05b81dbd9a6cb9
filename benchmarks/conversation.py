"""A made conversation: an agent that reads files, in the provider's format, the same in every run.

Each turn is some text and one tool call; its result comes back with the next request, which repeats
all that was said before and moves the mark of the cache to its end, as agents do.
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
    """How much is said in a turn."""

    deltas: int
    """Deltas in an answer; three of four are text, the others the input of the call."""
    result_bytes: int
    """Bytes of a tool's result."""


_random = random.Random(20261121)
_WORDS = ["".join(_random.choices("abcdefghijklmnopqrstuvwxyz", k=k)) for k in range(2, 10)] + [
    "".join(_random.choices("etaoinshrdlu", k=k % 8 + 2)) for k in range(500)
]


def text(length: int, seed: int) -> str:
    """Return words of about `length` bytes, others for another seed."""
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


def ask(client: Anthropic, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Ask with the SDK's streaming helper, read every event, and return the assistant's message."""
    with client.messages.stream(**_arguments(messages)) as stream:
        for _ in stream:
            pass
        return {"role": "assistant", "content": _content(stream.get_final_message())}


def ask_plainly(client: Anthropic, messages: list[dict[str, Any]]) -> None:
    """Ask with `create(stream=True)`, the least that the SDK does for a stream, and read every event."""
    for _ in client.messages.create(**_arguments(messages), stream=True):
        pass


def request_body(messages: list[dict[str, Any]]) -> bytes:
    """Return the bytes that the SDK sends for a streamed request with these messages."""
    return _compact({**_arguments(messages), "stream": True}).encode()


def _arguments(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what is asked, in the order in which the SDK sends it."""
    return {
        "max_tokens": 1024,
        "messages": [*messages[:-1], _marked(messages[-1])],
        "model": MODEL,
        "system": SYSTEM,
        "tools": TOOLS,
    }


def _marked(message: dict[str, Any]) -> dict[str, Any]:
    *others, last = message["content"]
    return {**message, "content": [*others, {**last, "cache_control": {"type": "ephemeral"}}]}


def _content(message: Any) -> list[dict[str, Any]]:
    kept = {"text": ("type", "text"), "tool_use": ("type", "id", "name", "input")}
    return [{key: getattr(b, key) for key in kept[b.type]} for b in message.content]


def prompt() -> dict[str, Any]:
    """Return the first message of a conversation."""
    return {"role": "user", "content": [{"type": "text", "text": text(400, 2)}]}


def result(turn: int, size: Size) -> dict[str, Any]:
    """Return the message that answers the tool call of a turn."""
    block = {
        "type": "tool_result",
        "tool_use_id": f"toolu_{turn:08}",
        "content": text(size.result_bytes, turn),
    }
    return {"role": "user", "content": [block]}


def history(turns: int, size: Size) -> list[dict[str, Any]]:
    """Return the messages of a conversation of so many turns, with the last result to be answered."""
    messages = [prompt()]
    for turn in range(1, turns + 1):
        messages += turn_of(turn, size)
    return messages


def turn_of(turn: int, size: Size) -> list[dict[str, Any]]:
    """Return the two messages that a turn adds: what was said and called, and the result."""
    return [_said(turn, size), result(turn, size)]


def steps(client: Anthropic, turns: int, size: Size) -> Iterator[int]:
    """Be the agent: ask, take the tool's result, and ask again; yields after each of so many turns."""
    messages = [prompt()]
    for turn in range(1, turns + 1):
        messages += [ask(client, messages), result(turn, size)]
        yield turn


def run(client: Anthropic, turns: int, size: Size) -> None:
    """Be the agent for so many turns."""
    for _ in steps(client, turns, size):
        pass


def answer(turn: int, size: Size) -> list[bytes]:
    """Return the answer of a turn as the provider streams it, an event a piece."""
    return [f"event: {e['type']}\ndata: {_compact(e)}\n\n".encode() for e in _events(turn, size)]


def _said(turn: int, size: Size) -> dict[str, Any]:
    """Return the message that the events of a turn add up to."""
    spoken, path = "".join(_spoken(turn, size)), json.loads("".join(_typed(turn, size)))
    call = {"type": "tool_use", "id": f"toolu_{turn:08}", "name": "tool_1", "input": path}
    return {"role": "assistant", "content": [{"type": "text", "text": spoken}, call]}


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
    said = [{"type": "text_delta", "text": piece} for piece in _spoken(turn, size)]
    yield from _block(0, {"type": "text", "text": ""}, said)
    call = {"type": "tool_use", "id": f"toolu_{turn:08}", "name": "tool_1", "input": {}}
    typed = [{"type": "input_json_delta", "partial_json": piece} for piece in _typed(turn, size)]
    yield from _block(1, call, typed)
    yield {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use", "stop_sequence": None},
        "usage": {"output_tokens": size.deltas * 5},
    }
    yield {"type": "message_stop"}


def _block(
    index: int, opened: dict[str, Any], deltas: list[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    yield {"type": "content_block_start", "index": index, "content_block": opened}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


def _spoken(turn: int, size: Size) -> list[str]:
    return _pieces(text(size.deltas * 3 // 4 * 20, turn), 20)


def _typed(turn: int, size: Size) -> list[str]:
    count = size.deltas - size.deltas * 3 // 4
    return _pieces(_compact({"path": text(count * 20 - 11, turn)}), 20)


def _pieces(whole: str, length: int) -> list[str]:
    return [whole[at : at + length] for at in range(0, len(whole), length)]


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
