"""The provider's own address, served on this machine: an HTTP proxy that takes all connections to it.

A program with a fixed base URL cannot be directed to a test provider, but the recording proxy can: it uses the HTTP
proxy of its environment and the certificates in `SSL_CERT_FILE`.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import urlsplit

from agentobs.proxy.client_variables import PROVIDER_URL
from tests.loopback import serving


@contextlib.contextmanager
def tunnel_to(provider_url: str, folder: Path) -> Iterator[dict[str, str]]:
    """Direct connections to the provider's address to a test provider.

    Args:
        provider_url: the address of the test provider, without TLS.
        folder: where to write the certificate and its key.

    Yields:
        The environment variables with which a program uses the tunnel.
    """
    host = urlsplit(PROVIDER_URL).hostname
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    algorithm = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-subj", f"/CN={host}", "-addext", f"subjectAltName=DNS:{host}", "-days", "2"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    command = ["openssl", "req", "-x509", *algorithm, *names, *files]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    port = urlsplit(provider_url).port

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_CONNECT(self) -> None:
            self.close_connection = True
            if self.path != f"{host}:443":
                self.send_error(403)
                return
            self.send_response(200)
            self.end_headers()
            with (
                context.wrap_socket(self.connection, server_side=True) as client,
                socket.create_connection(("127.0.0.1", port)) as server,
            ):
                _connect(client, server)

        def log_message(self, *arguments: object) -> None:
            pass

    with serving(Handler) as url:
        yield {"HTTPS_PROXY": url, "SSL_CERT_FILE": str(certificate)}


def _connect(client: socket.socket, server: socket.socket) -> None:
    """Pass on what either side sends, until the client has disconnected."""
    back = threading.Thread(target=_pass_on, args=(server, client), daemon=True)
    back.start()
    _pass_on(client, server)
    back.join()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
