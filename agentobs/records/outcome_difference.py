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


def outcome_difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    """Return the difference of two outcomes in words; empty if one is unknown.

    Args:
        a: the first session: its `outcome`, and its `cause` if it failed.
        b: the second session.
    """
    before, now = a.get("outcome"), b.get("outcome")
    if not (before and now):
        return ""
    if before != now:
        return "different"
    if have_different_causes(a, b):
        return f"both {now}, for different causes"
    return "no difference"
