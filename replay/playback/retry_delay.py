"""Retry delays: the time that the SDK waits between two attempts if no response determines it.

After a response, its headers determine the delay, and the replay provides them. After a failed connection or a timeout,
the SDK (anthropic 2.12, `_base_client._calculate_retry_timeout`) waits according to a constant in `_base_client`. All
other waits are in the agent's own code.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from anthropic import _base_client

DELAY = "INITIAL_RETRY_DELAY"
"""The name of that constant; its value is in seconds."""


@contextlib.contextmanager
def backoff(pace: float) -> Iterator[None]:
    """Make the SDK retry `pace` times as fast as usual; 0 means immediately.

    In versions of the SDK without this constant, the delays do not change.
    """
    before = getattr(_base_client, DELAY, None)
    if not isinstance(before, int | float):
        yield
        return
    setattr(_base_client, DELAY, before / pace if pace else 0.0)
    try:
        yield
    finally:
        setattr(_base_client, DELAY, before)
