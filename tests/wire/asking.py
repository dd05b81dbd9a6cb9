"""Asking what was recorded, by the real SDK: its typed methods where it has them, its generic ones else."""

from __future__ import annotations

from typing import Any

import httpx2
from anthropic import Anthropic, APIStatusError, AsyncAnthropic

from tests.wire.corpus import Exchange

SECONDS = 30.0
"""How long one answer may take; also keeps the SDK from demanding a stream for a long answer."""


def ask(client: Anthropic, exchange: Exchange) -> tuple[int, bytes]:
    """Ask the question of an exchange; return the status and the bytes that came."""
    try:
        has_method = exchange.path.startswith("/v1/messages") and exchange.method == "POST"
        return (_typed if has_method else _generic)(client, exchange)
    except APIStatusError as error:
        return error.status_code, error.response.read()


async def ask_async(client: AsyncAnthropic, exchange: Exchange) -> list[str]:
    """Ask as most programs do, a stream through the SDK's helper; return the ids of the tool calls heard."""
    if not exchange.asks_model:
        await client._client.request(exchange.method, exchange.path, content=exchange.body)
        return []
    arguments = _arguments(exchange)
    try:
        if arguments.pop("stream", False):
            async with _messages(client, exchange).stream(**arguments) as stream:
                message = await stream.get_final_message()
        else:
            message = await _messages(client, exchange).create(**arguments)
    except APIStatusError:
        return []
    return [block.id for block in message.content if block.type == "tool_use"]


def _typed(client: Anthropic, exchange: Exchange) -> tuple[int, bytes]:
    messages = _messages(client, exchange)
    methods: dict[str, Any] = {
        "/v1/messages": messages.with_streaming_response.create,
        "/v1/messages/count_tokens": messages.with_streaming_response.count_tokens,
        "/v1/messages/batches": messages.batches.with_streaming_response.create,
    }
    with methods[exchange.path.partition("?")[0]](**_arguments(exchange)) as response:
        return response.status_code, response.read()


def _messages(client: Anthropic | AsyncAnthropic, exchange: Exchange) -> Any:
    return client.beta.messages if exchange.path.endswith("?beta=true") else client.messages


def _arguments(exchange: Exchange) -> dict[str, Any]:
    name, _, value = exchange.path.partition("?")[2].partition("=")
    return {
        **_named(exchange.body),
        "extra_query": {name: value} if name else None,
        "extra_headers": _headers(exchange),
        "timeout": SECONDS,
    }


_REQUIRED = ("model", "max_tokens", "messages", "requests")


def _named(body: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a method: what it demands by name, all the rest as it was recorded."""
    named = {key: body[key] for key in _REQUIRED if key in body}
    if body.get("stream"):
        named["stream"] = True
    return {**named, "extra_body": {k: v for k, v in body.items() if k not in named}}


def _generic(client: Anthropic, exchange: Exchange) -> tuple[int, bytes]:
    options: Any = {"headers": _headers(exchange), "timeout": SECONDS}
    if isinstance(exchange.body, str):
        # An upload with its boundary is sent as it was; the SDK would write one of its own.
        response = _post_text(client, exchange)
    elif exchange.method == "POST":
        response = client.post(
            exchange.path, cast_to=httpx2.Response, body=exchange.body, options=options
        )
    elif exchange.method == "DELETE":
        response = client.delete(exchange.path, cast_to=httpx2.Response, options=options)
    else:
        response = client.get(exchange.path, cast_to=httpx2.Response, options=options)
    return response.status_code, response.read()


def _post_text(client: Anthropic, exchange: Exchange) -> httpx2.Response:
    headers = _headers(exchange, "content-type")
    return client._client.post(exchange.path, content=exchange.body.encode(), headers=headers)


def _headers(exchange: Exchange, *more: str) -> dict[str, str]:
    names = ("anthropic-version", "anthropic-beta", *more)
    return {name: exchange.asked_headers[name] for name in names if name in exchange.asked_headers}
