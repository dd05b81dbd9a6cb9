"""Recorded responses: how a recorded answer becomes the response that a client gets, failures included."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator

import anyio
import httpx2

from agentobs import world
from agentobs.provider.registry import dialect_of
from agentobs.records.exchanges import Answer, Failure, Point

GRACE_SECONDS = 1.0
"""How long a client may take to stop where the recorded one had stopped, if that time is unknown. Our
choice: a client that stops ends the wait.
"""

AS_RECORDED = "agentobs.headers"
"""The extension of a response that holds the recorded response headers."""


class Onward(Exception):
    """Raised by an answerer that has no answer: the request goes to the provider, with another body if one is given."""

    def __init__(self, body: bytes | None = None) -> None:
        """Let a question out."""
        self.body = body

    def request(self, request: httpx2.Request) -> httpx2.Request:
        """Return the request to send."""
        if self.body is None:
            return request
        headers = [(k, v) for k, v in request.headers.raw if k.lower() != b"content-length"]
        extensions = request.extensions
        return httpx2.Request(
            request.method, request.url, headers=headers, content=self.body, extensions=extensions
        )


def give(
    answer: Answer, request: httpx2.Request, stopped: Callable[[], Exception] | None
) -> httpx2.Response:
    """Return a recorded answer as a response when its turn has come; see `respond`."""
    hold(answer, "head" if answer.status is not None else "end")
    try:
        return respond(answer, request, stopped)
    except Stopped as end:
        linger(answer)
        raise end.error from None


async def give_async(
    answer: Answer, request: httpx2.Request, stopped: Callable[[], Exception] | None
) -> httpx2.Response:
    """The same without blocking an event loop; a client that did not wait has time to disconnect."""
    await hold_async(answer, "head" if answer.status is not None else "end")
    try:
        return respond(answer, request, stopped)
    except Stopped as end:
        await grace(end.error, answer)
        raise end.error from None


def respond(
    answer: Answer, request: httpx2.Request, stopped: Callable[[], Exception] | None
) -> httpx2.Response:
    """Return a recorded answer as a response that streams its recorded chunks.

    `stopped` creates the error for a client that continues to read where the recorded one had stopped; by default it is
    a timeout.

    Raises:
        httpx2.TransportError: the recorded one, if there was no response.
        Stopped: there was none because the client had stopped waiting.
    """
    end: Exception | None = None
    if answer.ending == "cancelled":
        text = "the client stopped here when this was recorded"
        end = stopped() if stopped else httpx2.ReadTimeout(text, request=request)
    elif answer.ending == "cut":
        end = transport_error(answer.failure, request)
    if answer.status is None:
        if answer.ending == "cancelled" and end is not None:
            raise Stopped(end)
        raise transport_error(answer.failure, request)
    dialect = dialect_of(request.url.path)
    told = {} if answer.retry_ms is None else dialect.retry_headers(answer.retry_ms)
    return httpx2.Response(
        answer.status,
        headers={**answer.headers, **told},
        stream=AnswerStream(answer, end),
        request=request,
        extensions={AS_RECORDED: answer.headers},
    )


class Stopped(Exception):
    """The recorded client did not wait for a response."""

    def __init__(self, error: Exception) -> None:
        """Hold the error for a client that does wait."""
        self.error = error


def hold(answer: Answer, point: Point) -> None:
    """Hold an answer until its gate opens."""
    if answer.gate is not None:
        try:
            while (seconds := answer.gate.look(point)) is not None:
                world.pause(seconds)
        finally:
            answer.gate.over()


async def hold_async(answer: Answer, point: Point) -> None:
    """The same without blocking an event loop."""
    if answer.gate is not None:
        try:
            # It is opened by threads and by event loops of any kind, which share no event type.
            while (seconds := answer.gate.look(point)) is not None:
                await _nap(seconds)
        finally:
            answer.gate.over()


async def grace(end: Exception, answer: Answer) -> None:
    """Give the code that stopped the recorded client time to stop this one; the agent loop of agentobs needs none."""
    if answer.gate is not None:
        await hold_async(answer, "stop")
    elif not isinstance(end, httpx2.ReadTimeout):
        await _nap(GRACE_SECONDS)


def linger(answer: Answer) -> None:
    """The same in a thread, whose caller may continue without it; in the main thread nobody else could continue."""
    if threading.current_thread() is not threading.main_thread():
        hold(answer, "stop")


async def _nap(seconds: float) -> None:
    """Sleep in real time; in an asyncio loop by a timer that is recognized by its callback, `wake`."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        await anyio.sleep(seconds)
        return
    if seconds <= 0:
        await asyncio.sleep(0)
        return
    woken = loop.create_future()
    timer = loop.call_later(seconds, wake, woken, world.monotonic() + int(seconds * 1e9))
    try:
        await woken
    finally:
        timer.cancel()


def wake(woken: asyncio.Future[None], at_ns: int) -> None:  # noqa: ARG001 - callers that run it early read it
    """Wake the holder of an answer to check again, at `at_ns` of the real monotonic clock."""
    if not woken.done():
        woken.set_result(None)


class AnswerStream(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """The body of a recorded response, in its chunks, and the error at its end.

    Chunks with a recorded arrival time come at that time, others immediately.
    """

    def __init__(self, answer: Answer, end: Exception | None) -> None:
        self._answer, self._end = answer, end

    def __iter__(self) -> Iterator[bytes]:
        before, last = 0, len(self._answer.chunks) - 1
        for number, (data, after_ns) in enumerate(self._answer.chunks):
            if after_ns > before:
                world.pause((after_ns - before) / 1e9)
                before = after_ns
            if number == last and self._end is None:
                hold(self._answer, "end")
            yield data
        if self._end is not None:
            hold(self._answer, "end")
            if self._answer.ending == "cancelled":
                linger(self._answer)
            raise self._end

    async def __aiter__(self) -> AsyncIterator[bytes]:
        before, last = 0, len(self._answer.chunks) - 1
        for number, (data, after_ns) in enumerate(self._answer.chunks):
            if after_ns > before:
                await _nap((after_ns - before) / 1e9)
                before = after_ns
            if number == last and self._end is None:
                await hold_async(self._answer, "end")
            yield data
        if self._end is not None:
            await hold_async(self._answer, "end")
            if self._answer.ending == "cancelled":
                await grace(self._end, self._answer)
            raise self._end

    def close(self) -> None:
        """Close nothing."""

    async def aclose(self) -> None:
        """Close nothing."""


def transport_error(
    failure: Failure | None, request: httpx2.Request | None = None
) -> httpx2.TransportError:
    """Return a recorded failure as the original httpx2 exception; unknown names become `ReadError`."""
    found = getattr(httpx2, failure.name, None) if failure else None
    message = failure.message if failure else "the connection was closed"
    if isinstance(found, type) and issubclass(found, httpx2.TransportError):
        return found(message, request=request)
    return httpx2.ReadError(message, request=request)
