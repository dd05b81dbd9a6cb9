"""The order of columns: a new column is the last one, so that programs that read a CSV file by position still work."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentobs.store.backend import open_store
from tests.store.recordings import a_home, attempt, end, record, session_id, start

TURNS = ("cost_usd", "cost_status", "unpriced_calls", "denied_calls")


@pytest.mark.slow
def test_new_columns_are_last(tmp_path: Path) -> None:
    """The columns that were there first have kept their places."""
    home = a_home(tmp_path)
    record(home, [start(1), attempt(1, 1), end(1)])
    one = {"session_id": session_id(1)}
    with open_store(home) as store:
        for name in ("tool_latency", "slowest_tools"):
            assert list(store.rows(name, **one).columns)[-2:] == ["unseen_waits", "denied"]
        for name in ("session_turns", "internal/unfinished_turns"):
            assert tuple(store.rows(name, **one).columns)[-4:] == TURNS
        assert list(store.sql("FROM cache_losses").columns) == [
            "session_id", "lane", "turn", "attempt_id", "at_ns", "reason", "reason_source", "missed_tokens",
            "wasted_usd", "model", "gap_ns", "changed_message", "zones_changed", "compared_turn",
            "compared_attempt_id",
        ]  # fmt: skip
        assert list(store.rows("cache_misses").columns)[:3] == ["session_id", "lane", "attempt_id"]
