"""Close the idle connections of a client, so that the next request uses a new connection.

If one pooled connection was reset, the other idle connections of the pool are often dead as well, for example because a
gateway has dropped all of them. The pool finds out only when it sends a request on one of them.

The SDK and httpx2 have no setting for a single request. The pool of httpcore2 (2.16) lists its connections with their
state, but neither the SDK nor httpx2 returns the pool, so two private attributes are read. Alternatives: closing the
whole pool would break concurrent requests, and another HTTP client would lose the proxy, certificates and recording of
this one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from anthropic import AsyncAnthropic

from agentobs.agent.tools.results import error_text
from agentobs.errors import warn_once


async def close_idle_connections(client: AsyncAnthropic) -> None:
    """Close the idle connections of a client; connections that are in use stay open.

    A transport that is not one of httpx2's own keeps its connections. Never raises: if a connection cannot be closed,
    a warning is printed once.
    """
    for pool in _pools(getattr(client, "_client", None)):
        for connection in pool.connections:
            if not connection.is_idle():
                continue
            try:
                await connection.aclose()
            except Exception as error:
                text = f"an idle connection could not be closed: {error_text(error)}"
                warn_once(text, about="idle connection")


def _pools(http: Any) -> Iterator[Any]:
    """Yield the connection pools of an HTTP client, including those below the transport that records it."""
    transports = [getattr(http, "_transport", None), *getattr(http, "_mounts", {}).values()]
    for transport in transports:
        while transport is not None and not hasattr(transport, "_pool"):
            transport = getattr(transport, "_inner", None)
        if hasattr(getattr(transport, "_pool", None), "connections"):
            yield transport._pool
