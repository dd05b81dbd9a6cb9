"""Nearest: which of several requests that may be asked now a strange one is to be compared with.

Requests that were in flight together may come in any order. One that is none of them is most likely the one whose
conversation it goes on with: whatever else of it has changed, that is told best beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from typing import Any

from agentobs.records.canonical_json import canonical
from replay.fixture.format import Ask

COMPARED = 2000
"""Characters of a message that are compared to tell how much two are alike. Our choice."""


def nearest(due: Sequence[Ask], body_of: Callable[[Ask], Any], path: str, came: Any) -> Ask | None:
    """Return the due request that is most like the one that came; of equals, the first.

    Args:
        due: the requests that may be asked now.
        body_of: reads the body of one.
        path: the path of the one that came.
        came: its body, read.
    """
    if len(due) < 2:
        return next(iter(due), None)
    return min(due, key=lambda ask: (*_unlike(body_of(ask), came), ask.path != path))


def _unlike(old: Any, new: Any) -> tuple[float, ...]:
    """Return how unlike two bodies are: messages from the first that differs on, its text, and what stands beside."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return (float(canonical(old) != canonical(new)), 0.0, 0.0)
    before, now = (
        [canonical(message) for message in body.get("messages") or []] for body in (old, new)
    )
    same = 0
    for one, other in zip(before, now, strict=False):
        if one != other:
            break
        same += 1
    left = max(len(before), len(now)) - same
    one, other = (each[same][:COMPARED] if same < len(each) else "" for each in (before, now))
    alike = SequenceMatcher(None, one, other, autojunk=False).ratio() if left else 1.0
    keys = (old.keys() | new.keys()) - {"messages"}
    others = sum(canonical(old.get(key)) != canonical(new.get(key)) for key in keys)
    return float(left), 1.0 - alike, float(others)
