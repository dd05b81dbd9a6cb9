"""Warm-up: what the SDK builds at its first use, built once before test processes are forked.

The SDK's models build their validators when the first answer is read, which takes longer than a whole replay. Here a
client reads made-up answers of every kind: a message, a stream and an error. Nothing leaves the process.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic
import httpx2

_MESSAGE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-opus-4-5",
    "content": [{"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 1, "output_tokens": 1},
}
_EVENTS: list[dict[str, Any]] = [
    {"type": "message_start", "message": {**_MESSAGE, "content": [], "stop_reason": None}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}},
    {"type": "content_block_stop", "index": 0},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": {"output_tokens": 1},
    },
    {"type": "message_stop"},
]
_ERROR = {"type": "error", "error": {"type": "invalid_request_error", "message": "a"}}
_ASKS: dict[str, Any] = {
    "model": "claude-opus-4-5",
    "max_tokens": 1,
    "messages": [{"role": "user", "content": "a"}],
}
_KEY = "a-made-up-key"


def warm_up() -> None:
    """Let a client of the SDK, and an async one, read an answer of every kind."""
    with (
        httpx2.Client(transport=httpx2.MockTransport(_answer), trust_env=False) as http,
        anthropic.Anthropic(api_key=_KEY, http_client=http, max_retries=0) as client,
    ):
        client.messages.create(**_ASKS)
        with client.messages.stream(**_ASKS) as stream:
            stream.get_final_message()
        try:
            client.messages.create(**_ASKS, extra_headers={"x-fails": "1"})
        except anthropic.BadRequestError:
            pass
    asyncio.run(_warm_up_async())


async def _warm_up_async() -> None:
    async with (
        httpx2.AsyncClient(transport=httpx2.MockTransport(_answer), trust_env=False) as http,
        anthropic.AsyncAnthropic(api_key=_KEY, http_client=http, max_retries=0) as client,
    ):
        await client.messages.create(**_ASKS)
        async with client.messages.stream(**_ASKS) as stream:
            await stream.get_final_message()


def _answer(request: httpx2.Request) -> httpx2.Response:
    if "x-fails" in request.headers:
        return httpx2.Response(400, json=_ERROR)
    if not json.loads(request.content).get("stream"):
        return httpx2.Response(200, json=_MESSAGE)
    lines = (f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in _EVENTS)
    return httpx2.Response(
        200, headers={"content-type": "text/event-stream"}, content="".join(lines).encode()
    )
