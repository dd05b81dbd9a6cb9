"""Send one attempt of an LLM request, yield its deltas, and build its message.

The raw JSON of the response is read, not the typed objects of the SDK, so that unknown fields are kept.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx2
from anthropic import (
    APIResponseValidationError,
    APIStatusError,
    APITimeoutError,
    AsyncAnthropic,
    AsyncStream,
)

from agentobs.agent import telemetry
from agentobs.agent.events import TextDelta, ThinkingDelta
from agentobs.agent.interruption import Interrupted, Stopped, Watch
from agentobs.agent.model.error_classes import PROVIDER_ERRORS, CutError
from agentobs.agent.state import tool_question
from agentobs.provider.anthropic.messages import tool_uses
from agentobs.provider.anthropic.streams import fold
from agentobs.provider.server_events import is_stream
from agentobs.records.canonical_json import Json, parse
from agentobs.records.exchanges import Place, ToolQuestion
from agentobs.world import Abort

RESPONSE_BYTES_MAX = 64 * 1024 * 1024
"""Maximum bytes of one response, so that an endless stream is abandoned. Our choice: a response of 64,000 tokens is far
smaller.
"""


@dataclass(frozen=True, slots=True)
class ToolCallComplete:
    """A tool call is complete, although the rest of the response may still arrive."""

    question: ToolQuestion


Step = TextDelta | ThinkingDelta | ToolCallComplete


@dataclass(frozen=True, slots=True)
class AttemptSetup:
    """Everything that an attempt needs in addition to the request."""

    client: AsyncAnthropic
    """A client whose own retries are disabled."""
    abort: Abort
    point: str
    """The point at which the run may be stopped, as in `Abort.should_stop`."""
    seconds: float | None
    """Timeout of the complete response; None for no timeout."""


async def attempt(
    setup: AttemptSetup, arguments: dict[str, Any], here: Place | None, message: Json
) -> AsyncGenerator[Step, None]:
    """Send the request once; yield deltas as they arrive, and fill the empty `message` with the response.

    After an error, `message` holds the part of the response that had arrived.

    Raises:
        APIStatusError: the provider refused the request, or an error event arrived in the stream
            (its status is 200).
        APIConnectionError: there was no response, a timeout, or a stream that ended early.
        APIResponseValidationError: the response is not a message, or too long.
        httpx2.RequestError: the connection broke during the response.
        Stopped: the run was aborted.
    """
    progress = _StreamProgress()
    try:
        async with Watch(setup.abort, setup.seconds) as watch:
            async with contextlib.aclosing(
                _receive(setup, arguments, here, message, watch, progress)
            ) as steps:
                async for step in steps:
                    yield step
    except Interrupted as error:
        if error.cause == "abort":
            raise Stopped(setup.point, progress.events) from None
        request = httpx2.Request("POST", str(setup.client.base_url))
        raise APITimeoutError(request=request) from None
    except PROVIDER_ERRORS:
        if setup.abort.should_stop(setup.point, progress.events):
            raise Stopped(setup.point, progress.events) from None
        raise


@dataclass(slots=True)
class _StreamProgress:
    events: int = 0
    """Number of stream events that were read."""


async def _receive(
    setup: AttemptSetup,
    arguments: dict[str, Any],
    here: Place | None,
    message: Json,
    watch: Watch,
    progress: _StreamProgress,
) -> AsyncGenerator[Step, None]:
    response = await watch.guard(_send(setup.client, arguments, here))

    def check_abort() -> None:
        if setup.abort.should_stop(setup.point, progress.events):
            raise Stopped(setup.point, progress.events)

    async with contextlib.aclosing(response):
        check_abort()
        if is_stream(dict(response.headers)):
            stream = _read_stream(response, message, watch, progress, check_abort)
            async with contextlib.aclosing(stream) as steps:
                async for step in steps:
                    yield step
        else:
            body = await watch.guard(response.aread())
            with _readable(response):
                message.update(parse(body))
                for block in tool_uses(message):
                    tool_question(block)
    if message.get("role") != "assistant" or not isinstance(message.get("content"), list):
        raise _unreadable(response, "it is not an assistant message")


async def _send(
    client: AsyncAnthropic, arguments: dict[str, Any], here: Place | None
) -> httpx2.Response:
    with telemetry.at_place(here):
        if arguments.get("stream"):
            streamed: AsyncStream[Any] = await client.messages.create(**arguments)
            return streamed.response
        raw: Any = await client.messages.with_raw_response.create(**arguments)
        response: httpx2.Response = raw.http_response
        return response


async def _read_stream(
    response: httpx2.Response,
    message: Json,
    watch: Watch,
    progress: _StreamProgress,
    check_abort: Callable[[], None],
) -> AsyncGenerator[Step, None]:
    """Fold the stream's events into `message`, and yield the deltas and complete tool calls.

    A connection that breaks after the last event is not an error, because nothing is lost.
    """
    last = None
    if isinstance(response.stream, httpx2.AsyncByteStream):
        response.stream = _Bounded(response.stream, response)
    try:
        # This is an async generator, but its declared type has no `aclose`.
        raw: Any = AsyncStream.raw_events(response)
        async with contextlib.aclosing(raw) as events:
            while True:
                with _readable(response):
                    try:
                        received = await watch.guard(anext(events))
                    except StopAsyncIteration:
                        break
                    event = received.json() if received.data else {}
                    last = event.get("type")
                    if "error" in (received.event, last):
                        raise APIStatusError(received.data, response=response, body=event)
                    fold(message, event)
                    step = _step(message, event)
                progress.events += 1
                if step is not None:
                    yield step
                check_abort()
    except httpx2.RequestError:
        if last != "message_stop":
            raise
    if last != "message_stop":
        text = "The stream ended before its message_stop event."
        raise CutError(message=text, request=response.request)


class _Bounded(httpx2.AsyncByteStream):
    """The bytes of a response; too many bytes raise an error."""

    def __init__(self, inner: httpx2.AsyncByteStream, response: httpx2.Response) -> None:
        self._inner, self._response = inner, response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for data in self._inner:
            size += len(data)
            if size > RESPONSE_BYTES_MAX:
                why = f"it has more than {RESPONSE_BYTES_MAX:,} bytes"
                raise _unreadable(self._response, why)
            yield data

    async def aclose(self) -> None:
        await self._inner.aclose()


def _step(message: Json, event: Json) -> Step | None:
    match event:
        case {"delta": {"type": "text_delta", "text": str(text)}}:
            return TextDelta(text)
        case {"delta": {"type": "thinking_delta", "thinking": str(thinking)}}:
            return ThinkingDelta(thinking)
        case {"type": "content_block_stop", "index": int(index)}:
            block = message["content"][index]
            return (
                ToolCallComplete(tool_question(block)) if block.get("type") == "tool_use" else None
            )
        case _:
            return None


@contextlib.contextmanager
def _readable(response: httpx2.Response) -> Iterator[None]:
    """Convert any exception that a malformed response causes to an `APIResponseValidationError`."""
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise _unreadable(response, f"{type(error).__name__}: {error}") from error


def _unreadable(response: httpx2.Response, why: str) -> APIResponseValidationError:
    kind = response.headers.get("content-type", "no content type")
    return APIResponseValidationError(
        response,
        None,
        message=f"The response is not a valid message ({kind}, status {response.status_code}): {why}.",
    )
