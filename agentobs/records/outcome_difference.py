"""The difference of the outcomes of two sessions in words: two sessions may fail for different causes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_LINE = re.compile(r"(\.\w+):\d+")
"""Matches the number of a line after the name of a file. It changes with each edit of the file, so the cause is the
same.
"""


def have_different_causes(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Return whether two sessions failed for different causes. A cause that is unknown is not a difference.

    Args:
        a: the first session, with its `cause` as in the list of sessions, if it failed.
        b: the second session.
    """
    causes = [_LINE.sub(r"\1", str(side["cause"])) for side in (a, b) if side.get("cause")]
    return len(causes) == 2 and causes[0] != causes[1]


def error_of(failure: Mapping[str, Any]) -> str | None:
    """Return the class of the error of a failed session, as in the list and in the banner of its page: the limit that
    ended it, such as `max_turns`; else the class of the error of the failed step or of the exception; else the outcome
    of the failed step, such as `invalid`. None if none is known.

    Args:
        failure: its row of the view `failures`.
    """
    if failure["cause"] == "result" and failure["reason"]:
        return str(failure["reason"])
    found = failure["step_class"] or failure["error_class"]
    if not found and failure["step_outcome"] != "unfinished":
        found = failure["step_outcome"]
    return str(found) if found else None


def outcome_difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    """Return the difference of two outcomes in words; empty if one is unknown.

    Args:
        a: the first session: its `outcome`, and its `cause` and its `error_class` if it failed.
        b: the second session.
    """
    before, now = a.get("outcome"), b.get("outcome")
    if not (before and now):
        return ""
    if before != now:
        return "different"
    if have_different_causes(a, b):
        return f"both {now}{_for_different_causes(a.get('error_class'), b.get('error_class'))}"
    return "no difference"


def _for_different_causes(a: str | None, b: str | None) -> str:
    """Return how the causes differ, with the classes of both errors if one is known."""
    if a == b:
        return f" with {a}, for different causes" if a else ", for different causes"
    return f", for different causes: {a or 'unknown error'} in A, {b or 'unknown error'} in B"
