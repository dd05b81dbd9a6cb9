"""The layout of lanes: their order, their names, and the tracks of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dashboards.figures.phrases import count, plain
from dashboards.figures.tracks import Stretch, packed, united

MANY = 8
"""If there are more lanes than this, agents of one parent that were not concurrent share one. Our choice."""
MOST = 24
"""How many lanes have their own tracks; the others share theirs. Our choice."""
MOST_TRACKS = 90
"""How many tracks there are before the concurrency per lane is limited. Our choice."""
BANDS = ("interaction", "sub_agent")
"""The band that spans the whole of a lane."""
GROUPS: Final = (
    ("request", "requests", 6),
    ("tool", "tools", 10),
    ("agent", "sub-agent calls", 6),
    ("person", "waits for the user", 3),
    ("queued", "queued", 3),
    ("retry_wait", "waits before a retry", 3),
    ("hook", "hooks", 3),
    ("compaction", "compaction", 2),
    ("upkeep", "upkeep requests", 3),
    ("span", "own spans", 6),
)
"""The tracks of a lane below its band: kind, name, and maximum number of parallel tracks."""
MOST_PATHS = 3
"""How many critical paths may be parallel: those of concurrent interactions. Our choice."""


@dataclass(slots=True)
class Track:
    """One row of the figure."""

    name: str
    """Its label; empty if it belongs to the one above."""
    is_head: bool
    """Whether it is the first of a lane, and has the lane's name."""
    depth: int
    """The depth of the lane: 0 for the main one."""
    bars: list[Stretch] = field(default_factory=list)
    y: float = 0.0
    """Its position from the top, in heights of a track."""


def tracks_of(shown: Sequence[Stretch], pieces: Sequence[Stretch]) -> list[Track]:
    """Return the tracks from top to bottom, with as much concurrency as there is space for.

    Args:
        shown: the intervals.
        pieces: the critical paths, which come first.
    """
    blocks = _blocks(shown)
    place = {lane: number for number, block in enumerate(blocks) for lane in block}
    by_block: list[list[Stretch]] = [[] for _ in blocks]
    for each in shown:
        by_block[place[each.lane]].append(each)
    names = _names(blocks, shown)
    tracks: list[Track] = []
    for share in (1.0, 0.5, 0.25, 0.0):
        tracks = _path_tracks(pieces)
        for name, block, bars in list(zip(names, blocks, by_block, strict=True))[:MOST]:
            tracks += _lane_tracks(name, _depth(block[0]), bars, share)
        if len(tracks) <= MOST_TRACKS:
            break
    if len(blocks) > MOST:
        beyond = [each for bars in by_block[MOST:] for each in bars]
        agents = sum(len(block) for block in blocks[MOST:])
        tracks.append(Track(f"and {count(agents, 'more agent')}", True, 1, united(beyond)))
    y = 0.0
    for number, track in enumerate(tracks):
        y += 0.0 if number == 0 else 1.35 if track.is_head else 1.0
        track.y = y
    return tracks


def _path_tracks(pieces: Sequence[Stretch]) -> list[Track]:
    """Return the tracks of the critical paths: one, except for concurrent interactions."""
    runs: list[list[Stretch]] = []
    for piece in pieces:
        if runs and runs[-1][-1].ended_ns == piece.started_ns:
            runs[-1].append(piece)
        else:
            runs.append([piece])
    tracks: list[list[Stretch]] = []
    beyond: list[Stretch] = []
    for run in sorted(runs, key=lambda each: each[0].started_ns):
        free = next((t for t in tracks if t[-1].ended_ns <= run[0].started_ns), None)
        if free is not None:
            free += run
        elif len(tracks) < MOST_PATHS:
            tracks.append(list(run))
        else:
            beyond += run
    if beyond:
        tracks.append(united(beyond))
    return [Track("" if n else "critical path", n == 0, 0, track) for n, track in enumerate(tracks)]


def _lane_tracks(name: str, depth: int, bars: Sequence[Stretch], share: float) -> list[Track]:
    """Return the band of a lane and the tracks below it; `share` reduces the maximum number of parallel ones."""
    bands = packed([each for each in bars if each.kind in BANDS], max(1, int(3 * share)))
    tracks = [Track("" if n else name, n == 0, depth, band) for n, band in enumerate(bands or [[]])]
    for kind, title, most in GROUPS:
        group = packed([each for each in bars if each.kind == kind], max(1, int(most * share)))
        tracks += [Track("" if n else title, False, depth, track) for n, track in enumerate(group)]
    return tracks


def _depth(lane: str) -> int:
    return lane.count("/")


def _blocks(shown: Iterable[Stretch]) -> list[list[str]]:
    """Return the lanes from top to bottom, the main one first; if there are many, some share tracks."""
    extents: dict[str, tuple[int, int]] = {}
    for each in shown:
        low, high = extents.get(each.lane, (each.started_ns, each.ended_ns))
        extents[each.lane] = min(low, each.started_ns), max(high, each.ended_ns)
    below: dict[str, list[str]] = {}
    for lane in sorted(extents, key=lambda name: (name != "main", extents[name], name)):
        above = lane.rpartition("/")[0]
        while above and above not in extents:
            above = above.rpartition("/")[0]
        below.setdefault(above, []).append(lane)
    ordered: list[list[str]] = []
    waiting = [[lane] for lane in below.get("", ())][::-1]
    while waiting:
        block = waiting.pop()
        ordered.append(block)
        started = below.get(block[0], [])
        leaves = [lane for lane in started if lane not in below] if len(extents) > MANY else []
        blocks = [[lane] for lane in started if lane not in leaves] + _sharing(leaves, extents)
        blocks.sort(key=lambda each: extents[each[0]])
        waiting += blocks[::-1]
    return ordered


def _sharing(lanes: Sequence[str], extents: Mapping[str, tuple[int, int]]) -> list[list[str]]:
    """Return lanes grouped so that those in a group were not concurrent."""
    blocks: list[list[str]] = []
    for lane in lanes:
        free = next((b for b in blocks if extents[b[-1]][1] <= extents[lane][0]), None)
        if free is not None:
            free.append(lane)
        else:
            blocks.append([lane])
    return blocks


def _names(blocks: Sequence[Sequence[str]], shown: Iterable[Stretch]) -> list[str]:
    """Return the names of lanes: those of their agents, with a suffix of the lane's own name if they are ambiguous."""
    told: dict[str, str] = {}
    for each in shown:
        if each.kind in BANDS and each.label:
            told.setdefault(each.lane, each.label)
    alone = [
        told.get(block[0]) or "agent" for block in blocks if len(block) == 1 and "/" in block[0]
    ]
    names = []
    for block in blocks:
        lane = block[0]
        tail = lane.rpartition("/")[2]
        called = {told.get(each, "agent") for each in block}
        name = called.pop() if len(called) == 1 else "agents"
        if len(block) > 1:
            name = f"{name[:14]} x {len(block):,}"
        elif "/" not in lane:
            name = told.get(lane) or lane
        elif alone.count(name) > 1 or lane not in told:
            name = f"{name[:14]} {tail if len(tail) < 6 else f'…{tail[-5:]}'}"
        names.append(plain(name, 20))
    return names
