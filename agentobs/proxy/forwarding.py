"""Forwarding: the ASGI application that passes requests on to the provider, and records those that go to a model.

Bodies are forwarded as they arrive, in both directions and in their original encoding. A client that disconnects ends
the request to the provider, and a provider that breaks a response off breaks the connection to the client.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

import httpx2
from starlette.applications import Starlette
from starlette.routing import Route

from agentobs.errors import error_kind, warn_once
from agentobs.provider.content_encoding import decoded_body
from agentobs.provider.registry import dialect_of, is_model_call
from agentobs.proxy.client_sessions import SESSION_HEADER, ClientSessions
from agentobs.proxy.client_variables import Upstream
from agentobs.proxy.node_redirection import REDIRECTED
from agentobs.recording.wire import transport
from agentobs.recording.wire.transport import RECORDED_HEADER
from agentobs.records.exchanges import Place

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Wrap = Callable[[httpx2.AsyncBaseTransport], httpx2.AsyncBaseTransport]
Sign = Callable[[httpx2.Request], httpx2.Request]

CONNECT_SECONDS = 30.0
"""How long to wait for a connection to the provider. Our choice; otherwise the client's own time limits apply."""
WHOLE_BODY_BYTES = 64 * 1024 * 1024
"""The longest request to a model that is forwarded as a whole, because its session may be named in its body; twice the
limit of the provider. Longer bodies are forwarded as they arrive.
"""
HOP_BY_HOP = frozenset(
    (
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
        b"trailer", b"transfer-encoding", b"upgrade",
    )
)  # fmt: skip
"""The headers of a single connection (RFC 9110, section 7.6.1)."""
ERROR_HEADER = b"x-agentobs-error"
"""The header of responses that come from the proxy instead of the provider."""
SIGNED = b"AWS4-HMAC-SHA256"
"""The start of the authorization of requests that are signed for their URL (AWS Signature Version 4)."""
AWS_DOMAINS = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws")
"""The domains of AWS, which rejects requests that are signed for another URL; a gateway may accept them."""
SIGNED_FOR_PROXY = (
    "a request that is signed for the address of the agentobs proxy would be rejected by AWS. Use --sign-aws, set "
    "AWS_BEARER_TOKEN_BEDROCK, or record the client in its own process with agentobs.record"
)

_VERSION = b"/v1"
"""The path prefix that some clients omit because their default base URL ends with it (Vercel's AI SDK 6)."""

_place: ContextVar[Place] = ContextVar("agentobs_proxy_place")


@dataclass(slots=True)
class Counts:
    """The numbers of requests that a proxy has seen."""

    forwarded: int = 0
    """Requests that were forwarded, including those that are not recorded."""
    recorded: int = 0
    """Requests that were recorded."""
    recorded_by_client: int = 0
    """Requests that their client recorded itself, because it uses agentobs."""
    signed: int = 0
    """Requests that were refused because they are signed for the proxy."""
    unreachable: dict[str, str] = field(default_factory=dict)
    """The upstreams whose last request got no response: their URLs without credentials, and why."""


@dataclass(slots=True)
class Forwarder:
    """The application; `token` is the first segment of the path of each request, and `upstreams` are found by the
    second.
    """

    upstreams: Mapping[str, Upstream]
    sessions: ClientSessions
    token: str
    verify: Any = True
    """How to verify certificates: an `ssl.SSLContext`, or True for the default."""
    sign: Sign | None = None
    """Signs signed requests again; may wait, and raises `ValueError` if it cannot."""
    wrap: Wrap | None = None
    """Returns a transport to use in place of a transport to the provider, closer to the network than the recorder."""
    counts: Counts = field(default_factory=Counts)
    _recorded: httpx2.AsyncClient = field(init=False)
    _plain: httpx2.AsyncClient = field(init=False)

    def application(self) -> Starlette:
        """Return the ASGI application; its clients are open while it runs."""

        @contextlib.asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            async with self._client() as self._recorded, self._client() as self._plain:
                transport.instrument(self._recorded, _place.get)
                yield

        return Starlette(routes=[Route("/{path:path}", _Endpoint(self))], lifespan=lifespan)

    def _client(self) -> httpx2.AsyncClient:
        """Return a client that sends requests unchanged: it adds no headers, follows no redirects, and keeps no
        cookies.
        """
        client = httpx2.AsyncClient(
            timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=100),
            verify=self.verify,
        )
        if (wrap := self.wrap) is not None:
            client._transport = wrap(client._transport)
            mounts = client._mounts.items()
            client._mounts = {key: each if each is None else wrap(each) for key, each in mounts}
        return client

    async def forward(self, scope: Message, receive: Receive, send: Send) -> None:
        """Forward one request."""
        upstream, rest, is_redirected = self._route(scope["raw_path"])
        if upstream is None:
            await _refuse(send, 404, "this URL does not belong to the proxy", "")
            return
        headers = [(name.lower(), value) for name, value in scope["headers"]]
        if upstream.is_default and not _makes_turns(rest) and _makes_turns(_VERSION + rest):
            rest = _VERSION + rest
        target = rest + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        signs = not is_redirected and _is_signed(headers)
        if signs and self.sign is None:
            if (urlsplit(upstream.url).hostname or "").endswith(AWS_DOMAINS):
                self.counts.signed += 1
                await _refuse(send, 400, SIGNED_FOR_PROXY, rest.decode("latin-1"))
                return
            _warn_about_signature(upstream)
        by_name = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        is_call = is_model_call(target.decode("latin-1"), by_name) or _makes_turns(rest)
        is_recorded = is_call and RECORDED_HEADER not in by_name
        body = _Body(receive)
        try:
            is_whole = (is_recorded and _makes_turns(rest)) or (signs and self.sign is not None)
            whole = await body.read(WHOLE_BODY_BYTES if is_whole else 0)
        except ConnectionAbortedError:
            return
        self.counts.forwarded += 1
        self.counts.recorded += is_recorded
        self.counts.recorded_by_client += is_call and not is_recorded
        try:
            url = _url(upstream.url, target)
        except (ValueError, httpx2.InvalidURL):
            await _refuse(send, 400, "the path of the request is not valid", "")
            return
        request = httpx2.Request(
            scope["method"],
            url,
            headers=_forwarded_headers(headers),
            content=body.remaining() if whole is None else whole,
        )
        request.extensions = {**request.extensions, "timeout": self._recorded.timeout.as_dict()}
        if signs and self.sign is not None:
            try:
                if whole is None:
                    raise ValueError("the body is too long to be signed")
                request = await asyncio.to_thread(self.sign, request)
            except ValueError as error:
                text = f"the agentobs proxy cannot sign the request: {error}"
                await _refuse(send, 400, text, rest.decode("latin-1"))
                return
        if not is_recorded:
            await self._exchange(self._plain, request, body, send, upstream)
            return
        readable = whole and decoded_body(whole, by_name.get("content-encoding", ""))
        found = self.sessions.known_place_of(by_name, readable)
        if found is None:  # in a thread, because a resumed conversation is looked up in the store
            found = await asyncio.to_thread(self.sessions.place_of, by_name, readable)
        place, key = found
        token = _place.set(place)
        try:
            await self._exchange(self._recorded, request, body, send, upstream)
        finally:
            _place.reset(token)
            self.sessions.ended(key)

    def _route(self, raw_path: bytes) -> tuple[Upstream | None, bytes, bool]:
        """Return the upstream of a path, the rest of the path, and whether the request was redirected."""
        _, _, path = raw_path.partition(b"/")
        token, _, path = path.partition(b"/")
        name, slash, rest = path.partition(b"/")
        if not hmac.compare_digest(token, self.token.encode()):
            return None, b"", False
        route = name.decode("latin-1")
        upstream = self.upstreams.get(route.removeprefix(REDIRECTED))
        return upstream, slash + rest, route.startswith(REDIRECTED)

    async def _exchange(
        self,
        client: httpx2.AsyncClient,
        request: httpx2.Request,
        body: _Body,
        send: Send,
        upstream: Upstream,
    ) -> None:
        """Send a request and return its response to the client, until either of them disconnects."""
        relay = asyncio.ensure_future(self._relay(client, request, send, upstream))
        disconnect = asyncio.ensure_future(body.disconnected())
        try:
            await asyncio.wait((relay, disconnect), return_when=asyncio.FIRST_COMPLETED)
            if relay.done():
                relay.result()
        finally:
            for each in (relay, disconnect):
                each.cancel()
            await asyncio.gather(relay, disconnect, return_exceptions=True)

    async def _relay(
        self, client: httpx2.AsyncClient, request: httpx2.Request, send: Send, upstream: Upstream
    ) -> None:
        try:
            response = await client.send(request, stream=True)
        except ConnectionAbortedError:  # the client has disconnected during its request
            return
        except (httpx2.TransportError, OSError) as error:
            shown = f"{_without_user(upstream.url)}: {error_kind(error)}"
            self.counts.unreachable[upstream.url] = shown
            text = f"the agentobs proxy got no response from {shown}"
            await _refuse(send, 502, text, request.url.path)
            return
        self.counts.unreachable.pop(upstream.url, None)
        try:
            start = {
                "type": "http.response.start",
                "status": response.status_code,
                "headers": _end_to_end(response.headers.raw),
            }
            await send(start)
            async for data in response.aiter_raw():
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await response.aclose()


@dataclass(slots=True)
class _Endpoint:
    """An ASGI application, which Starlette calls for each method; it does not change HEAD or OPTIONS requests."""

    forwarder: Forwarder

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        await self.forwarder.forward(scope, receive, send)


class _Body:
    """The body of a request, as it arrives."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._parts: list[bytes] = []
        self._has_arrived = asyncio.Event()

    async def read(self, bytes_max: int) -> bytes | None:
        """Return the whole body; None as soon as it exceeds `bytes_max` before it has arrived completely.

        Raises:
            ConnectionAbortedError: the client has disconnected.
        """
        size = 0
        while not self._has_arrived.is_set():
            size += len(await self._next())
            if size > bytes_max and not self._has_arrived.is_set():
                return None
        return b"".join(self._parts)

    async def remaining(self) -> AsyncIterator[bytes]:
        """Yield the part of the body that was read, and then what arrives.

        Raises:
            ConnectionAbortedError: the client has disconnected.
        """
        while self._parts or not self._has_arrived.is_set():
            if not self._parts:
                await self._next()
            yield self._parts.pop(0)

    async def disconnected(self) -> None:
        """Return when the client has disconnected. While the body arrives, its reader finds out."""
        await self._has_arrived.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ConnectionAbortedError("the client disconnected during its request")
        self._parts.append(message.get("body", b""))
        if not message.get("more_body"):
            self._has_arrived.set()
        return self._parts[-1]


def _url(base: str, target: bytes) -> httpx2.URL:
    """Return the URL of a request: the base URL of the provider and the path of the client.

    Raises:
        ValueError: the path contains segments that lead out of the base URL.
        httpx2.InvalidURL: the path contains characters that a URL cannot have.
    """
    segments = unquote_to_bytes(target.partition(b"?")[0]).split(b"/")
    if b"." in segments or b".." in segments:
        raise ValueError("the path contains dot segments")
    root = httpx2.URL(base)
    return root.copy_with(raw_path=root.raw_path.rstrip(b"/") + target)


def _end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return headers without those of a single connection."""
    found = list(headers)
    named = {
        name.strip().lower()
        for key, value in found
        if key.lower() == b"connection"
        for name in value.split(b",")
    }
    return [(key, value) for key, value in found if key.lower() not in HOP_BY_HOP | named]


def _without_user(url: str) -> str:
    """Return a URL without the name and the password of a user."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _forwarded_headers(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers to send to the provider, without those of the proxy and of the connection."""
    dropped = {b"host", b"expect", SESSION_HEADER.encode(), RECORDED_HEADER.encode()}
    if any(key == b"transfer-encoding" for key, _ in headers):
        dropped.add(b"content-length")  # it is not the length of the body (RFC 9112, section 6.3)
    return [(key, value) for key, value in _end_to_end(headers) if key not in dropped]


def _makes_turns(path: bytes) -> bool:
    text = path.decode("latin-1")
    return dialect_of(text).makes_turns(text)


async def _refuse(send: Send, status: int, message: str, path: str) -> None:
    """Send an error in the form that the provider uses for this path."""
    body = dialect_of(path).error_body(status, message)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (ERROR_HEADER, b"1"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _is_signed(headers: list[tuple[bytes, bytes]]) -> bool:
    return any(key == b"authorization" and value.startswith(SIGNED) for key, value in headers)


def _warn_about_signature(upstream: Upstream) -> None:
    """Warn about a gateway that may reject a request, because its signature contains the address of the proxy."""
    warn_once(
        f"requests to {_without_user(upstream.url)} are signed for the proxy's address, so the gateway may reject "
        "them. In this case, use --sign-aws",
        about="signed requests",
    )
