"""The server: a socket that is bound before anything is promised, and uvicorn on it, which writes no log."""

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
"""The port where none is named. Our choice; where it is taken, the next free one of TRIES is."""
TRIES = 20
THREADS = 8
"""How many pages are made at once. Our choice: each may hold some hundred megabytes of a large store for a moment."""
CONNECTIONS = 128
"""How many connections there are at once; beyond it the answer is 503. A browser opens six."""
PER_ADDRESS = 32
"""How many of them one address may have where other machines reach it. Our choice: some browsers behind one router."""
HEADER_BYTES = 32 * 1024
"""The longest head of a request. Our choice: cookies of other programs on this host may be in it."""
SILENT_SECONDS = 20
"""How long a connection may take until its request is there whole, and until a TLS handshake is over. Our choice."""
KEEP_SECONDS = 15
"""How long a connection is kept after an answer."""
ENDING_SECONDS = 2
"""How long requests may go on after Ctrl-C."""
NAME_BYTES = 8
"""How much chance is in the name that is printed: 64 bits, which no page tries out."""
LOOPBACK = ("127.0.0.1", "::1")
"""Where browsers look for any name under `localhost` (RFC 6761 6.3), without asking anybody."""


@dataclass(frozen=True, slots=True)
class Options:
    """How the application is served."""

    bind: str | None = None
    """The address that is bound: None for that of the first name in `remote`, else 127.0.0.1. Any but one of loopback
    takes `remote`, a password and TLS."""
    port: int | None = None
    """The port; 0 for any that is free, None for PORT or one near it."""
    remote: Sequence[str] = ()
    """The names and addresses under which it is reached from other machines; empty: from this one alone."""
    password: str | None = field(default=None, repr=False)
    """What others must know; None where a token in the address is enough."""
    tls_cert: Path | None = None
    """The certificate with its chain, PEM."""
    tls_key: Path | None = None
    """Its key, PEM."""
    loopback_address: bool = False
    """Whether the address that is printed has a number for a host, for browsers that know no names under `localhost`.
    Its cookie is sent to every server on another port of that number, whoever runs it."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Sockets that are bound, and what is said on them."""

    sockets: Sequence[socket.socket]
    keys: Keys
    address: str
    """What a browser opens, with the token where there is one. To be shown to who started it, and to nobody else."""
    tls: ssl.SSLContext | None


def bind(options: Options) -> Bound:
    """Bind the sockets; from then on connections wait until `serve` takes them.

    Raises:
        UsageError: the options do not fit together, or the address is taken or not ours.
    """
    bound = _checked(options)
    tls = _tls(options)
    is_named = not options.remote and not options.loopback_address
    # Whoever listened at the other of the two would be sent the token, for a browser tries both.
    addresses = [bound, *(each for each in LOOPBACK if each != bound)] if is_named else [bound]
    listening = _listening(addresses, options.port)
    scheme, port = "https" if tls else "http", listening[0].getsockname()[1]
    local = "127.0.0.1" if ipaddress.ip_address(bound).is_unspecified else bound
    # Browsers share cookies among all ports of a host, but not among hosts: a host that nobody else knows has its own.
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
        home: whose recordings are shown.
        compare: how two sessions are compared.
        started: called once when requests are answered, with a function that ends the serving.
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
    """Uvicorn, which tells when it has started, and for which Ctrl-C is the usual end and nothing to raise again."""

    def __init__(
        self, config: uvicorn.Config, started: Callable[[Callable[[], None]], None], site: Site
    ) -> None:
        super().__init__(config)
        self._told_started = started
        self._site = site

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._told_started(self._stop)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Nobody waits for what would be told: questions are stopped, and their requests end.
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
    """HTTP/1.1 with whoever sends a whole request within a time; who does not is left."""

    _seen: object = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(SILENT_SECONDS, self._look)

    def _look(self) -> None:
        """Close the connection where nothing is answered, and no request came since the last look."""
        if self.transport.is_closing():
            return
        is_answering = self.cycle and not self.cycle.more_body and not self.cycle.response_complete
        if self._seen is self.cycle and not is_answering:
            self.transport.abort()
            return
        self._seen = self.cycle
        self.loop.call_later(SILENT_SECONDS, self._look)


class _Shared(_Prompt):
    """The same where other machines reach it: no address takes all connections."""

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
        # What it would log holds addresses, and so what was searched for, and the token.
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
        UsageError: others could reach it, and it is not made for that.
    """
    for name in options.remote:
        if not _is_host(name):
            raise UsageError(
                "no name of a host and no address", where=f"--allow-remote {name[:80]}"
            )
    address = _address(options)
    if not options.remote:
        if not ipaddress.ip_address(address).is_loopback:
            raise UsageError(
                "other machines could reach it there",
                where=f"--bind {address}",
                todo="Say --allow-remote NAME, with the name that they reach it under; it takes a password and TLS",
            )
        if address not in LOOPBACK and not options.loopback_address:
            raise UsageError(
                "browsers look for a name under localhost at 127.0.0.1 and at ::1",
                where=f"--bind {address}",
                todo="Say --loopback-address, too; its help names the risk",
            )
        return address
    if options.loopback_address:
        raise UsageError("it is for this machine alone", where="--loopback-address")
    if not options.password:
        raise UsageError(
            "others could read all recordings without a password",
            where="--allow-remote",
            todo="Set AGENTOBS_DASHBOARD_PASSWORD, or name a file that holds one with --password-file",
        )
    if len(options.password) < PASSWORD_LENGTH:
        raise UsageError(
            f"a password of {len(options.password)} characters",
            where="--allow-remote",
            todo=f"Take one of {PASSWORD_LENGTH} or more",
        )
    if not (options.tls_cert and options.tls_key):
        raise UsageError(
            "the password and all recordings would cross the network in the clear",
            where="--allow-remote",
            todo="Name a certificate and its key with --tls-cert and --tls-key",
        )
    return address


def _address(options: Options) -> str:
    """Return the address that is asked for, as a number."""
    given = options.bind or next(iter(options.remote), "127.0.0.1")
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(given))
    try:
        found = socket.getaddrinfo(given, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UsageError(
            f"no address is known of it: {error.strerror or error}",
            where=given[:80],
            todo="Name the address to listen at with --bind",
        ) from error
    return str(found[0][4][0])


def _is_host(name: str) -> bool:
    with contextlib.suppress(ValueError):
        return not ipaddress.ip_address(name).is_unspecified
    return bool(re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?", name))


def _tls(options: Options) -> ssl.SSLContext | None:
    """Return what is needed for TLS, or None where it is not asked for.

    Raises:
        UsageError: only one of certificate and key is named, or they cannot be used.
    """
    if not (options.tls_cert or options.tls_key):
        return None
    if not (options.tls_cert and options.tls_key):
        missing = "--tls-key" if options.tls_cert else "--tls-cert"
        raise UsageError("a certificate and its key go together", where=missing)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # With a password that is nothing, a key that has one is refused rather than asked about.
        context.load_cert_chain(options.tls_cert, options.tls_key, password=lambda: "")
    except (OSError, ValueError) as error:
        raise UsageError(
            f"they cannot be used: {error.strerror or error}"
            if isinstance(error, OSError)
            else f"{error}",
            where=f"{options.tls_cert}, {options.tls_key}",
            todo="Both are files in PEM form, the key without a passphrase",
        ) from error
    return context


def _listening(addresses: Sequence[str], port: int | None) -> Sequence[socket.socket]:
    """Return sockets that listen on one port of all of these addresses; those that the machine has not are left out.

    Raises:
        UsageError: the first address is not ours, or the port is taken or not allowed.
    """
    # Of any port that is free, the other address may have it taken: another is tried then, too.
    ports = range(PORT, PORT + TRIES) if port is None else (port,) * (1 if port else TRIES)
    for each in ports:
        try:
            return _bound_to(addresses, each)
        except OSError as error:
            failed = error
            if error.errno != errno.EADDRINUSE:
                break
    raise UsageError(
        f"cannot listen there: {(failed.strerror or str(failed)).lower()}",
        where=f"{failed.filename} port {each}",
        todo="Name another port with --port; --port 0 takes any that is free",
    ) from failed


def _bound_to(addresses: Sequence[str], port: int) -> Sequence[socket.socket]:
    made: list[socket.socket] = []
    with contextlib.ExitStack() as undone:
        for address in addresses:
            try:
                one = _socket_at(address, made[0].getsockname()[1] if made else port)
            except OSError as error:
                if made and error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    continue  # nobody else listens there, either
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
