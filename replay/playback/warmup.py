"""Warm-up: the work that the SDK does at its first use is done once, before test processes are forked.

The SDK's models build their validators when the first response is parsed, which takes longer than a complete replay.
Here a client parses one made-up response of each kind: a message, a stream and an error. Nothing leaves the process.

A replay also looks for clocks and state in all imported modules. This takes a tenth of a second in a forked process,
because it touches all objects and the operating system then copies their memory. The modules of libraries that have
none are remembered here.
"""

from __future__ import annotations

import asyncio
import json

import anthropic
import httpx2

from agentobs.provider.dialect import Block, Draft, Tokens
from agentobs.provider.registry import ANTHROPIC
from replay.agent_code.leftover_state import examine_modules
from replay.virtual_time.time_patches import virtual_time

_DIALECT = ANTHROPIC
_CALL = Block("call", "call", id="toolu_1", name="lookup", value={})
_MESSAGE = Draft("msg_1", "claude-opus-4-5", [_CALL], Tokens(input=1, output=1))
_STREAM = Draft("msg_1", "claude-opus-4-5", [Block("text", "text", text="a")], Tokens(1, 1))
_PROMPT = _DIALECT.request_message("user", [Block("text", "text", text="a")])
_REQUEST = {
    **json.loads(_DIALECT.request_body("claude-opus-4-5", [json.dumps(_PROMPT).encode()])),
    _DIALECT.output_limit_key: 1,
}
_KEY = "a-made-up-key"


def warm_up() -> None:
    """Parse a response of each kind with a sync and an async client of the SDK, and examine the imported modules."""
    with (
        httpx2.Client(transport=httpx2.MockTransport(_respond), trust_env=False) as http,
        anthropic.Anthropic(api_key=_KEY, http_client=http, max_retries=0) as client,
    ):
        client.messages.create(**_REQUEST)
        with client.messages.stream(**_REQUEST) as stream:
            stream.get_final_message()
        try:
            client.messages.create(**_REQUEST, extra_headers={"x-fails": "1"})
        except anthropic.BadRequestError:
            pass
    asyncio.run(_warm_up_async())
    examine_modules()
    with virtual_time():
        pass


async def _warm_up_async() -> None:
    async with (
        httpx2.AsyncClient(transport=httpx2.MockTransport(_respond), trust_env=False) as http,
        anthropic.AsyncAnthropic(api_key=_KEY, http_client=http, max_retries=0) as client,
    ):
        await client.messages.create(**_REQUEST)
        async with client.messages.stream(**_REQUEST) as stream:
            await stream.get_final_message()


def _respond(request: httpx2.Request) -> httpx2.Response:
    if "x-fails" in request.headers:
        return _response(400, "application/json", _DIALECT.error_body(400, "a"))
    if not _DIALECT.wants_stream(json.loads(request.content)):
        return _response(200, "application/json", _DIALECT.response_body(_MESSAGE))
    kind, events = _DIALECT.response_stream(_STREAM)
    return _response(200, kind, b"".join(events))


def _response(status: int, kind: str, body: bytes) -> httpx2.Response:
    return httpx2.Response(status, headers={"content-type": kind}, content=body)
