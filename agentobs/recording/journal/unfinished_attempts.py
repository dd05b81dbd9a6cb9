"""Unfinished attempts: what the facts of a segment say about attempts whose end was never written.

While an attempt takes long, the recorder writes what is known of it: a line `attempts_starts` with the columns of an
attempt, and a line `usage_starts` with those of its usage as soon as the provider has sent some. Both are drafts. If
the attempt ends, they are ignored. If its process dies, they replace its record.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from agentobs.recording.journal.segments import Line

STARTS = "_starts"
"""The suffix that turns the name of a table into the kind of a draft."""
GOES_ON = "attempt_moves"
"""The kind of a line that says that an attempt continues in the next segment of its process."""
DRAFTS = frozenset(("attempts_starts", "usage_starts", GOES_ON))
"""The kinds of lines that are not facts themselves."""
TELLING = DRAFTS | {"attempts"}
"""The kinds of lines that show which attempts have not ended."""


def crashed(lines: Iterable[object]) -> list[Line]:
    """Return the records of attempts that started in these lines and neither ended nor continued elsewhere.

    Each is a line of its table and replaces the draft. `lines` are all lines of the facts of a segment that is
    not being written any more; unrelated lines are skipped.
    """
    drafts: dict[str, dict[object, Line]] = {}
    for line in lines:
        if not isinstance(line, Line) or line.kind not in TELLING:
            continue
        if line.kind in DRAFTS or any(each.encode() in line.payload for each in drafts):
            _follow(line, drafts)
    return [
        replace(line, kind=line.kind.removesuffix(STARTS))
        for each in drafts.values()
        for line in each.values()
    ]


def _follow(line: Line, drafts: dict[str, dict[object, Line]]) -> None:
    """Store a draft, or forget those of an attempt that ended."""
    try:
        value = line.value()
    except (ValueError, RecursionError):
        return
    attempt_id = str(value.get("attempt_id")) if isinstance(value, dict) else ""
    if line.kind == "attempts_starts":
        drafts[attempt_id] = {"": line}
    elif line.kind == "usage_starts" and attempt_id in drafts:
        drafts[attempt_id][value.get("iteration")] = line
    elif line.kind in ("attempts", GOES_ON):
        drafts.pop(attempt_id, None)
