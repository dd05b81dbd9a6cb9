"""Unfinished attempts: the attempts in a segment whose end was never written, restored from drafts.

During a long attempt, the recorder writes drafts of its facts: a line `attempts_starts` with the columns of an attempt,
and a line `usage_starts` with the columns of its usage as soon as the provider has sent some. If the attempt ends, the
drafts are ignored. If the process dies, the drafts replace the records of the attempt.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from agentobs.recording.journal.segments import Line

DRAFT_SUFFIX = "_starts"
"""The suffix that turns the name of a table into the kind of a draft."""
MOVED = "attempt_moves"
"""The kind of a line that states that an attempt continues in the next segment of its process."""
DRAFTS = frozenset(("attempts_starts", "usage_starts", MOVED))
"""The kinds of lines that are not facts."""
ATTEMPT_KINDS = DRAFTS | {"attempts"}
"""The kinds of lines that show which attempts have not ended."""


def crashed_attempts(lines: Iterable[object]) -> list[Line]:
    """Return the records of attempts that started in a segment, and neither ended nor continued in another segment.

    Each record is a draft whose kind was replaced by the name of its table. `lines` are all lines of the facts file of
    a segment that is no longer being written; unrelated lines are skipped.
    """
    drafts: dict[str, dict[object, Line]] = {}
    for line in lines:
        if not isinstance(line, Line) or line.kind not in ATTEMPT_KINDS:
            continue
        if line.kind in DRAFTS or any(each.encode() in line.payload for each in drafts):
            _apply(line, drafts)
    return [
        replace(line, kind=line.kind.removesuffix(DRAFT_SUFFIX))
        for each in drafts.values()
        for line in each.values()
    ]


def _apply(line: Line, drafts: dict[str, dict[object, Line]]) -> None:
    """Store a draft, or forget the drafts of an attempt that has ended or moved."""
    try:
        value = line.value()
    except (ValueError, RecursionError):
        return
    attempt_id = str(value.get("attempt_id")) if isinstance(value, dict) else ""
    if line.kind == "attempts_starts":
        drafts[attempt_id] = {"": line}
    elif line.kind == "usage_starts" and attempt_id in drafts:
        drafts[attempt_id][value.get("iteration")] = line
    elif line.kind in ("attempts", MOVED):
        drafts.pop(attempt_id, None)
