"""What the demo's provider answers. Made by us, in the provider's format; nobody recorded it."""

from __future__ import annotations

import json
from typing import Any

from agentobs.records.exchanges import Answer, Chunk, ModelExchange, Place, Question, Recording

MODEL = "claude-sonnet-5"


def recording() -> Recording:
    """Return the answers of one conversation, to be served in order: an overload, then three turns."""
    answers = [_overloaded(), *(_stream(number, *turn) for number, turn in enumerate(_TURNS, 1))]
    exchanges = tuple(
        ModelExchange(
            place=Place("demo"),
            attempt_id=f"{number:032x}",
            started_ns=number,
            headers_ns=None,
            ended_ns=0,
            question=Question("POST", "/v1/messages", {}, b""),
            answer=answer,
        )
        for number, answer in enumerate(answers, 1)
    )
    return Recording("demo", "made by us", None, None, "completed", None, None, 0, exchanges)


_Blocks = list[dict[str, Any]]

_TURNS: tuple[tuple[_Blocks, dict[str, Any], int], ...] = (
    (
        [
            {"type": "text", "text": "I will look up the order and the policy."},
            {
                "type": "tool_use",
                "id": "toolu_demo01",
                "name": "lookup_order",
                "input": {"order_id": "A-17"},
            },
            {
                "type": "tool_use",
                "id": "toolu_demo02",
                "name": "lookup_policy",
                "input": {"carrier": "DHL"},
            },
        ],
        {"input_tokens": 12, "cache_read_input_tokens": 0, "cache_5m": 1480, "cache_1h": 640},
        118,
    ),
    (
        [
            {
                "type": "tool_use",
                "id": "toolu_demo03",
                "name": "issue_refund",
                "input": {"order_id": "A-17", "amount": "41,90"},
            }
        ],
        {"input_tokens": 9, "cache_read_input_tokens": 2120, "cache_5m": 230, "cache_1h": 0},
        74,
    ),
    (
        [
            {
                "type": "text",
                "text": "I am sorry: I could not refund order A-17. The refund system refused the amount 41,90.",
            }
        ],
        {"input_tokens": 8, "cache_read_input_tokens": 2350, "cache_5m": 96, "cache_1h": 0},
        41,
    ),
)


def _overloaded() -> Answer:
    body = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    headers = {"content-type": "application/json", "retry-after": "1", "request-id": "req_demo00"}
    return Answer(529, headers, (Chunk(json.dumps(body).encode(), 0),), "complete")


def _stream(number: int, content: _Blocks, counts: dict[str, Any], output: int) -> Answer:
    usage = {
        "input_tokens": counts["input_tokens"],
        "cache_read_input_tokens": counts["cache_read_input_tokens"],
        "cache_creation_input_tokens": counts["cache_5m"] + counts["cache_1h"],
        "cache_creation": {
            "ephemeral_5m_input_tokens": counts["cache_5m"],
            "ephemeral_1h_input_tokens": counts["cache_1h"],
        },
        "service_tier": "standard",
    }
    start = {
        "id": f"msg_demo{number:02}",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [],
    }
    stop = "tool_use" if any(block["type"] == "tool_use" for block in content) else "end_turn"
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**start, "usage": {**usage, "output_tokens": 1}}}
    ]
    for index, block in enumerate(content):
        events += _block(index, block)
    events += [
        {
            "type": "message_delta",
            "delta": {"stop_reason": stop, "stop_sequence": None},
            "usage": {**usage, "output_tokens": output},
        },
        {"type": "message_stop"},
    ]
    chunks = tuple(Chunk(_event(event), at * 12_000_000) for at, event in enumerate(events))
    headers = {
        "content-type": "text/event-stream; charset=utf-8",
        "request-id": f"req_demo{number:02}",
    }
    return Answer(200, headers, chunks, "complete")


def _block(index: int, block: dict[str, Any]) -> list[dict[str, Any]]:
    if block["type"] == "text":
        words = block["text"].split(" ")
        halves = " ".join(words[: len(words) // 2]), " " + " ".join(words[len(words) // 2 :])
        opened: dict[str, Any] = {"type": "text", "text": ""}
        deltas = [{"type": "text_delta", "text": half} for half in halves]
    else:
        opened = {**block, "input": {}}
        deltas = [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
    return [
        {"type": "content_block_start", "index": index, "content_block": opened},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def _event(event: dict[str, Any]) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event, separators=(',', ':'))}\n\n".encode()
