"""Nested transports: transports of httpx that send with another library, whose requests are recorded in another way."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

_is_below: ContextVar[bool] = ContextVar("agentobs_below_recorded_transport", default=False)


@contextlib.contextmanager
def below_recorded() -> Iterator[None]:
    """Mark the code in the context as a transport that sends a request which is already recorded."""
    token = _is_below.set(True)
    try:
        yield
    finally:
        _is_below.reset(token)


def is_below_recorded() -> bool:
    """Return whether the current code is a transport that sends a request which is already recorded.

    Transports of httpx may use other libraries, such as aiohttp, whose requests are recorded in another way.
    """
    return _is_below.get()
