"""Scripted answers: what the model says after the recorded path, as a test writes it.

replay.then(calls("issue_refund", order_id="A-17"), says("Refunded."))
step = replay.until(turn=2, tools="live")
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentobs.records.exchanges import Answer, Chunk

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Scripted:
    """One answer of the model."""

    blocks: tuple[Mapping[str, Any], ...] = ()
    """Its content: texts, and calls whose ids are made when it is given."""
    status: int = 200
    """Its status; anything but 200 is an error."""
    error: str = ""
    """The type of the error."""

    def __add__(self, other: Scripted) -> Scripted:
        """Return an answer with the content of both: a text and calls, or several calls."""
        return Scripted(self.blocks + other.blocks)

    def answer(self, number: int, asked: Mapping[str, Any]) -> Answer:
        """Return it as the provider would send it to a request with this body, streamed where it asks for that.

        `number` is its place in the script, from 1; ids are made of it.
        """
        if self.status != 200:
            error = {"type": self.error or "api_error", "message": "scripted"}
            return _json(self.status, {"type": "error", "error": error})
        message = _message(self.blocks, number, str(asked.get("model", "")))
        if not asked.get("stream"):
            return _json(200, message)
        events = _events(message)
        chunks = tuple(Chunk(_framed(event), 0) for event in events)
        return Answer(200, {"content-type": "text/event-stream; charset=utf-8"}, chunks, "complete")


def says(text: str) -> Scripted:
    """Return an answer that is a text."""
    return Scripted(({"type": "text", "text": text},))


def calls(name: str, /, **arguments: Any) -> Scripted:
    """Return an answer that calls a tool; add another one for a call beside it."""
    return Scripted(({"type": "tool_use", "name": name, "input": arguments},))


def fails(status: int, error: str = "api_error") -> Scripted:
    """Return an answer that is an error, such as `fails(529, "overloaded_error")`."""
    return Scripted((), status, error)


def _message(blocks: tuple[Mapping[str, Any], ...], number: int, model: str) -> Json:
    content: list[Json] = []
    for place, block in enumerate(blocks, 1):
        made = {"id": f"toolu_scripted_{number}_{place}"} if block["type"] == "tool_use" else {}
        content.append({"type": block["type"], **made, **block})
    is_call = any(block["type"] == "tool_use" for block in content)
    return {
        "id": f"msg_scripted_{number}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": "tool_use" if is_call else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 0},
    }


def _events(message: Json) -> list[Json]:
    start = {**message, "content": [], "stop_reason": None}
    events: list[Json] = [{"type": "message_start", "message": start}]
    for index, block in enumerate(message["content"]):
        if block["type"] == "text":
            opened = {**block, "text": ""}
            delta = {"type": "text_delta", "text": block["text"]}
        else:
            opened = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        events += [
            {"type": "content_block_start", "index": index, "content_block": opened},
            {"type": "content_block_delta", "index": index, "delta": delta},
            {"type": "content_block_stop", "index": index},
        ]
    ended = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    usage = {"output_tokens": 0}
    return [
        *events,
        {"type": "message_delta", "delta": ended, "usage": usage},
        {"type": "message_stop"},
    ]


def _framed(event: Json) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n".encode()


def _json(status: int, value: Json) -> Answer:
    body = json.dumps(value, ensure_ascii=False).encode()
    return Answer(status, {"content-type": "application/json"}, (Chunk(body, 0),), "complete")
