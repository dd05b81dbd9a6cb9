"""Elapsed time along an axis: what is idle for long is cut out, and the ticks tell the true time all the same."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from agentobs.records.display import seconds

SECOND = 1_000_000_000
MINUTE, HOUR, DAY = 60 * SECOND, 3600 * SECOND, 86_400 * SECOND
LONG = 0.05
"""An idle stretch may be cut out that is longer than this share of the time in which something went on. Our choice."""
MOST_IDLE = 0.5
"""How much of what is drawn may be idle before stretches are cut out. Our choice."""
CUT = 0.03
"""How wide a stretch that was cut out is drawn, as a share of the rest; less where there are many. Our choice."""
MOST_CUTS = 40
"""How many stretches are cut out. Our choice."""
MOST_CUT = 0.4
"""How wide all of them are together at most, as a share of the rest. Our choice."""
PLOT = 520
"""How wide an axis is at least taken to be, where it must be known what fits beside each other. [pixels]"""
LETTER = 6.6
"""How wide a letter of a tick is, about. [pixels]"""
GAP = 10
"""How far ticks are apart. [pixels]"""
_STEPS: Final[tuple[int, ...]] = (
    *(n * 10**power for power in range(9) for n in (1, 2, 5)),
    *(n * SECOND for n in (1, 2, 5, 10, 15, 30)),
    *(n * MINUTE for n in (1, 2, 5, 10, 15, 30)),
    *(n * HOUR for n in (1, 2, 3, 6, 12)),
    *(n * 10**power * DAY for power in range(6) for n in (1, 2, 5)),
)
"""How far apart ticks may be. [ns]"""
_UNITS = ((DAY, "d"), (HOUR, "h"), (MINUTE, "min"), (SECOND, "s"))


@dataclass(frozen=True, slots=True)
class Cut:
    """A stretch that is cut out of an axis."""

    started_ns: int
    ended_ns: int


@dataclass(frozen=True, slots=True)
class Elapsed:
    """An axis of the seconds since something started, without the stretches that are cut out."""

    zero_ns: int
    """From when on time is told."""
    started_ns: int
    """Where the axis begins."""
    ended_ns: int
    cuts: tuple[Cut, ...] = ()
    """In order, and apart from each other."""
    cut_ns: int = 0
    """How wide each of them is drawn, or as wide as it is where that is less."""

    @property
    def drawn_ns(self) -> int:
        """How long the axis is."""
        gone = sum(max(0, cut.ended_ns - cut.started_ns - self.cut_ns) for cut in self.cuts)
        return max(self.ended_ns - self.started_ns - gone, 1)

    def at(self, ns: int) -> float:
        """Return where an instant is drawn: the seconds since the axis began, for which there is ink."""
        number = bisect_right(self.cuts, ns, key=lambda cut: cut.started_ns)
        gone = sum(
            max(0, cut.ended_ns - cut.started_ns - self.cut_ns) for cut in self.cuts[:number]
        )
        if number and ns < self.cuts[number - 1].ended_ns:
            last = self.cuts[number - 1]
            whole = last.ended_ns - last.started_ns
            gone -= max(0, whole - self.cut_ns)
            inside = ns - last.started_ns
            return (
                last.started_ns - self.started_ns - gone + inside * min(1, self.cut_ns / whole)
            ) / SECOND
        return (ns - self.started_ns - gone) / SECOND

    def stretches(self) -> list[tuple[int, int]]:
        """Return what is left between the cuts, in nanoseconds since 1970."""
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
    """Return the axis from `started_ns` to `ended_ns`, without long stretches in which nothing went on.

    Args:
        zero_ns: from when on time is told.
        started_ns: where the axis begins.
        ended_ns: where it ends.
        busy: from when to when something went on, in any order.
    """
    idle = _idle(started_ns, ended_ns, busy)
    active = (ended_ns - started_ns) - sum(high - low for low, high in idle)
    drawn, resting = ended_ns - started_ns, sum(high - low for low, high in idle)
    cuts: list[tuple[int, int]] = []
    for low, high in sorted(idle, key=lambda each: (each[0] - each[1], each))[:MOST_CUTS]:
        if active <= 0 or high - low <= LONG * active or resting <= MOST_IDLE * drawn:
            break
        cuts.append((low, high))
        drawn, resting = drawn - (high - low), resting - (high - low)
    width = int(max(drawn, 1) * min(CUT, MOST_CUT / max(len(cuts), 1)))
    return Elapsed(zero_ns, started_ns, ended_ns, tuple(Cut(*each) for each in sorted(cuts)), width)


def _idle(started_ns: int, ended_ns: int, busy: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the stretches in which nothing went on."""
    found, until = [], started_ns
    for low, high in sorted(busy):
        if low > until:
            found.append((until, min(low, ended_ns)))
        until = max(until, high)
        if until >= ended_ns:
            break
    if until < ended_ns:
        found.append((until, ended_ns))
    return [(low, high) for low, high in found if low < high]


def ticks(axis: Elapsed, most: int = 9) -> tuple[list[float], list[str]]:
    """Return where ticks stand along an axis, and the true time since its zero that each of them tells.

    After each cut stands one, so that what lies beyond it has a time. What does not fit beside them is left out.
    """
    step = _step(axis, most)
    places: list[tuple[bool, float, str]] = []
    for number, (low, high) in enumerate(axis.stretches()):
        after = low - axis.zero_ns
        if number:
            places.append((False, axis.at(low), _tick(after, step)))
        first = -(-after // step) * step
        times = min((high - axis.zero_ns - first) // step + 1, 2 * most)
        places += [
            (True, axis.at(axis.zero_ns + told), _tick(told, step))
            for told in (first + n * step for n in range(times))
        ]
    pixel = axis.drawn_ns / SECOND / PLOT
    kept: list[tuple[float, str]] = []
    for _, at, text in sorted(places):
        room = [(len(text) + len(other)) / 2 * LETTER * pixel + GAP * pixel for _, other in kept]
        if all(abs(at - there) >= wide for (there, _), wide in zip(kept, room, strict=True)):
            kept.append((at, text))
    kept.sort()
    return [at for at, _ in kept], [text for _, text in kept]


def _step(axis: Elapsed, most: int) -> int:
    """Return how far ticks are apart: so that there are not too many, and each has room for what it says.

    Where time was cut out they are not as far apart anyhow, and what has no room is left out one by one.
    """
    last = axis.ended_ns - axis.zero_ns
    for step in _STEPS:
        room = step / axis.drawn_ns * PLOT
        fits = room >= len(_tick(last, step)) * LETTER + GAP
        if axis.drawn_ns <= step * most and (fits or axis.cuts):
            return step
    return _STEPS[-1]


def _tick(after_ns: int, step_ns: int) -> str:
    """Return the time that a tick tells, as exact as ticks are apart."""
    if after_ns == 0:
        return "0 s"
    if step_ns >= SECOND:
        finest = next(unit for unit, _ in _UNITS if unit <= step_ns)
        told, rest = [], round(after_ns / finest) * finest
        for unit, word in _UNITS:
            if rest >= unit:
                told.append(f"{rest // unit} {word}")
                rest %= unit
        return " ".join(told) or seconds(after_ns)
    if abs(after_ns) >= MINUTE:
        return seconds(after_ns)
    if step_ns >= SECOND // 1000 and abs(after_ns) < SECOND and step_ns < SECOND // 10:
        return f"{after_ns * 1000 / SECOND:.0f} ms"
    digits = next((n for n in range(1, 10) if step_ns * 10**n >= SECOND), 9)
    return f"{after_ns / SECOND:.{digits}f} s"
