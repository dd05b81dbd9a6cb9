"""The transport: wrappers that copy every exchange of an httpx2 client to the sink.

The transport under the SDK is the one place where a model request is recorded: it sees the exact bytes of every
attempt, sync and async, for every agent. The consumer gets each chunk when it arrives; nothing is buffered, and no
error of agentobs can reach it.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import AsyncIterator, Callable, Container, Iterator, Sequence
from itertools import starmap
from typing import Any, TypeVar, overload

import httpx2

from agentobs import tracing, world
from agentobs.determinism.callers import follow_jobs, origin_here
from agentobs.errors import UsageError, error_kind, say_once
from agentobs.provider.registry import credentials, kept_request_headers, kept_response_headers
from agentobs.recording.wire.responses import AS_RECORDED, Onward, give, give_async
from agentobs.recording.wire.sdk_spans import adopted
from agentobs.records.exchanges import (
    Answer,
    Chunk,
    Ending,
    Failure,
    ModelExchange,
    Origin,
    Place,
    Question,
)
from agentobs.runtime import Answerer, current, listed, process
from agentobs.sink import sink
from agentobs.tracing import ambient

PlaceOf = Callable[[], Place]

KEPT_BYTES = 32 * 1024 * 1024
"""How much of one body is kept; the rest passes through, is counted, and marks the session as incomplete."""

UNDER_WAY = "agentobs.request"
"""The extension that marks a recorded request. A redirect copies it, but is a separate request."""


def instrument(client: Any, place_of: PlaceOf) -> bool:
    """Wrap the transport and mounts of an Anthropic (or httpx2) client in place.

    `place_of` returns the place of an exchange when no place is current. Proxy, timeouts and verification
    stay those of the client; copies made by `with_options()` share its HTTP client, and so the wrapping.
    Returns False if it was already wrapped.

    Raises:
        UsageError: `client` holds no httpx2 client.
    """
    follow_jobs()
    http = (
        client
        if isinstance(client, httpx2.Client | httpx2.AsyncClient)
        else getattr(client, "_client", None)
    )
    if not isinstance(http, httpx2.Client | httpx2.AsyncClient):
        raise UsageError(
            f"cannot record {type(client).__name__}: it contains no httpx2 client",
            todo="Pass an Anthropic or AsyncAnthropic client, or the httpx2 client itself",
        )
    if isinstance(http._transport, RecordingTransport | AsyncRecordingTransport):
        return False
    wrap: Any = RecordingTransport if isinstance(http, httpx2.Client) else AsyncRecordingTransport
    number = id(http)
    http._transport = wrap(http._transport, place_of, number)
    http._mounts = {
        pattern: None if inner is None else wrap(inner, place_of, number)
        for pattern, inner in http._mounts.items()
    }
    return True


F = TypeVar("F", bound=Callable[..., Any])


def _guarded(method: F) -> F:
    """Catch errors inside a method of agentobs, so that they never reach the agent; warn once."""

    def guard(self: _Tape, *args: Any) -> Any:
        try:
            return method(self, *args)
        except Exception as error:
            _say(error)
            return None

    return guard  # type: ignore[return-value]  # the same signature, never raising


def _say(error: Exception) -> None:
    with contextlib.suppress(Exception):  # even the text of an error may fail
        text = f"an exchange was not recorded: {error_kind(error)}. The agent continues."
        say_once(text, about=f"tape {type(error).__name__}")


class _Tape:
    """The data of one exchange, collected while it happens."""

    __slots__ = (
        "__weakref__", "adopted_span", "arrived", "asked_bytes", "attempt_id", "client", "encoding", "headers",
        "headers_ns", "is_replayed", "lost", "origin", "pieces", "place", "question", "request", "started",
        "started_ns", "status", "taken",
    )  # fmt: skip

    def __init__(self, request: httpx2.Request, place: Place, client: int) -> None:
        self.request, self.place, self.client = request, place, client
        self.attempt_id = world.new_id()
        self.started_ns, self.started = world.now(), world.monotonic()
        self.arrived: list[tuple[bytes, int]] = []
        self.pieces: list[bytes] = []
        self.asked_bytes = self.lost = 0
        self.question: Question | None = None
        self.headers_ns: int | None = None
        # Not the response itself: it holds the stream, whose end is noticed when nothing refers to it any more.
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.taken = False
        self.adopted_span = adopted()
        self.origin: Origin | None = None
        self.encoding = ""
        self.is_replayed = False

    def asked(self, data: bytes) -> None:
        """Add a chunk of a streamed request body, such as an uploaded file."""
        self.asked_bytes += len(data)
        if self.asked_bytes <= KEPT_BYTES:
            self.pieces.append(data)
        else:
            self.lost += len(data)

    @_guarded
    def head(self, response: httpx2.Response) -> None:
        """Note that the response headers arrived."""
        headers = response.extensions.get(AS_RECORDED, response.headers)
        self.status, self.headers = response.status_code, kept_response_headers(headers)
        self.headers_ns = world.monotonic() - self.started
        self.encoding = response.headers.get("content-encoding", "")

    @_guarded
    def whole(self, response: httpx2.Response) -> None:
        """Add the body of a response that was read completely, decoded; nothing if none was read."""
        self.encoding = ""
        with contextlib.suppress(httpx2.ResponseNotRead):
            self.arrived.append((response.content, world.monotonic() - self.started))

    @_guarded
    def finish(self, ending: Ending, error: BaseException | None = None) -> None:
        """Emit the exchange to the sink; only the first call counts."""
        if (exchange := self.take(ending, error)) is not None:
            sink.emit(exchange)
            ambient.step(exchange.place, exchange.started_ns + exchange.ended_ns)
            if process.listener is not None:
                process.listener(exchange)

    @_guarded
    def take(self, ending: Ending, error: BaseException | None = None) -> ModelExchange | None:
        """Return the exchange at the first call; from then on nothing more is added."""
        if self.taken:
            return None
        self.taken = True
        process.open_tapes.discard(self)
        return self._exchange(ending, error)

    @_guarded
    def so_far(self) -> ModelExchange | None:
        """Return the exchange so far, while it continues; None if it has ended."""
        return None if self.taken else self._exchange("cut", chunks=_Arrived(self.arrived))

    def last_ns(self) -> int:
        """Return when the last chunk arrived, by the monotonic clock; if there was none, when the request was sent."""
        arrived = self.arrived[-1:]
        return self.started + (arrived[0][1] if arrived else 0)

    def age_ns(self) -> int:
        """Return the time since the request was sent."""
        return world.monotonic() - self.started

    def _exchange(
        self,
        ending: Ending,
        error: BaseException | None = None,
        chunks: Sequence[Chunk] | None = None,
    ) -> ModelExchange:
        if chunks is None:
            chunks = tuple(starmap(Chunk, self.arrived.copy()))
        answer = Answer(
            status=self.status,
            headers=self.headers,
            chunks=chunks,
            ending=ending,
            failure=Failure(type(error).__name__, str(error)) if error else None,
            encoding=self.encoding,
        )
        question = self.question or question_of(self.request, self.pieces, self.origin)
        return ModelExchange(
            place=self.place,
            attempt_id=self.attempt_id,
            started_ns=self.started_ns,
            headers_ns=self.headers_ns,
            ended_ns=world.monotonic() - self.started,
            question=question,
            answer=answer,
            client=self.client,
            secrets=question.secrets,
            lost_bytes=self.lost,
            adopted_span=self.adopted_span,
            is_replayed=self.is_replayed,
        )


class _Arrived(Sequence[Chunk]):
    """The chunks so far, created on access: a caller that polls a long response only asks for the new ones."""

    __slots__ = ("_arrived", "_count")

    def __init__(self, arrived: list[tuple[bytes, int]]) -> None:
        self._arrived, self._count = arrived, len(arrived)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> Chunk: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Chunk, ...]: ...
    def __getitem__(self, at: int | slice) -> Chunk | tuple[Chunk, ...]:
        if isinstance(at, slice):
            start, stop, step = at.indices(self._count)
            return tuple(starmap(Chunk, self._arrived[start:stop:step]))
        return Chunk(*self._arrived[range(self._count)[at]])


def take_open(
    session_id: str | None = None, but: Container[str | None] = ()
) -> list[ModelExchange]:
    """Remove the open exchanges, of one session or all, and return them as they are: their recording ends now.

    Those of the interactions `but` continue.
    """
    tapes = [t for t in _open_tapes() if session_id is None or t.place.session_id == session_id]
    tapes = [t for t in tapes if t.place.interaction_id not in but]
    taken = [tape.take("cancelled") for tape in tapes]
    return [exchange for exchange in taken if exchange is not None]


def open_for(nanoseconds: int) -> list[ModelExchange]:
    """Return the open exchanges that were sent at least this long ago, as they are."""
    standing = [tape.so_far() for tape in _open_tapes() if tape.age_ns() >= nanoseconds]
    return [exchange for exchange in standing if exchange is not None]


def has_open() -> bool:
    """Return whether there are open exchanges."""
    return bool(process.open_tapes)


def activity() -> dict[str, int]:
    """Return when the last chunk of each open exchange arrived, by the span in which it was made and the
    monotonic clock.
    """
    found: dict[str, int] = {}
    for tape in _open_tapes():
        if (span_id := tape.place.span_id) is not None:
            found[span_id] = max(found.get(span_id, 0), tape.last_ns())
    return found


def forget_open() -> None:
    """Forget the open exchanges: in a child process, they belong to its parent."""
    for tape in _open_tapes():
        tape.taken = True
    # Another thread of the parent may have been iterating over the old set.
    process.open_tapes = weakref.WeakSet()


def _open_tapes() -> list[_Tape]:
    return listed(process.open_tapes)


def question_of(
    request: httpx2.Request, pieces: list[bytes] | None = None, origin: Origin | None = None
) -> Question:
    """Return the recorded form of a request; `pieces` is its body if it was streamed."""
    try:
        body = request.content
    except httpx2.RequestNotRead:
        body = b"".join(pieces or [])
    return Question(
        method=request.method,
        path=request.url.raw_path.decode("ascii", "replace"),
        headers=kept_request_headers(request.headers),
        body=body,
        secrets=_credentials(request.headers),
        origin=origin,
    )


def _credentials(headers: httpx2.Headers) -> tuple[bytes, ...]:
    return tuple(value.encode() for value in credentials(headers) if _is_secret(value))


def _is_secret(value: str) -> bool:
    """Return whether a credential may be redacted everywhere; a dummy such as `anything` may not."""
    return len(value) >= 16 or (len(value) >= 8 and any(c.isdigit() for c in value))


def _start(
    request: httpx2.Request, place_of: PlaceOf, client: int, *, is_async: bool
) -> _Tape | None:
    try:
        tape = _Tape(request, tracing.place() or place_of(), client)
        ambient.step(tape.place, tape.started_ns)
        if tape.place.turn is None and current().identifies_callers:
            tape.origin = origin_here(tape.attempt_id, tape.place.session_id, is_async=is_async)
        request.extensions = {**request.extensions, UNDER_WAY: id(request)}
        if process.propagates:
            request.headers.update(tracing.trace_context())
        if process.listener is not None:
            process.watched_tapes.add(tape)
        if not current().is_answered:
            process.open_tapes.add(tape)
            if process.attendant is not None:
                process.attendant.opened()
        return tape
    except Exception as error:
        _say(error)
        return None


def _ending(error: BaseException, broken: Ending = "cut") -> tuple[Ending, BaseException | None]:
    """Distinguish a broken connection from a consumer that stopped (GeneratorExit, cancellation, Ctrl-C)."""
    if isinstance(error, Exception):
        return broken, error
    return "cancelled", None


def is_under_way(request: httpx2.Request) -> bool:
    """Return whether a request is already recorded by a wrapper that is closer to its client."""
    return request.extensions.get(UNDER_WAY) == id(request)


class RecordingTransport(httpx2.BaseTransport):
    """A synchronous transport that copies the traffic of another one."""

    def __init__(self, inner: httpx2.BaseTransport, place_of: PlaceOf, client: int) -> None:
        """Wrap `inner`."""
        self._inner, self._place_of, self._client = inner, place_of, client

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send the request, or answer it from the current answerer."""
        tape, response = _start(request, self._place_of, self._client, is_async=False), None
        if (answerer := current().answerer) is not None:
            request.read()
            try:
                answer, stopped = _asked(answerer, request, self._place_of, tape)
            except Onward as onward:
                request = _let_out(onward, request, tape)
            else:
                try:
                    response = give(answer, request, stopped)
                except BaseException as error:
                    if tape:
                        tape.finish(*_given_ending(answer, error))
                    raise
        if response is None:
            if tape and not _is_read(request):
                request.stream = _TeeRequest(request.stream, tape)
            try:
                response = self._inner.handle_request(request)
            except BaseException as error:
                if tape:
                    tape.finish(*_ending(error, "error"))
                raise
        return _tee(response, tape, _TeeStream)

    def __enter__(self) -> RecordingTransport:
        """Enter the inner transport."""
        self._inner.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        """Leave the inner transport."""
        self._inner.__exit__(*error)

    def close(self) -> None:
        """Close the inner transport."""
        self._inner.close()


class AsyncRecordingTransport(httpx2.AsyncBaseTransport):
    """The asynchronous version of `RecordingTransport`."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, place_of: PlaceOf, client: int) -> None:
        """Wrap `inner`."""
        self._inner, self._place_of, self._client = inner, place_of, client

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send the request, or answer it from the current answerer."""
        tape, response = _start(request, self._place_of, self._client, is_async=True), None
        if (answerer := current().answerer) is not None:
            await request.aread()
            try:
                answer, stopped = _asked(answerer, request, self._place_of, tape)
            except Onward as onward:
                request = _let_out(onward, request, tape)
            else:
                try:
                    response = await give_async(answer, request, stopped)
                except BaseException as error:
                    if tape:
                        tape.finish(*_given_ending(answer, error))
                    raise
        if response is None:
            if tape and not _is_read(request):
                request.stream = _AsyncTeeRequest(request.stream, tape)
            try:
                response = await self._inner.handle_async_request(request)
            except BaseException as error:
                if tape:
                    tape.finish(*_ending(error, "error"))
                raise
        return _tee(response, tape, _AsyncTeeStream)

    async def __aenter__(self) -> AsyncRecordingTransport:
        """Enter the inner transport."""
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        """Leave the inner transport."""
        await self._inner.__aexit__(*error)

    async def aclose(self) -> None:
        """Close the inner transport."""
        await self._inner.aclose()


def _is_read(request: httpx2.Request) -> bool:
    try:
        return request.content is not None
    except httpx2.RequestNotRead:
        return False


def _tee(response: httpx2.Response, tape: _Tape | None, stream: Any) -> httpx2.Response:
    if tape is None:
        return response
    tape.head(response)
    if response.is_closed:
        tape.whole(response)
        tape.finish("complete")
    else:
        response.stream = stream(response.stream, tape)
        # A stream that is not read to its end or closed ends when it is garbage collected.
        weakref.finalize(response.stream, tape.finish, "cancelled").atexit = False
    return response


class _TeeStream(httpx2.SyncByteStream):
    """Copies each chunk with one append: this runs for each delta, and a method call would double its cost."""

    def __init__(self, inner: Any, tape: _Tape) -> None:
        self._inner, self._tape = inner, tape

    def __iter__(self) -> Iterator[bytes]:
        keep, now, started = self._tape.arrived.append, world.monotonic, self._tape.started
        room = KEPT_BYTES
        try:
            for data in self._inner:
                room -= len(data)
                if room >= 0:
                    keep((data, now() - started))
                else:
                    self._tape.lost += len(data)
                yield data
        except BaseException as error:
            self._tape.finish(*_ending(error))
            raise
        self._tape.finish("complete")
        if process.wait_seconds and process.attendant is not None:
            process.attendant.wait(process.wait_seconds)

    def close(self) -> None:
        try:
            self._inner.close()
        finally:
            self._tape.finish("cancelled")


class _AsyncTeeStream(httpx2.AsyncByteStream):
    def __init__(self, inner: Any, tape: _Tape) -> None:
        self._inner, self._tape = inner, tape

    async def __aiter__(self) -> AsyncIterator[bytes]:
        keep, now, started = self._tape.arrived.append, world.monotonic, self._tape.started
        room = KEPT_BYTES
        try:
            async for data in self._inner:
                room -= len(data)
                if room >= 0:
                    keep((data, now() - started))
                else:
                    self._tape.lost += len(data)
                yield data
        except BaseException as error:
            self._tape.finish(*_ending(error))
            raise
        self._tape.finish("complete")
        if process.wait_seconds and process.attendant is not None:
            await process.attendant.settle(process.wait_seconds)

    async def aclose(self) -> None:
        try:
            await self._inner.aclose()
        finally:
            self._tape.finish("cancelled")


class _TeeRequest(httpx2.SyncByteStream):
    def __init__(self, inner: Any, tape: _Tape) -> None:
        self._inner, self._tape = inner, tape

    def __iter__(self) -> Iterator[bytes]:
        for data in self._inner:
            self._tape.asked(data)
            yield data

    def close(self) -> None:
        self._inner.close()


class _AsyncTeeRequest(httpx2.AsyncByteStream):
    def __init__(self, inner: Any, tape: _Tape) -> None:
        self._inner, self._tape = inner, tape

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for data in self._inner:
            self._tape.asked(data)
            yield data

    async def aclose(self) -> None:
        await self._inner.aclose()


def _let_out(onward: Onward, request: httpx2.Request, tape: _Tape | None) -> httpx2.Request:
    """Return the request that goes to the provider after all; this one is recorded."""
    request = onward.request(request)
    if tape:
        tape.request, tape.question = request, None
    return request


def _asked(
    answerer: Answerer, request: httpx2.Request, place_of: PlaceOf, tape: _Tape | None
) -> tuple[Answer, Callable[[], Exception] | None]:
    """Return the recorded answer, and the error for a client that continues where the recorded one had stopped.

    Raises:
        Onward: the request goes to the provider.
    """
    question = question_of(request, origin=tape.origin if tape else None)
    if tape:
        tape.question = question
    place = tracing.place() or place_of()
    answer = answerer(question, place)
    if tape:
        tape.is_replayed = True
    return answer, current().stopped if place.interaction_id is None else None


def _given_ending(answer: Answer, error: BaseException) -> tuple[Ending, BaseException | None]:
    """Return how a response without any data ended."""
    return ("cancelled", None) if answer.ending == "cancelled" else _ending(error, "error")
