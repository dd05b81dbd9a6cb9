"""The guard: no connection leaves the process while a replay runs.

An audit hook sees every connect of this process, whichever library asks for it; hooks cannot be taken
away, so one is installed at the first replay and looks at whether a replay runs. Child processes and
foreign code that opens sockets without the interpreter are beyond it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

Refuse = Callable[[str], BaseException]
"""Makes the exception for a connection attempt to an address."""

_refuse: Refuse | None = None
_installed = False


@contextlib.contextmanager
def no_network(refuse: Refuse) -> Iterator[None]:
    """Raise what `refuse` returns for each attempt to connect to an internet address."""
    global _refuse, _installed
    if not _installed:
        sys.addaudithook(_hook)
        _installed = True
    before, _refuse = _refuse, refuse
    try:
        yield
    finally:
        _refuse = before


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _refuse is None:
        return
    if event == "socket.connect" and isinstance(arguments[1], tuple) and len(arguments[1]) >= 2:
        raise _refuse(f"{arguments[1][0]}:{arguments[1][1]}")
    if event == "socket.getaddrinfo" and arguments[0] not in _HERE:
        host = (
            arguments[0].decode("ascii", "replace")
            if isinstance(arguments[0], bytes)
            else arguments[0]
        )
        raise _refuse(f"{host}:{arguments[1]}")


_HERE = (None, "", b"", "localhost", b"localhost", "127.0.0.1", b"127.0.0.1", "::1", b"::1")
"""Names that may be looked up: a server of the test's own binds to them."""
