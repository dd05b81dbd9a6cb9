"""The server: runs the proxy in its own thread, on a socket that is bound before its URL is used."""

from __future__ import annotations

import asyncio
import ssl
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

import uvicorn

from agentobs import world
from agentobs.effects.mcp.http_traffic import HttpTraffic
from agentobs.errors import UsageError
from agentobs.proxy.client_sessions import ClientSessions
from agentobs.proxy.client_variables import Upstream, base_url_variables
from agentobs.proxy.forwarding import Counts, Forwarder, Sign, Wrap
from agentobs.proxy.listening import Address, listening_socket
from agentobs.proxy.mcp_forwarding import McpTees
from agentobs.tls import tls_context

TOKEN_BYTES = 16
"""The length of the random path segment: 128 bits, so that no other program of this machine can guess it."""
STOP_SECONDS = 2
"""How long responses in progress may continue when the proxy is stopped. Our choice."""
IDLE_CONNECTION_SECONDS = 300
"""How long an idle connection is kept open. Longer than clients reuse their connections, so that no request is sent on
a closed connection.
"""
IDLE_CHECK_SECONDS = 60.0
SWITCH_SECONDS = 0.0001
"""How long a thread may keep the interpreter while another one waits for it; Python's default is 5 ms. The recorder's
thread would otherwise delay the first chunk of a response by that time. Our choice.
"""
CERTIFICATES = "NODE_EXTRA_CA_CERTS"
"""The variable with additional certificate authorities of Node.js programs, which the proxy accepts as well."""


class Proxy:
    """A proxy on a socket; a context manager that serves while it is open."""

    def __init__(
        self,
        found: Sequence[Upstream],
        sessions: ClientSessions,
        address: Address | None = None,
        *,
        environment: Mapping[str, str],
        token: str | None = None,
        session_idle_seconds: float | None = None,
        sign: Sign | None = None,
        wrap: Wrap | None = None,
    ) -> None:
        """Bind the socket.

        Args:
            found: where to send requests, from `client_variables.upstreams`.
            sessions: assigns requests to sessions.
            address: where to listen; default a free port of 127.0.0.1.
            environment: the environment of the client, for its certificate authorities.
            token: the secret path segment of the proxy's URL; default a random one.
            session_idle_seconds: how long a session may have no request before it ends, in seconds; None means that
                sessions end with the proxy.
            sign: signs requests to AWS again, such as `AwsSigner`; None to forward or refuse them.
            wrap: returns a transport to use in place of each transport to the provider; None to use it unchanged.

        Raises:
            UsageError: the address cannot be used, or a file with certificates cannot be read.
        """
        self._address = address or Address()
        self._tls = tls_context(self._address.tls_cert, self._address.tls_key)
        self._socket = listening_socket(self._address)
        self._port = self._socket.getsockname()[1]
        self.token = token or world.random_bytes(TOKEN_BYTES).hex()
        self.upstreams = list(found)
        self._sessions = sessions
        self._session_idle_seconds = session_idle_seconds
        self._mcp = McpTees()
        self._forwarder = Forwarder(
            {each.route: each for each in found},
            sessions,
            self.token,
            _certificates(environment),
            sign,
            self._wrapped(wrap),
        )
        self._server = uvicorn.Server(self._config())
        self._has_stopped = threading.Event()
        self._switch_seconds = sys.getswitchinterval()
        # In a thread, uvicorn leaves the handling of signals to the main thread.
        self._thread = threading.Thread(target=self._serve, name="agentobs-proxy", daemon=True)

    @property
    def url(self) -> str:
        """The base URL of the proxy, with the token."""
        host, scheme = self._address.name, "https" if self._tls else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self._port}/{self.token}"

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that direct clients to this proxy."""
        return base_url_variables(self.url, self.upstreams)

    def forward_mcp(self, url: str, traffic: HttpTraffic) -> str:
        """Return the URL of this proxy for an MCP server, whose messages are reported from now on.

        Args:
            url: the URL of the server.
            traffic: receives the messages.
        """
        parts, route = urlsplit(url), f"mcp{len(self._forwarder.upstreams)}"
        origin = f"{parts.scheme}://{parts.netloc}"
        self._forwarder.upstreams = {
            **self._forwarder.upstreams,
            route: Upstream("", route, origin, is_default=False),
        }
        self._mcp.add(url, traffic)
        query = f"?{parts.query}" if parts.query else ""
        return f"{self.url}/{route}{parts.path or '/'}{query}"

    @property
    def counts(self) -> Counts:
        """The numbers of requests that the proxy has seen so far."""
        return self._forwarder.counts

    def __enter__(self) -> Proxy:
        """Start to serve; connections that arrive earlier wait."""
        sys.setswitchinterval(SWITCH_SECONDS)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop: responses in progress have a moment to end, and are cut off then."""
        self._server.should_exit = True
        self._has_stopped.wait()
        self._socket.close()
        sys.setswitchinterval(self._switch_seconds)

    def _wrapped(self, wrap: Wrap | None) -> Wrap:
        if wrap is None:
            return self._mcp.wrap
        return lambda inner: self._mcp.wrap(wrap(inner))

    def wait(self) -> None:
        """Serve until this thread is interrupted."""
        # Not `join`: if Ctrl-C interrupts it, Python 3.11 takes the thread for stopped.
        self._has_stopped.wait()

    def _serve(self) -> None:
        try:
            asyncio.run(self._serve_until_stopped())
        finally:
            self._has_stopped.set()

    async def _serve_until_stopped(self) -> None:
        checks = asyncio.ensure_future(self._close_idle_sessions())
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            checks.cancel()

    async def _close_idle_sessions(self) -> None:
        while self._session_idle_seconds is not None:
            await asyncio.sleep(min(IDLE_CHECK_SECONDS, self._session_idle_seconds))
            await asyncio.to_thread(self._sessions.close_idle, self._session_idle_seconds)

    def _config(self) -> uvicorn.Config:
        tls = self._tls
        return uvicorn.Config(
            self._forwarder.application(),
            loop="asyncio",
            ws="none",
            lifespan="on",
            # Access logs would contain the token.
            log_config=None,
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=IDLE_CONNECTION_SECONDS,
            timeout_graceful_shutdown=STOP_SECONDS,
            ssl_context_factory=(lambda config, usual: tls) if tls else None,
        )


def _certificates(environment: Mapping[str, str]) -> ssl.SSLContext | bool:
    """Return how to verify the provider: as usual, and with the certificate authorities of Node.js programs.

    Raises:
        UsageError: the file with certificate authorities cannot be read.
    """
    named = environment.get(CERTIFICATES)
    if not named:
        return True
    context = ssl.create_default_context()
    try:
        context.load_verify_locations(Path(named))
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"cannot read the certificates: {error.strerror or error}",
            where=f"{CERTIFICATES}={named}",
            todo="Correct the path, or unset the variable",
        ) from error
    return context
