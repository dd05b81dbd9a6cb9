"""Error classes that a search found, and which of them a row of the list shows in addition to its cause."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from agentobs.records.labels import DIGEST
from agentobs.store.analysis.attention import found_classes, unnamed_classes, what_failed
from dashboards.app import list_search
from dashboards.app.store_view import View


@pytest.mark.parametrize(
    ("cause", "is_named"),
    [
        ("Error in look", True),
        ("failed (Error), again", True),
        ("look failed: Error", True),
        ("Error.", True),
        ("ValueError in look", False),
        ("Errors in look", False),
        ("http.Error in look", False),
        ("Error.Code in look", False),
        ("tool-Error in look", False),
    ],
)
def test_a_class_is_named_only_by_a_whole_word(cause: str, is_named: bool) -> None:
    """A class that is only a part of a word of the cause is shown before the cause."""
    assert unnamed_classes(["Error"], cause) == ([] if is_named else ["Error"])
    assert what_failed(cause, None, (), ["Error"]) == (cause if is_named else f"Error; {cause}")


def test_a_class_without_a_known_text_is_left_out() -> None:
    """The digest of a class is never shown: the list shows its text, or leaves the class out."""
    digest = f"{DIGEST}ab"
    rows = [
        {"session_id": "a", "error_class": each}
        for each in (digest, f"{DIGEST}cd", "ab:TimeoutError")
    ]
    assert found_classes(rows, ["ab"]) == {"a": ["ab:TimeoutError"]}

    def restored(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [
            {
                **row,
                "error_class": "Lab error" if row["error_class"] == digest else row["error_class"],
            }
            for row in rows
        ]

    view = SimpleNamespace(
        named=lambda name, **_: rows, texts=SimpleNamespace(replace_in_dicts=restored)
    )
    found = list_search.found_classes(cast(View, view), ["a"], "ab")
    assert found == {"a": ["Lab error", "ab:TimeoutError"]}
