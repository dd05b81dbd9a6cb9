"""Answers in the provider's place: a recorded answer as the response that a client gets, failures included."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator

import anyio
import httpx2

from agentobs import world
from agentobs.records.exchanges import Answer, Failure, Point

GRACE_SECONDS = 1.0
"""How long a client has to stop where it had stopped when it was recorded, where nobody knows when that was. Our
choice: one that does ends the wait."""

AS_RECORDED = "agentobs.headers"
"""The extension of a response that holds the headers of the answer as it was recorded."""


class Onward(Exception):
    """Raised by an answerer that has no answer: the question goes to the provider, where given with another body."""

    def __init__(self, body: bytes | None = None) -> None:
        """Let a question out."""
        self.body = body

    def request(self, request: httpx2.Request) -> httpx2.Request:
        """Return the request that goes out."""
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
    """Return an answer as the response that a client gets, when that is its turn; see `respond`."""
    hold(answer, "head" if answer.status is not None else "end")
    try:
        return respond(answer, request, stopped)
    except Stopped as end:
        linger(answer)
        raise end.error from None


async def give_async(
    answer: Answer, request: httpx2.Request, stopped: Callable[[], Exception] | None
) -> httpx2.Response:
    """Do so without holding up an event loop; a client that did not wait has time to go away."""
    await hold_async(answer, "head" if answer.status is not None else "end")
    try:
        return respond(answer, request, stopped)
    except Stopped as end:
        await grace(end.error, answer)
        raise end.error from None


def respond(
    answer: Answer, request: httpx2.Request, stopped: Callable[[], Exception] | None
) -> httpx2.Response:
    """Return an answer as a response that streams its recorded chunks.

    `stopped` makes what a client gets that reads on where the recorded one had stopped; by default it is a timeout.

    Raises:
        httpx2.TransportError: the recorded one, where there was no response.
        Stopped: there was none, for the client had stopped waiting.
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
    told = {} if answer.retry_ms is None else {"retry-after-ms": f"{answer.retry_ms:f}"}
    return httpx2.Response(
        answer.status,
        headers={**answer.headers, **told},
        stream=AnswerStream(answer, end),
        request=request,
        extensions={AS_RECORDED: answer.headers},
    )


class Stopped(Exception):
    """The recorded client did not wait for an answer."""

    def __init__(self, error: Exception) -> None:
        """Carry what a client gets that does wait."""
        self.error = error


def hold(answer: Answer, point: Point) -> None:
    """Hold an answer back as long as its gate wants."""
    if answer.gate is not None:
        try:
            while (seconds := answer.gate.look(point)) is not None:
                world.pause(seconds)
        finally:
            answer.gate.over()


async def hold_async(answer: Answer, point: Point) -> None:
    """Do so without holding up an event loop."""
    if answer.gate is not None:
        try:
            # It is opened by threads and by loops of any sort, which know no common event.
            while (seconds := answer.gate.look(point)) is not None:
                await _nap(seconds)
        finally:
            answer.gate.over()


async def grace(end: Exception, answer: Answer) -> None:
    """Give whatever stopped the recorded client time to stop this one; our own loop needs none."""
    if answer.gate is not None:
        await hold_async(answer, "stop")
    elif not isinstance(end, httpx2.ReadTimeout):
        await _nap(GRACE_SECONDS)


def linger(answer: Answer) -> None:
    """Do so in a thread, whose caller may go on without it; in the main thread nobody does."""
    if threading.current_thread() is not threading.main_thread():
        hold(answer, "stop")


async def _nap(seconds: float) -> None:
    """Sleep in real time; in a loop of asyncio by a timer that is known by its callback, `wake`."""
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


def wake(woken: asyncio.Future[None], at_ns: int) -> None:  # noqa: ARG001 - whoever runs it early reads it
    """Wake whoever holds an answer back, to look again; at `at_ns` of the real monotonic clock."""
    if not woken.done():
        woken.set_result(None)


class AnswerStream(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """The body of a recorded answer, in its chunks, with what was raised at its end.

    Chunks that say when they arrived come at that time, others at once.
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
    """Return a recorded failure as the exception of httpx2 that it was; unknown names become `ReadError`."""
    found = getattr(httpx2, failure.name, None) if failure else None
    message = failure.message if failure else "the connection was closed"
    if isinstance(found, type) and issubclass(found, httpx2.TransportError):
        return found(message, request=request)
    return httpx2.ReadError(message, request=request)
