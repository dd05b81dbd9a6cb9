"""HTTP servers on the loopback interface, for tests."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class LoopbackServer(ThreadingHTTPServer):
    """Listens on a free port, and ignores clients that disconnect."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print an error unless the client has disconnected, because a thread may print it in the output of a later
        test.
        """
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)

    def start(self) -> None:
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        self.shutdown()
        self.server_close()


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve while the context is open; yield the URL."""
    server = LoopbackServer(handler)
    server.start()
    try:
        yield server.base_url
    finally:
        server.stop()
