"""Sends recorded requests with the real SDK: with a typed method if the path has one, otherwise with a generic
method.
"""

from __future__ import annotations

from typing import Any

import httpx2
from anthropic import Anthropic, APIStatusError, AsyncAnthropic

from tests.wire.corpus import Exchange

SECONDS = 30.0
"""Timeout of one response. With a timeout, the SDK does not insist on a stream for a long response."""


def send(client: Anthropic, exchange: Exchange) -> tuple[int, bytes]:
    """Send the request of an exchange; return the status and the body of the response."""
    try:
        has_method = exchange.path.startswith("/v1/messages") and exchange.method == "POST"
        return (_typed if has_method else _generic)(client, exchange)
    except APIStatusError as error:
        return error.status_code, error.response.read()


async def send_async(client: AsyncAnthropic, exchange: Exchange) -> list[str]:
    """Send a request as most programs do, with the SDK's helper if it is streamed.

    Returns the IDs of the tool calls in the response.
    """
    if not exchange.is_model_request:
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
        **_body_arguments(exchange.body),
        "extra_query": {name: value} if name else None,
        "extra_headers": _headers(exchange),
        "timeout": SECONDS,
    }


_REQUIRED_NAMES = ("model", "max_tokens", "messages", "requests")


def _body_arguments(body: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a method: required arguments by name, all others unchanged in `extra_body`."""
    required = {key: body[key] for key in _REQUIRED_NAMES if key in body}
    if body.get("stream"):
        required["stream"] = True
    return {**required, "extra_body": {k: v for k, v in body.items() if k not in required}}


def _generic(client: Anthropic, exchange: Exchange) -> tuple[int, bytes]:
    options: Any = {"headers": _headers(exchange), "timeout": SECONDS}
    if isinstance(exchange.body, str):
        # An upload is sent unchanged, with its boundary; the SDK would generate another boundary.
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


def _headers(exchange: Exchange, *additional: str) -> dict[str, str]:
    names = ("anthropic-version", "anthropic-beta", *additional)
    return {
        name: exchange.request_headers[name] for name in names if name in exchange.request_headers
    }
