"""Perfetto: a trace file for each session, to see how it spent its time.

    backend = perfetto.trace_file("traces")
    agentobs.start(options=agentobs.Options(backends=(backend,)))

Open the file at ui.perfetto.dev, which reads it in the browser and uploads nothing. Each lane is a track, with more of
them below for concurrent operations; arrows lead from a response to the tools that it called; counters show the context
size and the cost. The file never contains content, even if the session opted in.

    perfetto.write_traces(store, [session_id], Path("traces"))    # for recorded sessions

Packets are appended one by one, so a killed process leaves a readable file, in which open operations have no end. The
format: https://perfetto.dev/docs/reference/synthetic-track-event.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentobs import world
from agentobs.errors import UsageError, say_once
from agentobs.records.backend import Told
from agentobs.records.facts import Event, SessionStart
from agentobs.records.metadata import is_long
from agentobs.store.port import Store
from exporters.conventions.intervals import Follower, Interval, Known, digest_of, identity
from exporters.conventions.semconv import GENAI_BETA, Profile
from exporters.new_files import new_file, unwritable
from exporters.stored_facts import facts_of, recorded_sessions

try:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
        BUILTIN_CLOCK_BOOTTIME,
        BUILTIN_CLOCK_REALTIME,
        Trace,
        TracePacket,
        TrackEvent,
    )
except ImportError as error:
    raise UsageError(
        f"Perfetto's classes are not installed: {error.name or 'a part of them'} is missing",
        where="exporters.perfetto",
        todo="Install them with: pip install 'agentobs-kit[perfetto]'",
    ) from None

FILE_BYTES = 256 * 1024 * 1024
"""The maximum size of a file; further packets are counted. Our choice: the browser loads it whole."""
SUFFIX = ".perfetto-trace"
_KNOWN_SESSIONS = 1_000
"""How many sessions are drawn at a time; the open operations of a dropped one end. Our choice."""
_SEQUENCE = 1
"""The number of the writer; each file has one."""


@dataclass(frozen=True, slots=True)
class TraceStatistics:
    """The counts of the writer."""

    files: int
    """Files that were begun."""
    packets: int
    """Packets in the files."""
    dropped: Mapping[str, int]
    """Packets that are missing, by reason: `file_full`, or the name of the disk error."""


def trace_file(directory: str | Path, *, file_bytes: int = FILE_BYTES) -> TraceFiles:
    """Return a backend that writes a Perfetto trace of each session into a directory.

    Args:
        directory: the directory; created for this user only if it does not exist. The files are readable by this user
            only.
        file_bytes: the maximum size of a file.

    Raises:
        UsageError: the directory cannot be created or written to.
    """
    path = Path(directory)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        can_write = os.access(path, os.W_OK | os.X_OK)
    except OSError:
        can_write = False
    if not can_write:
        raise UsageError(
            "traces cannot be written there",
            where=str(path),
            todo="Use a writable directory",
        )
    return TraceFiles(path, file_bytes)


def write_traces(
    store: Store,
    session_ids: Sequence[str],
    directory: Path,
    *,
    force: bool = False,
) -> list[Path]:
    """Write the traces of recorded sessions, each complete or not at all, with the same content as live ones.

    Args:
        store: the store of the sessions.
        session_ids: their full IDs.
        directory: the directory; created for this user only if it does not exist.
        force: replace existing files.

    Raises:
        UsageError: a file exists, or the directory cannot be written to, or a trace is too large.
    """
    whole = trace_file(directory)
    written: list[Path] = []
    for session in recorded_sessions(store, session_ids=list(session_ids)):
        path = directory / f"{identity(session.session_id, 32)}{SUFFIX}"
        with new_file(path, force=force) as draft:
            backend = TraceFiles(directory, whole.file_bytes, only=draft)
            for number, row in enumerate(facts_of(store, [session]), 1):
                backend(Told(row.fact, number))
            backend.close()
            if lost := backend.statistics().dropped or backend.failed:
                raise unwritable(path, f"not all of the session could be drawn: {lost}")
        written.append(path)
    return written


@dataclass(slots=True, eq=False)
class _Track:
    """One track of the trace."""

    uuid: int
    is_main: bool
    stack: list[Interval] = field(default_factory=list)
    """Its open intervals, each inside the one before."""
    ended_ns: int = 0
    """When its last interval ended."""

    def is_inmost(self, span_id: str | None) -> bool:
        """Return whether an interval is the last opened one of the track, and open."""
        return bool(self.stack) and self.stack[-1].span_id == span_id

    def is_free(self, at_ns: int) -> bool:
        """Return whether nothing is open on the track, and nothing was at that time."""
        return not self.stack and at_ns >= self.ended_ns


@dataclass(slots=True)
class _Session:
    """The trace of one session."""

    path: Path
    root: int
    size: int = 0
    tracks: dict[str, list[_Track]] = field(default_factory=dict)
    """By lane; the first is the lane's own."""
    counters: set[int] = field(default_factory=set)
    on: Known[str, tuple[_Track, int]] = field(default_factory=Known)
    """The track of each interval, and its start, by span ID."""
    picodollars: int = 0


class TraceFiles:
    """Receives facts and draws them; see `trace_file`."""

    exports_spans = False
    """These files contain no spans of other programs."""

    def __init__(
        self,
        directory: Path,
        file_bytes: int = FILE_BYTES,
        profile: Profile = GENAI_BETA,
        *,
        only: Path | None = None,
    ) -> None:
        """Write into an existing directory; `only` is the file of the only session, if it has one."""
        self.file_bytes, self._only = file_bytes, only
        self._directory, self._file_bytes, self._profile = directory, file_bytes, profile
        self._suffix = SUFFIX
        self._begin()
        weak = weakref.WeakMethod(self._forked)
        os.register_at_fork(after_in_child=lambda: _call(weak))

    def _begin(self) -> None:
        # The recorder's thread passes facts, another one may close the backend.
        self._lock = threading.RLock()
        self._follower = Follower()
        self._sessions: Known[str, _Session] = Known(_KNOWN_SESSIONS)
        self._spent: Known[str, int] = Known()
        """The cost of dropped sessions, by the names of their files."""
        self._files = self._packets = self._failed = 0
        self._dropped: Counter[str] = Counter()

    def __call__(self, told: Told) -> None:
        """Receive one fact; never raises."""
        try:
            with self._lock:
                self._hear(told)
        except Exception:
            # A fact that cannot be drawn is skipped, and later ones are not affected.
            self._failed += 1

    def close(self, seconds: float = 0.25) -> bool:
        """Draw open intervals as abandoned. Nothing is queued here."""
        with self._lock:
            for move in self._follower.abandon():
                self._move(move.way, move.interval)
        return True

    def statistics(self) -> TraceStatistics:
        """Return the counts so far."""
        with self._lock:
            dropped = {reason: count for reason, count in self._dropped.items() if count}
            return TraceStatistics(self._files, self._packets, dropped)

    @property
    def failed(self) -> int:
        """How many facts could not be drawn."""
        return self._failed

    @property
    def late_ends(self) -> int:
        """How many spans ended after they had been drawn as abandoned: only the recording has their ends."""
        return self._follower.late_ends

    def _forked(self) -> None:
        """In a child process, leave the parent's files alone."""
        self._suffix = f"-{world.process_id()}{SUFFIX}"
        self._begin()

    def _hear(self, told: Told) -> None:
        fact = told.fact
        if isinstance(fact, SessionStart):
            self._session(fact.session_id, fact.name, fact.started_ns)
        for move in self._follower.follow(told):
            self._move(move.way, move.interval)
        if isinstance(fact, Event):
            session = self._session(fact.session_id, None, fact.at_ns)
            track = self._tracks(session, fact.lane)[0]
            says = {**fact.numbers, **(fact.labels or {}), "label": fact.label}
            self._write(session, [_instant(track.uuid, fact.at_ns, fact.kind, says)])

    def _move(self, way: str, interval: Interval) -> None:
        session = self._session(interval.session_id, None, interval.started_ns)
        if way == "opens":
            self._open(session, interval, interval.started_ns)
        else:
            self._close(session, interval)

    def _session(self, session_id: str, name: str | None, at_ns: int) -> _Session:
        known = self._sessions.get(session_id)
        if known is None:
            plain = identity(session_id, 32)
            path = self._only or self._directory / (plain + self._suffix)
            spent = self._spent.pop(path.name, 0)
            known = _Session(path, _uuid(plain), _bytes(path), picodollars=spent)
            self._forget(self._sessions.put(session_id, known))
            if not known.size:
                self._files += 1
                told = name or f"session {plain[:12]}"
                self._write(known, [_clocks(at_ns), _track(known.root, told)])
        return known

    def _forget(self, session: _Session | None) -> None:
        """End the open intervals of a session that is dropped; if more facts of it come, its file continues."""
        if session is None:
            return
        self._spent.put(session.path.name, session.picodollars)
        for track in (each for tracks in session.tracks.values() for each in tracks):
            at_ns = max([track.ended_ns, *(each.started_ns for each in track.stack)])
            ends = [_event(track.uuid, at_ns, TrackEvent.TYPE_SLICE_END) for _ in track.stack]
            self._write(session, ends)

    def _open(self, session: _Session, interval: Interval, at_ns: int, more: str = "") -> None:
        track = self._track_for(session, interval, at_ns)
        packet = _event(track.uuid, at_ns, TrackEvent.TYPE_SLICE_BEGIN)
        packet.track_event.name = self._profile.span_name(interval) + more
        packet.track_event.categories.append(interval.name)
        if interval.name == "tool" and not more:
            packet.track_event.terminating_flow_ids.append(_uuid(interval.span_id))
        _annotate(packet, self._profile.starting(interval))
        # It is open only now: an interval that cannot be drawn has no end either.
        track.stack.append(interval)
        session.on.put(interval.span_id, (track, interval.started_ns))
        self._write(session, [packet])

    def _close(self, session: _Session, interval: Interval) -> None:
        known = session.on.get(interval.span_id)
        if known is None or interval not in known[0].stack:
            return
        track, at_ns = known[0], max(interval.ended_ns, interval.started_ns)
        end = _event(track.uuid, at_ns, TrackEvent.TYPE_SLICE_END)
        _annotate(end, self._profile.ending(interval))
        above = track.stack[track.stack.index(interval) + 1 :]
        del track.stack[track.stack.index(interval) :]
        packets = [_event(track.uuid, at_ns, TrackEvent.TYPE_SLICE_END) for _ in above]
        track.ended_ns = max(track.ended_ns, at_ns)
        self._write(session, [*packets, end, *self._arrow(session, interval)])
        # A track shows nested intervals. One that outlives its parent continues on another track.
        for each in above:
            self._open(session, each, at_ns, more=" (continues)")
        self._write(session, list(self._counted(session, interval, at_ns)))

    def _track_for(self, session: _Session, interval: Interval, at_ns: int) -> _Track:
        """Return the track of its parent, or a track of its lane on which nothing is open."""
        tracks = self._tracks(session, interval.lane)
        around = _around(interval)
        above, _ = session.on.get(around or "", (None, 0))
        if above is None or above not in tracks:
            free = tracks
        elif above.is_inmost(around) and at_ns >= above.ended_ns:
            return above
        else:
            free = tracks[1:]
        for track in free:
            if track.is_free(at_ns):
                return track
        return self._new_track(session, interval.lane)

    def _tracks(self, session: _Session, lane: str) -> list[_Track]:
        if lane not in session.tracks:
            session.tracks[lane] = []
            self._new_track(session, lane)
        return session.tracks[lane]

    def _new_track(self, session: _Session, lane: str) -> _Track:
        tracks = session.tracks[lane]
        number = len(tracks)
        track = _Track(_uuid(f"{session.root} {lane} {number}"), not number)
        tracks.append(track)
        name = f"{lane} +{number}" if number else lane
        self._write(session, [_track(track.uuid, name, session.root)])
        return track

    def _arrow(self, session: _Session, interval: Interval) -> Iterator[Any]:
        """Yield the beginning of the arrow that leads to a tool: the time in the response of its call.

        A read-only call starts before the response has ended; no arrow leads back in time.
        """
        if interval.name != "tool" or interval.asked is None:
            return
        request, requested_ns = interval.asked
        track, started_ns = session.on.get(request, (None, 0))
        if track is not None:
            at_ns = max(min(requested_ns, interval.started_ns) - 1, started_ns)
            packet = _instant(track.uuid, at_ns, "calls", {"tool": interval.label})
            packet.track_event.flow_ids.append(_uuid(interval.span_id))
            yield packet

    def _counted(self, session: _Session, interval: Interval, at_ns: int) -> Iterator[Any]:
        """Yield the counters after a model call."""
        if interval.tokens is not None and interval.is_chat:
            uuid = _uuid(f"{session.root} tokens {interval.lane}")
            if uuid not in session.counters:
                session.counters.add(uuid)
                yield _counter(uuid, f"context tokens, {interval.lane}", "tokens", session.root)
            packet = _event(uuid, at_ns, TrackEvent.TYPE_COUNTER)
            packet.track_event.counter_value = interval.tokens.prompt + interval.tokens.output
            yield packet
        if interval.spent is not None and interval.spent.usd is not None:
            session.picodollars += sum(interval.spent.picodollars.values())
            uuid = _uuid(f"{session.root} cost")
            if uuid not in session.counters:
                session.counters.add(uuid)
                yield _counter(uuid, "cost", "USD", session.root)
            packet = _event(uuid, at_ns, TrackEvent.TYPE_COUNTER)
            packet.track_event.double_counter_value = session.picodollars / 1e12
            yield packet

    def _write(self, session: _Session, packets: list[Any]) -> None:
        """Append packets, all or none of them."""
        if not packets:
            return
        data = Trace(packet=packets).SerializeToString()
        if session.size + len(data) > self._file_bytes:
            self._dropped["file_full"] += len(packets)
            return
        try:
            _append(session.path, data)
        except OSError as error:
            self._dropped[type(error).__name__] += len(packets)
            say_once(
                f"a trace was not written to {self._directory}: {type(error).__name__}. The agent continues.",
                about=f"trace in {self._directory}",
            )
            return
        session.size += len(data)
        self._packets += len(packets)


def _around(interval: Interval) -> str | None:
    """Return the span that one is drawn in: its parent; for an interaction, which is its own trace, what started it."""
    if interval.name == "interaction" and interval.parent_span_id is None and interval.links:
        return interval.links[0][1]
    return interval.parent_span_id


def _append(path: Path, data: bytes) -> None:
    """Append to a file of this user, in one write.

    Raises:
        OSError: nothing was written.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(path, flags, 0o600)
    try:
        before = os.fstat(fd).st_size
        if not before:
            os.fchmod(fd, 0o600)
        written = os.write(fd, data)
        if written < len(data):
            os.ftruncate(fd, before)
            raise OSError("the file was written only in part")
    finally:
        os.close(fd)


def _bytes(path: Path) -> int:
    """Return how much of a session is drawn already: by this process, or by another one."""
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def _event(uuid: int, at_ns: int, kind: Any) -> Any:
    packet = TracePacket(timestamp=max(at_ns, 0), trusted_packet_sequence_id=_SEQUENCE)
    packet.track_event.type = kind
    packet.track_event.track_uuid = uuid
    return packet


def _instant(uuid: int, at_ns: int, name: str, says: Mapping[str, Any]) -> Any:
    packet = _event(uuid, at_ns, TrackEvent.TYPE_INSTANT)
    packet.track_event.name = name
    _annotate(packet, says)
    return packet


def _annotate(packet: Any, says: Mapping[str, Any]) -> None:
    for name, value in says.items():
        if value is None:
            continue
        note = packet.track_event.debug_annotations.add(name=name)
        if isinstance(value, bool):
            note.bool_value = value
        elif isinstance(value, int) and is_long(value):
            note.int_value = value
        elif isinstance(value, int | float):
            note.double_value = value
        else:
            note.string_value = value if isinstance(value, str) else ", ".join(value)


def _track(uuid: int, name: str, parent: int | None = None) -> Any:
    packet = TracePacket(trusted_packet_sequence_id=_SEQUENCE)
    packet.track_descriptor.uuid = uuid
    packet.track_descriptor.name = name
    if parent is not None:
        packet.track_descriptor.parent_uuid = parent
    return packet


def _counter(uuid: int, name: str, unit: str, parent: int) -> Any:
    packet = _track(uuid, name, parent)
    packet.track_descriptor.counter.unit_name = unit
    return packet


def _clocks(at_ns: int) -> Any:
    """Return the packet that declares times to be those of the wall clock."""
    packet = TracePacket(timestamp=max(at_ns, 0), trusted_packet_sequence_id=_SEQUENCE)
    for clock in (BUILTIN_CLOCK_BOOTTIME, BUILTIN_CLOCK_REALTIME):
        packet.clock_snapshot.clocks.add(clock_id=clock, timestamp=max(at_ns, 0))
    return packet


def _uuid(text: str) -> int:
    return int(digest_of(text, 16), 16)


def _call(weak: weakref.WeakMethod[Any]) -> None:
    if (method := weak()) is not None:
        method()
