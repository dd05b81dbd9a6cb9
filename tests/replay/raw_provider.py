"""A provider that writes given chunks to the socket, to simulate every way in which a connection can break.

Each request is handled by the next of the `plays`, functions that receive the `Call` and write to it. A play waits only
for actions of the client (an event that the test sets), never for time.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from agentobs.records.exchanges import Answer
from tests.loopback import serving

SSE = {"content-type": "text/event-stream; charset=utf-8"}
JSON = {"content-type": "application/json"}


@dataclass
class Call:
    """One request, and the connection for its response."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    _handler: Any = field(repr=False)
    _is_chunked: bool = False

    def send_headers(
        self, status: int = 200, headers: dict[str, str] = SSE, *, framed: bool = True
    ) -> None:
        """Send status line and headers. With `framed`, the body is chunked; otherwise the end of the connection ends
        it.
        """
        self._handler.send_response(status)
        for name, value in headers.items():
            self._handler.send_header(name, value)
        framing = ("transfer-encoding", "chunked") if framed else ("connection", "close")
        self._handler.send_header(*framing)
        self._handler.end_headers()
        self._is_chunked = framed

    def send(self, *chunks: bytes) -> None:
        """Send chunks of the body."""
        for chunk in chunks:
            data = b"%x\r\n%s\r\n" % (len(chunk), chunk) if self._is_chunked else chunk
            self._handler.wfile.write(data)
            self._handler.wfile.flush()

    def end(self) -> None:
        """End the body correctly."""
        if self._is_chunked:
            self._handler.wfile.write(b"0\r\n\r\n")
        else:
            self.drop()

    def drop(self) -> None:
        """Close the connection."""
        self._handler.close_connection = True
        self._handler.wfile.flush()
        self._handler.connection.shutdown(socket.SHUT_RDWR)

    def wait_until_gone(self) -> None:
        """Wait until the client has closed the connection, without sending anything else."""
        self._handler.close_connection = True
        while self._handler.connection.recv(1024):
            pass


Play = Callable[[Call], None]


def play(answer: Answer) -> Play:
    """Return a play that sends a recorded response, complete or cut off."""

    def send_response(call: Call) -> None:
        assert answer.status is not None
        call.send_headers(answer.status, answer.headers)
        call.send(*(chunk.data for chunk in answer.chunks))
        call.end() if answer.ending == "complete" else call.drop()

    return send_response


def play_chunks(status: int, headers: dict[str, str], *data: bytes) -> Play:
    """Return a play that sends a response in exactly these chunks."""

    def send_response(call: Call) -> None:
        call.send_headers(status, headers)
        call.send(*data)
        call.end()

    return send_response


def no_response(call: Call) -> None:
    """Send nothing until the client closes the connection."""
    call.wait_until_gone()


def drop(call: Call) -> None:
    """Break the connection in the middle of a response."""
    call.send_headers()
    call.send(b"event: ping\n\n")
    call.drop()


def hang_up(call: Call) -> None:
    """Close the connection without a response."""
    call.drop()


def overloaded(call: Call) -> None:
    """Refuse the request, because the provider is overloaded."""
    call.send_headers(529, JSON)
    call.send(b'{"type": "error", "error": {"type": "overloaded_error", "message": "no"}}')
    call.end()


@dataclass
class RawProvider:
    """The URL of the provider, and the requests that it received."""

    url: str
    requests: list[Call]


@contextmanager
def raw_provider(plays: Sequence[Play]) -> Iterator[RawProvider]:
    """Handle each request with the next of `plays`; further requests get a 418 response that is not retried."""
    remaining, lock, requests = list(plays), threading.Lock(), list[Call]()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _play(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            while self.headers.get("transfer-encoding") == "chunked":
                part = self.rfile.read(int(self.rfile.readline(), 16))
                self.rfile.readline()
                if not part:
                    break
                body += part
            names = {name.lower(): value for name, value in self.headers.items()}
            call = Call(self.command, self.path, names, body, self)
            with lock:
                requests.append(call)
                play = (
                    remaining.pop(0)
                    if remaining
                    else play_chunks(418, {"x-should-retry": "false", **JSON})
                )
            play(call)

        do_GET = do_POST = do_DELETE = _play

        def log_message(self, *arguments: object) -> None:
            pass

    with serving(Handler) as url:
        yield RawProvider(url, requests)
