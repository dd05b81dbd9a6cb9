"""The arrangement of intervals in tracks: intervals of a track do not overlap, and tiny neighbors are merged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from agentobs.store.analysis.wall_time import Part


@dataclass(frozen=True, slots=True)
class Interval:
    """A drawn interval, or several intervals merged into one."""

    kind: str
    part: Part
    label: str | None
    lane: str
    started_ns: int
    ended_ns: int
    state: str = "ok"
    """`ok`, `failed`, `stopped`, `open` or `orphaned`; the worst state if several are merged."""
    details: str = ""
    """Further details."""
    count: int = 1
    """The number of intervals that it represents."""
    took_ns: int = 0
    """The sum of their durations."""
    gap_ns: int = 0
    """The time between its start and its end that none of the merged intervals covers."""
    failed: int = 0
    """The number of failed intervals."""
    failed_ns: int | None = None
    """The start of the first failed interval."""
    is_critical: bool = False
    """Whether at least one of the intervals is on the critical path."""
    durations: tuple[tuple[Part, int], ...] = ()
    """The total duration by part of the wall time, longest first; empty for a single interval."""
    labels: tuple[tuple[str, int], ...] = ()
    """The labels of the intervals with their counts, most frequent first; empty for a single interval."""
    numbers: tuple[int, ...] = ()
    """The positions of their rows in the result of `session_waterfall`; empty for a segment of the critical path."""
    agent: str = ""
    """The display name of the lane."""

    @property
    def coverage(self) -> float:
        """The fraction of its time that the merged intervals cover; 1 for a single interval."""
        length = self.ended_ns - self.started_ns
        return 1 - self.gap_ns / length if length else 1.0


LONGEST = 10
"""The approximate maximum width of a merged bar, relative to the widest interval that is merged. Our choice."""
NO_END = ("open", "orphaned")
"""The states of intervals without an end."""
STATES = ("open", "orphaned", "failed", "stopped", "ok")
"""The states, the worst first."""


def pack(intervals: Iterable[Interval], most: int) -> list[list[Interval]]:
    """Return intervals in as few tracks as possible; the intervals of a track do not overlap.

    Intervals that do not fit into `most` tracks are in an additional track, in which overlapping intervals are merged.
    """
    tracks: list[list[Interval]] = []
    overflow: list[Interval] = []
    for each in sorted(intervals, key=lambda one: (one.started_ns, -one.ended_ns)):
        free = next((track for track in tracks if track[-1].ended_ns <= each.started_ns), None)
        if free is not None:
            free.append(each)
        elif len(tracks) < most:
            tracks.append([each])
        else:
            overflow.append(each)
    return [*tracks, merge_overlapping(overflow)] if overflow else tracks


def merge_overlapping(intervals: Sequence[Interval]) -> list[Interval]:
    """Return intervals with overlapping ones merged."""
    groups: list[list[Interval]] = []
    until = 0
    for each in sorted(intervals, key=lambda one: (one.started_ns, -one.ended_ns)):
        if groups and each.started_ns < until:
            groups[-1].append(each)
            until = max(until, each.ended_ns)
        else:
            groups.append([each])
            until = each.ended_ns
    return [merged(group) for group in groups]


def merge_narrow(track: Sequence[Interval], narrow_ns: float) -> list[Interval]:
    """Return a track in which neighbors that are too narrow to be distinguished are merged.

    Neighbors are merged if both, and the gap between them, are narrower than `narrow_ns`. A merged bar is not much
    wider than `LONGEST` times `narrow_ns`, so that a long series of narrow intervals remains several bars.
    """
    groups: list[list[Interval]] = []
    for each in track:
        is_narrow = each.ended_ns - each.started_ns < narrow_ns
        last = groups[-1][-1] if groups else None
        if (
            is_narrow
            and last is not None
            and last.ended_ns - last.started_ns < narrow_ns
            and each.started_ns - last.ended_ns < narrow_ns
            and each.started_ns - groups[-1][0].started_ns < LONGEST * narrow_ns
        ):
            groups[-1].append(each)
        else:
            groups.append([each])
    return [merged(heap) for heap in groups]


def merged(group: Sequence[Interval]) -> Interval:
    """Return one interval that represents several. The part with the longest total duration determines the color."""
    if len(group) == 1:
        return group[0]
    durations: Counter[Part] = Counter()
    labels: Counter[str] = Counter()
    for each in group:
        durations.update(dict(each.durations) or {each.part: each.took_ns})
        labels.update(dict(each.labels) or {each.label or "": each.count})
    part, _ = max(durations.items(), key=lambda item: item[1])
    gap_ns, until = 0, group[0].started_ns
    for each in group:
        gap_ns += max(0, each.started_ns - until) + each.gap_ns
        until = max(until, each.ended_ns)
    return replace(
        group[0],
        part=part,
        label=None,
        ended_ns=max(each.ended_ns for each in group),
        state=min((each.state for each in group), key=STATES.index),
        details="",
        count=sum(each.count for each in group),
        took_ns=sum(each.took_ns for each in group),
        gap_ns=gap_ns,
        failed=sum(each.failed for each in group),
        failed_ns=min(
            (each.failed_ns for each in group if each.failed_ns is not None), default=None
        ),
        is_critical=any(each.is_critical for each in group),
        durations=tuple(durations.most_common()),
        labels=tuple(labels.most_common()),
        numbers=tuple(number for each in group for number in each.numbers),
    )
