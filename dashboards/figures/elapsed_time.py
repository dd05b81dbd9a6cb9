"""An axis of elapsed time: long idle periods are cut out, and the ticks still show the true time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from agentobs.records.display import seconds

SECOND = 1_000_000_000
MINUTE, HOUR, DAY = 60 * SECOND, 3600 * SECOND, 86_400 * SECOND
LONG_IDLE = 0.05
"""An idle period may be cut out if it is longer than this fraction of the busy time. Our choice."""
MOST_IDLE = 0.5
"""Idle periods are cut out until this fraction of the axis, or less, is idle. Our choice."""
CUT = 0.03
"""The width of a cut, as a fraction of the rest of the axis; less if there are many cuts. Our choice."""
MOST_CUTS = 40
"""The maximum number of cuts. Our choice."""
MOST_CUT = 0.4
"""The maximum total width of all cuts, as a fraction of the rest of the axis. Our choice."""
PLOT = 520
"""The assumed minimum width of an axis, to decide which labels fit. [pixels]"""
LETTER = 6.6
"""The approximate width of a letter of a tick label. [pixels]"""
GAP = 10
"""The minimum space between two tick labels. [pixels]"""
_STEPS: Final[tuple[int, ...]] = (
    *(n * 10**power for power in range(9) for n in (1, 2, 5)),
    *(n * SECOND for n in (1, 2, 5, 10, 15, 30)),
    *(n * MINUTE for n in (1, 2, 5, 10, 15, 30)),
    *(n * HOUR for n in (1, 2, 3, 6, 12)),
    *(n * 10**power * DAY for power in range(6) for n in (1, 2, 5)),
)
"""The possible distances of ticks. [ns]"""
_UNITS = ((DAY, "d"), (HOUR, "h"), (MINUTE, "min"), (SECOND, "s"))


@dataclass(frozen=True, slots=True)
class Cut:
    """A period that is cut out of an axis."""

    started_ns: int
    ended_ns: int


@dataclass(frozen=True, slots=True)
class Elapsed:
    """An axis of seconds since a start, without the periods that are cut out."""

    zero_ns: int
    """The time that the ticks label as zero."""
    started_ns: int
    """The start of the axis."""
    ended_ns: int
    cuts: tuple[Cut, ...] = ()
    """The cuts, sorted and without overlaps."""
    cut_ns: int = 0
    """The drawn length of a cut, unless its true length is shorter."""

    @property
    def drawn_ns(self) -> int:
        """The length of the axis without the removed time."""
        removed_ns = sum(max(0, cut.ended_ns - cut.started_ns - self.cut_ns) for cut in self.cuts)
        return max(self.ended_ns - self.started_ns - removed_ns, 1)

    def at(self, ns: int) -> float:
        """Return the position of a time: the seconds since the start of the axis, without the removed time."""
        number = bisect_right(self.cuts, ns, key=lambda cut: cut.started_ns)
        removed_ns = sum(
            max(0, cut.ended_ns - cut.started_ns - self.cut_ns) for cut in self.cuts[:number]
        )
        if number and ns < self.cuts[number - 1].ended_ns:
            last = self.cuts[number - 1]
            cut_length = last.ended_ns - last.started_ns
            removed_ns -= max(0, cut_length - self.cut_ns)
            inside = ns - last.started_ns
            return (
                last.started_ns
                - self.started_ns
                - removed_ns
                + inside * min(1, self.cut_ns / cut_length)
            ) / SECOND
        return (ns - self.started_ns - removed_ns) / SECOND

    def stretches(self) -> list[tuple[int, int]]:
        """Return the periods between the cuts, in nanoseconds since 1970."""
        edges = [self.started_ns]
        for cut in self.cuts:
            edges += [cut.started_ns, cut.ended_ns]
        edges.append(self.ended_ns)
        return [
            (low, high) for low, high in zip(edges[::2], edges[1::2], strict=True) if low <= high
        ]


def elapsed(
    zero_ns: int, started_ns: int, ended_ns: int, busy: Iterable[tuple[int, int]]
) -> Elapsed:
    """Return the axis from `started_ns` to `ended_ns`, without long idle periods.

    Args:
        zero_ns: the time that the ticks label as zero.
        started_ns: the start of the axis.
        ended_ns: the end of the axis.
        busy: the start and end of each busy period, in any order.
    """
    idle = _idle(started_ns, ended_ns, busy)
    busy_ns = (ended_ns - started_ns) - sum(high - low for low, high in idle)
    remaining, idle_ns = ended_ns - started_ns, sum(high - low for low, high in idle)
    cuts: list[tuple[int, int]] = []
    for low, high in sorted(idle, key=lambda each: (each[0] - each[1], each))[:MOST_CUTS]:
        if busy_ns <= 0 or high - low <= LONG_IDLE * busy_ns or idle_ns <= MOST_IDLE * remaining:
            break
        cuts.append((low, high))
        remaining, idle_ns = remaining - (high - low), idle_ns - (high - low)
    width = int(max(remaining, 1) * min(CUT, MOST_CUT / max(len(cuts), 1)))
    return Elapsed(zero_ns, started_ns, ended_ns, tuple(Cut(*each) for each in sorted(cuts)), width)


def _idle(started_ns: int, ended_ns: int, busy: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the idle periods."""
    idle, until = [], started_ns
    for low, high in sorted(busy):
        if low > until:
            idle.append((until, min(low, ended_ns)))
        until = max(until, high)
        if until >= ended_ns:
            break
    if until < ended_ns:
        idle.append((until, ended_ns))
    return [(low, high) for low, high in idle if low < high]


def ticks(axis: Elapsed, most: int = 9) -> tuple[list[float], list[str]]:
    """Return the positions and the labels of the ticks of an axis; the labels contain the true time since zero.

    There is a tick after each cut, so that the next period has a time. Other ticks are left out if they do not fit.
    """
    step = _step(axis, most)
    candidates: list[tuple[bool, float, str]] = []
    for number, (low, high) in enumerate(axis.stretches()):
        after = low - axis.zero_ns
        if number:
            candidates.append((False, axis.at(low), _tick(after, step)))
        first = -(-after // step) * step
        times = min((high - axis.zero_ns - first) // step + 1, 2 * most)
        candidates += [
            (True, axis.at(axis.zero_ns + elapsed_ns), _tick(elapsed_ns, step))
            for elapsed_ns in (first + n * step for n in range(times))
        ]
    pixel = axis.drawn_ns / SECOND / PLOT
    kept: list[tuple[float, str]] = []
    for _, at, text in sorted(candidates):
        minimum_distances = [
            (len(text) + len(other)) / 2 * LETTER * pixel + GAP * pixel for _, other in kept
        ]
        if all(
            abs(at - there) >= wide
            for (there, _), wide in zip(kept, minimum_distances, strict=True)
        ):
            kept.append((at, text))
    kept.sort()
    return [at for at, _ in kept], [text for _, text in kept]


def _step(axis: Elapsed, most: int) -> int:
    """Return the distance of ticks, so that there are at most `most`, and each label has enough space.

    On an axis with cuts, the space is not checked here: `ticks` leaves out the ticks that do not fit.
    """
    last = axis.ended_ns - axis.zero_ns
    for step in _STEPS:
        available = step / axis.drawn_ns * PLOT
        fits = available >= len(_tick(last, step)) * LETTER + GAP
        if axis.drawn_ns <= step * most and (fits or axis.cuts):
            return step
    return _STEPS[-1]


def _tick(after_ns: int, step_ns: int) -> str:
    """Return the label of a tick, as precise as the distance of the ticks."""
    if after_ns == 0:
        return "0 s"
    if step_ns >= SECOND:
        finest = next(unit for unit, _ in _UNITS if unit <= step_ns)
        parts, rest = [], round(after_ns / finest) * finest
        for unit, word in _UNITS:
            if rest >= unit:
                parts.append(f"{rest // unit} {word}")
                rest %= unit
        return " ".join(parts) or seconds(after_ns)
    if abs(after_ns) >= MINUTE:
        return seconds(after_ns)
    if step_ns >= SECOND // 1000 and abs(after_ns) < SECOND and step_ns < SECOND // 10:
        return f"{after_ns * 1000 / SECOND:.0f} ms"
    digits = next((n for n in range(1, 10) if step_ns * 10**n >= SECOND), 9)
    return f"{after_ns / SECOND:.{digits}f} s"
