"""Wall time: how the time of an interaction was spent, each nanosecond counted once.

Operations overlap: tools, agents, the stream of a response, and tools that start before the end of that stream. Their
durations add up to more than the elapsed time, so only the critical path is counted. It is followed backwards through
an interval. Let t be the end of the interval:

1. Of the children that started before t, select the child that ended last; of two that ended together, the one that
   started first.
2. If this child ended before t, the time from its end to t belongs to the interval itself, and t becomes the child's
   end.
3. The time from the child's start to t is split among its own children by the same rules.
4. Continue at step 1 with t as the child's start, until the start of the interval is reached.

The parts are disjoint and add up exactly to the wall time. An operation that ran in parallel with a longer operation
does not count, because removing it would not have saved any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import Literal, NamedTuple, get_args

from agentobs.records.display import listed, seconds
from agentobs.store.port import Store

Part = Literal["model", "tool", "queued", "person", "hook", "retry_wait", "own"]
"""The categories of time, in this order: a response of the model; a tool; a tool call in the queue; an approval wait; a
hook; a retry backoff; anything else, which is the program's own time.
"""

PARTS: tuple[Part, ...] = get_args(Part)

TimingSource = Literal["spans", "log", "wire"]
"""How the times of an interaction are known: `spans`: our agent loop recorded them; `log`: imported from the log of
another client; `wire`: derived from the requests of another client.
"""

UNSEEN: Mapping[TimingSource, tuple[Part, ...]] = MappingProxyType(
    {
        "spans": (),
        "log": ("queued", "person", "hook", "retry_wait"),
        "wire": ("queued", "person", "hook"),
    }
)
"""The categories that each source does not contain: their time is inside other categories, such as that of tools."""

LEAST_NAMED = 1_000_000_000
"""A time outside of interactions is named if it is at least this long, in nanoseconds. Our choice."""
LEAST_SHARE = 0.01
"""A shorter time outside of interactions is named if it is at least this part of the session. Our choice."""
MOST_PAUSES = 3
"""The maximum number of times without an interaction in a list of steps. Our choice: they leave room for the steps."""

_WHOLE: frozenset[Part] = frozenset(("person", "hook", "queued", "retry_wait"))
"""The categories that include everything that runs inside, such as the LLM requests of a hook or of a classifier."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An operation with a duration."""

    id: str
    parent_id: str | None
    """The ID of the parent interval. If it is None or not in the list, the parent is the interaction itself."""
    part: Part | None
    """The category of the time that no child covers; None for the category of the parent."""
    name: str
    label: str | None
    lane: str
    started_ns: int
    ended_ns: int | None
    """When it ended; None if that is unknown, so that it lasts as long as its parent."""


@dataclass(frozen=True, slots=True)
class TimeSlice:
    """A part of the critical path."""

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
    queued_ns: int | None
    """None, as in other categories, if the client does not record this time. It is then part of another category."""
    person_ns: int | None
    hook_ns: int | None
    retry_wait_ns: int | None
    own_ns: int
    has_ended: bool
    timing_source: TimingSource
    path: tuple[TimeSlice, ...]
    """The critical path, in order."""


def interaction_times(store: Store, session_id: str) -> list[Split]:
    """Return the wall time of each interaction of a session by category, in the order of their starts."""
    rows = store.rows("interaction_intervals", session_id=session_id).dicts()
    splits = []
    for interaction_id, group in groupby(rows, key=lambda row: str(row["interaction_id"])):
        known = list(group)
        fields = Interval.__slots__
        intervals = [Interval(**{name: row[name] for name in fields}) for row in known]
        splits.append(_split(interaction_id, intervals, known[0]["timing_source"]))
    return splits


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time in which only the program's own code ran."""

    started_ns: int
    ended_ns: int
    before: TimeSlice | None
    """What the agent did before it; None at the start of an interaction."""


def longest_own_stretch(splits: Iterable[Split]) -> Stretch | None:
    """Return the longest time in an interaction in which only the program's own code ran; None if there is none."""
    found: Stretch | None = None
    for split in splits:
        before: TimeSlice | None = None
        for is_own, group in groupby(split.path, key=lambda each: each.part == "own"):
            pieces = list(group)
            if not is_own:
                before = pieces[-1]
                continue
            stretch = Stretch(pieces[0].started_ns, pieces[-1].ended_ns, before)
            if found is None or _length(stretch) > _length(found):
                found = stretch
    return found


def _length(stretch: Stretch) -> int:
    return stretch.ended_ns - stretch.started_ns


def total_by_part(splits: Iterable[Split]) -> dict[Part, int]:
    """Return the time of each category in all interactions, in nanoseconds; 0 if no interaction records it."""
    listed = list(splits)
    return {part: sum(getattr(each, f"{part}_ns") or 0 for each in listed) for part in PARTS}


def has_unseen_waits(splits: Iterable[Split]) -> bool:
    """Return whether the time of tools may contain approval waits, because the client does not record them."""
    return any(each.tool_ns and "person" in UNSEEN[each.timing_source] for each in splits)


class Pause(NamedTuple):
    """A time in which no interaction was open."""

    started_ns: int
    duration_ns: int
    words: str
    """Where it was: `before the first interaction`, or `between interactions 3 and 4`, numbered as on the page."""


def _pauses_between(splits: Iterable[Split]) -> list[Pause]:
    """Return the times between interactions in which none was open, in order."""
    found: list[Pause] = []
    end = None
    for number, split in enumerate(sorted(splits, key=lambda each: each.started_ns)):
        if end is not None and split.started_ns > end:
            words = f"between interactions {number:,} and {number + 1:,}"
            found.append(Pause(end, split.started_ns - end, words))
        end = max(end or 0, split.started_ns + split.wall_ns)
    return found


def time_between(splits: Iterable[Split]) -> int:
    """Return the time between interactions in which none was open, in nanoseconds."""
    return sum(each.duration_ns for each in _pauses_between(splits))


def named_pauses(splits: Sequence[Split], started_ns: int, duration_ns: int | None) -> list[Pause]:
    """Return the longest times before the first interaction and between interactions that `is_named`, the longest
    first, at most `MOST_PAUSES`. They are not steps of the agent. Arguments as for `time_outside`.
    """
    before, _, _ = time_outside(splits, started_ns, duration_ns)
    found = [Pause(started_ns, before, "before the first interaction"), *_pauses_between(splits)]
    named = [each for each in found if is_named(each.duration_ns, duration_ns)]
    return sorted(named, key=lambda each: -each.duration_ns)[:MOST_PAUSES]


def time_outside(
    splits: Sequence[Split], started_ns: int, duration_ns: int | None
) -> tuple[int, int, int]:
    """Return the times before the first interaction, between interactions, and after the last one, in nanoseconds.

    Args:
        splits: the times of the interactions.
        started_ns: the start of the session, in nanoseconds since 1970.
        duration_ns: the duration of the session in nanoseconds; None if it is unknown, and then nothing is known about
            the time after the last interaction.
    """
    if not splits:
        return 0, 0, 0
    before = max(min(split.started_ns for split in splits) - started_ns, 0)
    end = max(split.started_ns + split.wall_ns for split in splits)
    after = 0 if duration_ns is None else max(started_ns + duration_ns - end, 0)
    return before, time_between(splits), after


def is_named(outside_ns: int, duration_ns: int | None) -> bool:
    """Return whether a time outside of interactions is long enough to be named.

    Args:
        outside_ns: the time, in nanoseconds.
        duration_ns: the duration of the session in nanoseconds; None if it is unknown.
    """
    is_large = bool(duration_ns) and outside_ns >= LEAST_SHARE * (duration_ns or 0)
    return outside_ns > 0 and (outside_ns >= LEAST_NAMED or is_large)


def outside_words(splits: Sequence[Split], started_ns: int, duration_ns: int | None) -> str:
    """Return the times outside of interactions that `is_named` in words, such as `57.01 s between and 31.76 s after
    them`; empty if there are none. Arguments as for `time_outside`.
    """
    times = time_outside(splits, started_ns, duration_ns)
    parts = [
        f"{seconds(ns)} {place}"
        for ns, place in zip(times, ("before", "between", "after"), strict=True)
        if is_named(ns, duration_ns)
    ]
    return f"{listed(parts)} them" if parts else ""


def critical_path(whole: Interval, inside: Iterable[Interval], end_ns: int) -> list[TimeSlice]:
    """Return the parts of the critical path, contiguous from the start of `whole` to `end_ns`.

    Args:
        whole: the interaction.
        inside: its operations, linked by parent ID; an operation with an unknown parent belongs to
            the interaction.
        end_ns: when the interaction ended.
    """
    children = _children(whole, inside)
    slices: list[TimeSlice] = []
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
                slices.append(_slice(node, own, ended, at))
                at = ended
            begun = max(child.started_ns, low)
            waiting.append((child, child.part or own, begun, at))
            at = begun
            if at == low:
                break
        if at > low:
            slices.append(_slice(node, own, low, at))
    return sorted(slices, key=lambda time_slice: time_slice.started_ns)


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
        # A child without an end lasts as long as its parent, so it is processed first.
        under.sort(
            key=lambda each: (each.ended_ns is not None, -(each.ended_ns or 0), each.started_ns)
        )
    return children


def _own_part(part: Part, under: Sequence[Interval]) -> Part:
    """Return the category of an interval's time that no child covers.

    If a child shows when the model, the tool or an agent itself was active, the rest is the program's own time.
    """
    has_precise_child = any(child.part == part or child.name == "sub_agent" for child in under)
    return "own" if has_precise_child else part


def _slice(node: Interval, part: Part, started_ns: int, ended_ns: int) -> TimeSlice:
    return TimeSlice(part, node.name, node.label, node.lane, started_ns, ended_ns)


def _split(interaction_id: str, intervals: list[Interval], timing_source: TimingSource) -> Split:
    whole, *inside = intervals
    end_ns = whole.ended_ns
    if end_ns is None:
        end_ns = max(each.ended_ns or each.started_ns for each in intervals)
    end_ns = max(end_ns, whole.started_ns)
    path = critical_path(whole, inside, end_ns)
    spent = dict.fromkeys(PARTS, 0)
    for time_slice in path:
        spent[time_slice.part] += time_slice.ended_ns - time_slice.started_ns
    known = {
        part: ns if ns or part not in UNSEEN[timing_source] else None for part, ns in spent.items()
    }
    return Split(
        interaction_id=interaction_id,
        lane=whole.lane,
        started_ns=whole.started_ns,
        wall_ns=end_ns - whole.started_ns,
        model_ns=spent["model"],
        tool_ns=spent["tool"],
        queued_ns=known["queued"],
        person_ns=known["person"],
        hook_ns=known["hook"],
        retry_wait_ns=known["retry_wait"],
        own_ns=spent["own"],
        has_ended=whole.ended_ns is not None,
        timing_source=timing_source,
        path=tuple(path),
    )
