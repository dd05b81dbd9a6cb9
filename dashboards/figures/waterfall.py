"""The waterfall of a session: all operations over time, by lane, and the critical path.

The critical path is on top. Below it, each lane has a band for its interactions, and tracks for its requests, tools and
waits; concurrent operations are in separate tracks. Long idle periods are cut out. A bar that represents many short
operations is paler if they cover only a part of its time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import plotly.graph_objects as go

from agentobs.store.analysis.lane_names import AUXILIARY, lane_names, name_of_lane, with_agents
from agentobs.store.analysis.wall_time import PARTS, TimeSlice
from dashboards.figures.elapsed_time import Elapsed, elapsed
from dashboards.figures.lane_tracks import BANDS, Track, tracks_of
from dashboards.figures.phrases import Row, empty_figure, lane_of, plain
from dashboards.figures.timeline import KIND_NAMES, THINNEST, draw_tracks
from dashboards.figures.tracks import NO_END, STATES, Interval, merge_narrow

NARROW = 1 / THINNEST
"""Neighboring bars are merged if they and the gap between them are narrower than the plot width divided by this number,
which is the minimum width of a bar. Bars with smaller gaps would look like one. Our choice."""
MARKED = 1.4
"""The maximum average number of marks per bar, including the marks of failed and unfinished bars. Our choice."""
_KINDS: Final = {
    "attempt": "request",
    "llm_request": "request",
    "execution": "tool",
    "tool": "tool",
    "blocked_on_user": "person",
    "queued": "queued",
    "hook": "hook",
    "retry_wait": "retry_wait",
    "compaction": "compaction",
}
"""The kind of interval that corresponds to a segment of the critical path, by the name of the segment."""


def session_waterfall(
    rows: Sequence[Row],
    path: Sequence[TimeSlice] = (),
    *,
    most: int = 1000,
    window: tuple[int, int] | None = None,
) -> go.Figure:
    """Return the figure of a session over time, lane by lane.

    Args:
        rows: the rows of the query `session_waterfall`.
        path: the critical paths of its interactions, from `agentobs.store.analysis.wall_time`.
        most: the maximum number of bars, although each track has at least one. If there are more intervals, narrow
            neighbors in a track are drawn as one bar with their count.
        window: the start and end of the visible period, in nanoseconds since 1970; None for the whole session.
    """
    timed = [(n, row) for n, row in enumerate(rows) if row["started_ns"] is not None]
    if all(row["kind"] == "session" for _, row in timed):
        return empty_figure()
    if not any("agent" in row for row in rows):
        timed = [
            (n, row) for (n, _), row in zip(timed, _named([row for _, row in timed]), strict=True)
        ]
    zero, low, high = _bounds([row for _, row in timed], window)
    known = (_stretch(n, row, low, high) for n, row in timed if row["kind"] != "session")
    shown = [each for each in known if each is not None]
    agents = {each.lane: each.agent for each in shown}
    path_segments = [
        each for each in (_piece(piece, low, high, agents) for piece in path) if each is not None
    ]
    if not shown:
        return empty_figure("no activity in this range")
    axis = _axis(zero, low, high, shown)
    shown = _with_critical(shown, path_segments)
    tracks = _bounded(tracks_of(shown, path_segments), most, axis)
    return draw_tracks(tracks, axis, has_path=bool(path_segments))


def _named(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return rows with the display names of their lanes, as far as the rows contain the types of the agents."""
    placed = sorted(
        (row for row in rows if row["lane"] is not None), key=lambda row: int(row["started_ns"])
    )
    types = ((str(row["lane"]), row["label"] if row["kind"] in BANDS else None) for row in placed)
    return with_agents(rows, lane_names(types))


def _bounds(rows: Sequence[Row], window: tuple[int, int] | None) -> tuple[int, int, int]:
    """Return the time that the axis labels as zero, and the start and end of the visible period."""
    zero = min(row["started_ns"] for row in rows)
    last = max(max(row["started_ns"], row["ended_ns"] or 0) for row in rows)
    if window is None:
        return zero, zero, max(last, zero + 1)
    return zero, min(window), max(max(window), min(window) + 1)


def _stretch(number: int, row: Row, low: int, high: int) -> Interval | None:
    """Return the interval of a row, clipped to the visible period; None if it is outside."""
    started, ended = row["started_ns"], row["ended_ns"]
    if ended is None:
        ended = high if row["state"] in NO_END else started
    ended = max(started, ended)
    if started > high or ended < low:
        return None
    kind = "upkeep" if row["is_upkeep"] and row["kind"] == "request" else row["kind"]
    return Interval(
        kind=kind if kind in KIND_NAMES else "span",
        part=row["part"] if row["part"] in PARTS else "own",
        label=row["label"],
        lane=str(row["lane"]),
        agent=lane_of(row),
        started_ns=max(started, low),
        ended_ns=min(ended, high),
        state=row["state"] if row["state"] in STATES else "ok",
        details=_details(row),
        took_ns=ended - started,
        failed=int(row["state"] == "failed"),
        failed_ns=max(started, low) if row["state"] == "failed" else None,
        numbers=(number,),
    )


def _details(row: Row) -> str:
    """Return further details of a row."""
    lines = []
    if row["detail"] and row["detail"] != "success":
        lines.append(plain(row["detail"]).replace("_", " "))
    if row["prompt_tokens"] is not None:
        at_least = "at least " if row.get("is_lower_bound") else ""
        lines.append(
            f"{row['prompt_tokens']:,} tokens in, {at_least}{row['output_tokens'] or 0:,} out"
        )
    if row["turn"] is not None:
        lines.append(f"turn {row['turn']:,}")
    return "<br>".join(lines)


def _piece(piece: TimeSlice, low: int, high: int, agents: Mapping[str, str]) -> Interval | None:
    if piece.started_ns >= high or piece.ended_ns <= low:
        return None
    return Interval(
        kind="path",
        part=piece.part,
        label=piece.label or piece.name,
        lane=piece.lane,
        agent=agents.get(piece.lane) or name_of_lane(piece.lane),
        started_ns=max(piece.started_ns, low),
        ended_ns=min(piece.ended_ns, high),
        details=piece.name,
        took_ns=piece.ended_ns - piece.started_ns,
    )


def _axis(zero: int, low: int, high: int, shown: Iterable[Interval]) -> Elapsed:
    # An orphaned interval has no known end, so only its start counts as busy.
    busy = [(s.started_ns, s.ended_ns) for s in shown if s.state != "orphaned"]
    edges = [(s.started_ns, s.started_ns) for s in shown]
    return elapsed(zero, low, high, [*busy, *edges])


def _with_critical(shown: Sequence[Interval], path_pieces: Iterable[Interval]) -> list[Interval]:
    """Return the intervals with the flag `is_critical`, which is true on the critical path."""
    lanes: dict[tuple[str, str], list[int]] = {}
    for number, each in sorted(enumerate(shown), key=lambda item: item[1].started_ns):
        kind = "request" if each.kind == "upkeep" else each.kind
        lanes.setdefault((each.lane, kind), []).append(number)
    instants_by_lane: dict[tuple[str, str], list[int]] = {}
    for piece in path_pieces:
        if piece.part != "own" and (drawn_as := _KINDS.get(piece.details)) is not None:
            key = AUXILIARY.sub("", piece.lane), drawn_as
            instants_by_lane.setdefault(key, []).append((piece.started_ns + piece.ended_ns) // 2)
    critical = {
        number
        for key, instants in instants_by_lane.items()
        for number in _waited_for(shown, lanes.get(key, ()), sorted(instants))
    }
    return [replace(each, is_critical=number in critical) for number, each in enumerate(shown)]


def _waited_for(
    shown: Sequence[Interval], numbers: Iterable[int], instants: Iterable[int]
) -> Iterator[int]:
    """For each time, yield the number of the interval that the session waited for, which is the running interval that
    ended last.

    `numbers` must be sorted by the start of their intervals, and `instants` by time.
    """
    pending, running = list(numbers)[::-1], list[tuple[int, int]]()
    for instant in instants:
        while pending and shown[pending[-1]].started_ns <= instant:
            number = pending.pop()
            heapq.heappush(running, (-shown[number].ended_ns, number))
        if running and -running[0][0] >= instant:
            yield running[0][1]


def _bounded(tracks: Sequence[Track], most: int, axis: Elapsed) -> list[Track]:
    """Return the tracks with narrow neighbors merged. The limit of a pixel grows until `most` bars are left."""
    narrow = axis.drawn_ns / NARROW
    while True:
        coarse = [replace(track, bars=merge_narrow(track.bars, narrow)) for track in tracks]
        bars = [each for track in coarse for each in track.bars]
        marks = sum(1 + bool(each.failed) + 2 * (each.state in NO_END) for each in bars)
        is_coarsest = narrow > axis.ended_ns - axis.started_ns
        if is_coarsest or (len(bars) <= most and marks <= MARKED * most):
            return coarse
        narrow *= 1.5
