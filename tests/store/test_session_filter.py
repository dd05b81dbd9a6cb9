"""Session filters: which sessions satisfy all conditions, and in which order."""

from __future__ import annotations

from typing import Any, cast

import pytest

from agentobs.store.port import Store, Table
from agentobs.store.session_filter import matching_sessions, parse_filter

SESSIONS = [("s3", "completed", 9), ("s2", "failed", 2), ("s1", "completed", 5)]
SCORES = [("s1", "number", 0.1, None), ("s2", "number", 0.9, None)]


class FewSessions:
    """A store with three sessions, newest first, of which two have a score."""

    def rows(self, query: str, /, **_: Any) -> Table:
        if query == "sessions":
            return Table(["session_id", "status", "turns"], list(SESSIONS))
        return Table(["session_id", "value_type", "value", "label"], list(SCORES))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("turns > 2", ["s3", "s1"]),
        ("status = failed", ["s2"]),
        ("score.correct >= 0.1", ["s2", "s1"]),
        ("score.correct < 0.5 and status = completed", ["s1"]),
        ("turns > 9", []),
    ],
)
def test_sessions_that_satisfy_all_conditions(text: str, found: list[str]) -> None:
    """The sessions are listed newest first, as in the store; one without the score is not among them."""
    assert matching_sessions(cast(Store, FewSessions()), parse_filter(text)) == found
