"""One attempt to ask the model: the request goes out, the answer comes back as deltas and one message.

The answer's own JSON is read, not the SDK's typed view of it, so that nothing it holds is lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import httpx2
from anthropic import (
    APIConnectionError,
    APIResponseValidationError,
    APIStatusError,
    AsyncAnthropic,
    AsyncStream,
)

from agentobs.agent import telling
from agentobs.agent.events import TextDelta, ThinkingDelta
from agentobs.records.canonical import Json, parse
from agentobs.records.exchanges import Place
from agentobs.records.messages import fold, is_stream

Delta = TextDelta | ThinkingDelta


async def attempt(
    client: AsyncAnthropic, arguments: dict[str, Any], here: Place | None, message: Json
) -> AsyncGenerator[Delta, None]:
    """Ask once; yield the deltas as they arrive and fill the empty `message` with the answer.

    After an error `message` holds what had come. The client must not retry by itself.

    Raises:
        APIStatusError: the provider refused, or an error event came in the stream (its status is 200).
        APIConnectionError: no answer, or a stream that ended before its end.
        APIResponseValidationError: an answer that is no message.
        httpx2.RequestError: the connection broke while the answer came.
    """
    response = await _send(client, arguments, here)
    async with contextlib.aclosing(response):
        if is_stream(dict(response.headers)):
            async with contextlib.aclosing(_read_stream(response, message)) as deltas:
                async for delta in deltas:
                    yield delta
        else:
            body = await response.aread()
            with _readable(response):
                message.update(parse(body))
    if message.get("role") != "assistant" or not isinstance(message.get("content"), list):
        raise _unreadable(response, "it is no assistant message")


async def _send(
    client: AsyncAnthropic, arguments: dict[str, Any], here: Place | None
) -> httpx2.Response:
    with telling.at(here):
        if arguments.get("stream"):
            streamed: AsyncStream[Any] = await client.messages.create(**arguments)
            return streamed.response
        whole: Any = await client.messages.with_raw_response.create(**arguments)
        response: httpx2.Response = whole.http_response
        return response


async def _read_stream(response: httpx2.Response, message: Json) -> AsyncGenerator[Delta, None]:
    """Fold the stream's events into `message`, and yield the deltas among them.

    A connection that breaks after the last event has taken nothing away, and is no error.
    """
    last = None
    try:
        with _readable(response):
            async for received in AsyncStream.raw_events(response):
                event = received.json() if received.data else {}
                last = event.get("type")
                if "error" in (received.event, last):
                    raise APIStatusError(received.data, response=response, body=event)
                fold(message, event)
                if delta := _delta(event.get("delta")):
                    yield delta
    except httpx2.RequestError:
        if last != "message_stop":
            raise
    if last != "message_stop":
        text = "The stream ended before its message_stop event."
        raise APIConnectionError(message=text, request=response.request)


def _delta(delta: Json) -> Delta | None:
    match delta:
        case {"type": "text_delta", "text": str(text)}:
            return TextDelta(text)
        case {"type": "thinking_delta", "thinking": str(thinking)}:
            return ThinkingDelta(thinking)
        case _:
            return None


@contextlib.contextmanager
def _readable(response: httpx2.Response) -> Iterator[None]:
    """Turn whatever trips over an answer that is no JSON, or no message, into one error."""
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise _unreadable(response, f"{type(error).__name__}: {error}") from error


def _unreadable(response: httpx2.Response, why: str) -> APIResponseValidationError:
    kind = response.headers.get("content-type", "no content type")
    return APIResponseValidationError(
        response,
        None,
        message=f"The answer cannot be read as a message ({kind}, status {response.status_code}): {why}.",
    )
