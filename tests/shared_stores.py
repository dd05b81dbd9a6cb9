"""One open store for many commands of a test module, because opening a store takes longer than most of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pytest

from agentobs.recording.journal.home import Home, existing_home
from agentobs.store.duckdb.connection import connected


@contextmanager
def shared_store(home: Path) -> Iterator[None]:
    """Keep the store of a home open; commands in this process that read this home use the open store.

    They do not see what is recorded in the home meanwhile.
    """
    shared = existing_home(home)
    with connected(shared, ingest=True) as connection, pytest.MonkeyPatch.context() as patch:

        def opened(
            place: Home, *, ingest: bool, memory_bytes: int | None = None, unsafe: bool = False
        ) -> duckdb.DuckDBPyConnection:
            if place == shared and memory_bytes is None and not unsafe:
                return connection.cursor()
            return connected(place, ingest=ingest, memory_bytes=memory_bytes, unsafe=unsafe)

        patch.setattr("agentobs.store.backend.connected", opened)
        yield
