"""Waits: the time that the SDK takes between two attempts where no answer told it how long.

After an answer its headers decide, and those are the replay's. After a connection that failed, or a time-out, the SDK
(anthropic 2.12, `_base_client._calculate_retry_timeout`) waits by a constant of that module. What else waits is the
agent's own code.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from anthropic import _base_client

DELAY = "INITIAL_RETRY_DELAY"
"""The name of that constant, in seconds."""


@contextlib.contextmanager
def backoff(pace: float) -> Iterator[None]:
    """Have the SDK ask again `pace` times as fast as it does, with 0 at once.

    A version of it that has no such constant waits as ever.
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
