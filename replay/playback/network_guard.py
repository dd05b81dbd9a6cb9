"""The network guard: nothing leaves the process during a replay, and attempts are reported with their caller.

An audit hook sees every attempt of this process to connect, to send a datagram or to look up a name, in any library.
Audit hooks cannot be removed, so one hook is installed at the first replay, and checks each time whether a replay is
open. Child processes that Python starts get environment variables for a proxy which refuses connections.

Not covered are connections from before the replay, native code that opens sockets without the interpreter, children
that ignore proxies, and `multiprocessing` children that are spawned. Unix sockets are allowed, because they do not
leave this machine, and because the replay answers child processes through a Unix socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

from agentobs import world
from agentobs.runtime import process
from replay.agent_code.call_sites import Site, call_site, dns_lookup_site

Refuse = Callable[[str, Site | None], BaseException]
"""Creates the exception for an attempt to reach an address, with its caller."""

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
"""The variables from which curl, Python, Go, Node and others read the proxy."""
UNPROXIED = ("NO_PROXY", "no_proxy")
"""The variables for hosts to which a proxy does not apply."""


class State:
    """The guard of this process."""

    def __init__(self) -> None:
        self.refuse: Refuse | None = None
        """None while no replay is guarded."""
        self.set_proxies: Callable[[], None] | None = None
        """Sets the proxies that refuse connections in the environment of this process."""
        self.is_installed = False
        """Whether the audit hook is installed, which lasts until the process ends."""


@contextlib.contextmanager
def no_network(refuse: Refuse) -> Iterator[None]:
    """Refuse each attempt to reach an internet address, and disable the network of child processes.

    Args:
        refuse: returns the exception to raise.
    """
    state = process.state(State)
    if not state.is_installed:
        sys.addaudithook(functools.partial(_hook, state))
        state.is_installed = True
    before = state.refuse, state.set_proxies
    with contextlib.ExitStack() as stack:
        variables = stack.enter_context(_closed_proxies())
        state.refuse = refuse
        state.set_proxies = functools.cache(
            lambda: stack.enter_context(world.replaced_environ(variables))
        )
        try:
            yield
        finally:
            state.refuse, state.set_proxies = before


@contextlib.contextmanager
def _closed_proxies() -> Iterator[dict[str, str]]:
    """Give every child process a proxy that refuses connections, and yield its environment variables.

    The environment of this process is not changed, because a client that finds a proxy there loads certificates for it,
    which takes longer than a complete replay. The port is bound without a listener, so that it refuses connections and
    no other program gets it.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as bound:
        bound.bind(("127.0.0.1", 0))
        proxy = f"http://127.0.0.1:{bound.getsockname()[1]}"
        variables = dict.fromkeys(PROXIES, proxy) | dict.fromkeys(UNPROXIED, "")
        init: Any = subprocess.Popen.__init__

        @functools.wraps(init)
        def init_with_proxies(self: Any, *args: Any, **kwargs: Any) -> None:
            passed = args[_ENV] if len(args) > _ENV else kwargs.get("env")
            env = {**(world.environment() if passed is None else passed), **variables}
            if len(args) > _ENV:
                init(self, *args[:_ENV], env, *args[_ENV + 1 :], **kwargs)
            else:
                init(self, *args, **{**kwargs, "env": env})

        subprocess.Popen.__init__ = init_with_proxies  # type: ignore[method-assign]
        try:
            yield variables
        finally:
            subprocess.Popen.__init__ = init  # type: ignore[method-assign]


_ENV = 10
"""The position of `env` among the arguments of `Popen` (Python 3.11 to 3.14)."""


def _hook(state: State, event: str, arguments: tuple[Any, ...]) -> None:
    if state.refuse is None:
        return
    if event in _PROGRAM_STARTS and state.set_proxies is not None:
        state.set_proxies()
    elif event.startswith("socket.") and (address := _address(event, arguments)) is not None:
        raise state.refuse(address, _caller())


_PROGRAM_STARTS = frozenset(("os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty"))
"""Audit events of calls that start a program with the environment of this process."""


def _address(event: str, arguments: tuple[Any, ...]) -> str | None:
    """Return the target of an attempt to use the network; None if it is allowed."""
    match event, arguments:
        case (
            ("socket.connect" | "socket.sendto" | "socket.sendmsg"),
            (connecting, (host, port, *_)),
        ) if getattr(connecting, "family", None) in (socket.AF_INET, socket.AF_INET6):
            return f"{_text(host)}:{port}"
        case "socket.getaddrinfo", (host, port, *_) if host not in _LOCAL_NAMES:
            return f"{_text(host)}:{_text(port)}"
        case (("socket.gethostbyname" | "socket.gethostbyaddr"), (host, *_)) if (
            host not in _LOCAL_NAMES
        ):
            return _text(host)
        case "socket.getnameinfo", ((host, *_), *_) if host not in _LOCAL_NAMES:
            return _text(host)
    return None


def _text(part: Any) -> str:
    return part.decode("ascii", "replace") if isinstance(part, bytes) else str(part)


_LOCAL_NAMES = (
    *(None, "", b"", "localhost", b"localhost", "127.0.0.1", b"127.0.0.1", "::1", b"::1"),
    *(socket.gethostname(), socket.gethostname().encode()),
)
"""Names that may be looked up: servers in the test bind to them, and libraries look up the name of this machine."""


def _caller() -> Site | None:
    """Return the caller, or the task for which a thread of the event loop looks up a name."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return call_site() or dns_lookup_site()
    return call_site()
