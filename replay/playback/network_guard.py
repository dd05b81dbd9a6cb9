"""The guard: nothing leaves the process while a replay runs, and who tried is told.

An audit hook sees every attempt of this process to connect, to send a datagram or to look a name up, whichever library
makes it; hooks cannot be taken away, so one is installed at the first replay and looks at whether a replay runs. Child
processes get variables that name a proxy which refuses, in all the environments that Python gives them.

Beyond it are: what was connected before the replay began; foreign code that opens sockets without the interpreter;
children that mind no proxy, and those of `multiprocessing` that are spawned. Unix sockets are let through: they end on
this machine, and children are answered over one.
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
from replay.agent_code.call_sites import Site, call_site, looking_up

Refuse = Callable[[str, Site | None], BaseException]
"""Makes the exception for an attempt to reach an address, and who made it."""

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
"""The variables by which curl, Python, Go, Node and others are told of a proxy."""
UNPROXIED = ("NO_PROXY", "no_proxy")
"""Those that name who is reached without one."""

_refuse: Refuse | None = None
_closed: Callable[[], None] | None = None
_installed = False


@contextlib.contextmanager
def no_network(refuse: Refuse) -> Iterator[None]:
    """Raise what `refuse` returns for each attempt to reach an internet address, and close the proxies of children."""
    global _refuse, _closed, _installed
    if not _installed:
        sys.addaudithook(_hook)
        _installed = True
    before = _refuse, _closed
    with contextlib.ExitStack() as stack:
        closed = stack.enter_context(_closed_proxies())
        _refuse = refuse
        _closed = functools.cache(lambda: stack.enter_context(world.replaced_environ(closed)))
        try:
            yield
        finally:
            _refuse, _closed = before


@contextlib.contextmanager
def _closed_proxies() -> Iterator[dict[str, str]]:
    """Give every child a proxy that refuses, and yield the variables.

    Not by the environment of this process: a client that finds a proxy there loads certificates for it, which costs
    more than a whole replay. The port is bound and nobody listens, so that it refuses, and no other program gets it.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as bound:
        bound.bind(("127.0.0.1", 0))
        proxy = f"http://127.0.0.1:{bound.getsockname()[1]}"
        closed = dict.fromkeys(PROXIES, proxy) | dict.fromkeys(UNPROXIED, "")
        init: Any = subprocess.Popen.__init__

        @functools.wraps(init)
        def begin(self: Any, *args: Any, **kwargs: Any) -> None:
            given = args[_ENV] if len(args) > _ENV else kwargs.get("env")
            env = {**(world.environment() if given is None else given), **closed}
            if len(args) > _ENV:
                init(self, *args[:_ENV], env, *args[_ENV + 1 :], **kwargs)
            else:
                init(self, *args, **{**kwargs, "env": env})

        subprocess.Popen.__init__ = begin  # type: ignore[method-assign]
        try:
            yield closed
        finally:
            subprocess.Popen.__init__ = init  # type: ignore[method-assign]


_ENV = 10
"""The place of `env` among the arguments of `Popen` (Python 3.11 to 3.14)."""


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _refuse is None:
        return
    if event in _BEGINS and _closed is not None:
        _closed()
    elif event.startswith("socket.") and (address := _address(event, arguments)) is not None:
        raise _refuse(address, _who())


_BEGINS = frozenset(("os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty"))
"""Ways to begin a program that take over the environment of this process."""


def _address(event: str, arguments: tuple[Any, ...]) -> str | None:
    """Return what an attempt is to reach; None where it reaches nobody."""
    match event, arguments:
        case (
            ("socket.connect" | "socket.sendto" | "socket.sendmsg"),
            (asked, (host, port, *_)),
        ) if getattr(asked, "family", None) in (socket.AF_INET, socket.AF_INET6):
            return f"{_text(host)}:{port}"
        case "socket.getaddrinfo", (host, port, *_) if host not in _HERE:
            return f"{_text(host)}:{_text(port)}"
        case (("socket.gethostbyname" | "socket.gethostbyaddr"), (host, *_)) if host not in _HERE:
            return _text(host)
        case "socket.getnameinfo", ((host, *_), *_) if host not in _HERE:
            return _text(host)
    return None


def _text(part: Any) -> str:
    return part.decode("ascii", "replace") if isinstance(part, bytes) else str(part)


_HERE = (
    *(None, "", b"", "localhost", b"localhost", "127.0.0.1", b"127.0.0.1", "::1", b"::1"),
    *(socket.gethostname(), socket.gethostname().encode()),
)
"""Names that may be looked up: a server of the test's own binds to them, and libraries ask for this machine's."""


def _who() -> Site | None:
    """Return who tries: the caller, or the task for which a thread of the event loop's looks a name up."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return call_site() or looking_up()
    return call_site()
