"""The causes of effects: the names of their steps, and their words."""

from __future__ import annotations

from typing import Any, cast

import pytest

from agentobs.store.analysis.cause_texts import effect_text
from agentobs.store.analysis.effect_causes import CauseNode, SessionCauses
from agentobs.store.port import Store, Table

CHANGE: dict[str, Any] = {
    "change": "modified", "previous_path": None, "lines_added": None, "lines_removed": None, "bytes": None,
    "late": False,
}  # fmt: skip
REQUEST: dict[str, Any] = {
    "attempt_id": "a1", "interaction_id": None, "lane": "main", "turn": 1, "model": None, "outcome": "ok",
    "makes_turns": True, "continues_attempt_id": None, "is_lane_derived": False, "started_ns": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"lines_added": 1200, "lines_removed": 34}, "modified, +1,200 -34 lines"),
        ({"lines_added": 2}, "modified, +2 -0 lines"),
        ({"lines_removed": 2, "bytes": 4096}, "modified, 4,096 bytes, +0 -2 lines"),
        ({"change": "renamed", "previous_path": "b.py"}, "renamed from b.py"),
        ({"late": True}, "modified, recorded late"),
    ],
)
def test_the_words_of_a_change_of_a_file(changed: dict[str, Any], words: str) -> None:
    """A change has its kind, its former name, its size and its numbers of lines, as far as they are known."""
    row = {**CHANGE, **changed}
    node = CauseNode("file_change:1", "file_change", "a.py", "main", 1, 1, row)
    assert effect_text(node) == ("a.py", words)


@pytest.mark.parametrize(("model", "name"), [("claude-opus-5", "claude-opus-5"), (None, "request")])
def test_a_request_has_the_name_of_its_model(model: str | None, name: str) -> None:
    """A request is named as its model; one without a model, such as a request that failed, is named `request`."""

    class OneRequest:
        def rows(self, query: str, /, **_: Any) -> Table:
            rows = [{**REQUEST, "model": model}] if query == "internal/cause_requests" else []
            return Table(list(REQUEST), [tuple(each.values()) for each in rows])

    causes = SessionCauses(cast(Store, OneRequest()), "s1")
    assert causes.node("request:a1").name == name
