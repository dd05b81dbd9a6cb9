"""Create responses in the provider's format for tests, and a recording with which they can be served."""

from __future__ import annotations

import json
from typing import Any

from agentobs.records.exchanges import (
    Answer,
    Chunk,
    Failure,
    ModelExchange,
    Place,
    Question,
    Recording,
)

MODEL = "claude-sonnet-5"


def sse(*events: dict[str, Any]) -> list[bytes]:
    """Return stream events with the provider's framing."""
    return [f"event: {e['type']}\ndata: {json.dumps(e)}\n\n".encode() for e in events]


def message_events(
    *content: dict[str, Any],
    number: int = 1,
    output_tokens: int = 7,
    model: str = MODEL,
    input_tokens: int = 10,
) -> list[bytes]:
    """Return the events of one streamed message with these blocks."""
    usage = {"input_tokens": input_tokens, "cache_read_input_tokens": 3, "output_tokens": 1}
    start = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": model}
    stop = "tool_use" if any(block["type"] == "tool_use" for block in content) else "end_turn"
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**start, "content": [], "usage": usage}}
    ]
    for index, block in enumerate(content):
        if block["type"] == "text":
            opened, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            partial = json.dumps(block["input"])
            opened, delta = (
                {**block, "input": {}},
                {"type": "input_json_delta", "partial_json": partial},
            )
        events += [
            {"type": "content_block_start", "index": index, "content_block": opened},
            {"type": "content_block_delta", "index": index, "delta": delta},
            {"type": "content_block_stop", "index": index},
        ]
    events += [
        {
            "type": "message_delta",
            "delta": {"stop_reason": stop, "stop_sequence": None},
            "usage": {"output_tokens": output_tokens},
        },
        {"type": "message_stop"},
    ]
    return sse(*events)


def text(words: str) -> dict[str, Any]:
    """Return a text block."""
    return {"type": "text", "text": words}


def call(number: int, name: str, **arguments: Any) -> dict[str, Any]:
    """Return a tool_use block."""
    return {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": arguments}


def streamed(*content: dict[str, Any], number: int = 1) -> Answer:
    """Return a complete streamed response."""
    chunks = tuple(Chunk(data, 0) for data in message_events(*content, number=number))
    headers = {"content-type": "text/event-stream; charset=utf-8", "request-id": f"req_{number}"}
    return Answer(200, headers, chunks, "complete")


def refused(status: int, kind: str = "overloaded_error", **headers: str) -> Answer:
    """Return an error response."""
    body = json.dumps({"type": "error", "error": {"type": kind, "message": "no"}}).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(
        status, {"content-type": "application/json", **named}, (Chunk(body, 0),), "complete"
    )


def cut(answer: Answer, chunks: int) -> Answer:
    """Return a response whose connection breaks after a number of chunks."""
    failure = Failure("RemoteProtocolError", "peer closed connection")
    return Answer(answer.status, answer.headers, answer.chunks[:chunks], "cut", failure)


def script(*answers: Answer, name: str = "script") -> Recording:
    """Return a recording that serves responses in order."""
    exchanges = tuple(
        ModelExchange(
            place=Place(name),
            attempt_id=f"{number:032x}",
            started_ns=number,
            headers_ns=None,
            ended_ns=0,
            question=Question("POST", "/v1/messages", {}, b""),
            answer=answer,
        )
        for number, answer in enumerate(answers, 1)
    )
    return Recording(name, name, None, None, "completed", None, None, 0, exchanges)
