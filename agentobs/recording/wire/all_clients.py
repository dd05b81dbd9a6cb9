"""The state of `record_all`: whether it is active, and which requests to the provider it saw.

Each HTTP library has its own hook. All hooks ask this module whether a request is recorded.
"""

from __future__ import annotations

from collections.abc import Mapping

from agentobs.provider.registry import is_model_call
from agentobs.recording.wire.transport import PlaceOf
from agentobs.runtime import process


class State:
    """The number of active `record_all` calls in this process, and the requests that they saw."""

    def __init__(self) -> None:
        self.seen = 0
        """The number of requests to the provider that the hooks have seen, recorded or not."""
        self.active = 0
        """The number of active `record_all` calls."""
        self.place_of: PlaceOf | None = None
        """Returns the place of an exchange if there is no current place."""
        self.seen_hosts: set[str] = set()
        """The hosts of the requests that the hooks have seen while a `record_all` was active."""
        self.resolved_hosts: set[str] = set()
        """The hosts of providers whose names were resolved while a `record_all` was active."""


def place_for(
    host: str, path: str, headers: Mapping[str, str], body: bytes | None = None
) -> PlaceOf | None:
    """Return the function for the place of a request of this process; None if it must not be recorded.

    Args:
        host: the host name, without the port.
        path: the path, without the query.
        headers: the request headers; names are looked up in lower case.
        body: the request body; None if it is not known yet.
    """
    state = process.state(State)
    if not state.active or not is_model_call(path, headers, host, body):
        return None
    state.seen += 1
    state.seen_hosts.add(host.lower())
    return state.place_of
