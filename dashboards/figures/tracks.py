"""Tracks: intervals side by side, so that no two of a track overlap, and what is too narrow to be seen is one bar."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from agentobs.store.analysis.wall_time import Part


@dataclass(frozen=True, slots=True)
class Stretch:
    """An interval as it is drawn, or several as one."""

    kind: str
    part: Part
    label: str | None
    lane: str
    started_ns: int
    ended_ns: int
    state: str = "ok"
    """`ok`, `failed`, `stopped`, `open` or `orphaned`; of several the worst."""
    says: str = ""
    """What else there is to say of it."""
    count: int = 1
    """How many it stands for."""
    took_ns: int = 0
    """How long they took, each by itself and all together."""
    failed: int = 0
    """How many of them failed."""
    failed_ns: int | None = None
    """When the first one began that failed."""
    is_critical: bool = False
    """Whether one of them lies on the critical path."""
    spent: tuple[tuple[Part, int], ...] = ()
    """How long each part took, where it stands for more than one."""
    labels: tuple[tuple[str, int], ...] = ()
    """What they are called and how many are called so, the most frequent first."""


LONGEST = 10
"""How many times as wide as the widest of what it stands for a bar is that stands for many, about. Our choice."""
NO_END = ("open", "orphaned")
"""The states of what may still end, and of what never will."""
STATES = ("open", "orphaned", "failed", "stopped", "ok")
"""The states, the worst first."""


def packed(intervals: Iterable[Stretch], most: int) -> list[list[Stretch]]:
    """Return intervals in as few tracks as they need, so that those of a track follow each other.

    What finds no room in `most` tracks is in one more, in which what overlaps stands as one.
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
    """Return intervals with those that overlap put together."""
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
    """Return a track with neighbours put together that are too narrow to be told from each other.

    Both are narrower than `narrow_ns`, and so is what lies between them. What they make together is not much wider
    than `LONGEST` of it, so that where many follow each other it can still be seen when that was.
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
    """Return one interval that stands for several; what took longest gives it its colour."""
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
