"""An HTTP proxy on loopback that refuses every request and remembers the host.

A program that uses the proxy variables of its environment cannot reach the network through it. A program that ignores
them, and one that opens sockets itself, is not stopped.
"""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

HOSTS_MAX = 1000
"""The maximum number of different hosts that are kept. Our choice."""
PROXY_VARIABLES = (
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"),
    *("npm_config_proxy", "npm_config_https_proxy"),
)
"""The variables from which curl, Python, Go, Node.js, npm and others read the proxy."""
NODE_VARIABLE = "NODE_USE_ENV_PROXY"
"""Makes Node.js read these variables, from version 24 on (https://nodejs.org/api/cli.html, 2026-11)."""
UNPROXIED = ("NO_PROXY", "no_proxy")


class RefusingProxy:
    """The proxy; a context manager that listens while it is open."""

    def __init__(self) -> None:
        """Bind a free port of 127.0.0.1."""
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        )

    @property
    def refused(self) -> tuple[str, ...]:
        """The refused hosts with their ports, in the order of the first attempt."""
        with self._server.lock:
            return tuple(self._server.hosts)

    def variables(self) -> dict[str, str]:
        """Return the environment variables that direct a program to the proxy, except for loopback addresses."""
        url = f"http://127.0.0.1:{self._server.server_address[1]}"
        local = "127.0.0.1,localhost,::1"
        proxied = {**dict.fromkeys(PROXY_VARIABLES, url), **dict.fromkeys(UNPROXIED, local)}
        return {**proxied, NODE_VARIABLE: "1"}

    def __enter__(self) -> RefusingProxy:
        """Start listening."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        self.hosts: dict[str, None] = {}
        self.lock = threading.Lock()
        super().__init__(*arguments)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of a connection, such as a client that disconnects."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def _refuse(self) -> None:
        target = self.path if self.command == "CONNECT" else urlsplit(self.path).netloc
        with self.server.lock:
            if target and len(self.server.hosts) < HOSTS_MAX:
                self.server.hosts[target[:256]] = None
        body = b"the network is closed during a replay\n"
        self.send_response(403, "Forbidden during a replay")
        self.send_header("content-type", "text/plain")
        self.send_header("content-length", str(len(body)))
        self.send_header("connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.close_connection = True

    do_CONNECT = do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _refuse

    def log_message(self, format: str, *args: Any) -> None:
        """Write no access log."""
