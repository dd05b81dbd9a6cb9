"""JSON-RPC: pairs the requests and the responses in the two directions of one MCP connection."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

Sender = Literal["client", "server"]

LINE_MAX = 32 * 1024 * 1024
"""The longest message that is read, in bytes; longer ones are forwarded and not recorded. Our choice."""
OPEN_MAX = 10_000
"""The maximum number of requests that may wait for their responses. Our choice."""


@dataclass(frozen=True, slots=True)
class Moment:
    """When a message passed."""

    wall_ns: int
    """Nanoseconds since 1970."""
    clock_ns: int
    """Nanoseconds on a clock that does not jump."""


@dataclass(frozen=True, slots=True)
class RpcExchange:
    """A request and its response."""

    sender: Sender
    """Who sent the request."""
    method: str
    request: dict[str, Any] = field(repr=False)
    request_bytes: int
    started: Moment
    response: dict[str, Any] | None = field(default=None, repr=False)
    """None if the connection ended before the response."""
    response_bytes: int | None = None
    ended: Moment | None = None


@dataclass(slots=True)
class RpcPairs:
    """The requests of one connection that wait for their responses."""

    receive: Callable[[RpcExchange], None]
    """Receives each exchange when it is complete, or when the connection has ended."""
    _open: dict[tuple[Sender, str], RpcExchange] = field(default_factory=dict)

    def message(self, sender: Sender, data: bytes, at: Moment) -> None:
        """Receive one message as it was sent; other data than JSON-RPC is ignored."""
        if len(data) > LINE_MAX:
            return
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            return
        batch = value if isinstance(value, list) else [value]
        for each in batch:
            if isinstance(each, dict):
                size = len(data) if len(batch) == 1 else len(json.dumps(each))
                self._single(sender, each, size, at)

    def close(self) -> None:
        """Pass on the requests that got no response."""
        for each in self._open.values():
            self.receive(each)
        self._open.clear()

    def _single(self, sender: Sender, value: dict[str, Any], size: int, at: Moment) -> None:
        if value.get("id") is None:
            return  # a notification
        key = json.dumps(value["id"])
        method = value.get("method")
        if isinstance(method, str):
            self._open[sender, key] = RpcExchange(sender, method, value, size, at)
            if len(self._open) > OPEN_MAX:
                self.receive(self._open.pop(next(iter(self._open))))
            return
        other: Sender = "server" if sender == "client" else "client"
        asked = self._open.pop((other, key), None)
        if asked is not None:
            self.receive(
                RpcExchange(
                    asked.sender, asked.method, asked.request, asked.request_bytes, asked.started, value, size, at
                )
            )  # fmt: skip


@dataclass(slots=True)
class Lines:
    """Splits a stream into lines; a line that is too long is left out."""

    _rest: bytearray = field(default_factory=bytearray)
    _is_too_long: bool = False

    def add(self, data: bytes, *, keeps_empty: bool = False) -> Iterator[bytes]:
        """Yield the lines that are complete now, without empty ones unless they are to be kept."""
        *lines, rest = data.split(b"\n")
        for line in lines:
            whole, self._rest = bytes(self._rest) + line, bytearray()
            if not self._is_too_long and (keeps_empty or whole.strip()):
                yield whole
            self._is_too_long = False
        self._rest += rest
        if len(self._rest) > LINE_MAX:
            self._rest, self._is_too_long = bytearray(), True


class StdioTraffic:
    """The two directions of a connection over standard input and output; safe to share between threads."""

    def __init__(self, receive: Callable[[RpcExchange], None]) -> None:
        """Pass each exchange to `receive`."""
        self._pairs = RpcPairs(receive)
        self._lines: dict[Sender, Lines] = {"client": Lines(), "server": Lines()}
        self._lock = threading.Lock()

    def __call__(self, sender: Sender, data: bytes, at: Moment) -> None:
        """Receive data of one direction."""
        with self._lock:
            for line in self._lines[sender].add(data):
                self._pairs.message(sender, line, at)

    def close(self) -> None:
        """Pass on the requests that got no response."""
        with self._lock:
            self._pairs.close()


__all__ = ["Lines", "Moment", "RpcExchange", "RpcPairs", "Sender", "StdioTraffic"]
