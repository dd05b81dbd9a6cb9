"""The nearest request: which of several due requests an unknown one is compared with.

Concurrent requests may come in any order. An unknown request most likely belongs to the conversation that it continues,
and its differences are clearest in comparison with that one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from typing import Any

from agentobs.provider.registry import dialect_of_body, history
from agentobs.records.canonical_json import canonical
from replay.fixture.format import Ask

COMPARED = 2000
"""Characters of a message that are compared for similarity. Our choice."""


def nearest(due: Sequence[Ask], body_of: Callable[[Ask], Any], path: str, came: Any) -> Ask | None:
    """Return the due request that is most similar to the live one; the first of equally similar ones.

    Args:
        due: the requests that may come now.
        body_of: returns the parsed body of a request.
        path: the URL path of the live request.
        came: its parsed body.
    """
    if len(due) < 2:
        return next(iter(due), None)
    return min(due, key=lambda ask: (*_unlike(body_of(ask), came), ask.path != path))


def _unlike(old: Any, new: Any) -> tuple[float, ...]:
    """Return the distance of two bodies: messages from the first difference on, its text, and the other fields."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return (float(canonical(old) != canonical(new)), 0.0, 0.0)
    before, now = ([canonical(entry) for entry in history(body)] for body in (old, new))
    same = 0
    for one, other in zip(before, now, strict=False):
        if one != other:
            break
        same += 1
    left = max(len(before), len(now)) - same
    one, other = (each[same][:COMPARED] if same < len(each) else "" for each in (before, now))
    alike = SequenceMatcher(None, one, other, autojunk=False).ratio() if left else 1.0
    keys = (old.keys() | new.keys()) - {dialect_of_body(old).history_key}
    others = sum(canonical(old.get(key)) != canonical(new.get(key)) for key in keys)
    return float(left), 1.0 - alike, float(others)
