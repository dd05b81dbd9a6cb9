"""Connections of `http.client`, which urllib, urllib3, requests and boto3 use: recorded, and answered in a replay.

`record_all` patches `HTTPConnection`. What `send` passes on is read as HTTP, so the request is recorded as it was sent,
whichever library wrote it. The file from which a response reads is replaced with one that records each part when the
program reads it. In a replay, `connect` does not connect: it sets a socket that collects the request and returns the
recorded response. A request that is not a model call is then sent through a real connection.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import io
import socket
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from http import HTTPStatus
from typing import Any

import httpx2

from agentobs.provider.registry import may_be_model_call
from agentobs.recording.wire.all_clients import State as AllState
from agentobs.recording.wire.all_clients import place_for
from agentobs.recording.wire.http_framing import BodyReader, RequestReader, starts_request
from agentobs.recording.wire.nested_transports import is_below_recorded
from agentobs.recording.wire.responses import ForwardRequest, deliver
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

CLIENT = id(http.client.HTTPConnection)
"""The number of the client of all exchanges, because a connection does not know its client."""


class State:
    """The requests that wait for their responses."""

    def __init__(self) -> None:
        self.sending: weakref.WeakKeyDictionary[Any, _Sending] = weakref.WeakKeyDictionary()
        """The request on each connection."""


class _Sending:
    """A request that is being sent."""

    def __init__(self, exchange: OpenExchange | None, reader: RequestReader | None = None) -> None:
        self.exchange, self.reader = exchange, reader
        self.is_undecided = False
        """Whether only the body, which was not sent yet, shows whether this is a model call."""
        self._abandoned: Any = None

    def start(self, connection: Any, request: httpx2.Request, place_of: PlaceOf) -> None:
        """Start to record; the exchange ends with the connection unless a response arrives."""
        self.exchange = start_exchange(request, place_of, CLIENT, is_async=False)
        if self.exchange is not None:
            self.exchange.sends_body = self.reader is not None and not self.reader.is_complete
            self._abandoned = weakref.finalize(connection, self.exchange.finish, "cancelled")
            self._abandoned.atexit = False

    def answered(self) -> None:
        """Note that a response has arrived, which may outlive its connection."""
        if self._abandoned is not None:
            self._abandoned.detach()

    def finish(self, error: BaseException) -> None:
        """End the exchange with an error."""
        if self.exchange is not None:
            self.exchange.finish(*ending_of(error, "error"))


_connects: ContextVar[bool] = ContextVar("agentobs_connects", default=False)


def recording_connect(original: Callable[..., None]) -> Callable[..., None]:
    """Return `connect` of a connection that does not connect in a replay."""

    def connect(self: Any, *args: Any, **kwargs: Any) -> None:
        if _connects.get() or not _is_answered():
            original(self, *args, **kwargs)
            return
        self.sock = _ServedSocket(self, lambda: original(self, *args, **kwargs))
        if hasattr(self, "is_verified"):
            self.is_verified = True  # urllib3 warns about connections without TLS

    return connect


def recording_send(original: Callable[..., None]) -> Callable[..., None]:
    """Return `send` of a connection that records model requests."""

    def send(self: Any, data: Any) -> None:
        if not process.state(AllState).active or is_below_recorded():
            original(self, data)
            return
        if _is_answered() and starts_request(data):
            if self.sock is not None and not isinstance(self.sock, _ServedSocket):
                self.sock.close()  # a connection from before the replay
                self.sock = None
            if self.sock is None:
                self.connect()
        if isinstance(self.sock, _ServedSocket):
            original(self, data)
            return
        sending = _sending(self, data)
        if sending is None:
            original(self, data)
            return
        was_connected = self.sock is not None
        try:
            original(self, _recorded_data(self, data, sending))
        except BaseException as error:
            # After a broken connection, urllib3 still reads the response.
            if not isinstance(error, BrokenPipeError | ConnectionResetError):
                process.state(State).sending.pop(self, None)
                sending.finish(
                    _in_httpx(error, is_connected=was_connected or self.sock is not None)
                )
            raise

    return send


def recording_getresponse(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return `getresponse` of a connection that records the response to a recorded request."""

    def getresponse(self: Any, *args: Any, **kwargs: Any) -> Any:
        state = process.state(State)
        try:
            response = original(self, *args, **kwargs)
        except (http.client.ResponseNotReady, TypeError):
            raise  # the program may call again; urllib3 before 2.0 first tries an argument of Python 2
        except BaseException as error:
            if (sending := state.sending.pop(self, None)) is not None:
                sending.finish(_in_httpx(error))
            raise
        if (sending := state.sending.pop(self, None)) is not None:
            sending.answered()
            _record_response(response, sending)
        return response

    return getresponse


def _is_answered() -> bool:
    """Return whether requests are answered from a recording."""
    is_active = process.state(AllState).active > 0
    return is_active and current().answerer is not None and not is_below_recorded()


@guarded
def _sending(connection: Any, data: Any) -> _Sending | None:
    """Return the recorded request to which data belongs; None if it is not recorded."""
    state = process.state(State)
    if not starts_request(data):
        return state.sending.get(connection)
    if (before := state.sending.pop(connection, None)) is not None:
        before.finish(httpx2.WriteError("the connection was closed"))
    reader = RequestReader()
    reader.feed(bytes(data))
    if not reader.has_head or not _may_be_model_call(reader):
        return None
    place_of = _place_of(reader)
    sending = state.sending[connection] = _Sending(None, RequestReader())
    if place_of is None:
        sending.is_undecided = True
    else:
        sending.start(connection, _as_httpx(reader, None), place_of)
    return sending


def _may_be_model_call(reader: RequestReader) -> bool:
    path = reader.path.partition("?")[0]
    return may_be_model_call(path, httpx2.Headers(reader.headers), reader.host)


def _place_of(reader: RequestReader) -> PlaceOf | None:
    path = reader.path.partition("?")[0]
    body = bytes(reader.body) if reader.is_complete else None
    return place_for(reader.host, path, httpx2.Headers(reader.headers), body)


def _as_httpx(reader: RequestReader, body: bytes | None) -> httpx2.Request:
    """Return a request as a request of httpx2, which is not sent."""
    url = f"http://{reader.named_headers.get('host') or 'unknown'}{reader.path}"
    content: Any = iter(()) if body is None else body
    return httpx2.Request(reader.method, url, headers=reader.headers, content=content)


def _recorded_data(connection: Any, data: Any, sending: _Sending) -> Any:
    """Record data that is sent; return it, or the parts of a file or of an iterable as they are sent."""
    if isinstance(data, bytes | bytearray | memoryview):
        _add(connection, sending, bytes(data))
        return data
    parts = iter(lambda: data.read(65536), data.read(0)) if hasattr(data, "read") else iter(data)
    return _parts(connection, parts, sending)


def _parts(connection: Any, parts: Iterator[Any], sending: _Sending) -> Iterator[bytes]:
    for part in parts:
        sent = part.encode("iso-8859-1") if isinstance(part, str) else bytes(part)
        _add(connection, sending, sent)
        yield sent


@guarded
def _add(connection: Any, sending: _Sending, data: bytes) -> None:
    reader = sending.reader
    if reader is None:
        return
    body = reader.feed(data)
    if sending.exchange is not None:
        if body:
            sending.exchange.add_request_chunk(body)
        sending.exchange.sends_body = not reader.is_complete
    elif sending.is_undecided and reader.is_complete:
        sending.is_undecided = False
        if (place_of := _place_of(reader)) is not None:
            request = _as_httpx(reader, bytes(reader.body))
            sending.start(connection, request, place_of)


@guarded
def _record_response(response: Any, sending: _Sending) -> None:
    exchange = sending.exchange
    if exchange is None or response.fp is None:
        return
    headers = response.headers
    exchange.set_head(
        response.status,
        {n.lower(): v for n, v in headers.items()},
        headers.get("content-encoding", ""),
    )
    reader = BodyReader(response.length, is_chunked=bool(response.chunked))
    if reader.is_complete:
        exchange.finish("complete")
        return
    response.fp = RecordedFile(response.fp, exchange, reader)
    # A response that is neither read to its end nor closed ends when it is garbage collected.
    weakref.finalize(response.fp, exchange.finish, "cancelled").atexit = False


class RecordedFile:
    """The file from which a response reads its body, recorded when the program reads it."""

    def __init__(self, inner: Any, exchange: OpenExchange, reader: BodyReader) -> None:
        """Read from `inner`; `reader` removes the framing."""
        self._inner, self._exchange, self._reader = inner, exchange, reader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def read(self, amt: int | None = -1) -> bytes:
        """Read up to `amt` bytes; fewer only at the end of the connection."""
        wanted = -1 if amt is None else amt
        return self._read(lambda: self._inner.read(wanted), wanted if wanted >= 0 else None)

    def read1(self, amt: int = -1) -> bytes:
        """Read the bytes that have arrived."""
        return self._read(lambda: self._inner.read1(amt), min(amt, 1) if amt >= 0 else 1)

    def readline(self, limit: int = -1) -> bytes:
        """Read a line."""
        return self._read(lambda: self._inner.readline(limit), min(limit, 1) if limit >= 0 else 1)

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer."""
        view = memoryview(buffer).cast("B")
        return len(self._read(lambda: bytes(view[: self._inner.readinto(view)]), len(view)))

    def close(self) -> None:
        """Close the file."""
        try:
            self._inner.close()
        finally:
            self._exchange.finish("cancelled")

    def _read(self, read: Callable[[], bytes], expected: int | None) -> bytes:
        """Read and record; fewer bytes than `expected` mean that the connection has ended."""
        try:
            data = read()
        except BaseException as error:
            self._exchange.finish(*ending_of(_in_httpx(error)))
            raise
        self._note(data, expected is None or len(data) < expected)
        return data

    @guarded
    def _note(self, data: bytes, is_end: bool) -> None:
        if self._exchange.is_taken:
            return
        if body := self._reader.feed(data):
            self._exchange.add_chunk(body)
        if self._reader.is_complete or (is_end and self._reader.needs_end):
            self._exchange.finish("complete")
            if process.wait_seconds and (observer := process.exchange_observer) is not None:
                observer.wait(process.wait_seconds)
        elif is_end:
            message = "peer closed connection without sending complete message body"
            self._exchange.finish("cut", httpx2.RemoteProtocolError(message))


class _ServedSocket:
    """A socket that collects a request and returns its recorded response, or connects if there is none."""

    def __init__(self, connection: Any, connect: Callable[[], None]) -> None:
        self._connection, self._connect = weakref.ref(connection), connect
        self._reader = RequestReader()
        self._is_asked = False
        self._place_of: PlaceOf | None = None
        self._exchange: OpenExchange | None = None
        self._request: httpx2.Request | None = None
        self._answer: tuple[Answer, Callable[[], Exception] | None] | None = None
        self._real: Any = None

    def sendall(self, data: Any, *flags: int) -> None:
        """Collect a part of the request, or send it if the request is not answered."""
        if self._real is not None:
            self._real.sendall(data, *flags)
            return
        had_head = self._reader.has_head
        self._reader.feed(bytes(data))
        if self._reader.has_head and not had_head and not _may_be_model_call(self._reader):
            self._send(bytes(self._reader.sent))
        elif self._reader.is_complete and not self._is_asked:
            self._ask()

    def makefile(self, *args: Any, **kwargs: Any) -> Any:
        """Return the file from which the response is read."""
        if self._real is None and not self._is_asked:
            self._ask()
        if self._real is not None:
            return self._real.makefile(*args, **kwargs)
        return io.BufferedReader(_ServedBytes(self._deliver()))

    def _ask(self) -> None:
        """Get the recorded response, or send the request to the provider."""
        self._is_asked = True
        self._place_of = _place_of(self._reader)
        answerer = current().answerer
        if self._place_of is None or answerer is None:
            self._send(bytes(self._reader.sent))
            return
        request = _as_httpx(self._reader, bytes(self._reader.body))
        exchange = start_exchange(request, self._place_of, CLIENT, is_async=False)
        self._exchange, self._request = exchange, request
        connection = self._connection()
        if connection is not None:
            process.state(State).sending[connection] = _Sending(exchange)
        try:
            self._answer = recorded_answer(answerer, request, self._place_of, exchange)
        except ForwardRequest as forward:
            if exchange:
                exchange.request, exchange.question = forward.request(request), None
            self._send(self._forwarded(forward))
            return
        failure = self._answer[0].failure
        if failure is not None and failure.name.startswith("Connect"):
            self._deliver()  # raises the error when the client would connect

    def _forwarded(self, forward: ForwardRequest) -> bytes:
        """Return the bytes to send to the provider."""
        target = forward.target(self._reader.target)
        if forward.body is None and target == self._reader.target:
            return bytes(self._reader.sent)
        body = bytes(self._reader.body) if forward.body is None else forward.body
        return self._reader.changed(target, body)

    def _deliver(self) -> Iterator[bytes]:
        """Wait until the response may be delivered, and return its bytes."""
        assert self._answer is not None
        assert self._request is not None
        answer, stopped = self._answer
        try:
            return _framed(deliver(answer, self._request, stopped))
        except BaseException as error:
            if self._exchange:
                self._exchange.finish(*replayed_ending(answer, error))
            raise _native(error) from None

    def _send(self, data: bytes) -> None:
        """Connect, and send data through the real connection."""
        connection: Any = self._connection()
        connection.sock = None
        token = _connects.set(True)
        try:
            self._connect()
        finally:
            _connects.reset(token)
        self._real = connection.sock
        self._real.sendall(data)

    def close(self) -> None:
        """Close the real connection, if there is one."""
        if self._real is not None:
            self._real.close()

    def settimeout(self, value: float | None) -> None:
        """Ignore the timeout; a replay does not wait for a network."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or self._real is None:
            raise AttributeError(name)
        return getattr(self._real, name)


class _ServedBytes(io.RawIOBase):
    """A response as the bytes of a connection."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        super().__init__()
        self._parts, self._rest = parts, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            try:
                self._rest = next(self._parts)
            except (StopIteration, httpx2.RemoteProtocolError):
                return 0  # the end of the connection, which clients notice inside of a chunked body
            except Exception as error:
                raise _native(error) from None
        found = self._rest[: len(buffer)]
        buffer[: len(found)] = found
        self._rest = self._rest[len(found) :]
        return len(found)


def _framed(response: httpx2.Response) -> Iterator[bytes]:
    """Yield a response as the parts of a chunked message; each recorded chunk is one chunk."""
    status = response.status_code
    reason = HTTPStatus(status).phrase if status in set(HTTPStatus) else ""
    has_body = status not in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)
    lines = [f"HTTP/1.1 {status} {reason}".encode("ascii"), b"Connection: close"]
    lines += [name + b": " + value for name, value in response.headers.raw]
    lines += [b"Transfer-Encoding: chunked"] if has_body else []
    yield b"\r\n".join(lines) + b"\r\n\r\n"
    if has_body:
        stream: Any = response.stream
        for data in stream:
            yield b"%x\r\n%s\r\n" % (len(data), data) if data else b""
        yield b"0\r\n\r\n"


def _in_httpx(error: BaseException, *, is_connected: bool = True) -> BaseException:
    """Return the httpx2 error that corresponds to an error of a connection; other errors unchanged."""
    message = str(error)
    match error:
        case TimeoutError():
            return httpx2.ReadTimeout(message) if is_connected else httpx2.ConnectTimeout(message)
        case OSError() if not is_connected:
            return httpx2.ConnectError(message)
        case http.client.HTTPException():
            return httpx2.RemoteProtocolError(message)
        case OSError():
            return httpx2.ReadError(message)
        case _:
            return error


def _native(error: BaseException) -> BaseException:
    """Return the connection error that corresponds to a recorded httpx2 error; other errors unchanged."""
    message = str(error)
    match error:
        case httpx2.TimeoutException():
            return TimeoutError(message)
        case httpx2.ConnectError():
            return ConnectionRefusedError(errno.ECONNREFUSED, message)
        case httpx2.RemoteProtocolError():
            return http.client.RemoteDisconnected(message)
        case httpx2.TransportError():
            return ConnectionResetError(errno.ECONNRESET, message)
        case _:
            return error


class HostWatch:
    """Notes which providers' hosts the program resolves, until `stop`."""

    def __init__(self, is_provider_host: Callable[[str], bool]) -> None:
        """Start to watch `socket.getaddrinfo`, which all Python clients use."""
        self._original = original = socket.getaddrinfo

        def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(Exception):  # the original reports invalid names
                name = host.decode("ascii") if isinstance(host, bytes) else str(host)
                if is_provider_host(name):
                    process.state(AllState).resolved_hosts.add(name.lower())
            return original(host, *args, **kwargs)

        self._replacement = getaddrinfo
        socket.getaddrinfo = getaddrinfo

    def stop(self) -> None:
        """Restore the function, unless other code has replaced it in the meantime."""
        if socket.getaddrinfo is self._replacement:
            socket.getaddrinfo = self._original
