"""Wall time: how the time of an interaction was spent, each nanosecond counted once.

Tools, agents, the stream of a response and the tools that start before its end overlap. Their
durations add up to more than the elapsed time, so the critical path is followed backwards from the
end. Within an interval, starting at its end:

1. Of the children that started before this instant, the one that ends last was waited for; if two end
   together, the one that started first.
2. If it ended before this instant, the time after its end belongs to its parent.
3. The time from its start to this instant is split by the same rule among its own children.
4. Then the same from its start on, until the start of the interval.

The parts are disjoint and add up exactly to the wall time. An operation that ran in parallel with a
longer one counts nothing, because removing it would not have saved a nanosecond.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, get_args

from agentobs.store.port import Store

Part = Literal["model", "tool", "queued", "person", "hook", "retry_wait", "own"]
"""The categories of time: a response of the model; a tool; a call in the queue; an approval wait; a
hook; a retry backoff; none of these, which is the program's own time.
"""

PARTS: tuple[Part, ...] = get_args(Part)

_WHOLE: frozenset[Part] = frozenset(("person", "hook", "queued", "retry_wait"))
"""Parts that are counted as a whole, whatever runs inside: a hook may call a model, and so may a classifier."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An operation with a duration."""

    id: str
    parent_id: str | None
    """The ID of its parent; None or unknown if that is the interaction itself."""
    part: Part | None
    """The category of its time not covered by children; None for its parent's category."""
    name: str
    label: str | None
    lane: str
    started_ns: int
    ended_ns: int | None
    """None if the end is unknown: it lasts as long as its parent."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A segment of the critical path."""

    part: Part
    name: str
    """The name of the operation."""
    label: str | None
    lane: str
    started_ns: int
    ended_ns: int


@dataclass(frozen=True, slots=True)
class Split:
    """The wall time of one interaction by category."""

    interaction_id: str
    lane: str
    started_ns: int
    wall_ns: int
    """From its start to its end, or to its last known instant if it has no end."""
    model_ns: int
    tool_ns: int
    queued_ns: int
    person_ns: int
    hook_ns: int
    retry_wait_ns: int
    own_ns: int
    has_ended: bool
    timing_source: Literal["spans", "wire"]
    """Whether it was recorded by our loop, or derived from the requests of another client."""
    path: tuple[Piece, ...]
    """The critical path, in order."""


def interaction_times(store: Store, session_id: str) -> list[Split]:
    """Return how the time of each interaction of a session was spent, in the order of their starts."""
    rows = store.rows("interaction_intervals", session_id=session_id).dicts()
    splits = []
    for interaction_id, group in groupby(rows, key=lambda row: str(row["interaction_id"])):
        known = list(group)
        fields = Interval.__slots__
        intervals = [Interval(**{name: row[name] for name in fields}) for row in known]
        splits.append(_split(interaction_id, intervals, known[0]["timing_source"]))
    return splits


def critical_path(whole: Interval, inside: Iterable[Interval], end_ns: int) -> list[Piece]:
    """Return the segments of the critical path, contiguous from the start of `whole` to `end_ns`.

    Args:
        whole: the interaction.
        inside: its operations, linked by parent ID; an operation with an unknown parent belongs to
            the interaction.
        end_ns: when the interaction ended.
    """
    children = _children(whole, inside)
    pieces: list[Piece] = []
    waiting = [(whole, whole.part or "own", whole.started_ns, end_ns)]
    while waiting:
        node, part, low, at = waiting.pop()
        under = () if part in _WHOLE else children.get(node.id, ())
        own = _own_part(part, under)
        for child in under:
            ended = at if child.ended_ns is None else child.ended_ns
            if child.started_ns >= at or ended <= low or ended <= child.started_ns:
                continue
            if ended < at:
                pieces.append(_piece(node, own, ended, at))
                at = ended
            begun = max(child.started_ns, low)
            waiting.append((child, child.part or own, begun, at))
            at = begun
            if at == low:
                break
        if at > low:
            pieces.append(_piece(node, own, low, at))
    return sorted(pieces, key=lambda piece: piece.started_ns)


def _children(whole: Interval, inside: Iterable[Interval]) -> Mapping[str, Sequence[Interval]]:
    """Return the children of each interval, latest end first. A repeated ID counts once."""
    known = {whole.id: whole}
    for each in inside:
        known.setdefault(each.id, each)
    children: dict[str, list[Interval]] = {}
    for each in list(known.values())[1:]:
        parent = each.parent_id if each.parent_id in known else whole.id
        children.setdefault(str(parent), []).append(each)
    for under in children.values():
        # Without an end it lasts to the end, so it sorts first.
        under.sort(
            key=lambda each: (each.ended_ns is not None, -(each.ended_ns or 0), each.started_ns)
        )
    return children


def _own_part(part: Part, under: Sequence[Interval]) -> Part:
    """Return the category of an interval's time that no child covers.

    If a child shows when the model, the tool or an agent itself was active, the rest is the program's own time.
    """
    told_better = any(child.part == part or child.name == "sub_agent" for child in under)
    return "own" if told_better else part


def _piece(node: Interval, part: Part, started_ns: int, ended_ns: int) -> Piece:
    return Piece(part, node.name, node.label, node.lane, started_ns, ended_ns)


def _split(
    interaction_id: str, intervals: list[Interval], timing_source: Literal["spans", "wire"]
) -> Split:
    whole, *inside = intervals
    end_ns = whole.ended_ns
    if end_ns is None:
        end_ns = max(each.ended_ns or each.started_ns for each in intervals)
    end_ns = max(end_ns, whole.started_ns)
    path = critical_path(whole, inside, end_ns)
    spent = dict.fromkeys(PARTS, 0)
    for piece in path:
        spent[piece.part] += piece.ended_ns - piece.started_ns
    return Split(
        interaction_id=interaction_id,
        lane=whole.lane,
        started_ns=whole.started_ns,
        wall_ns=end_ns - whole.started_ns,
        **{f"{part}_ns": ns for part, ns in spent.items()},
        has_ended=whole.ended_ns is not None,
        timing_source=timing_source,
        path=tuple(path),
    )
