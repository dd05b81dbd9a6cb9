"""Wall time: where the time of an interaction went, each nanosecond counted once.

Things run beside each other: tools, agents, the stream of an answer and the tools that begin before it has ended.
Their durations add up to more than the time that passed, so the critical path is followed, from the end backwards.
Within an interval, and from its end on:

1. of what has begun before this instant, whatever ends last is what was waited for; of two that end together, the
   one that began first;
2. the time after its end, where it had ended before this instant, is its parent's own;
3. the time from its beginning to this instant is split by the same rule among what it is made of;
4. then the same from its beginning on, until that of the interval.

So the parts are disjoint and add up to the wall time exactly, and what ran beside something that took longer, from
later on to earlier, counts nothing: had it not been there, not a nanosecond would have been won.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, get_args

import duckdb

from agentobs.store.named_queries import named

Part = Literal["model", "tool", "queued", "person", "hook", "retry_wait", "own"]
"""What time counts as: an answer of the model was under way; a tool ran; a call waited for its turn; a person was
asked; a hook was; the next attempt was waited for; none of these, so it was the program's own."""

PARTS: tuple[Part, ...] = get_args(Part)

_WHOLE: frozenset[Part] = frozenset(("person", "hook", "queued", "retry_wait"))
"""What counts whole, whatever goes on inside: a hook may ask a model, and so may a classifier beside a person."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Something that went on for a while."""

    id: str
    parent_id: str | None
    """What it is a part of; None, or unknown, where that is the interaction itself."""
    part: Part | None
    """What its time counts as where nothing inside of it says more; None where it counts as what it is a part of."""
    name: str
    label: str | None
    lane: str
    started_ns: int
    ended_ns: int | None
    """None where no end is known: it lasts as long as what it is a part of."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of the critical path."""

    part: Part
    name: str
    """What was going on."""
    label: str | None
    lane: str
    started_ns: int
    ended_ns: int


@dataclass(frozen=True, slots=True)
class Split:
    """The wall time of one interaction, taken apart."""

    interaction_id: str
    lane: str
    started_ns: int
    wall_ns: int
    """From its start to its end; to the last that is known of it where it has none."""
    model_ns: int
    tool_ns: int
    queued_ns: int
    person_ns: int
    hook_ns: int
    retry_wait_ns: int
    own_ns: int
    has_ended: bool
    told_by: Literal["spans", "wire"]
    """Whether our own loop told it, or it was read off the requests of another client."""
    path: tuple[Piece, ...]
    """The critical path, in order."""


def interaction_times(connection: duckdb.DuckDBPyConnection, session_id: str) -> list[Split]:
    """Return where the time of each interaction of a session went, in the order of their starts."""
    answered = named(connection, "interaction_intervals", session_id=session_id)
    columns = [str(column[0]) for column in answered.description or []]
    rows = [dict(zip(columns, row, strict=True)) for row in answered.fetchall()]
    told = []
    for interaction_id, group in groupby(rows, key=lambda row: str(row["interaction_id"])):
        known = list(group)
        fields = Interval.__slots__
        intervals = [Interval(**{name: row[name] for name in fields}) for row in known]
        told.append(_split(interaction_id, intervals, known[0]["told_by"]))
    return told


def critical_path(whole: Interval, inside: Iterable[Interval], end_ns: int) -> list[Piece]:
    """Return the pieces of the critical path: they follow each other from the start of `whole` to `end_ns`.

    Args:
        whole: the interaction.
        inside: what went on in it, by the ids of what it is a part of; what is part of something unknown is part
            of the interaction.
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
    """Return what each interval is made of, what ends last first. An id that recurs counts once."""
    known = {whole.id: whole}
    for each in inside:
        known.setdefault(each.id, each)
    children: dict[str, list[Interval]] = {}
    for each in list(known.values())[1:]:
        parent = each.parent_id if each.parent_id in known else whole.id
        children.setdefault(str(parent), []).append(each)
    for under in children.values():
        # Without an end it lasts to the end: before all others.
        under.sort(
            key=lambda each: (each.ended_ns is not None, -(each.ended_ns or 0), each.started_ns)
        )
    return children


def _own_part(part: Part, under: Sequence[Interval]) -> Part:
    """Return what the time of an interval counts as that nothing inside of it covers.

    Where a part of it says when the model, the tool or an agent itself was at work, all else is the program's own.
    """
    told_better = any(child.part == part or child.name == "sub_agent" for child in under)
    return "own" if told_better else part


def _piece(node: Interval, part: Part, started_ns: int, ended_ns: int) -> Piece:
    return Piece(part, node.name, node.label, node.lane, started_ns, ended_ns)


def _split(
    interaction_id: str, intervals: list[Interval], told_by: Literal["spans", "wire"]
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
        told_by=told_by,
        path=tuple(path),
    )
