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
from agentobs.tls import tls_context
from dashboards.app.access_guard import (
    PASSWORD_LENGTH,
    Guard,
    Keys,
    OneTimeToken,
    hosts_of,
    network_of,
)
from dashboards.app.commands.command_jobs import Commands, JobRunner
from dashboards.app.routes import application
from dashboards.app.site import Compare, Site
from dashboards.app.store_view import Reader

PORT = 8787
"""The default port. Our choice; if it is in use, the next free one of PORTS consecutive ports is used."""
PORTS = 20
THREADS = 8
"""The number of pages rendered in parallel. Our choice: each may briefly use hundreds of megabytes."""
CONNECTIONS = 128
"""The maximum number of concurrent connections; requests on further connections get a 503. A browser opens six."""
IDLE_CONNECTIONS = 64
"""The maximum number of connections without a request in progress. Above it, the oldest one is closed, so that idle
connections of another user cannot lock the owner out. Our choice."""
PER_ADDRESS = 32
"""The maximum number of connections per network if other machines have access. Our choice: several browsers."""
HEADER_BYTES = 32 * 1024
"""The maximum size of the request headers. Our choice: they may contain cookies of other programs on this host."""
REQUEST_SECONDS = 20
"""The time limit for receiving a complete request, and for a TLS handshake. Our choice."""
IDLE_SECONDS = 15
"""How long an idle connection is kept open after a response."""
SHUTDOWN_SECONDS = 2
"""How long running requests may continue after Ctrl-C."""
NAME_BYTES = 8
"""The length of the random host name: 64 bits, too long for a page to guess."""
SHARED = "this dashboard runs no commands, because others may have access to it"
"""Why commands cannot be started with `--allow-remote` and `--loopback-address`."""
LOOPBACK = ("127.0.0.1", "::1")
"""The addresses to which browsers resolve names under `localhost` (RFC 6761 6.3), without a DNS query."""


@dataclass(frozen=True, slots=True)
class DashboardOptions:
    """How the application is served."""

    bind: str | None = None
    """The address to bind. None means the address of the first name in `remote`, or 127.0.0.1 if `remote` is empty. An
    address other than loopback requires `remote`, a password and TLS."""
    port: int | None = None
    """The port. 0 means any free port; None means PORT or the next free one."""
    remote: Sequence[str] = ()
    """The names and addresses under which other machines reach the server; empty means this machine only."""
    password: str | None = field(default=None, repr=False)
    """The password for the sign-in; None if a token in the URL is enough."""
    tls_cert: Path | None = None
    """A PEM file with the certificate and its chain."""
    tls_key: Path | None = None
    """A PEM file with the key of the certificate."""
    loopback_address: bool = False
    """Whether the printed URL has an IP address as its host, for browsers that do not resolve names under `localhost`.
    Browsers then send the cookie to all servers on other ports of this address, including servers of other users."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Bound sockets, and the settings of the server."""

    sockets: Sequence[socket.socket]
    keys: Keys
    origin: str
    """The URL without its token."""
    tls: ssl.SSLContext | None
    is_shared: bool = False
    """Whether others may have access: users with the password, or servers on other ports that receive the cookie."""

    @property
    def address(self) -> str:
        """The URL to open, with the token that is valid now, if there is one. Secret: show it only to the user who
        started the server.
        """
        return self.origin + (f"?token={self.keys.token.value}" if self.keys.token else "")


def bind(options: DashboardOptions) -> Bound:
    """Bind the sockets. From then on, connections wait until `serve` accepts them.

    Raises:
        UsageError: the options exclude each other, or the address is in use or not an address of this machine.
    """
    bound = _checked_address(options)
    tls = tls_context(options.tls_cert, options.tls_key)
    is_named = not options.remote and not options.loopback_address
    # Bind both loopback addresses: browsers try both, and could otherwise send the token to a server of another user.
    addresses = [bound, *(each for each in LOOPBACK if each != bound)] if is_named else [bound]
    sockets = _listening_sockets(addresses, options.port)
    scheme, port = "https" if tls else "http", sockets[0].getsockname()[1]
    local = "127.0.0.1" if ipaddress.ip_address(bound).is_unspecified else bound
    # Browsers share cookies among all ports of a host, but not among hosts, so a random host name has its own cookies.
    random_host = f"{world.random_bytes(NAME_BYTES).hex()}.localhost"
    names = [random_host] if is_named else [*LOOPBACK, "localhost", local, *options.remote]
    keys = Keys(
        hosts=hosts_of(names, port, scheme),
        scheme=scheme,
        port=port,
        token=None if options.password else OneTimeToken(),
        password=options.password,
    )
    name = random_host if is_named else options.remote[0] if options.remote else local
    host = f"[{name}]" if ":" in name else name
    return Bound(sockets, keys, f"{scheme}://{host}:{port}/", tls, is_shared=not is_named)


def serve(
    bound: Bound,
    home: Home,
    *,
    compare: Compare | None = None,
    commands: Commands | None = None,
    started: Callable[[Callable[[], None]], None] = lambda stop: None,
    opened: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGINT or SIGTERM, or until it is stopped.

    Args:
        bound: the sockets and settings, from `bind`.
        home: the home to show.
        compare: the function that compares two sessions; None if sessions cannot be compared.
        commands: the commands that session pages offer; None for none. They can only be copied, not started, if others
            may have access.
        started: called once when the server accepts requests, with a function that stops the server.
        opened: called each time when the token was used; `bound.address` is then another URL.
    """
    with Reader(home) as reader:
        is_remote = bound.keys.password is not None
        if commands is not None and bound.is_shared:
            commands = commands.without_running(SHARED)
        jobs = JobRunner(commands)
        site = Site(home=home, reader=reader, compare=compare, is_remote=is_remote, jobs=jobs)
        server = _Server(_config(bound, site, opened), started, site)
        try:
            asyncio.run(_serve(server, bound.sockets))
        finally:
            jobs.close()
            jobs.wait()
            for each in bound.sockets:
                each.close()


async def _serve(server: _Server, sockets: Sequence[socket.socket]) -> None:
    anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
    await server.serve(sockets=list(sockets))


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
        self._site.queries.close()
        self._site.jobs.close()
        self._site.reader.interrupt()
        await super().shutdown(sockets)

    def _stop(self) -> None:
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous_handlers = {
            each: signal.signal(each, self.handle_exit) for each in HANDLED_SIGNALS
        }
        try:
            yield
        finally:
            for each, handler in previous_handlers.items():
                signal.signal(each, handler)


class _TimeLimitedProtocol(H11Protocol):
    """HTTP/1.1 that closes a connection if no complete request arrives within the time limit."""

    _last_cycle: object = None
    _made_at: float = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._made_at = self.loop.time()
        self._close_oldest_idle()
        self.loop.call_later(REQUEST_SECONDS, self._close_if_idle)

    @property
    def _is_idle(self) -> bool:
        """Whether no request is in progress."""
        return self.cycle is None or self.cycle.response_complete

    def _close_oldest_idle(self) -> None:
        """Close the connection that has been open longest without a request in progress, if there are too many."""
        idle = [each for each in self.connections if getattr(each, "_is_idle", False)]
        if len(idle) > IDLE_CONNECTIONS:
            oldest: Any = min(idle, key=lambda each: getattr(each, "_made_at", 0.0))
            self.connections.discard(oldest)
            oldest.transport.abort()

    def _close_if_idle(self) -> None:
        """Close the connection if no response is being sent and no request arrived since the last check."""
        if self.transport.is_closing():
            return
        is_answering = self.cycle and not self.cycle.more_body and not self.cycle.response_complete
        if self._last_cycle is self.cycle and not is_answering:
            self.transport.abort()
            return
        self._last_cycle = self.cycle
        self.loop.call_later(REQUEST_SECONDS, self._close_if_idle)


class _RemoteProtocol(_TimeLimitedProtocol):
    """The protocol for access from other machines: it also limits the number of connections per network."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        same_network = [each for each in self.connections if _network_of(each) == _network_of(self)]
        if len(same_network) > PER_ADDRESS:
            transport.abort()


def _network_of(connection: Any) -> str:
    return network_of(connection.client[0] if connection.client else "")


def _config(bound: Bound, site: Site, opened: Callable[[], None]) -> uvicorn.Config:
    tls = bound.tls
    return uvicorn.Config(
        Guard(application(site), bound.keys, opened),
        http=_RemoteProtocol if site.is_remote else _TimeLimitedProtocol,
        loop="asyncio",
        ws="none",
        lifespan="off",
        interface="asgi3",
        # Access logs would contain URLs, which contain search terms and the token.
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=CONNECTIONS,
        h11_max_incomplete_event_size=HEADER_BYTES,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        ssl_context_factory=(lambda config, usual: tls) if tls else None,
    )


def _checked_address(options: DashboardOptions) -> str:
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
                todo="Pass --allow-remote NAME, the host name that they use to connect; "
                "this requires a password and TLS",
            )
        if address not in LOOPBACK and not options.loopback_address:
            raise UsageError(
                "browsers resolve names under localhost only to 127.0.0.1 and ::1, so a localhost URL "
                "cannot reach this address",
                where=f"--bind {address}",
                todo="Use --bind 127.0.0.1, or also pass --loopback-address (its help describes the risk)",
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


def _address(options: DashboardOptions) -> str:
    """Return the requested address as an IP address."""
    requested = options.bind or next(iter(options.remote), "127.0.0.1")
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(requested))
    try:
        found = socket.getaddrinfo(requested, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UsageError(
            f"cannot resolve the name: {error.strerror or error}",
            where=requested[:80],
            todo="Pass the address to listen on with --bind",
        ) from error
    return str(found[0][4][0])


def _is_host(name: str) -> bool:
    with contextlib.suppress(ValueError):
        return not ipaddress.ip_address(name).is_unspecified
    return bool(re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?", name))


def _listening_sockets(addresses: Sequence[str], port: int | None) -> Sequence[socket.socket]:
    """Return sockets that listen on the same port of all addresses that the machine has.

    Raises:
        UsageError: the first address is not an address of this machine, or the port is in use or not allowed.
    """
    # A port that is free on one address may be in use on the other. In that case, try another port.
    ports = range(PORT, PORT + PORTS) if port is None else (port,) * (1 if port else PORTS)
    for port_to_try in ports:
        try:
            return _sockets_on(addresses, port_to_try)
        except OSError as error:
            last_error = error
            if error.errno != errno.EADDRINUSE:
                break
    raise UsageError(
        f"cannot listen on this address: {(last_error.strerror or str(last_error)).lower()}",
        where=f"{last_error.filename} port {port_to_try}",
        todo="Choose another port with --port; --port 0 uses any free port",
    ) from last_error


def _sockets_on(addresses: Sequence[str], port: int) -> Sequence[socket.socket]:
    sockets: list[socket.socket] = []
    with contextlib.ExitStack() as cleanup:
        for address in addresses:
            try:
                bound_socket = _socket_at(address, sockets[0].getsockname()[1] if sockets else port)
            except OSError as error:
                if sockets and error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    continue  # no other program can listen on this address either
                raise OSError(error.errno, error.strerror or str(error), address) from error
            cleanup.callback(bound_socket.close)
            sockets.append(bound_socket)
        cleanup.pop_all()
    return sockets


def _socket_at(address: str, port: int) -> socket.socket:
    version = ipaddress.ip_address(address).version
    family = socket.AF_INET6 if version == 6 else socket.AF_INET
    # asyncio only disables Nagle's algorithm if the socket names its protocol.
    new_socket = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        new_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        new_socket.bind((address, port))
        new_socket.listen(128)
    except OSError:
        new_socket.close()
        raise
    return new_socket
