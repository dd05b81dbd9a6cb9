"""Targets that receive HTTP requests: dashboard, proxy, collector, and the server of recorded responses.

The bytes of a connection go through the same parser as in production, without a socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import h11
import httpx2
import uvicorn
from uvicorn.server import ServerState

from agentobs.cli.inspection.diff import comparison_of
from agentobs.collector.collected_sessions import CollectedSessions
from agentobs.collector.telemetry_collector import _config as collector_config
from agentobs.proxy.client_sessions import ClientSessions
from agentobs.proxy.client_variables import Upstream
from agentobs.proxy.forwarding import Forwarder
from agentobs.recording.wire.provider_server import Script, ServedProvider, ServeOptions, _Handler
from agentobs.records.exchanges import Place
from agentobs.runtime import replaced
from agentobs.store.duckdb.connection import connect
from dashboards.app import access_guard
from dashboards.app.access_guard import Guard, Keys, hosts_of
from dashboards.app.server import Bound
from dashboards.app.server import _config as dashboard_config
from dashboards.app.site import Site
from dashboards.app.store_view import Reader
from tests.collector.telemetry import api_request, logs
from tests.fuzzing.runner import Opened
from tests.importers.recorded_agent import recorded_pairs
from tests.provider_script import call, script, streamed, text
from tests.store.recordings import a_home, conversation, record, session_id

PORT = 8787
SECRET = "0f" * 32
TOKEN = "ab" * 16
WAIT_SECONDS = 0.03
"""How long a connection stays open after the response has begun, or if the request is not complete."""
END_SECONDS = 60.0
"""The time after which a request that does not end counts as a hang."""


class NotAnswered(Exception):
    """A request did not end after its client had disconnected."""


class _Transport(asyncio.Transport):
    """A connection to a client that keeps what the server writes."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.is_closed = False
        self.has_response = asyncio.Event()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 50_000), "sockname": ("127.0.0.1", PORT)}.get(
            name, default
        )

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data
        self.has_response.set()

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.is_closed

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class _Served:
    """An application of uvicorn without sockets, whose errors are raised."""

    def __init__(self, config: uvicorn.Config) -> None:
        self.loop = asyncio.new_event_loop()
        config.load()
        self._app, config.loaded_app = config.loaded_app, self._watched
        self._config = config
        self._protocol: Any = config.http_protocol_class
        self._errors: list[BaseException] = []

    async def _watched(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await self._app(scope, receive, send)
        except h11.LocalProtocolError:
            raise  # uvicorn has responded with 400 already, because the body is malformed
        except Exception as error:
            self._errors.append(error)
            raise

    def __call__(self, data: bytes) -> bool:
        """Send the bytes of one connection; return whether the first response is not an error.

        Raises:
            NotAnswered: the request did not end.
            Exception: the application raised it.
        """
        self._errors.clear()
        status = self.loop.run_until_complete(self._connection(data))
        if self._errors:
            raise self._errors[0]
        return status is not None and 200 <= status < 400

    async def _connection(self, data: bytes) -> int | None:
        state = ServerState()
        protocol: Any = self._protocol(
            config=self._config, server_state=state, app_state={}, _loop=self.loop
        )
        transport = _Transport()
        protocol.connection_made(transport)
        if data:
            protocol.data_received(data)
        for _ in range(4):
            await asyncio.sleep(0)
        if state.tasks and not protocol.cycle.more_body:
            begins = self.loop.create_task(transport.has_response.wait())
            await asyncio.wait(
                [*state.tasks, begins], timeout=END_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            begins.cancel()
        if state.tasks:
            await asyncio.wait(state.tasks, timeout=WAIT_SECONDS)
        protocol.connection_lost(None)
        if state.tasks:
            _, pending = await asyncio.wait(state.tasks, timeout=END_SECONDS)
            if pending:
                raise NotAnswered(f"{len(pending)} requests")
        for timer in ("timeout_keep_alive_task",):
            if (handle := getattr(protocol, timer, None)) is not None:
                handle.cancel()
        line = bytes(transport.written).partition(b"\r\n")[0].split(b" ")
        return int(line[1]) if len(line) > 1 and line[1].isdigit() else None

    def close(self) -> None:
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()


def _request(target: str, *headers: str, method: str = "GET", body: bytes = b"") -> bytes:
    if body:
        headers = (*headers, f"content-length: {len(body)}")
    return "\r\n".join([f"{method} {target} HTTP/1.1", *headers, "", ""]).encode("latin-1") + body


def _sealer(*headers: str, path: str = "/") -> Callable[[bytes], bytes]:
    """Return a function that makes bytes a request in which only the target, other headers and the body are changed.

    The target starts with `path`; it is `path` if that does not end with a slash.
    """
    names = {each.partition(":")[0].encode() for each in headers} | {
        b"content-length",
        b"transfer-encoding",
    }

    def sealed(data: bytes) -> bytes:
        head, _, body = data.partition(b"\r\n\r\n")
        first, *lines = head.split(b"\r\n")
        method, _, rest = first.partition(b" ")
        target = re.sub(
            rb"[^!-~]", lambda found: b"%%%02X" % found[0][0], rest.rpartition(b" ")[0] or rest
        )
        if not path.endswith("/"):
            target = path.encode()
        elif not target.startswith(path.encode()):
            target = path.encode() + target[len(path) :]
        kept = [
            line
            for line in lines
            if _HEADER.fullmatch(line) and line.partition(b":")[0].lower() not in names
        ]
        found = [*headers, *(line.decode("latin-1") for line in kept)]
        made = re.sub(rb"[^A-Z]", b"", method).decode() or "GET"
        return _request(target.decode("ascii"), *found, method=made, body=body)

    return sealed


_HEADER = re.compile(rb"[A-Za-z0-9-]+:[ -~]*")


def _dashboard_seeds(attempt_id: str = "0" * 32) -> list[bytes]:
    """Return valid requests of the pages, and of an attempt of the first session."""
    keys = _keys()
    host, cookie = f"host: 127.0.0.1:{PORT}", f"cookie: {keys.cookie}={keys.secret}"
    form = ("content-type: application/x-www-form-urlencoded", f"origin: http://127.0.0.1:{PORT}")
    one, other = session_id(1), session_id(2)
    session, attempt = f"/sessions/{one}", f"/attempts/{attempt_id}"
    gets = (
        "/",
        "/?q=story&status=ok&page=2&sort=-cost",
        "/fleet",
        "/sql",
        "/sql/tables",
        "/revision",
        "/updates",
        "/sessions.csv?q=x",
        "/sessions.json?sort=cost",
        session,
        f"{session}?tab=cost",
        f"{session}/tree?q=weather",
        f"{session}/step?number=1",
        f"{session}/jobs",
        f"{session}/ledger",
        f"/compare?a={one}&b={other}",
        f"/compare/ticked?of={one}&of={other}",
        attempt,
        f"{attempt}/diff",
    )
    posts = (
        ("/sql", b"sql=SELECT+1&name=x"),
        ("/sql/query.csv", b"sql=SELECT+1"),
        ("/sql/queries", b"sql=SELECT+1&name=x"),
        ("/views", b"query=sort%3Dcost&name=x"),
        (f"{session}/transcript", b"find=hello"),
        (f"{session}/matches", b"find=hello"),
        ("/compare/texts", f"a={one}&b={other}".encode()),
        (f"{attempt}/exchange", b"x=1"),
        (f"{attempt}/raw", b"x=1"),
    )
    return [
        *(_request(path, host, cookie) for path in gets),
        *(_request(path, host, cookie, *form, method="POST", body=body) for path, body in posts),
    ]


def _keys(password: str | None = None) -> Keys:
    hosts = hosts_of(("127.0.0.1", "localhost"), PORT, "http")
    return Keys(hosts=hosts, scheme="http", port=PORT, token=None, password=password, secret=SECRET)


@contextlib.contextmanager
def dashboard_guard(folder: Path) -> Iterator[Opened]:
    """The access guard of the dashboard, with a password, in front of an empty application."""

    async def empty(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    bound = Bound((), _keys("correct horse battery"), f"http://127.0.0.1:{PORT}/", None)
    config = dashboard_config(bound, _NO_SITE, lambda: None)
    config.app = Guard(empty, bound.keys)
    served = _Served(config)
    host, origin = f"host: 127.0.0.1:{PORT}", f"origin: http://127.0.0.1:{PORT}"
    form = "content-type: application/x-www-form-urlencoded"
    body = b"password=correct+horse+battery"
    seeds = [*(each for each in _dashboard_seeds() if each.startswith(b"GET"))][:4]
    seeds += [
        _request("/login", host),
        _request("/login", host, origin, form, method="POST", body=body),
        _request(
            "/leave", host, origin, form, "sec-fetch-site: same-origin", method="POST", body=b"x=1"
        ),
    ]

    delay, access_guard.DELAY_SECONDS = access_guard.DELAY_SECONDS, 0
    try:
        yield Opened(seeds, served, _sealer(host, origin, form, "sec-fetch-site: same-origin"))
    finally:
        access_guard.DELAY_SECONDS = delay
        served.close()


@contextlib.contextmanager
def dashboard_pages(folder: Path) -> Iterator[Opened]:
    """The pages of the dashboard."""
    home = a_home(folder)
    record(home, [*conversation(1, turns=2), *conversation(2, turns=1)])
    with Reader(home) as reader:
        bound = Bound((), _keys(), f"http://127.0.0.1:{PORT}/", None)
        site = Site(home=home, reader=reader, compare=comparison_of)
        served = _Served(dashboard_config(bound, site, lambda: None))
        with connect(home) as connection:
            sql = "SELECT attempt_id FROM attempts WHERE session_id = ?"
            attempt = connection.execute(sql, [session_id(1)]).fetchone()
        assert attempt is not None
        seeds = _dashboard_seeds(attempt[0])
        cookie = f"cookie: {bound.keys.cookie}={SECRET}"
        host, origin = f"host: 127.0.0.1:{PORT}", f"origin: http://127.0.0.1:{PORT}"
        form = "content-type: application/x-www-form-urlencoded"
        try:
            yield Opened(seeds, served, _sealer(host, cookie, origin, form))
        finally:
            served.close()


class _Sessions:
    """A session of a proxy that is not recorded."""

    def place(self) -> Place:
        return Place("0" * 32)


class _Provider(httpx2.AsyncBaseTransport):
    """A provider that gives the same response to each request."""

    def __init__(self, headers: dict[str, str], body: bytes) -> None:
        self._headers, self._body = headers, body

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await request.aread()
        assert request.url.host == "upstream.example", request.url
        assert request.url.raw_path.startswith(b"/base/") or request.url.path == "/base", (
            request.url
        )
        return httpx2.Response(200, headers=self._headers, stream=_Whole(self._body))


class _Whole(httpx2.AsyncByteStream):
    def __init__(self, body: bytes) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._body


@contextlib.contextmanager
def proxy(folder: Path) -> Iterator[Opened]:
    """The recording proxy, in front of a provider that answers at once."""
    pair = recorded_pairs(stream=True)[0]
    sessions = ClientSessions(lambda *_: _Sessions(), lambda *_: None)  # type: ignore[arg-type]

    forwarder = Forwarder(
        {
            "anthropic": Upstream(
                "ANTHROPIC_BASE_URL", "anthropic", "http://upstream.example/base", True
            )
        },
        sessions,
        TOKEN,
        wrap=lambda inner: _Provider(pair.response_headers, pair.response_body),
    )
    app = forwarder.application()
    config = uvicorn.Config(
        app,
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
    )
    served = _Served(config)
    body = pair.request_body
    headers = [
        f"{name}: {value}"
        for name, value in pair.request_headers.items()
        if name != "content-length"
    ]
    seeds = [
        _request(f"/{TOKEN}/anthropic/v1/messages?beta=true", *headers, method="POST", body=body),
        _request(f"/{TOKEN}/anthropic/v1/models", "host: h", "x-agentobs-session: named"),
        _request(f"/{TOKEN}/anthropic/messages", "host: h", "transfer-encoding: chunked", method="POST")
        + b"5\r\nhello\r\n0\r\n\r\n",
        _request(
            f"/{TOKEN}/anthropic/v1/messages", "host: h", "anthropic-version: 2023-06-01", method="POST",
            body=json.dumps({"model": "x", "metadata": {"user_id": "user_1_session_" + "5" * 8}, "messages": []})
            .encode(),
        ),
    ]  # fmt: skip
    lifespan = app.router.lifespan_context(app)
    with replaced(identifies_callers=False):
        served.loop.run_until_complete(lifespan.__aenter__())
        try:
            yield Opened(seeds, served, _sealer("host: h", path=f"/{TOKEN}/anthropic/"))
        finally:
            served.loop.run_until_complete(lifespan.__aexit__(None, None, None))
            served.close()


class _Collected(CollectedSessions):
    """Sessions of a collector that are not recorded."""

    def add(self, records: Any) -> int:
        return len(list(records))


@contextlib.contextmanager
def collector(folder: Path) -> Iterator[Opened]:
    """The HTTP server of the collector."""
    served = _Served(collector_config(_Collected()))
    body = json.dumps(logs(api_request("req_1"))).encode()
    seeds = [
        _request(
            f"/v1/{kind}",
            "host: 127.0.0.1",
            "content-type: application/json",
            method="POST",
            body=body,
        )
        for kind in ("logs", "traces", "metrics")
    ]
    try:
        content = "content-type: application/json"
        yield Opened(seeds, served, _sealer("host: 127.0.0.1", content, path="/v1/logs"))
    finally:
        served.close()


class _Socket:
    """A socket of a client that has sent some bytes and waits."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.written = bytearray()

    def makefile(self, mode: str, *_: object) -> Any:
        return io.BufferedReader(io.BytesIO(self._data))  # type: ignore[type-var, arg-type, unused-ignore]

    def sendall(self, data: bytes) -> None:
        self.written += data

    def setsockopt(self, *_: object) -> None:
        pass

    def settimeout(self, *_: object) -> None:
        pass

    def shutdown(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def recorded_provider(folder: Path) -> Iterator[Opened]:
    """The server of recorded responses."""
    recording = script(streamed(call(1, "look"), number=1), streamed(text("Done."), number=2))
    provider = ServedProvider(recording, ServeOptions(match="order", strict=True))
    server = provider._server
    port = server.server_address[1]
    pair = recorded_pairs()[1]
    headers = [f"{name}: {value}" for name, value in pair.request_headers.items()]
    headers = [each for each in headers if not each.startswith(("content-length", "host"))]
    host = f"host: 127.0.0.1:{port}"
    message = _request("/v1/messages", host, *headers, method="POST", body=pair.request_body)
    seeds = [
        message + message,
        _request("/v1/messages", host, "transfer-encoding: chunked", method="POST")
        + b"2\r\n{}\r\n0\r\n\r\n",
        _request("/", host, method="HEAD"),
    ]

    def run(data: bytes) -> bool:
        provider.script = Script(recording, "order")
        connection = _Socket(data)
        _Handler(connection, ("127.0.0.1", 1), server)  # type: ignore[arg-type]
        return (
            connection.written.startswith(b"HTTP/1.1 200") or b"not_recorded" in connection.written
        )

    try:
        yield Opened(seeds, run, _sealer(host))
    finally:
        server.server_close()


_NO_SITE: Any = Site(home=None, reader=None)  # type: ignore[arg-type]
