"""HTTP traffic: the JSON-RPC messages of a server over streamable HTTP.

A request is a POST. Its response is JSON, or a stream of events that may also contain requests of the server; a GET
opens another such stream. Source: modelcontextprotocol.io/specification, transports, 2026-11.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from agentobs import world
from agentobs.effects.mcp.json_rpc import LINE_MAX, Lines, Moment, RpcExchange, RpcPairs

SESSION_HEADER = "mcp-session-id"
SESSIONS_MAX = 1000
"""The maximum number of sessions of a server that are remembered. Our choice."""


class HttpTraffic:
    """The messages of one server, from all its HTTP requests; used by one thread."""

    def __init__(self, receive: Callable[[RpcExchange], None]) -> None:
        """Pass each exchange to `receive`."""
        self._receive = receive
        self._pairs: OrderedDict[str, RpcPairs] = OrderedDict()
        """The open requests by session."""

    def request(self, session_id: str, body: bytes) -> HttpRequest:
        """Receive an HTTP request; return the receiver of its response."""
        pairs = self._pairs.pop(session_id, None) or RpcPairs(self._receive)
        self._pairs[session_id] = pairs
        if len(self._pairs) > SESSIONS_MAX:
            self._pairs.popitem(last=False)[1].close()
        if body:
            pairs.message("client", body, _now())
        return HttpRequest(pairs, _ids(body))

    def close(self) -> None:
        """Pass on the requests that got no response."""
        for each in self._pairs.values():
            each.close()


@dataclass(slots=True)
class HttpRequest:
    """Receives the response to one HTTP request."""

    _pairs: RpcPairs
    _ids: list[object]
    """The IDs of the JSON-RPC requests in its body."""
    _status: int = 0
    _is_stream: bool = False
    _body: bytearray = field(default_factory=bytearray)
    _lines: Lines = field(default_factory=Lines)
    _data: list[bytes] = field(default_factory=list)

    def response(self, status: int, content_type: str) -> None:
        """Receive the start of the response."""
        self._status, self._is_stream = status, content_type.startswith("text/event-stream")

    def add(self, data: bytes) -> None:
        """Receive a part of the decoded body."""
        if not self._is_stream:
            if len(self._body) <= LINE_MAX:
                self._body += data
            return
        for line in self._lines.add(data, keeps_empty=True):
            self._line(line.rstrip(b"\r"))

    def end(self) -> None:
        """Receive the end of the response. An error status counts as the response to each request that has no other."""
        if self._body:
            self._pairs.message("server", bytes(self._body), _now())
        if self._status >= 400:
            for each in self._ids:
                error = {"code": self._status, "message": f"HTTP status {self._status}"}
                answer = {"jsonrpc": "2.0", "id": each, "error": error}
                self._pairs.message("server", json.dumps(answer).encode(), _now())

    def _line(self, line: bytes) -> None:
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
        elif not line and self._data:
            self._pairs.message("server", b"\n".join(self._data), _now())
            self._data = []


def _now() -> Moment:
    return Moment(world.now(), world.monotonic())


def _ids(body: bytes) -> list[object]:
    try:
        value = json.loads(body) if 0 < len(body) <= LINE_MAX else None
    except (ValueError, RecursionError):
        return []
    messages = value if isinstance(value, list) else [value]
    return [
        each["id"]
        for each in messages
        if isinstance(each, dict) and "method" in each and "id" in each
    ]


__all__ = ["SESSION_HEADER", "HttpRequest", "HttpTraffic"]
