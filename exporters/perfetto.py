"""Perfetto: a trace file for each session, to see how it spent its time.

    backend = perfetto.trace_file("traces")
    agentobs.start(options=agentobs.Options(backends=(backend,)))

Open the file at ui.perfetto.dev, which reads it in the browser and uploads nothing. Each lane is a track, with more
tracks below it for concurrent operations. Arrows lead from a response to the tools that it called. Counters show the
context size and the cost. The file never contains content, even if the session opted in.

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
from agentobs.errors import UsageError, warn_once
from agentobs.installation import install_extra
from agentobs.records.backend import ALL_KINDS, WrittenFact
from agentobs.records.facts import Event, SessionStart
from agentobs.records.metadata import is_long
from agentobs.store.port import Store
from exporters.conventions.bounded_dict import BoundedDict
from exporters.conventions.identities import digest_of, identity
from exporters.conventions.interval import Interval
from exporters.conventions.intervals import Follower
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
        f"the package perfetto is not installed: {error.name or 'a part of it'} is missing",
        where="exporters.perfetto",
        todo=f"Install it with: {install_extra('perfetto')}",
    ) from None

FILE_BYTES = 256 * 1024 * 1024
"""The maximum size of a file; further packets are dropped and counted. Our choice: browsers load complete files."""
SUFFIX = ".perfetto-trace"
_KNOWN_SESSIONS = 1_000
"""The maximum number of sessions in progress; the open operations of a dropped session are ended. Our choice."""
_SEQUENCE = 1
"""The packet sequence ID; each file has a single writer."""


@dataclass(frozen=True, slots=True)
class TraceStatistics:
    """The counts of the writer."""

    files: int
    """Files that were started."""
    packets: int
    """Packets in the files."""
    dropped: Mapping[str, int]
    """Packets that were not written, by reason: `file_full`, or the class of the disk error."""


def trace_file(directory: str | Path, *, file_bytes: int = FILE_BYTES) -> TraceFiles:
    """Return a backend that writes a Perfetto trace of each session into a directory.

    Args:
        directory: the directory; created if it does not exist. Only this user can read it and its files.
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
            "the trace directory is not writable",
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
    """Write traces of recorded sessions, atomically and with the same packets as live traces.

    Args:
        store: the store of the sessions.
        session_ids: their full IDs.
        directory: the directory; created if it does not exist. Only this user can read it.
        force: replace existing files.

    Raises:
        UsageError: a file exists, or the directory cannot be written to, or a trace is too large.
    """
    files = trace_file(directory)
    written: list[Path] = []
    for session in recorded_sessions(store, session_ids=list(session_ids)):
        path = directory / f"{identity(session.session_id, 32)}{SUFFIX}"
        with new_file(path, force=force) as draft:
            backend = TraceFiles(directory, files.file_bytes, only=draft)
            for number, row in enumerate(facts_of(store, [session]), 1):
                backend(WrittenFact(row.fact, number))
            backend.close()
            if dropped := backend.statistics().dropped:
                reasons = ", ".join(f"{count} ({reason})" for reason, count in dropped.items())
                raise unwritable(path, f"the trace would be incomplete: missing packets: {reasons}")
            if backend.failed:
                raise unwritable(
                    path,
                    f"the trace would be incomplete: {backend.failed} records could not be converted",
                )
        written.append(path)
    return written


@dataclass(slots=True, eq=False)
class _Track:
    """One track of the trace."""

    uuid: int
    is_main: bool
    stack: list[Interval] = field(default_factory=list)
    """The open intervals of the track, each inside the previous one."""
    ended_ns: int = 0
    """When the last interval of the track ended."""

    def is_innermost(self, span_id: str | None) -> bool:
        """Return whether a span is the innermost open interval of the track."""
        return bool(self.stack) and self.stack[-1].span_id == span_id

    def is_free(self, at_ns: int) -> bool:
        """Return whether no interval was open on the track at this time, and none is open now."""
        return not self.stack and at_ns >= self.ended_ns


@dataclass(slots=True)
class _Session:
    """The trace of one session."""

    path: Path
    root: int
    size: int = 0
    tracks: dict[str, list[_Track]] = field(default_factory=dict)
    """Tracks by lane; the first one is the main track of the lane."""
    counters: set[int] = field(default_factory=set)
    placements: BoundedDict[str, tuple[_Track, int]] = field(default_factory=BoundedDict)
    """The track and the start of each interval, by span ID."""
    picodollars: int = 0


class TraceFiles:
    """Backend that receives facts and writes them as Perfetto traces; see `trace_file`."""

    exports_spans = False
    """These files contain no spans of other programs."""
    kinds = ALL_KINDS
    """The kinds of facts that the files contain."""

    def __init__(
        self,
        directory: Path,
        file_bytes: int = FILE_BYTES,
        profile: Profile = GENAI_BETA,
        *,
        only: Path | None = None,
    ) -> None:
        """Write into an existing directory. `only` is the path of the file if a single session is written."""
        self.file_bytes, self._only = file_bytes, only
        self._directory, self._file_bytes, self._profile = directory, file_bytes, profile
        self._suffix = SUFFIX
        self._reset()
        weak = weakref.WeakMethod(self._after_fork)
        os.register_at_fork(after_in_child=lambda: _call_if_alive(weak))

    def _reset(self) -> None:
        # The recorder's thread passes facts; another thread may close the backend.
        self._lock = threading.RLock()
        # A retried request has an interval for each wait, which shows its attempts as the gaps between them.
        self._follower = Follower(hidden=frozenset({"attempt"}))
        self._sessions: BoundedDict[str, _Session] = BoundedDict(_KNOWN_SESSIONS)
        self._spent: BoundedDict[str, int] = BoundedDict()
        """The cost of dropped sessions, by file name."""
        self._files = self._packets = self._failed = 0
        self._dropped: Counter[str] = Counter()

    def __call__(self, written: WrittenFact) -> None:
        """Receive one fact; never raises."""
        try:
            with self._lock:
                self._receive(written)
        except Exception:
            # A fact that cannot be converted is skipped, and later facts are not affected.
            self._failed += 1

    def close(self, seconds: float = 0.25) -> bool:
        """End open intervals as abandoned. Return True, because nothing is queued here."""
        with self._lock:
            for change, interval in self._follower.abandon():
                self._apply(change, interval)
        return True

    def statistics(self) -> TraceStatistics:
        """Return the counts so far."""
        with self._lock:
            dropped = {reason: count for reason, count in self._dropped.items() if count}
            return TraceStatistics(self._files, self._packets, dropped)

    @property
    def failed(self) -> int:
        """The number of facts that could not be converted."""
        return self._failed

    @property
    def late_ends(self) -> int:
        """The number of spans that ended after they had been written as abandoned; only the recording contains their
        ends.
        """
        return self._follower.late_ends

    def _after_fork(self) -> None:
        """Use new files in a child process, because the old ones belong to the parent."""
        self._suffix = f"-{world.process_id()}{SUFFIX}"
        self._reset()

    def _receive(self, written: WrittenFact) -> None:
        fact = written.fact
        if isinstance(fact, SessionStart):
            self._session(fact.session_id, fact.name, fact.started_ns)
        for change, interval in self._follower.follow(written):
            self._apply(change, interval)
        if isinstance(fact, Event):
            session = self._session(fact.session_id, None, fact.at_ns)
            track = self._tracks(session, fact.lane)[0]
            values = {**fact.numbers, **(fact.labels or {}), "label": fact.label}
            self._write(session, [_instant(track.uuid, fact.at_ns, fact.kind, values)])

    def _apply(self, change: str, interval: Interval) -> None:
        session = self._session(interval.session_id, None, interval.started_ns)
        if change == "opens":
            self._open(session, interval, interval.started_ns)
        else:
            self._close(session, interval)

    def _session(self, session_id: str, name: str | None, at_ns: int) -> _Session:
        known = self._sessions.get(session_id)
        if known is None:
            plain = identity(session_id, 32)
            path = self._only or self._directory / (plain + self._suffix)
            spent = self._spent.pop(path.name, 0)
            known = _Session(path, _uuid(plain), _file_size(path), picodollars=spent)
            self._forget(self._sessions.put(session_id, known))
            if not known.size:
                self._files += 1
                title = name or f"session {plain[:12]}"
                self._write(known, [_clocks(at_ns), _track(known.root, title)])
        return known

    def _forget(self, session: _Session | None) -> None:
        """End the open intervals of a dropped session. If more facts of it arrive, its file is continued."""
        if session is None:
            return
        self._spent.put(session.path.name, session.picodollars)
        for track in (each for tracks in session.tracks.values() for each in tracks):
            at_ns = max([track.ended_ns, *(each.started_ns for each in track.stack)])
            ends = [_event(track.uuid, at_ns, TrackEvent.TYPE_SLICE_END) for _ in track.stack]
            self._write(session, ends)

    def _open(self, session: _Session, interval: Interval, at_ns: int, suffix: str = "") -> None:
        track = self._track_for(session, interval, at_ns)
        packet = _event(track.uuid, at_ns, TrackEvent.TYPE_SLICE_BEGIN)
        packet.track_event.name = self._profile.span_name(interval) + suffix
        packet.track_event.categories.append(interval.name)
        if interval.name == "tool" and not suffix:
            packet.track_event.terminating_flow_ids.append(_uuid(interval.span_id))
        _annotate(packet, self._profile.start_attributes(interval))
        # Register it only now, so that an interval that cannot be converted gets no end packet either.
        track.stack.append(interval)
        session.placements.put(interval.span_id, (track, interval.started_ns))
        self._write(session, [packet])

    def _close(self, session: _Session, interval: Interval) -> None:
        known = session.placements.get(interval.span_id)
        if known is None or interval not in known[0].stack:
            return
        track, at_ns = known[0], max(interval.ended_ns, interval.started_ns)
        end = _event(track.uuid, at_ns, TrackEvent.TYPE_SLICE_END)
        _annotate(end, self._profile.end_attributes(interval))
        above = track.stack[track.stack.index(interval) + 1 :]
        del track.stack[track.stack.index(interval) :]
        packets = [_event(track.uuid, at_ns, TrackEvent.TYPE_SLICE_END) for _ in above]
        track.ended_ns = max(track.ended_ns, at_ns)
        self._write(session, [*packets, end, *self._flow_start(session, interval)])
        # A track can show only nested intervals, so an interval that outlives its parent continues on another track.
        for each in above:
            self._open(session, each, at_ns, suffix=" (continues)")
        self._write(session, list(self._counter_packets(session, interval, at_ns)))

    def _track_for(self, session: _Session, interval: Interval, at_ns: int) -> _Track:
        """Return the track of the interval's parent, or a free track of its lane."""
        tracks = self._tracks(session, interval.lane)
        enclosing_id = _enclosing_span_id(interval)
        above, _ = session.placements.get(enclosing_id or "", (None, 0))
        if above is None or above not in tracks:
            free = tracks
        elif above.is_innermost(enclosing_id) and at_ns >= above.ended_ns:
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

    def _flow_start(self, session: _Session, interval: Interval) -> Iterator[Any]:
        """Yield the start of the arrow from a response to a tool, at the time at which the response contained the call.

        A read-only tool can start before the response has ended; the arrow must not lead back in time.
        """
        if interval.name != "tool" or interval.called_from is None:
            return
        request, requested_ns = interval.called_from
        track, started_ns = session.placements.get(request, (None, 0))
        if track is not None:
            at_ns = max(min(requested_ns, interval.started_ns) - 1, started_ns)
            packet = _instant(track.uuid, at_ns, "calls", {"tool": interval.label})
            packet.track_event.flow_ids.append(_uuid(interval.span_id))
            yield packet

    def _counter_packets(self, session: _Session, interval: Interval, at_ns: int) -> Iterator[Any]:
        """Yield the counter packets after a model call."""
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
        """Append either all packets or none."""
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
            warn_once(
                f"a trace was not written to {self._directory}: {type(error).__name__}. The agent continues.",
                about=f"trace in {self._directory}",
            )
            return
        session.size += len(data)
        self._packets += len(packets)


def _enclosing_span_id(interval: Interval) -> str | None:
    """Return the ID of the span that encloses an interval: its parent, or the span that started an interaction."""
    if interval.name == "interaction" and interval.parent_span_id is None and interval.links:
        return interval.links[0][1]
    return interval.parent_span_id


def _append(path: Path, data: bytes) -> None:
    """Append data to a file in one write; the file is created for this user only.

    Raises:
        OSError: the data could not be written; the file is unchanged.
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
            raise OSError("the data was written only in part")
    finally:
        os.close(fd)


def _file_size(path: Path) -> int:
    """Return the size of a file, which another process may have started; 0 if it does not exist."""
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def _event(uuid: int, at_ns: int, kind: Any) -> Any:
    packet = TracePacket(timestamp=max(at_ns, 0), trusted_packet_sequence_id=_SEQUENCE)
    packet.track_event.type = kind
    packet.track_event.track_uuid = uuid
    return packet


def _instant(uuid: int, at_ns: int, name: str, values: Mapping[str, Any]) -> Any:
    packet = _event(uuid, at_ns, TrackEvent.TYPE_INSTANT)
    packet.track_event.name = name
    _annotate(packet, values)
    return packet


def _annotate(packet: Any, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
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
    """Return the packet that declares all times to be times of the wall clock."""
    packet = TracePacket(timestamp=max(at_ns, 0), trusted_packet_sequence_id=_SEQUENCE)
    for clock in (BUILTIN_CLOCK_BOOTTIME, BUILTIN_CLOCK_REALTIME):
        packet.clock_snapshot.clocks.add(clock_id=clock, timestamp=max(at_ns, 0))
    return packet


def _uuid(text: str) -> int:
    return int(digest_of(text, 16), 16)


def _call_if_alive(weak: weakref.WeakMethod[Any]) -> None:
    if (method := weak()) is not None:
        method()
