"""The waterfall of a session: what happened when, in which lane, concurrently with what, and what the agent waited for.

The critical path is on top. Below it each lane has a band for its interactions, and tracks for its requests, tools and
waits: as many as were concurrent. Long idle periods are cut out.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import plotly.graph_objects as go

from agentobs.store.analysis.wall_time import PARTS, Piece
from dashboards.figures.elapsed_time import Elapsed, elapsed
from dashboards.figures.lane_tracks import Track, tracks_of
from dashboards.figures.phrases import Row, nothing, plain
from dashboards.figures.timeline import WORDS, drawn
from dashboards.figures.tracks import NO_END, STATES, Stretch, coarser

NARROW = 900
"""Bars narrower than this fraction of the width are merged with their neighbors: about a pixel. Our choice."""
MARKED = 1.4
"""The maximum number of marks per bar, including those for failed and unfinished ones. Our choice."""
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
"""The kind that a piece of the critical path is drawn as, by its name."""
_UPKEEP: Final = re.compile(r"/[a-z_]+:[^/]*$")
"""The suffix of a lane for auxiliary requests of the one above it, as in the query."""


def session_waterfall(
    rows: Sequence[Row],
    path: Sequence[Piece] = (),
    *,
    most: int = 1000,
    window: tuple[int, int] | None = None,
) -> go.Figure:
    """Return the figure of a session over time, lane by lane.

    Args:
        rows: the rows of the query `session_waterfall`.
        path: the critical paths of its interactions, from `agentobs.store.analysis.wall_time`.
        most: the maximum number of bars, except for one in each track; narrow neighbors of a track are drawn as one bar
            with their number.
        window: the start and end of the visible period, in nanoseconds since 1970; None for all of it.
    """
    rows = [row for row in rows if row["started_ns"] is not None]
    if all(row["kind"] == "session" for row in rows):
        return nothing()
    zero, low, high = _bounds(rows, window)
    known = (_stretch(row, low, high) for row in rows if row["kind"] != "session")
    shown = [each for each in known if each is not None]
    pieces = [each for each in (_piece(piece, low, high) for piece in path) if each is not None]
    if not shown:
        return nothing("no activity in this range")
    axis = _axis(zero, low, high, shown)
    shown = _marked(shown, pieces)
    tracks = _bounded(tracks_of(shown, pieces), most, axis)
    return drawn(tracks, axis, has_path=bool(pieces))


def _bounds(rows: Sequence[Row], window: tuple[int, int] | None) -> tuple[int, int, int]:
    """Return the zero of the times, and the start and end of the visible period."""
    zero = min(row["started_ns"] for row in rows)
    last = max(max(row["started_ns"], row["ended_ns"] or 0) for row in rows)
    if window is None:
        return zero, zero, max(last, zero + 1)
    return zero, min(window), max(max(window), min(window) + 1)


def _stretch(row: Row, low: int, high: int) -> Stretch | None:
    """Return the interval of a row, clipped to the visible period; None if it is outside."""
    started, ended = row["started_ns"], row["ended_ns"]
    if ended is None:
        ended = high if row["state"] in NO_END else started
    ended = max(started, ended)
    if started > high or ended < low:
        return None
    kind = "upkeep" if row["is_upkeep"] and row["kind"] == "request" else row["kind"]
    return Stretch(
        kind=kind if kind in WORDS else "span",
        part=row["part"] if row["part"] in PARTS else "own",
        label=row["label"],
        lane=str(row["lane"]),
        started_ns=max(started, low),
        ended_ns=min(ended, high),
        state=row["state"] if row["state"] in STATES else "ok",
        says=_says(row),
        took_ns=ended - started,
        failed=int(row["state"] == "failed"),
        failed_ns=max(started, low) if row["state"] == "failed" else None,
    )


def _says(row: Row) -> str:
    """Return further details of a row."""
    told = []
    if row["detail"] and row["detail"] != "success":
        told.append(plain(row["detail"]).replace("_", " "))
    if row["prompt_tokens"] is not None:
        told.append(f"{row['prompt_tokens']:,} tokens in, {row['output_tokens'] or 0:,} out")
    if row["turn"] is not None:
        told.append(f"turn {row['turn']:,}")
    return "<br>".join(told)


def _piece(piece: Piece, low: int, high: int) -> Stretch | None:
    if piece.started_ns >= high or piece.ended_ns <= low:
        return None
    return Stretch(
        kind="path",
        part=piece.part,
        label=piece.label or piece.name,
        lane=piece.lane,
        started_ns=max(piece.started_ns, low),
        ended_ns=min(piece.ended_ns, high),
        says=piece.name,
        took_ns=piece.ended_ns - piece.started_ns,
    )


def _axis(zero: int, low: int, high: int, shown: Iterable[Stretch]) -> Elapsed:
    # The end of an orphaned interval does not mean that anything was busy.
    busy = [(s.started_ns, s.ended_ns) for s in shown if s.state != "orphaned"]
    edges = [(s.started_ns, s.started_ns) for s in shown]
    return elapsed(zero, low, high, [*busy, *edges])


def _marked(shown: Sequence[Stretch], pieces: Iterable[Stretch]) -> list[Stretch]:
    """Return the intervals, with those on the critical path marked."""
    lanes: dict[tuple[str, str], list[int]] = {}
    for number, each in sorted(enumerate(shown), key=lambda item: item[1].started_ns):
        kind = "request" if each.kind == "upkeep" else each.kind
        lanes.setdefault((each.lane, kind), []).append(number)
    asked: dict[tuple[str, str], list[int]] = {}
    for piece in pieces:
        if piece.part != "own" and (drawn_as := _KINDS.get(piece.says)) is not None:
            key = _UPKEEP.sub("", piece.lane), drawn_as
            asked.setdefault(key, []).append((piece.started_ns + piece.ended_ns) // 2)
    critical = {
        number
        for key, instants in asked.items()
        for number in _waited_for(shown, lanes.get(key, ()), sorted(instants))
    }
    return [replace(each, is_critical=number in critical) for number, each in enumerate(shown)]


def _waited_for(
    shown: Sequence[Stretch], numbers: Iterable[int], instants: Iterable[int]
) -> Iterator[int]:
    """Yield the interval that was waited for at each time, which is the last to end, in the order of their starts."""
    coming, running = list(numbers)[::-1], list[tuple[int, int]]()
    for instant in instants:
        while coming and shown[coming[-1]].started_ns <= instant:
            number = coming.pop()
            heapq.heappush(running, (-shown[number].ended_ns, number))
        if running and -running[0][0] >= instant:
            yield running[0][1]


def _bounded(tracks: Sequence[Track], most: int, axis: Elapsed) -> list[Track]:
    """Return tracks with at most `most` bars, and no bar too narrow to be seen that has such a neighbor."""
    narrow = axis.drawn_ns / NARROW
    while True:
        coarse = [replace(track, bars=coarser(track.bars, narrow)) for track in tracks]
        bars = [each for track in coarse for each in track.bars]
        marks = sum(1 + bool(each.failed) + 2 * (each.state in NO_END) for each in bars)
        is_coarsest = narrow > axis.ended_ns - axis.started_ns
        if is_coarsest or (len(bars) <= most and marks <= MARKED * most):
            return coarse
        narrow *= 1.5
