"""The server: uvicorn without logs, on a socket that is bound before the URL is printed."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import re
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio.to_thread
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import HANDLED_SIGNALS

from agentobs import world
from agentobs.errors import UsageError
from agentobs.recording.journal.home import Home
from dashboards.app.access_guard import (
    PASSWORD_LENGTH,
    Guard,
    Keys,
    hosts_of,
    network_of,
    new_secret,
)
from dashboards.app.routes import application
from dashboards.app.site import Compare, Site
from dashboards.app.store_view import Reader

PORT = 8787
"""The default port. Our choice; if it is in use, the next free one of TRIES ports is used."""
TRIES = 20
THREADS = 8
"""The number of pages rendered in parallel. Our choice: each may briefly use hundreds of megabytes."""
CONNECTIONS = 128
"""The maximum number of concurrent connections; further ones get a 503. A browser opens six."""
PER_ADDRESS = 32
"""The maximum number of connections per address if other machines have access. Our choice: several browsers."""
HEADER_BYTES = 32 * 1024
"""The maximum size of the request headers. Our choice: they may contain cookies of other programs on this host."""
SILENT_SECONDS = 20
"""The time limit for receiving a complete request, and for a TLS handshake. Our choice."""
KEEP_SECONDS = 15
"""How long an idle connection is kept open after a response."""
ENDING_SECONDS = 2
"""How long running requests may continue after Ctrl-C."""
NAME_BYTES = 8
"""The length of the random host name: 64 bits, too long for a page to guess."""
LOOPBACK = ("127.0.0.1", "::1")
"""The addresses to which browsers resolve names under `localhost` (RFC 6761 6.3), without a DNS query."""


@dataclass(frozen=True, slots=True)
class Options:
    """How the application is served."""

    bind: str | None = None
    """The address to bind; None means the address of the first name in `remote`, else 127.0.0.1. An address other than
    loopback requires `remote`, a password and TLS."""
    port: int | None = None
    """The port; 0 for any free port, None for PORT or the next free one."""
    remote: Sequence[str] = ()
    """The names and addresses under which other machines reach the server; empty means this machine only."""
    password: str | None = field(default=None, repr=False)
    """The password for the sign-in; None if a token in the URL is enough."""
    tls_cert: Path | None = None
    """The certificate with its chain, PEM."""
    tls_key: Path | None = None
    """Its key, PEM."""
    loopback_address: bool = False
    """Whether the printed URL has an IP address as its host, for browsers that do not resolve names under `localhost`.
    The cookie is then sent to servers of all users on other ports of this address."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Bound sockets, and the settings of the server."""

    sockets: Sequence[socket.socket]
    keys: Keys
    address: str
    """The URL to open, with the token if there is one. Secret: show it only to the user who started the server."""
    tls: ssl.SSLContext | None


def bind(options: Options) -> Bound:
    """Bind the sockets; from then on connections wait until `serve` takes them.

    Raises:
        UsageError: the options exclude each other, or the address is in use or not an address of this machine.
    """
    bound = _checked(options)
    tls = _tls(options)
    is_named = not options.remote and not options.loopback_address
    # Bind both loopback addresses: browsers try both, and would send the token to another server on the other one.
    addresses = [bound, *(each for each in LOOPBACK if each != bound)] if is_named else [bound]
    listening = _listening(addresses, options.port)
    scheme, port = "https" if tls else "http", listening[0].getsockname()[1]
    local = "127.0.0.1" if ipaddress.ip_address(bound).is_unspecified else bound
    # Browsers share cookies among all ports of a host, but not among hosts, so a random host name has its own cookies.
    own = f"{world.random_bytes(NAME_BYTES).hex()}.localhost"
    names = [own] if is_named else [*LOOPBACK, "localhost", local, *options.remote]
    keys = Keys(
        hosts=hosts_of(names, port, scheme),
        scheme=scheme,
        port=port,
        token=None if options.password else new_secret(),
        password=options.password,
    )
    name = own if is_named else options.remote[0] if options.remote else local
    host = f"[{name}]" if ":" in name else name
    rest = f"?token={keys.token}" if keys.token else ""
    return Bound(listening, keys, f"{scheme}://{host}:{port}/{rest}", tls)


def serve(
    bound: Bound,
    home: Home,
    *,
    compare: Compare | None = None,
    started: Callable[[Callable[[], None]], None] = lambda stop: None,
) -> None:
    """Serve until SIGINT or SIGTERM, or until it is stopped.

    Args:
        bound: from `bind`.
        home: the home to show.
        compare: the function that compares two sessions.
        started: called once when the server accepts requests, with a function that stops it.
    """
    with Reader(home) as reader:
        is_remote = bound.keys.password is not None
        site = Site(home=home, reader=reader, compare=compare, is_remote=is_remote)
        server = _Server(_config(bound, site), started, site)
        try:
            asyncio.run(_serve(server, bound.sockets))
        finally:
            for each in bound.sockets:
                each.close()


async def _serve(server: _Server, listening: Sequence[socket.socket]) -> None:
    anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
    await server.serve(sockets=list(listening))


class _Server(uvicorn.Server):
    """A uvicorn server that reports when it has started, and that treats Ctrl-C as a normal shutdown."""

    def __init__(
        self, config: uvicorn.Config, started: Callable[[Callable[[], None]], None], site: Site
    ) -> None:
        super().__init__(config)
        self._on_started = started
        self._site = site

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started(self._stop)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Interrupt running queries so that their requests end.
        self._site.questions.close()
        self._site.reader.interrupt()
        await super().shutdown(sockets)

    def _stop(self) -> None:
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {each: signal.signal(each, self.handle_exit) for each in HANDLED_SIGNALS}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)


class _Prompt(H11Protocol):
    """HTTP/1.1 that closes connections without a complete request within the time limit."""

    _seen: object = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(SILENT_SECONDS, self._look)

    def _look(self) -> None:
        """Close the connection if no response is being sent and no request arrived since the last check."""
        if self.transport.is_closing():
            return
        is_answering = self.cycle and not self.cycle.more_body and not self.cycle.response_complete
        if self._seen is self.cycle and not is_answering:
            self.transport.abort()
            return
        self._seen = self.cycle
        self.loop.call_later(SILENT_SECONDS, self._look)


class _Shared(_Prompt):
    """The same for access from other machines: limits the connections per address."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        theirs = [each for each in self.connections if _whose(each) == _whose(self)]
        if len(theirs) > PER_ADDRESS:
            transport.abort()


def _whose(connection: Any) -> str:
    return network_of(connection.client[0] if connection.client else "")


def _config(bound: Bound, site: Site) -> uvicorn.Config:
    tls = bound.tls
    return uvicorn.Config(
        Guard(application(site), bound.keys),
        http=_Shared if site.is_remote else _Prompt,
        loop="asyncio",
        ws="none",
        lifespan="off",
        interface="asgi3",
        # Access logs would contain URLs, and so search terms and the token.
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=CONNECTIONS,
        h11_max_incomplete_event_size=HEADER_BYTES,
        timeout_keep_alive=KEEP_SECONDS,
        timeout_graceful_shutdown=ENDING_SECONDS,
        ssl_context_factory=(lambda config, usual: tls) if tls else None,
    )


def _checked(options: Options) -> str:
    """Return the address to bind.

    Raises:
        UsageError: other machines could connect, and the options do not protect against that.
    """
    for name in options.remote:
        if not _is_host(name):
            raise UsageError(
                "expected a host name or an address", where=f"--allow-remote {name[:80]}"
            )
    address = _address(options)
    if not options.remote:
        if not ipaddress.ip_address(address).is_loopback:
            raise UsageError(
                "other machines could connect to this address",
                where=f"--bind {address}",
                todo="Pass --allow-remote NAME with the name under which they connect; it requires a password and TLS",
            )
        if address not in LOOPBACK and not options.loopback_address:
            raise UsageError(
                "browsers resolve names under localhost to 127.0.0.1 and ::1 only",
                where=f"--bind {address}",
                todo="Also pass --loopback-address; its help describes the risk",
            )
        return address
    if options.loopback_address:
        raise UsageError("cannot be combined with --allow-remote", where="--loopback-address")
    if not options.password:
        raise UsageError(
            "others could read all recordings without a password",
            where="--allow-remote",
            todo="Set AGENTOBS_DASHBOARD_PASSWORD, or pass a file with --password-file",
        )
    if len(options.password) < PASSWORD_LENGTH:
        raise UsageError(
            f"the password has only {len(options.password)} characters",
            where="--allow-remote",
            todo=f"Use {PASSWORD_LENGTH} or more",
        )
    if not (options.tls_cert and options.tls_key):
        raise UsageError(
            "the password and all recordings would be sent unencrypted",
            where="--allow-remote",
            todo="Pass a certificate and its key with --tls-cert and --tls-key",
        )
    return address


def _address(options: Options) -> str:
    """Return the requested address as an IP address."""
    given = options.bind or next(iter(options.remote), "127.0.0.1")
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(given))
    try:
        found = socket.getaddrinfo(given, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UsageError(
            f"cannot resolve the name: {error.strerror or error}",
            where=given[:80],
            todo="Pass the address to listen on with --bind",
        ) from error
    return str(found[0][4][0])


def _is_host(name: str) -> bool:
    with contextlib.suppress(ValueError):
        return not ipaddress.ip_address(name).is_unspecified
    return bool(re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?", name))


def _tls(options: Options) -> ssl.SSLContext | None:
    """Return the TLS context, or None if TLS is not requested.

    Raises:
        UsageError: only one of certificate and key is given, or they cannot be used.
    """
    if not (options.tls_cert or options.tls_key):
        return None
    if not (options.tls_cert and options.tls_key):
        missing = "--tls-key" if options.tls_cert else "--tls-cert"
        raise UsageError("a certificate and its key must be passed together", where=missing)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # With an empty password, an encrypted key is rejected instead of prompted for.
        context.load_cert_chain(options.tls_cert, options.tls_key, password=lambda: "")
    except (OSError, ValueError) as error:
        raise UsageError(
            f"the certificate or the key cannot be used: {error.strerror or error}"
            if isinstance(error, OSError)
            else f"{error}",
            where=f"{options.tls_cert}, {options.tls_key}",
            todo="Both must be PEM files, the key without a passphrase",
        ) from error
    return context


def _listening(addresses: Sequence[str], port: int | None) -> Sequence[socket.socket]:
    """Return sockets that listen on one port of all addresses; addresses that the machine does not have are skipped.

    Raises:
        UsageError: the first address is not one of this machine, or the port is in use or not allowed.
    """
    # A port that is free on one address may be in use on the other; then another port is tried.
    ports = range(PORT, PORT + TRIES) if port is None else (port,) * (1 if port else TRIES)
    for each in ports:
        try:
            return _bound_to(addresses, each)
        except OSError as error:
            failed = error
            if error.errno != errno.EADDRINUSE:
                break
    raise UsageError(
        f"cannot listen on this address: {(failed.strerror or str(failed)).lower()}",
        where=f"{failed.filename} port {each}",
        todo="Choose another port with --port; --port 0 uses any free port",
    ) from failed


def _bound_to(addresses: Sequence[str], port: int) -> Sequence[socket.socket]:
    made: list[socket.socket] = []
    with contextlib.ExitStack() as undone:
        for address in addresses:
            try:
                one = _socket_at(address, made[0].getsockname()[1] if made else port)
            except OSError as error:
                if made and error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    continue  # no other program can listen on it either
                raise OSError(error.errno, error.strerror or str(error), address) from error
            undone.callback(one.close)
            made.append(one)
        undone.pop_all()
    return made


def _socket_at(address: str, port: int) -> socket.socket:
    version = ipaddress.ip_address(address).version
    made = socket.socket(socket.AF_INET6 if version == 6 else socket.AF_INET)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((address, port))
        made.listen(128)
    except OSError:
        made.close()
        raise
    return made
