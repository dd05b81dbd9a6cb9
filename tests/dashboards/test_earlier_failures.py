"""The names of what failed before the step that ended a session."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from agentobs.records.labels import DIGEST
from dashboards.app import trace


@pytest.mark.parametrize(
    ("kind", "label", "name"),
    [
        ("request", "opus", "request opus"),
        ("request", f"{DIGEST}ab", "a request"),
        ("tool", "look", "look"),
        ("tool", f"{DIGEST}ab", "an unnamed tool"),
    ],
)
def test_a_digest_is_not_a_name(kind: str, label: str, name: str) -> None:
    """If the text of the name of a model or a tool is unknown, the sentence names neither."""
    shown = SimpleNamespace(node=SimpleNamespace(kind=kind), label=label)
    assert trace._failing(cast(Any, shown)) == name
