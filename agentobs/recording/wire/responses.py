"""Recorded responses: turns a recorded answer into the response or the error that a client gets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import anyio
import httpx2

from agentobs import world
from agentobs.provider.registry import dialect_of
from agentobs.recording.wire.http_libraries import is_read_timeout, library_of, stream_class
from agentobs.records.exchanges import Answer, Failure
from agentobs.runtime import Gate, Point, ServedAnswer

GRACE_SECONDS = 1.0
"""How long a client may take to stop at the point where the recorded client stopped, if the recorded time is unknown.
Our choice: the wait ends when the client stops.
"""

REPLAYED = "agentobs.replayed"
"""The extension that marks a response from a recording. Such a response costs nothing."""
SENT = "agentobs.sent"
"""The extension of a request with the request that is sent in its place, if a transport closer to the network decides
what is sent; None until it has decided. Nothing of the exchange is written before that.
"""
RECORDED_HEADERS = "agentobs.headers"
"""The extension of a response that contains the recorded response headers."""


class ForwardRequest(Exception):
    """Raised by an answerer to send the request to the provider instead of answering it."""

    def __init__(
        self, body: bytes | None = None, changed_path: Callable[[str], str] | None = None
    ) -> None:
        """Forward a request.

        Args:
            body: another body; None to keep it.
            changed_path: returns another path, given the encoded path of the request with its query; None to keep it.
        """
        self.body, self._changed_path = body, changed_path

    def target(self, path: str) -> str:
        """Return the encoded path to which a request is sent, with its query, given its own."""
        return path if self._changed_path is None else self._changed_path(path)

    def request(self, request: httpx2.Request) -> httpx2.Request:
        """Return the request to send."""
        path = request.url.raw_path.decode("ascii")
        target = self.target(path)
        if self.body is None and target == path:
            return request
        headers = [(k, v) for k, v in request.headers.raw if k.lower() != b"content-length"]
        extensions = request.extensions
        content = request.content if self.body is None else self.body
        forwarded: httpx2.Request = library_of(request).Request(
            request.method,
            request.url.copy_with(raw_path=target.encode("ascii")),
            headers=headers,
            content=content,
            extensions=extensions,
        )
        return forwarded


def deliver(
    answer: Answer, request: httpx2.Request, stopped: Callable[[], Exception] | None
) -> httpx2.Response:
    """Wait until a recorded answer may be delivered, then return it as a response; see `respond`."""
    hold(answer, "head" if answer.status is not None else "end")
    try:
        return respond(answer, request, stopped)
    except Stopped as end:
        linger(answer)
        raise end.error from None


async def deliver_async(
    answer: Answer, request: httpx2.Request, stopped: Callable[[], Exception] | None
) -> httpx2.Response:
    """Like `deliver`, without blocking an event loop. If the recorded client did not wait, the live client gets time to
    stop waiting as well.
    """
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

    `stopped` creates the error for a client that continues to read at the point where the recorded client stopped; by
    default it is a timeout.

    Raises:
        TransportError: there was no response; this is the recorded error, of the library of the request.
        Stopped: there was no response because the recorded client stopped waiting.
    """
    end: Exception | None = None
    if answer.ending == "cancelled":
        text = "the client stopped here when this was recorded"
        end = stopped() if stopped else library_of(request).ReadTimeout(text, request=request)
    elif answer.ending == "cut":
        end = transport_error(answer.failure, request)
    if answer.status is None:
        if answer.ending == "cancelled" and end is not None:
            raise Stopped(end)
        raise transport_error(answer.failure, request)
    dialect = dialect_of(request.url.path)
    retry_ms = answer.retry_ms if isinstance(answer, ServedAnswer) else None
    retry = {} if retry_ms is None else dialect.retry_headers(retry_ms)
    library = library_of(request)
    stream = stream_class(AnswerStream, library, ("SyncByteStream", "AsyncByteStream"))
    response: httpx2.Response = library.Response(
        answer.status,
        headers={**answer.headers, **retry},
        stream=stream(answer, end),
        request=request,
        extensions={RECORDED_HEADERS: answer.headers},
    )
    return response


class Stopped(Exception):
    """The recorded client did not wait for a response."""

    def __init__(self, error: Exception) -> None:
        """Create the exception; `error` is raised in a client that does wait."""
        self.error = error


def hold(answer: Answer, point: Point) -> None:
    """Hold an answer until its gate opens."""
    if (gate := _gate_of(answer)) is not None:
        try:
            while (seconds := gate.check(point)) is not None:
                world.pause(seconds)
        finally:
            gate.close()


async def hold_async(answer: Answer, point: Point) -> None:
    """Like `hold`, without blocking an event loop."""
    if (gate := _gate_of(answer)) is not None:
        try:
            # Threads and event loops of any kind open the gate, and there is no event type that all of them can use.
            while (seconds := gate.check(point)) is not None:
                await _nap(seconds)
        finally:
            gate.close()


async def grace(end: Exception, answer: Answer) -> None:
    """Give the live client time to stop as the recorded client did; the agent loop of agentobs does not need it."""
    if _gate_of(answer) is not None:
        await hold_async(answer, "stop")
    elif not is_read_timeout(end):
        await _nap(GRACE_SECONDS)


def linger(answer: Answer) -> None:
    """Like `grace`, for a thread; the main thread does not wait, because no other thread could stop the client."""
    if threading.current_thread() is not threading.main_thread():
        hold(answer, "stop")


def _gate_of(answer: Answer) -> Gate | None:
    return answer.gate if isinstance(answer, ServedAnswer) else None


async def _nap(seconds: float) -> None:
    """Sleep in real time. In an asyncio loop, this uses a timer with the callback `wake`, which a replay recognizes."""
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


def wake(woken: asyncio.Future[None], at_ns: int) -> None:  # noqa: ARG001 - read by code that runs the timer early
    """Wake up a coroutine that holds an answer; due at `at_ns` on the real monotonic clock."""
    if not woken.done():
        woken.set_result(None)


class AnswerStream(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """The body of a recorded response, in its recorded chunks, and the error at its end.

    Chunks with an arrival time arrive at that time after the first read, others immediately.
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
    """Return a recorded failure as the original exception, or as a `ReadError` if its name is unknown.

    The exception belongs to the HTTP library of the request.
    """
    library = library_of(request)
    kind: Any = getattr(library, failure.name, None) if failure else None
    if not (isinstance(kind, type) and issubclass(kind, library.TransportError)):
        kind = library.ReadError
    message = failure.message if failure else "the connection was closed"
    error: httpx2.TransportError = kind(message, request=request)
    return error
