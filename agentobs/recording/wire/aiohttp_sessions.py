"""aiohttp: records the model requests of client sessions, and answers them in a replay.

`BaseConnector.connect` receives each attempt as it is sent, below the middlewares of a session, so a replay can answer
it with a connection that has no socket. `ClientResponse.start` receives the response, whose `content` is replaced with
a reader that records each chunk when the program reads it. Both methods are patched once per process; sessions that are
not recorded pass through. This module imports aiohttp, so it is imported only if the program has imported aiohttp.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from typing import Any

import aiohttp
import httpx2
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.payload import BytesPayload

from agentobs import tracing
from agentobs.determinism.callers import follow_jobs
from agentobs.provider.registry import is_model_call
from agentobs.recording.wire.all_clients import place_for
from agentobs.recording.wire.nested_transports import is_below_recorded
from agentobs.recording.wire.responses import RECORDED_HEADERS, ForwardRequest, deliver_async
from agentobs.recording.wire.transport import (
    OpenExchange,
    PlaceOf,
    ending_of,
    guarded,
    recorded_answer,
    replayed_ending,
    start_exchange,
)
from agentobs.records.exchanges import Answer
from agentobs.runtime import current, process


class State:
    """The recorded sessions, and the requests that wait for their responses."""

    def __init__(self) -> None:
        self.sessions: weakref.WeakKeyDictionary[Any, PlaceOf] = weakref.WeakKeyDictionary()
        """For each recorded session, the function for the place of its exchanges."""
        self.sent: weakref.WeakKeyDictionary[Any, _Sent | _Served] = weakref.WeakKeyDictionary()
        """The requests without a response, by their connection."""
        self.is_patched = False


class _Sent:
    """A request that was sent."""

    def __init__(self, exchange: OpenExchange) -> None:
        self.exchange = exchange
        self.is_decoded = True
        """Whether aiohttp decodes the body of the response."""


class _Served:
    """A request that a replay answers."""

    def __init__(
        self,
        answer: Answer,
        request: httpx2.Request,
        stopped: Callable[[], Exception] | None,
        exchange: OpenExchange | None,
        req: Any,
    ) -> None:
        self.answer, self.request, self.stopped = answer, request, stopped
        self.exchange, self.req = exchange, req

    async def deliver(self) -> httpx2.Response:
        """Return the response when it may be delivered.

        Raises:
            ClientError: there was no response.
        """
        try:
            return await deliver_async(self.answer, self.request, self.stopped)
        except BaseException as error:
            if self.exchange:
                self.exchange.finish(*replayed_ending(self.answer, error))
            raise _native(error, self.req, has_head=False) from None


def is_session(value: object) -> bool:
    """Return whether an object is a client session of aiohttp."""
    return isinstance(value, aiohttp.ClientSession)


def instrument(session: Any, place_of: PlaceOf) -> bool:
    """Record the model requests of a session.

    Args:
        session: an `aiohttp.ClientSession`.
        place_of: returns the place of an exchange if there is no current place.

    Returns:
        False if the session was already recorded.
    """
    patch()
    sessions = process.state(State).sessions
    is_new = session not in sessions
    sessions.setdefault(session, place_of)
    return is_new


def patch() -> None:
    """Patch aiohttp, once per process; sessions that are not recorded pass through."""
    follow_jobs()
    state = process.state(State)
    if state.is_patched:
        return
    state.is_patched = True
    connector: Any = aiohttp.BaseConnector
    response: Any = aiohttp.ClientResponse
    connector.connect = _recording_connect(connector.connect)
    response.start = _recording_start(response.start)


def _recording_connect(original: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def connect(self: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
        if (place_of := _place_of(req)) is None:
            return await original(self, req, *args, **kwargs)
        return await _connect(
            functools.partial(original, self, req, *args, **kwargs), req, place_of
        )

    return connect


def _recording_start(original: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def start(self: Any, connection: Any) -> Any:
        sent = process.state(State).sent.pop(connection, None)
        if sent is None:
            return await original(self, connection)
        if isinstance(sent, _Served):
            if (writer := getattr(self, "_writer", None)) is not None:
                await asyncio.wait([writer])  # aiohttp would cancel it at the end of the response
            response = await sent.deliver()
            connection.protocol.data_received(_head(response))
            started = await original(self, connection)
            served = _ServedContent(response.stream, sent.req)
            served.on_eof(self._response_eof)
            headers = response.extensions.get(RECORDED_HEADERS, response.headers)
            _set_content(self, sent.exchange, served, headers, "")
            return started
        try:
            started = await original(self, connection)
        except BaseException as error:
            sent.exchange.finish(*ending_of(_in_httpx(error), "error"))
            raise
        encoding = "" if sent.is_decoded else self.headers.get("content-encoding", "")
        _set_content(self, sent.exchange, self.content, self.headers, encoding)
        return started

    return start


@guarded
def _place_of(request: Any) -> PlaceOf | None:
    """Return the function for the place of a request; None if it must not be recorded, or already is."""
    url, headers = request.url, request.headers
    body = _known_body(request)
    everyone = place_for(url.host or "", url.path, headers, body)
    place_of = process.state(State).sessions.get(request._session, everyone)
    if place_of is None or is_below_recorded():
        return None
    is_model = everyone is not None or is_model_call(url.path, headers, url.host or "", body)
    return place_of if is_model else None


async def _connect(connect: Callable[[], Awaitable[Any]], req: Any, place_of: PlaceOf) -> Any:
    """Connect and start to record; in a replay, return a connection that contains the recorded response."""
    body = _known_body(req)
    if (request := guarded(_as_httpx)(req, body)) is None:
        return await connect()
    exchange = start_exchange(request, place_of, id(req._session), is_async=True)
    if process.propagates:
        req.headers.update(tracing.trace_context())
    if (answerer := current().answerer) is not None:
        if body is None:
            body = await _read_body(req)
            request = _as_httpx(req, body)
            if exchange:
                exchange.request = request
        try:
            answer, stopped = recorded_answer(answerer, request, place_of, exchange)
        except ForwardRequest as forward:
            request = forward.request(request)
            if exchange:
                exchange.request, exchange.question = request, None
            if forward.body is not None:
                await _replace_body(req, forward.body)
            path = req.url.raw_path_qs
            if (target := forward.target(path)) != path:
                req.url = type(req.url)(f"{req.url.origin()}{target}", encoded=True)
        else:
            served = _Served(answer, request, stopped, exchange, req)
            failure = answer.failure
            if answer.status is None and failure and failure.name.startswith("Connect"):
                await served.deliver()  # raises the error where the client would connect
            return _served_connection(served)
    if body is None and exchange:
        _record_body(req, exchange)
    try:
        connection = await connect()
    except BaseException as error:
        if exchange:
            exchange.finish(*ending_of(_in_httpx(error), "error"))
        raise
    if exchange:
        _expect_response(connection, exchange)
    return connection


@guarded
def _expect_response(connection: Any, exchange: OpenExchange) -> None:
    """Note that a response is expected on a connection, and whether it will be decoded."""
    sent = _Sent(exchange)
    process.state(State).sent[connection] = sent
    protocol = connection.protocol
    set_params = protocol.set_response_params

    def set_response_params(**params: Any) -> None:
        del protocol.set_response_params
        sent.is_decoded = bool(params.get("auto_decompress", True))
        set_params(**params)

    protocol.set_response_params = set_response_params

    def released() -> None:
        # The request could not be sent, so there is no response.
        if process.state(State).sent.pop(connection, None) is not None:
            exchange.finish("cancelled")

    connection.add_callback(released)


@guarded
def _set_content(
    response: Any, exchange: OpenExchange | None, inner: Any, headers: Any, encoding: str
) -> None:
    """Replace the content of a response with a reader that records what is read from `inner`."""
    if exchange is not None:
        exchange.set_head(response.status, headers, encoding)
        if inner.at_eof():
            exchange.finish("complete")
    response.content = RecordedContent(inner, exchange, response._loop)
    if exchange is not None:
        # A response that is neither read to its end nor closed ends when it is garbage collected.
        weakref.finalize(response.content, exchange.finish, "cancelled").atexit = False


class RecordedContent(aiohttp.StreamReader):
    """The content of a response, recorded when the program reads it from the reader that aiohttp fills."""

    def __init__(
        self, inner: Any, exchange: OpenExchange | None, loop: asyncio.AbstractEventLoop
    ) -> None:
        """Read from `inner`."""
        super().__init__(_NO_PROTOCOL, inner.get_read_buffer_limits()[0], loop=loop)
        self._inner, self._exchange = inner, exchange

    async def _wait(self, func_name: str) -> None:
        data = await self._record(self._inner.readany())
        if data:
            self.feed_data(data)
        else:
            self.feed_eof()

    async def readchunk(self) -> tuple[bytes, bool]:
        """Return the next data, and whether an HTTP chunk ends with it."""
        if self._buffer or self._eof:
            return await super().readchunk()
        data, ends = await self._record(self._inner.readchunk())
        if not data and not ends:
            self.feed_eof()
        return data, ends

    def read_nowait(self, n: int = -1) -> bytes:
        """Return the data that has arrived."""
        if data := self._inner.read_nowait():
            self._note(data)
            self.feed_data(data)
        return super().read_nowait(n)

    async def _record(self, reading: Awaitable[Any]) -> Any:
        try:
            found = await reading
        except Exception as error:
            if self._exchange is not None:
                self._exchange.finish(*ending_of(_in_httpx(error)))
            raise
        self._note(found if isinstance(found, bytes) else found[0])
        seconds = process.wait_seconds
        if seconds and self._inner.at_eof() and (observer := process.exchange_observer) is not None:
            await observer.settle(seconds)
        return found

    def _note(self, data: bytes) -> None:
        if self._exchange is not None:
            if data:
                self._exchange.add_chunk(data)
            if self._inner.at_eof():
                self._exchange.finish("complete")

    def set_exception(self, exc: BaseException, *args: Any) -> None:
        """End the content; aiohttp calls this when the program closes the response."""
        if self._exchange is not None:
            self._exchange.finish("cancelled")
        self._inner.set_exception(exc, *args)
        super().set_exception(exc, *args)

    def exception(self) -> BaseException | None:
        """Return the error that ended the content."""
        return super().exception() or self._inner.exception()

    def on_eof(self, callback: Callable[[], None]) -> None:
        """Call a function when the content has arrived."""
        self._inner.on_eof(callback)

    def is_eof(self) -> bool:
        """Return whether the content has arrived."""
        return bool(self._inner.is_eof())

    def at_eof(self) -> bool:
        """Return whether the content was read."""
        return bool(self._inner.at_eof()) and not self._buffer

    async def wait_eof(self) -> None:
        """Wait until the content has arrived."""
        await self._inner.wait_eof()

    def set_read_chunk_size(self, n: int) -> None:
        """Raise the limits of the buffers."""
        super().set_read_chunk_size(n)
        self._inner.set_read_chunk_size(n)


class _NoProtocol:
    """The protocol of a reader that is not filled by a connection."""

    connected = True
    _reading_paused = False  # read by aiohttp before 3.14

    def pause_reading(self, *args: Any, **kwargs: Any) -> None:
        pass

    def resume_reading(self, *args: Any, **kwargs: Any) -> None:
        pass


_NO_PROTOCOL: Any = _NoProtocol()


class _ServedContent:
    """The content of a recorded response, with the methods of a `StreamReader` that `RecordedContent` calls."""

    def __init__(self, stream: Any, request: Any) -> None:
        self._chunks: AsyncIterator[bytes] = aiter(stream)
        self._request = request
        self._is_at_end = False
        self._exception: BaseException | None = None
        self._at_eof: list[Callable[[], None]] = []

    async def readany(self) -> bytes:
        if self._exception is not None:
            raise self._exception
        try:
            return await anext(self._chunks)
        except StopAsyncIteration:
            self._is_at_end = True
            while self._at_eof:
                self._at_eof.pop()()
            return b""
        except Exception as error:
            raise _native(error, self._request, has_head=True) from None

    async def readchunk(self) -> tuple[bytes, bool]:
        data = await self.readany()
        return data, bool(data)

    def read_nowait(self) -> bytes:
        return b""

    async def wait_eof(self) -> None:
        return None

    def is_eof(self) -> bool:
        return self._is_at_end

    at_eof = is_eof

    def on_eof(self, callback: Callable[[], None]) -> None:
        callback() if self._is_at_end else self._at_eof.append(callback)

    def exception(self) -> BaseException | None:
        return self._exception

    def set_exception(self, exc: BaseException, *args: Any) -> None:
        self._exception = exc

    def set_read_chunk_size(self, n: int) -> None:
        pass

    def get_read_buffer_limits(self) -> tuple[int, int]:
        return 2**16, 2**17


def _served_connection(served: _Served) -> Any:
    """Return a connection without a socket."""
    req = served.req
    protocol = _ServedProtocol(req.loop)
    protocol.connection_made(_NoTransport())
    connection = Connection(_NO_CONNECTOR, req.connection_key, protocol, req.loop)
    process.state(State).sent[connection] = served
    return connection


def _head(response: httpx2.Response) -> bytes:
    status = response.status_code
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase if status in _STATUSES else ''}".encode()
    ]
    lines += [name + b": " + value for name, value in response.headers.raw]
    return b"\r\n".join(lines) + b"\r\n\r\n"


_STATUSES = frozenset(status.value for status in HTTPStatus)


class _ServedProtocol(ResponseHandler):
    """The protocol of a connection without a socket; no timeout applies to it."""

    def _reschedule_timeout(self) -> None:
        pass


class _NoTransport(asyncio.Transport):
    """Accepts a request without sending it."""

    def write(self, data: Any) -> None:
        pass

    def writelines(self, list_of_data: Any) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        pass

    abort = close


class _NoConnector:
    """Receives the end of a connection without a socket."""

    force_close = False

    def _release(self, *args: Any, **kwargs: Any) -> None:
        pass


_NO_CONNECTOR: Any = _NoConnector()


def _known_body(req: Any) -> bytes | None:
    """Return the body of a request; None if it is not in memory."""
    body = req.body
    if isinstance(body, bytes | bytearray):
        return bytes(body)
    if isinstance(body, BytesPayload):
        return bytes(body._value)
    return None if body else b""


def _as_httpx(req: Any, body: bytes | None) -> httpx2.Request:
    """Return a request of aiohttp as a request of httpx2, which is not sent."""
    headers = list(req.headers.items())
    content: Any = iter(()) if body is None else body
    return httpx2.Request(req.method, str(req.url), headers=headers, content=content)


@guarded
def _record_body(req: Any, exchange: OpenExchange) -> None:
    """Record a body that is not in memory while it is sent."""
    body = req.body
    name = "write_with_length" if hasattr(body, "write_with_length") else "write"
    write = getattr(body, name)
    exchange.sends_body = True

    async def write_recorded(writer: Any, *args: Any) -> None:
        try:
            await write(_Writer(writer, exchange.add_request_chunk), *args)
        finally:
            exchange.sends_body = False

    setattr(body, name, write_recorded)


class _Writer:
    """Passes the chunks of a body to a function, and to another writer."""

    def __init__(self, inner: Any, add: Callable[[bytes], None]) -> None:
        self._inner, self._add = inner, add

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def write(self, chunk: Any, *args: Any, **kwargs: Any) -> None:
        self._add(bytes(chunk))
        if self._inner is not None:
            await self._inner.write(chunk, *args, **kwargs)


async def _read_body(req: Any) -> bytes:
    """Read a body that is not in memory, and keep it in the request."""
    chunks: list[bytes] = []
    await req.body.write(_Writer(None, chunks.append))
    body = b"".join(chunks)
    await _replace_body(req, body)
    return body


async def _replace_body(req: Any, body: bytes) -> None:
    if hasattr(req, "update_body"):
        await req.update_body(body)
        return
    # aiohttp before 3.12
    with contextlib.suppress(KeyError):
        del req.headers["Transfer-Encoding"]
    req.chunked = None
    req.body = body
    req.headers["Content-Length"] = str(len(body))


def _in_httpx(error: BaseException) -> BaseException:
    """Return the httpx2 error that corresponds to an aiohttp error; other errors unchanged."""
    kinds: tuple[tuple[Any, type[httpx2.TransportError]], ...] = (
        (getattr(aiohttp, "ConnectionTimeoutError", ()), httpx2.ConnectTimeout),
        (aiohttp.ClientProxyConnectionError, httpx2.ProxyError),
        (aiohttp.ClientConnectorError, httpx2.ConnectError),
        (aiohttp.ServerDisconnectedError, httpx2.RemoteProtocolError),
        (asyncio.TimeoutError, httpx2.ReadTimeout),
        (aiohttp.ClientPayloadError, httpx2.RemoteProtocolError),
        (aiohttp.ClientResponseError, httpx2.RemoteProtocolError),
        (OSError, httpx2.ReadError),
        (aiohttp.ClientError, httpx2.ReadError),
    )
    kind = next((made for found, made in kinds if isinstance(error, found)), None)
    return error if kind is None else kind(str(error))


def _native(error: BaseException, req: Any, *, has_head: bool) -> BaseException:
    """Return the aiohttp error that corresponds to a recorded httpx2 error; other errors unchanged."""
    message = str(error)
    match error:
        case httpx2.ConnectTimeout() | httpx2.PoolTimeout():
            kind: Any = getattr(aiohttp, "ConnectionTimeoutError", aiohttp.ServerTimeoutError)
            return kind(message)  # type: ignore[no-any-return]
        case httpx2.TimeoutException() if not message:
            return TimeoutError()  # the timeout of the whole request
        case httpx2.TimeoutException():
            kind = getattr(aiohttp, "SocketTimeoutError", aiohttp.ServerTimeoutError)
            return kind(message)  # type: ignore[no-any-return]
        case httpx2.ConnectError():
            refused = OSError(errno.ECONNREFUSED, message)
            return aiohttp.ClientConnectorError(req.connection_key, refused)
        case httpx2.TransportError() if has_head:
            return aiohttp.ClientPayloadError(message)
        case httpx2.RemoteProtocolError():
            return aiohttp.ServerDisconnectedError(message)
        case httpx2.TransportError():
            return aiohttp.ClientOSError(errno.ECONNRESET, message)
        case _:
            return error
