"""The transport: wrappers that copy every exchange of an httpx2 or httpx client to the sink.

Model requests are recorded only in the transport under the SDK: it sees the exact bytes of every attempt, sync and
async, for every agent. The client gets each chunk when it arrives; nothing is buffered, and no error of agentobs can
reach it.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import AsyncIterator, Callable, Container, Iterator, Mapping, Sequence
from itertools import starmap
from typing import Any, TypeVar, overload

import httpx2

from agentobs import tracing, world
from agentobs.determinism.callers import follow_jobs, origin_here
from agentobs.errors import UsageError, error_kind, warn_once
from agentobs.provider.content_encoding import decoded_body
from agentobs.provider.registry import (
    credentials,
    dialect_of,
    recorded_request_headers,
    recorded_response_headers,
)
from agentobs.recording.wire.http_libraries import (
    described,
    is_client,
    is_sync_client,
    library_of,
    stream_class,
)
from agentobs.recording.wire.nested_transports import below_recorded
from agentobs.recording.wire.responses import (
    RECORDED_HEADERS,
    REPLAYED,
    SENT,
    ForwardRequest,
    deliver,
    deliver_async,
)
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
from agentobs.runtime import Answerer, current, members, process
from agentobs.sink import sink
from agentobs.tracing import ambient

PlaceOf = Callable[[], Place]

KEPT_BYTES = 32 * 1024 * 1024
"""The maximum number of bytes of one body that are kept. The rest passes through and is counted, and the session is
incomplete.
"""

RECORDED = "agentobs.request"
"""The extension that marks a recorded request with its identity. A redirected request has a copy of it, but is a
separate request.
"""

PROXY_VARIABLE = "AGENTOBS_PROXY_URL"
"""The environment variable with the URL of the recording proxy that a program was started with."""
RECORDED_HEADER = "x-agentobs-recorded"
"""The header that marks requests to that proxy that this process records itself. The proxy does not forward it."""


def instrument(client: Any, place_of: PlaceOf) -> bool:
    """Wrap the transport and mounts of an Anthropic client, or of its HTTP client, in place.

    The proxy, timeouts and certificate verification of the client do not change. Copies that `with_options()` creates
    share its HTTP client, and are therefore recorded as well.

    Args:
        client: the client.
        place_of: returns the place of an exchange if there is no current place.

    Returns:
        False if the client was already wrapped.

    Raises:
        UsageError: `client` does not contain a client of httpx2 or httpx.
    """
    follow_jobs()
    http: Any = client if is_client(client) else getattr(client, "_client", None)
    if not is_client(http):
        raise UsageError(
            f"cannot record {described(client)}: it contains no client of the anthropic SDK, httpx2, httpx or aiohttp",
            todo="Pass an Anthropic or AsyncAnthropic client, its HTTP client, or the object that holds it; if you "
            "cannot reach the client, use record_all(), which also sees the clients of requests, urllib and boto3",
        )
    if isinstance(http._transport, RecordingTransport | AsyncRecordingTransport):
        return False
    wrap: Any = RecordingTransport if is_sync_client(http) else AsyncRecordingTransport
    number = id(http)
    http._transport = wrap(http._transport, place_of, number)
    http._mounts = {
        pattern: None if inner is None else wrap(inner, place_of, number)
        for pattern, inner in http._mounts.items()
    }
    return True


F = TypeVar("F", bound=Callable[..., Any])


def guarded(function: F) -> F:
    """Return a function that catches its errors, so that they never reach the agent, and warns once."""

    def guard(*args: Any) -> Any:
        try:
            return function(*args)
        except Exception as error:
            _warn(error)
            return None

    return guard  # type: ignore[return-value]  # same signature, but never raises


def _warn(error: Exception) -> None:
    with contextlib.suppress(Exception):  # describing the error may raise an exception
        text = f"an exchange was not recorded: {error_kind(error)}. The agent continues."
        warn_once(text, about=f"exchange {type(error).__name__}")


class OpenExchange:
    """The data of one exchange, collected while it is in progress."""

    __slots__ = (
        "__weakref__", "adopted_span", "arrived", "attempt_id", "client", "encoding", "headers", "headers_ns",
        "is_replayed", "is_taken", "lost", "origin", "place", "question", "request", "request_bytes",
        "request_chunks", "response_bytes", "sends_body", "started", "started_ns", "status",
    )  # fmt: skip

    def __init__(self, request: httpx2.Request, place: Place, client: int) -> None:
        self.request, self.place, self.client = request, place, client
        self.attempt_id = world.new_id()
        self.started_ns, self.started = world.now(), world.monotonic()
        self.arrived: list[tuple[bytes, int]] = []
        """The chunks of the response, each with its arrival in nanoseconds after the request."""
        self.request_chunks: list[bytes] = []
        self.sends_body = False
        """Whether a body that was not in memory is being sent, so that not all of the request is known."""
        self.request_bytes = self.response_bytes = self.lost = 0
        self.question: Question | None = None
        self.headers_ns: int | None = None
        # The response itself is not kept: it would keep its stream alive, and the end of an abandoned stream is
        # detected when the stream is garbage collected.
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.is_taken = False
        self.adopted_span = adopted()
        self.origin: Origin | None = None
        self.encoding = ""
        self.is_replayed = False

    def add_request_chunk(self, data: bytes) -> None:
        """Add a chunk of a streamed request body, such as an uploaded file."""
        self.request_bytes += len(data)
        if self.request_bytes <= KEPT_BYTES:
            self.request_chunks.append(data)
        else:
            self.lost += len(data)

    def add_chunk(self, data: bytes) -> None:
        """Add a chunk of the response body."""
        self.response_bytes += len(data)
        if self.response_bytes <= KEPT_BYTES:
            self.arrived.append((data, world.monotonic() - self.started))
        else:
            self.lost += len(data)

    def set_headers(self, response: httpx2.Response) -> None:
        """Note that the response headers have arrived."""
        self.is_replayed |= REPLAYED in response.extensions
        headers = response.extensions.get(RECORDED_HEADERS, response.headers)
        self.set_head(response.status_code, headers, response.headers.get("content-encoding", ""))

    @guarded
    def set_head(self, status: int, headers: Mapping[str, str], encoding: str) -> None:
        """Note that status and headers have arrived; `encoding` is the content encoding of the chunks that follow."""
        self.status, self.headers = status, recorded_response_headers(headers)
        self.headers_ns = world.monotonic() - self.started
        self.encoding = encoding

    @guarded
    def add_complete_body(self, response: httpx2.Response) -> None:
        """Add the decoded body of a closed response, if it was read."""
        self.encoding = ""
        with contextlib.suppress(library_of(response).ResponseNotRead):
            self.arrived.append((response.content, world.monotonic() - self.started))

    @guarded
    def finish(self, ending: Ending, error: BaseException | None = None) -> None:
        """Emit the exchange to the sink; later calls do nothing."""
        if (exchange := self.take(ending, error)) is not None:
            sink.emit(exchange)
            ambient.step(exchange.place, exchange.started_ns + exchange.ended_ns)
            if process.listener is not None:
                process.listener(exchange)

    @guarded
    def take(self, ending: Ending, error: BaseException | None = None) -> ModelExchange | None:
        """Return the exchange; later calls return None. Nothing is recorded after the first call."""
        if self.is_taken:
            return None
        self.is_taken = True
        process.open_exchanges.discard(self)
        return self._exchange(ending, error)

    @guarded
    def partial_exchange(self) -> ModelExchange | None:
        """Return the part that has arrived; None if the exchange has ended, or if it is not known yet what is sent."""
        is_unknown = self.sends_body or self.request.extensions.get(SENT, self.request) is None
        if self.is_taken or is_unknown:
            return None
        return self._exchange("cut", chunks=_ArrivedChunks(self.arrived))

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
        question, sent = self.question, self.request.extensions.get(SENT)
        if question is None or sent is not None:
            question = question_of(sent or self.request, self.request_chunks, self.origin)
            if sent is None and question.body and not self.request_chunks:
                self.question = question  # complete: the next part needs it again
        in_flight = _in_flight(self.place, question) if chunks is None else ()
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
            in_flight=in_flight,
        )


class _ArrivedChunks(Sequence[Chunk]):
    """The chunks that have arrived, created on access, because a caller that polls a response reads only new chunks."""

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
    session_id: str | None = None, continuing: Container[str | None] = ()
) -> list[ModelExchange]:
    """End the recording of open exchanges, and return them as cancelled.

    Args:
        session_id: the session of the exchanges; None for all sessions.
        continuing: interactions whose exchanges stay open.
    """
    found = [
        each.take("cancelled")
        for each in _open_exchanges()
        if session_id in (None, each.place.session_id)
        and each.place.interaction_id not in continuing
    ]
    return [exchange for exchange in found if exchange is not None]


def open_for(nanoseconds: int) -> list[ModelExchange]:
    """Return the known parts of open exchanges whose requests were sent at least `nanoseconds` ago."""
    found = [each.partial_exchange() for each in _open_exchanges() if each.age_ns() >= nanoseconds]
    return [exchange for exchange in found if exchange is not None]


def has_open() -> bool:
    """Return whether there are open exchanges."""
    return bool(process.open_exchanges)


def activity() -> dict[str, int]:
    """Return when the last chunk of an open exchange arrived, on the monotonic clock, by the span of its request."""
    found: dict[str, int] = {}
    for each in _open_exchanges():
        if (span_id := each.place.span_id) is not None:
            found[span_id] = max(found.get(span_id, 0), each.last_ns())
    return found


def forget_open() -> None:
    """In a child process, forget the open exchanges, because they belong to its parent."""
    for each in _open_exchanges():
        each.is_taken = True
    # Another thread of the parent may have been iterating over the old set.
    process.open_exchanges = weakref.WeakSet()


IN_FLIGHT_MAX = 8
"""The maximum number of requests in flight that are kept with an exchange. Our choice."""


def _in_flight(place: Place, question: Question) -> tuple[bytes, ...]:
    """Return the bodies of requests in flight in a session, for a request without tools that is not from the loop."""
    if not process.open_exchanges or place.interaction_id is not None:
        return ()
    key = dialect_of(question.path).prompt_keys.get("tools")
    if key is None or f'"{key}"'.encode() in question.body:
        return ()
    same = (each for each in _open_exchanges() if each.place.session_id == place.session_id)
    return tuple(
        question_of(each.request, list(each.request_chunks)).body
        for each in itertools.islice(same, IN_FLIGHT_MAX)
    )


def _open_exchanges() -> list[OpenExchange]:
    return members(process.open_exchanges)


def question_of(
    request: httpx2.Request, chunks: list[bytes] | None = None, origin: Origin | None = None
) -> Question:
    """Return the recorded form of a request; `chunks` are its body if it was streamed."""
    try:
        body = request.content
    except library_of(request).RequestNotRead:
        body = b"".join(chunks or [])
    return Question(
        method=request.method,
        path=request.url.raw_path.decode("ascii", "replace"),
        headers=recorded_request_headers(request.headers),
        body=decoded_body(body, request.headers.get("content-encoding", "")),
        secrets=tuple(each.encode() for each in credentials(request.headers) if _is_secret(each)),
        origin=origin,
    )


def _is_secret(value: str) -> bool:
    """Return whether a credential is specific enough to be redacted everywhere; a dummy such as `anything` is not."""
    return len(value) >= 16 or (len(value) >= 8 and any(c.isdigit() for c in value))


def start_exchange(
    request: httpx2.Request, place_of: PlaceOf, client: int, *, is_async: bool
) -> OpenExchange | None:
    """Start to record an exchange; return None if that fails. If requests carry the trace context, it is added.

    Args:
        request: the request; for a client of another library, its equivalent.
        place_of: returns the place of the exchange if there is no current place.
        client: a number that is the same for all requests of a client.
        is_async: whether the request is sent in a task.
    """
    try:
        exchange = OpenExchange(request, tracing.place() or place_of(), client)
        ambient.step(exchange.place, exchange.started_ns)
        if exchange.place.turn is None and current().identifies_callers:
            exchange.origin = origin_here(
                exchange.attempt_id, exchange.place.session_id, is_async=is_async
            )
        request.extensions = {**request.extensions, RECORDED: id(request)}
        if process.propagates:
            request.headers.update(tracing.trace_context())
        if (proxy := world.environ(PROXY_VARIABLE)) and str(request.url).startswith(proxy):
            request.headers[RECORDED_HEADER] = "1"
        if process.listener is not None:
            process.watched_exchanges.add(exchange)
        if not current().is_answered:
            process.open_exchanges.add(exchange)
            process.note_request(exchange)
        return exchange
    except Exception as error:
        _warn(error)
        return None


def ending_of(error: BaseException, broken: Ending = "cut") -> tuple[Ending, BaseException | None]:
    """Distinguish a broken connection from a consumer that stopped (GeneratorExit, cancellation, Ctrl-C)."""
    if isinstance(error, Exception):
        return broken, error
    return "cancelled", None


def is_recorded(request: httpx2.Request) -> bool:
    """Return whether a transport that is closer to the client already records a request."""
    return request.extensions.get(RECORDED) == id(request)


class RecordingTransport(httpx2.BaseTransport):
    """A synchronous transport that records the exchanges of another transport."""

    def __init__(self, inner: httpx2.BaseTransport, place_of: PlaceOf, client: int) -> None:
        """Wrap `inner`; `client` is a number that is the same for all transports of a client."""
        self._inner, self._place_of, self._client = inner, place_of, client

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send the request, or answer it from the current answerer."""
        exchange = start_exchange(request, self._place_of, self._client, is_async=False)
        response = None
        if (answerer := current().answerer) is not None:
            request.read()
            try:
                answer, stopped = recorded_answer(answerer, request, self._place_of, exchange)
            except ForwardRequest as forward:
                request = _forwarded_request(forward, request, exchange)
            else:
                try:
                    response = deliver(answer, request, stopped)
                except BaseException as error:
                    if exchange:
                        exchange.finish(*replayed_ending(answer, error))
                    raise
        if response is None:
            if exchange and not _is_read(request):
                body: Any = _stream_of(request, _RecordedRequestBody, "SyncByteStream")
                request.stream = body(request.stream, exchange)
            try:
                with below_recorded():
                    response = self._inner.handle_request(request)
            except BaseException as error:
                if exchange:
                    exchange.finish(*ending_of(error, "error"))
                raise
        stream = _stream_of(request, _RecordedStream, "SyncByteStream")
        return _recorded_response(response, exchange, stream)

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

    @property
    def inner(self) -> httpx2.AsyncBaseTransport:
        """The wrapped transport."""
        return self._inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send the request, or answer it from the current answerer."""
        exchange = start_exchange(request, self._place_of, self._client, is_async=True)
        response = None
        if (answerer := current().answerer) is not None:
            await request.aread()
            try:
                answer, stopped = recorded_answer(answerer, request, self._place_of, exchange)
            except ForwardRequest as forward:
                request = _forwarded_request(forward, request, exchange)
            else:
                try:
                    response = await deliver_async(answer, request, stopped)
                except BaseException as error:
                    if exchange:
                        exchange.finish(*replayed_ending(answer, error))
                    raise
        if response is None:
            if exchange and not _is_read(request):
                body: Any = _stream_of(request, _AsyncRecordedRequestBody, "AsyncByteStream")
                request.stream = body(request.stream, exchange)
            try:
                with below_recorded():
                    response = await self._inner.handle_async_request(request)
            except BaseException as error:
                if exchange:
                    exchange.finish(*ending_of(error, "error"))
                raise
        stream = _stream_of(request, _AsyncRecordedStream, "AsyncByteStream")
        return _recorded_response(response, exchange, stream)

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
    except library_of(request).RequestNotRead:
        return False


def _stream_of(request: httpx2.Request, kind: type, interface: str) -> Any:
    """Return a stream class in the form that the client of a request accepts."""
    return stream_class(kind, library_of(request), (interface,))


def _recorded_response(
    response: httpx2.Response, exchange: OpenExchange | None, stream: Any
) -> httpx2.Response:
    """Return a response whose body is recorded while it is read; `stream` is the class of the recording stream."""
    if exchange is None:
        return response
    exchange.set_headers(response)
    if response.is_closed:
        exchange.add_complete_body(response)
        exchange.finish("complete")
    else:
        response.stream = stream(response.stream, exchange)
        # If a stream is neither read to its end nor closed, the exchange ends when the stream is garbage collected.
        weakref.finalize(response.stream, exchange.finish, "cancelled").atexit = False
    return response


class _RecordedStream(httpx2.SyncByteStream):
    """Records each chunk with one `append`: this runs for each delta, and a method call would double the cost."""

    def __init__(self, inner: Any, exchange: OpenExchange) -> None:
        self._inner, self._exchange = inner, exchange

    def __iter__(self) -> Iterator[bytes]:
        keep, now, started = self._exchange.arrived.append, world.monotonic, self._exchange.started
        remaining_bytes = KEPT_BYTES
        try:
            for data in self._inner:
                remaining_bytes -= len(data)
                if remaining_bytes >= 0:
                    keep((data, now() - started))
                else:
                    self._exchange.lost += len(data)
                yield data
        except BaseException as error:
            self._exchange.finish(*ending_of(error))
            raise
        self._exchange.finish("complete")
        if process.wait_seconds and (observer := process.exchange_observer) is not None:
            observer.wait(process.wait_seconds)

    def close(self) -> None:
        try:
            self._inner.close()
        finally:
            self._exchange.finish("cancelled")


class _AsyncRecordedStream(httpx2.AsyncByteStream):
    def __init__(self, inner: Any, exchange: OpenExchange) -> None:
        self._inner, self._exchange = inner, exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        keep, now, started = self._exchange.arrived.append, world.monotonic, self._exchange.started
        remaining_bytes = KEPT_BYTES
        try:
            async for data in self._inner:
                remaining_bytes -= len(data)
                if remaining_bytes >= 0:
                    keep((data, now() - started))
                else:
                    self._exchange.lost += len(data)
                yield data
        except BaseException as error:
            self._exchange.finish(*ending_of(error))
            raise
        self._exchange.finish("complete")
        if process.wait_seconds and (observer := process.exchange_observer) is not None:
            await observer.settle(process.wait_seconds)

    async def aclose(self) -> None:
        try:
            await self._inner.aclose()
        finally:
            self._exchange.finish("cancelled")


class _RecordedRequestBody(httpx2.SyncByteStream):
    def __init__(self, inner: Any, exchange: OpenExchange) -> None:
        self._inner, self._exchange = inner, exchange
        exchange.sends_body = True

    def __iter__(self) -> Iterator[bytes]:
        try:
            for data in self._inner:
                self._exchange.add_request_chunk(data)
                yield data
        finally:
            self._exchange.sends_body = False

    def close(self) -> None:
        self._inner.close()


class _AsyncRecordedRequestBody(httpx2.AsyncByteStream):
    def __init__(self, inner: Any, exchange: OpenExchange) -> None:
        self._inner, self._exchange = inner, exchange
        exchange.sends_body = True

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for data in self._inner:
                self._exchange.add_request_chunk(data)
                yield data
        finally:
            self._exchange.sends_body = False

    async def aclose(self) -> None:
        await self._inner.aclose()


def _forwarded_request(
    forward: ForwardRequest, request: httpx2.Request, exchange: OpenExchange | None
) -> httpx2.Request:
    """Return the request to send to the provider; it is recorded instead of the original request."""
    request = forward.request(request)
    if exchange:
        exchange.request, exchange.question = request, None
    return request


def recorded_answer(
    answerer: Answerer, request: httpx2.Request, place_of: PlaceOf, exchange: OpenExchange | None
) -> tuple[Answer, Callable[[], Exception] | None]:
    """Return the recorded answer, and the error for a client that continues when the recorded client stopped.

    Raises:
        ForwardRequest: the request must be sent to the provider.
    """
    question = question_of(request, origin=exchange.origin if exchange else None)
    if exchange:
        exchange.question = question
    place = tracing.place() or place_of()
    answer = answerer(question, place)
    if exchange:
        exchange.is_replayed = True
    return answer, current().overread_error if place.interaction_id is None else None


def replayed_ending(answer: Answer, error: BaseException) -> tuple[Ending, BaseException | None]:
    """Return the ending of an exchange that was answered with a recorded error instead of a response."""
    return ("cancelled", None) if answer.ending == "cancelled" else ending_of(error, "error")
