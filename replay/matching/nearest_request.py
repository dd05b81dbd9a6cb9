"""The nearest request: the due request with which a report compares a live request that matches no recorded request.

Concurrent requests may come in any order. An unknown request most likely belongs to the conversation that it continues,
and a comparison with the request of that conversation shows the fewest differences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from typing import Any

from agentobs.provider.registry import dialect_of_body, history
from agentobs.records.canonical_json import canonical
from replay.fixture.format import RecordedRequest

COMPARED = 2000
"""The maximum number of characters of a message that are compared for similarity. Our choice."""


def nearest(
    due: Sequence[RecordedRequest],
    body_of: Callable[[RecordedRequest], Any],
    path: str,
    live_body: Any,
) -> RecordedRequest | None:
    """Return the due request that is most similar to the live request; the first of several equally similar requests.

    Args:
        due: the requests that may come now.
        body_of: returns the parsed body of a request.
        path: the URL path of the live request.
        live_body: the parsed body of the live request.
    """
    if len(due) < 2:
        return next(iter(due), None)
    return min(due, key=lambda each: (*_distance(body_of(each), live_body), each.path != path))


def _distance(old: Any, new: Any) -> tuple[float, ...]:
    """Return the distance of two bodies, as numbers that are compared in order.

    The numbers are: how many messages there are from the first difference on, how much the first differing message has
    changed, and how many other fields differ.
    """
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return (float(canonical(old) != canonical(new)), 0.0, 0.0)
    old_entries, new_entries = (
        [canonical(entry) for entry in history(body)] for body in (old, new)
    )
    equal = 0
    for one, other in zip(old_entries, new_entries, strict=False):
        if one != other:
            break
        equal += 1
    remaining = max(len(old_entries), len(new_entries)) - equal
    one, other = (
        each[equal][:COMPARED] if equal < len(each) else "" for each in (old_entries, new_entries)
    )
    matcher = SequenceMatcher(None, one, other, autojunk=False)
    similarity = matcher.ratio() if remaining else 1.0
    keys = (old.keys() | new.keys()) - {dialect_of_body(old).history_key}
    others = sum(canonical(old.get(key)) != canonical(new.get(key)) for key in keys)
    return float(remaining), 1.0 - similarity, float(others)
