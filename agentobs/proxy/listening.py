"""Listening: the address of the proxy. Beyond loopback it requires an explicit permission, TLS and a secret."""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass, field
from pathlib import Path

from agentobs.errors import UsageError

BACKLOG = 1024
"""The maximum number of connections that may wait to be accepted. Our choice."""
SECRET_LENGTH = 16
"""The minimum length of a secret. Our choice."""
_SECRET = re.compile(rf"[A-Za-z0-9._~-]{{{SECRET_LENGTH},}}")
"""A secret is a part of the URL, so it has only characters that need no encoding there (RFC 3986, section 2.3)."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address on which a proxy listens."""

    bind: str = "127.0.0.1"
    """The IP address to bind."""
    port: int = 0
    """The port; 0 means any free port."""
    remote: str | None = None
    """The name under which other machines reach the proxy; None means that only this machine does."""
    secret: str | None = field(default=None, repr=False)
    """The secret in the URL; None means a random one, which is only possible on loopback."""
    tls_cert: Path | None = None
    """A PEM file with the certificate and its chain."""
    tls_key: Path | None = None
    """A PEM file with the key of the certificate."""

    @property
    def name(self) -> str:
        """The host of the URL."""
        return self.remote or self.bind


def check(address: Address) -> None:
    """Check that an address is only reachable from other machines if that is permitted and protected.

    Raises:
        UsageError: it is not, or the secret is too short, or the address is not an IP address.
    """
    try:
        is_loopback = ipaddress.ip_address(address.bind).is_loopback
    except ValueError as error:
        raise UsageError(
            f"{address.bind[:80]!r} is not an IP address",
            where="--bind",
            todo="Pass an address of this machine, such as 127.0.0.1 or 0.0.0.0",
        ) from error
    if address.secret is not None and not _SECRET.fullmatch(address.secret):
        raise UsageError(
            f"the secret needs at least {SECRET_LENGTH} characters: letters, digits and `._~-`",
            where="AGENTOBS_PROXY_SECRET",
            todo="Choose another one, for example with `openssl rand -hex 16`",
        )
    if is_loopback and address.remote is None:
        return
    if address.remote is None:
        raise UsageError(
            "other machines could send requests through this proxy",
            where=f"--bind {address.bind}",
            todo="Pass --allow-remote NAME with the name under which they connect; it requires a secret and TLS",
        )
    if not address.secret:
        raise UsageError(
            f"other machines need a secret of at least {SECRET_LENGTH} characters",
            where="--allow-remote",
            todo="Set AGENTOBS_PROXY_SECRET; it becomes a part of the URL",
        )
    if not (address.tls_cert and address.tls_key):
        raise UsageError(
            "API keys and prompts would be sent unencrypted",
            where="--allow-remote",
            todo="Pass a certificate and its key with --tls-cert and --tls-key",
        )


def listening_socket(address: Address) -> socket.socket:
    """Return a socket that listens on an address.

    Raises:
        UsageError: the address is not permitted, not an address of this machine, or the port is in use.
    """
    check(address)
    version = ipaddress.ip_address(address.bind).version
    family = socket.AF_INET6 if version == 6 else socket.AF_INET
    # asyncio only disables Nagle's algorithm if the socket names its protocol; streams would wait 40 ms.
    found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((address.bind, address.port))
        found.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        found.close()
        why = (
            (error.strerror or "") if isinstance(error, OSError) else "ports range from 0 to 65535"
        )
        raise UsageError(
            f"cannot listen on this address: {why.lower()}",
            where=f"{address.bind} port {address.port}",
            todo="Choose another port with --port; --port 0 uses any free port",
        ) from error
    return found
