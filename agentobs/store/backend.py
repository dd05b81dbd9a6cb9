"""The store in use: the only module that selects an implementation of the port."""

from __future__ import annotations

import os

from agentobs.recording.journal.home import Home, existing_home
from agentobs.store.duckdb.connection import connected
from agentobs.store.duckdb.store import DuckStore
from agentobs.store.port import Store


def open_store(
    home: Home | str | os.PathLike[str] | None = None,
    *,
    ingest: bool = True,
    memory_bytes: int | None = None,
    unsafe: bool = False,
) -> Store:
    """Open the store of a home, with everything that was recorded up to this moment. Close it after use.

    Args:
        home: where the recordings are; default `AGENTOBS_HOME`, else `.agentobs`.
        ingest: whether to update the published file first, if there is enough new data and no other process ingests.
        memory_bytes: how much memory the database may use; None for its default.
        unsafe: whether statements can access files, the network, extensions and settings; `write` requires this.

    Raises:
        HomeError: there are no recordings at that place.
        ForeignError: the store file was not written by agentobs, or has a newer version.
    """
    place = home if isinstance(home, Home) else existing_home(home)
    connection = connected(place, ingest=ingest, memory_bytes=memory_bytes, unsafe=unsafe)
    return DuckStore(connection, place)


__all__ = ["Store", "open_store"]
