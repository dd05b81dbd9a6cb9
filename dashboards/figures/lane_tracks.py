"""The layout of lanes: their order, their names, and the tracks of each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from agentobs.store.analysis.lane_names import name_of_lane
from dashboards.figures.phrases import count, plain
from dashboards.figures.tracks import Interval, merge_overlapping, pack

MANY_LANES = 8
"""If there are more lanes than this, agents of the same parent that were not concurrent share tracks. Our choice."""
MOST_OWN_TRACKS = 24
"""The maximum number of lanes with their own tracks; the others share one. Our choice."""
MOST_TRACKS = 90
"""If there are more tracks than this, the number of parallel tracks per lane is reduced. Our choice."""
BANDS = ("interaction", "sub_agent")
"""The kinds of intervals that are in the band of a lane. They enclose all other intervals of the lane."""
GROUPS: Final = (
    ("request", "requests", 6),
    ("tool", "tools", 10),
    ("agent", "sub-agent calls", 6),
    ("person", "waits for the user", 3),
    ("queued", "queued", 3),
    ("retry_wait", "retry backoff", 3),
    ("hook", "hooks", 3),
    ("compaction", "compaction", 2),
    ("upkeep", "auxiliary requests", 3),
    ("span", "custom spans", 6),
)
"""The tracks of a lane below its band: kind, name, and maximum number of parallel tracks."""
LONGEST_NAME = 22
"""The maximum number of characters of the name of a lane. Our choice: the space next to the tracks."""
_NUMBER: Final = re.compile(r" [\d,]+\Z")
"""The number of an agent after its type."""
MOST_PATHS = 3
"""The maximum number of parallel critical paths. Only concurrent interactions have parallel paths. Our choice."""


@dataclass(slots=True)
class Track:
    """One row of the figure."""

    name: str
    """The label; empty if the track continues the one above."""
    is_head: bool
    """Whether this is the first track of a lane, and has the name of the lane."""
    depth: int
    """The depth of the lane: 0 for the main lane."""
    bars: list[Interval] = field(default_factory=list)
    y: float = 0.0
    """The position from the top, in track heights."""


def tracks_of(shown: Sequence[Interval], path_segments: Sequence[Interval]) -> list[Track]:
    """Return the tracks from top to bottom, with as many parallel tracks as there is space for.

    Args:
        shown: the intervals.
        path_segments: the segments of the critical paths, which are on top.
    """
    blocks = _blocks(shown)
    place = {lane: number for number, block in enumerate(blocks) for lane in block}
    by_block: list[list[Interval]] = [[] for _ in blocks]
    for each in shown:
        by_block[place[each.lane]].append(each)
    agent_names = {each.lane: each.agent or name_of_lane(each.lane) for each in shown}
    names = [_name([agent_names[lane] for lane in block]) for block in blocks]
    tracks: list[Track] = []
    for share in (1.0, 0.5, 0.25, 0.0):
        tracks = _path_tracks(path_segments)
        for name, block, bars in list(zip(names, blocks, by_block, strict=True))[:MOST_OWN_TRACKS]:
            tracks += _lane_tracks(name, _depth(block[0]), bars, share)
        if len(tracks) <= MOST_TRACKS:
            break
    if len(blocks) > MOST_OWN_TRACKS:
        overflow = [each for bars in by_block[MOST_OWN_TRACKS:] for each in bars]
        agents = sum(len(block) for block in blocks[MOST_OWN_TRACKS:])
        tracks.append(
            Track(f"and {count(agents, 'more agent')}", True, 1, merge_overlapping(overflow))
        )
    y = 0.0
    for number, track in enumerate(tracks):
        y += 0.0 if number == 0 else 1.35 if track.is_head else 1.0
        track.y = y
    return tracks


def _path_tracks(path_segments: Sequence[Interval]) -> list[Track]:
    """Return the tracks of the critical paths. There are several only if interactions were concurrent."""
    runs: list[list[Interval]] = []
    for segment in path_segments:
        if runs and runs[-1][-1].ended_ns == segment.started_ns:
            runs[-1].append(segment)
        else:
            runs.append([segment])
    tracks: list[list[Interval]] = []
    overflow: list[Interval] = []
    for run in sorted(runs, key=lambda each: each[0].started_ns):
        free = next((t for t in tracks if t[-1].ended_ns <= run[0].started_ns), None)
        if free is not None:
            free += run
        elif len(tracks) < MOST_PATHS:
            tracks.append(list(run))
        else:
            overflow += run
    if overflow:
        tracks.append(merge_overlapping(overflow))
    return [Track("" if n else "critical path", n == 0, 0, track) for n, track in enumerate(tracks)]


def _lane_tracks(name: str, depth: int, bars: Sequence[Interval], share: float) -> list[Track]:
    """Return the band of a lane and the tracks below it. `share` reduces the maximum number of parallel tracks."""
    bands = pack([each for each in bars if each.kind in BANDS], max(1, int(3 * share)))
    tracks = [Track("" if n else name, n == 0, depth, band) for n, band in enumerate(bands or [[]])]
    for kind, title, most in GROUPS:
        group = pack([each for each in bars if each.kind == kind], max(1, int(most * share)))
        tracks += [Track("" if n else title, False, depth, track) for n, track in enumerate(group)]
    return tracks


def _depth(lane: str) -> int:
    return lane.count("/")


def _blocks(shown: Iterable[Interval]) -> list[list[str]]:
    """Return the lanes from top to bottom, the main lane first. Lanes in the same list share tracks."""
    extents: dict[str, tuple[int, int]] = {}
    for each in shown:
        low, high = extents.get(each.lane, (each.started_ns, each.ended_ns))
        extents[each.lane] = min(low, each.started_ns), max(high, each.ended_ns)
    children: dict[str, list[str]] = {}
    for lane in sorted(extents, key=lambda name: (name != "main", extents[name], name)):
        parent = lane.rpartition("/")[0]
        while parent and parent not in extents:
            parent = parent.rpartition("/")[0]
        children.setdefault(parent, []).append(lane)
    ordered: list[list[str]] = []
    pending = [[lane] for lane in children.get("", ())][::-1]
    while pending:
        block = pending.pop()
        ordered.append(block)
        sub_agents = children.get(block[0], [])
        leaves = (
            [lane for lane in sub_agents if lane not in children]
            if len(extents) > MANY_LANES
            else []
        )
        blocks = [[lane] for lane in sub_agents if lane not in leaves] + _grouped(leaves, extents)
        blocks.sort(key=lambda each: extents[each[0]])
        pending += blocks[::-1]
    return ordered


def _grouped(lanes: Sequence[str], extents: Mapping[str, tuple[int, int]]) -> list[list[str]]:
    """Return the lanes in groups, so that the lanes of a group were not concurrent."""
    blocks: list[list[str]] = []
    for lane in lanes:
        free = next((b for b in blocks if extents[b[-1]][1] <= extents[lane][0]), None)
        if free is not None:
            free.append(lane)
        else:
            blocks.append([lane])
    return blocks


def _name(agents: Sequence[str]) -> str:
    """Return the name of the tracks of some agents: the name of the agent, or the common type and the number."""
    if len(agents) == 1:
        return plain(agents[0], LONGEST_NAME)
    types = {_NUMBER.sub("", each) for each in agents}
    return plain(f"{types.pop() if len(types) == 1 else 'agents'} x {len(agents):,}", LONGEST_NAME)
