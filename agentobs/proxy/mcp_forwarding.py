"""MCP forwarding: the proxy also forwards the requests to MCP servers over HTTP, and reports their messages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import httpx2

from agentobs.effects.mcp.http_traffic import SESSION_HEADER, HttpRequest, HttpTraffic
from agentobs.errors import error_kind, warn_once

BODY_MAX = 32 * 1024 * 1024
"""The longest body of a request that is read. Our choice."""


class McpTees:
    """The MCP servers that a proxy forwards to."""

    def __init__(self) -> None:
        """Start without servers."""
        self._servers: dict[str, HttpTraffic] = {}
        """The receivers of their messages, by origin and path."""

    def add(self, url: str, traffic: HttpTraffic) -> None:
        """Report the messages of the server with a URL."""
        self._servers[_key(url)] = traffic

    def wrap(self, inner: httpx2.AsyncBaseTransport) -> httpx2.AsyncBaseTransport:
        """Return a transport that reports the messages of MCP servers; other requests are passed on."""
        return _Tee(inner, self)

    def of(self, url: str) -> HttpTraffic | None:
        """Return the receiver of a server's messages; None if the URL is not that of an MCP server."""
        return self._servers.get(_key(url)) if self._servers else None


class _Tee(httpx2.AsyncBaseTransport):
    def __init__(self, inner: httpx2.AsyncBaseTransport, tees: McpTees) -> None:
        self._inner, self._tees = inner, tees

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        traffic = self._tees.of(str(request.url))
        if traffic is None:
            return await self._inner.handle_async_request(request)
        # A compressed response could not be read while it arrives.
        request.headers["accept-encoding"] = "identity"
        body = b""
        if request.method == "POST" and int(request.headers.get("content-length", 0)) <= BODY_MAX:
            body = await request.aread()
        exchange = traffic.request(request.headers.get(SESSION_HEADER, ""), body)
        response = await self._inner.handle_async_request(request)
        exchange.response(response.status_code, response.headers.get("content-type", ""))
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Reported(response.stream, exchange)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Reported(httpx2.AsyncByteStream):
    """A response body that is reported while it is read."""

    def __init__(self, inner: httpx2.AsyncByteStream, exchange: HttpRequest) -> None:
        self._inner, self._exchange = inner, exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for data in self._inner:
            self._report(data)
            yield data

    async def aclose(self) -> None:
        self._report(None)
        await self._inner.aclose()

    def _report(self, data: bytes | None) -> None:
        try:
            if data is None:
                self._exchange.end()
            else:
                self._exchange.add(data)
        except Exception as error:
            warn_once(f"an MCP call is not recorded: {error_kind(error)}", about="effects mcp")


def _key(url: str) -> str:
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return f"{parts.scheme}://{parts.hostname}:{port}{parts.path or '/'}"


__all__ = ["McpTees"]
