"""Queries on the records of a home, in the process of the tests.

`agentobs.query` starts a process for each statement, which takes five times as long; its tests are in
tests/store/test_sql_worker.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import agentobs
from agentobs.recording.journal.home import Home


def query(
    sql: str,
    parameters: Sequence[Any] | Mapping[str, Any] | None = None,
    *,
    home: Home | Path | str | None = None,
) -> list[tuple[Any, ...]]:
    """Return the rows of one statement on everything that was recorded up to this moment."""
    with agentobs.connect(home) as connection:
        return connection.execute(sql, parameters).fetchall()
