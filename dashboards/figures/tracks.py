"""Tracks: intervals arranged so that no two of a track overlap, with tiny neighbors merged into one bar."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from agentobs.store.analysis.wall_time import Part


@dataclass(frozen=True, slots=True)
class Stretch:
    """An interval as it is drawn, or several merged into one."""

    kind: str
    part: Part
    label: str | None
    lane: str
    started_ns: int
    ended_ns: int
    state: str = "ok"
    """`ok`, `failed`, `stopped`, `open` or `orphaned`; the worst if merged."""
    says: str = ""
    """Further details."""
    count: int = 1
    """How many intervals it represents."""
    took_ns: int = 0
    """The sum of their durations."""
    failed: int = 0
    """How many of them failed."""
    failed_ns: int | None = None
    """The start of the first failed one."""
    is_critical: bool = False
    """Whether one of them is on the critical path."""
    spent: tuple[tuple[Part, int], ...] = ()
    """The duration by part, if it represents more than one."""
    labels: tuple[tuple[str, int], ...] = ()
    """Their names with counts, most frequent first."""


LONGEST = 10
"""The approximate maximum width of a merged bar, relative to its widest interval. Our choice."""
NO_END = ("open", "orphaned")
"""The states of intervals without an end."""
STATES = ("open", "orphaned", "failed", "stopped", "ok")
"""The states, the worst first."""


def packed(intervals: Iterable[Stretch], most: int) -> list[list[Stretch]]:
    """Return intervals in as few tracks as possible, so that those of a track are consecutive.

    Intervals that do not fit into `most` tracks are in one more, in which overlapping ones are merged.
    """
    tracks: list[list[Stretch]] = []
    beyond: list[Stretch] = []
    for each in sorted(intervals, key=lambda one: (one.started_ns, -one.ended_ns)):
        free = next((track for track in tracks if track[-1].ended_ns <= each.started_ns), None)
        if free is not None:
            free.append(each)
        elif len(tracks) < most:
            tracks.append([each])
        else:
            beyond.append(each)
    return [*tracks, united(beyond)] if beyond else tracks


def united(intervals: Sequence[Stretch]) -> list[Stretch]:
    """Return intervals with overlapping ones merged."""
    heaps: list[list[Stretch]] = []
    until = 0
    for each in sorted(intervals, key=lambda one: (one.started_ns, -one.ended_ns)):
        if heaps and each.started_ns < until:
            heaps[-1].append(each)
            until = max(until, each.ended_ns)
        else:
            heaps.append([each])
            until = each.ended_ns
    return [together(heap) for heap in heaps]


def coarser(track: Sequence[Stretch], narrow_ns: float) -> list[Stretch]:
    """Return a track with neighbors merged that are too narrow to be distinguished.

    Both are narrower than `narrow_ns`, and so is the gap between them. The merged bar is not much wider than `LONGEST`
    of them, so that its time is still visible if there are many.
    """
    heaps: list[list[Stretch]] = []
    for each in track:
        is_narrow = each.ended_ns - each.started_ns < narrow_ns
        last = heaps[-1][-1] if heaps else None
        if (
            is_narrow
            and last is not None
            and last.ended_ns - last.started_ns < narrow_ns
            and each.started_ns - last.ended_ns < narrow_ns
            and each.started_ns - heaps[-1][0].started_ns < LONGEST * narrow_ns
        ):
            heaps[-1].append(each)
        else:
            heaps.append([each])
    return [together(heap) for heap in heaps]


def together(heap: Sequence[Stretch]) -> Stretch:
    """Return one interval that represents several; the longest one determines the color."""
    if len(heap) == 1:
        return heap[0]
    spent: Counter[Part] = Counter()
    labels: Counter[str] = Counter()
    for each in heap:
        spent.update(dict(each.spent) or {each.part: each.took_ns})
        labels.update(dict(each.labels) or {each.label or "": each.count})
    part, _ = max(spent.items(), key=lambda item: item[1])
    return replace(
        heap[0],
        part=part,
        label=None,
        ended_ns=max(each.ended_ns for each in heap),
        state=min((each.state for each in heap), key=STATES.index),
        says="",
        count=sum(each.count for each in heap),
        took_ns=sum(each.took_ns for each in heap),
        failed=sum(each.failed for each in heap),
        failed_ns=min(
            (each.failed_ns for each in heap if each.failed_ns is not None), default=None
        ),
        is_critical=any(each.is_critical for each in heap),
        spent=tuple(spent.most_common()),
        labels=tuple(labels.most_common()),
    )
