"""A provider that writes what it is told to the socket, piece by piece: broken in every way a connection can be.

Each request is played by the next of the `plays`: a function that gets the `Call` and writes to it. What a play waits
for is what the client does (an event that the test sets), never time.
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
    """One request, and the connection to answer it on."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    _handler: Any = field(repr=False)
    _is_chunked: bool = False

    def head(
        self, status: int = 200, headers: dict[str, str] = SSE, *, framed: bool = True
    ) -> None:
        """Send the head; `framed` tells the client where the body ends, else the end of the connection does."""
        self._handler.send_response(status)
        for name, value in headers.items():
            self._handler.send_header(name, value)
        framing = ("transfer-encoding", "chunked") if framed else ("connection", "close")
        self._handler.send_header(*framing)
        self._handler.end_headers()
        self._is_chunked = framed

    def send(self, *pieces: bytes) -> None:
        """Send pieces of the body."""
        for piece in pieces:
            data = b"%x\r\n%s\r\n" % (len(piece), piece) if self._is_chunked else piece
            self._handler.wfile.write(data)
            self._handler.wfile.flush()

    def end(self) -> None:
        """End the body as it should end."""
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
        """Wait until the client has closed the connection, having answered nothing more."""
        self._handler.close_connection = True
        while self._handler.connection.recv(1024):
            pass


Play = Callable[[Call], None]


def play(answer: Answer) -> Play:
    """Return what plays an answer: whole, or cut."""

    def whole(call: Call) -> None:
        assert answer.status is not None
        call.head(answer.status, answer.headers)
        call.send(*(chunk.data for chunk in answer.chunks))
        call.end() if answer.ending == "complete" else call.drop()

    return whole


def pieces(status: int, headers: dict[str, str], *data: bytes) -> Play:
    """Return what plays an answer in exactly these pieces."""

    def whole(call: Call) -> None:
        call.head(status, headers)
        call.send(*data)
        call.end()

    return whole


def silent(call: Call) -> None:
    """Say nothing until the client has had enough."""
    call.wait_until_gone()


@dataclass
class Raw:
    """The provider: where it is, and what it was asked."""

    url: str
    asked: list[Call]


@contextmanager
def raw_provider(plays: Sequence[Play]) -> Iterator[Raw]:
    """Play the next of `plays` for each request; one that is too many gets a 418 that is not retried."""
    left, lock, asked = list(plays), threading.Lock(), list[Call]()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _play(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            names = {name.lower(): value for name, value in self.headers.items()}
            call = Call(self.command, self.path, names, body, self)
            with lock:
                asked.append(call)
                play = left.pop(0) if left else pieces(418, {"x-should-retry": "false", **JSON})
            play(call)

        do_GET = do_POST = do_DELETE = _play

        def log_message(self, *arguments: object) -> None:
            pass

    with serving(Handler) as url:
        yield Raw(url, asked)
