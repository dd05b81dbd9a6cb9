"""Collected sessions: one session for the telemetry of each client session."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from agentobs import world
from agentobs.collector.otlp_requests import TelemetryRecord
from agentobs.collector.telemetry_events import client_session, telemetry_event
from agentobs.recording.journal.home import Home
from agentobs.recording.session import Session, current_recorder, flush
from agentobs.records.clear_text import id_label
from agentobs.records.labels import Label
from agentobs.sink import sink
from agentobs.store.backend import open_store

NAME = "telemetry"
"""The name of the sessions."""
TELEMETRY_TAG = "telemetry_session"
"""The tag of a session with the client's ID of the session that the telemetry is about, or `UNKNOWN`. The view
`sessions` recognizes such sessions by it.
"""
UNKNOWN = "unknown"
SESSIONS_MAX = 1000
"""The maximum number of open sessions; the session with the oldest record is ended if there are more. Our choice."""
RECORDS_PER_FLUSH = 1000
"""The maximum number of records that are recorded before they are written. Our choice: the queue of the recorder is
never full.
"""
FLUSH_SECONDS = 10.0
"""The longest wait until records are written. Our choice: as long as exporters wait for a response by default."""


class NotWritten(Exception):
    """Records were not written to the journal in time; the client should send them again."""


@dataclass(slots=True)
class _Opened:
    session: Session
    last_ns: int
    """When the last record was received, on the monotonic clock."""


@dataclass(slots=True)
class CollectedSessions:
    """Records telemetry; safe to share between threads."""

    write: Callable[[float], bool] = flush
    """Waits until all records are written, at most this many seconds, and returns whether they are."""
    records: Counter[str] = field(default_factory=Counter)
    """The number of received records, by signal."""
    client_ids: dict[str, None] = field(default_factory=dict)
    """The client's IDs of the sessions with telemetry, at most `SESSIONS_MAX`."""
    _opened: dict[str, _Opened] = field(default_factory=dict)
    """The open sessions by the client's ID, or by "" without an ID, the one with the oldest record first."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, records: Iterable[TelemetryRecord]) -> int:
        """Record telemetry, and wait until it is in the journal; return the number of records.

        Raises:
            NotWritten: it is not in the journal.
        """
        count = 0
        used: set[str] = set()
        with self._lock:
            now = world.now()
            for record in records:
                client_id = client_session(record) or ""
                session = self._session(client_id)
                used.add(client_id)
                sink.emit(telemetry_event(record, session.session_id, now))
                self.records[record.signal] += 1
                count += 1
                if count % RECORDS_PER_FLUSH == 0:
                    self._write(used)
            self._write(used)
        return count

    def close_idle(self, seconds: float) -> None:
        """Close the sessions without a record for `seconds`; a later record opens a new session."""
        now = world.monotonic()
        with self._lock:
            idle = [key for key, each in self._opened.items() if now - each.last_ns > seconds * 1e9]
            for key in idle:
                self._opened.pop(key).session.close()

    def close(self) -> None:
        """Close all sessions."""
        with self._lock:
            while self._opened:
                self._opened.popitem()[1].session.close()

    @property
    def sessions(self) -> list[Session]:
        """The open sessions."""
        with self._lock:
            return [each.session for each in self._opened.values()]

    def _write(self, used: set[str]) -> None:
        """Wait until all records of the used sessions are in the journal.

        Raises:
            NotWritten: they are not. After a failed write, a session accepts no further records, so it is closed.
        """
        is_written = self.write(FLUSH_SECONDS)
        recorder = current_recorder()
        for client_id in used:
            opened = self._opened.get(client_id)
            if opened and (recorder is None or recorder.is_stopped(opened.session.session_id)):
                is_written = False
                self._opened.pop(client_id).session.close()
        if not is_written:
            raise NotWritten

    def _session(self, client_id: str) -> Session:
        opened = self._opened.pop(client_id, None)
        if opened is None:
            if len(self._opened) >= SESSIONS_MAX:
                self._opened.pop(next(iter(self._opened))).session.close()
            tags = {TELEMETRY_TAG: id_label(client_id) if client_id else Label(UNKNOWN)}
            if client_id and len(self.client_ids) < SESSIONS_MAX:
                self.client_ids[client_id] = None
            session = Session(NAME, tags, None, content="off", may_join=False)
            session.open()
            opened = _Opened(session, 0)
        opened.last_ns = world.monotonic()
        self._opened[client_id] = opened
        return opened.session


@dataclass(frozen=True, slots=True)
class Comparison:
    """The number of requests of a recording that differ from its telemetry."""

    requests: int
    """The requests that were recorded in sessions with telemetry, and those that only the telemetry mentions."""
    differences: int
    """The requests about which both disagree."""
    unidentified: int
    """The recorded requests without a request ID, which cannot be compared."""


def compared(
    home: Home, session_ids: Sequence[str], client_ids: Sequence[str], since_ns: int
) -> Comparison:
    """Compare a recording with its telemetry.

    Args:
        home: the home with both.
        session_ids: the recorded sessions.
        client_ids: the client's IDs of the sessions with telemetry.
        since_ns: the start of the recording, nanoseconds since 1970.
    """
    # An ingest into a new home would take longer than the comparison.
    with open_store(home, ingest=False) as store:
        [(requests, differences, unidentified)] = store.rows(
            "internal/telemetry_differences",
            session_ids=list(session_ids),
            client_ids=list(client_ids),
            since_ns=since_ns,
        ).rows
    return Comparison(int(requests), int(differences), int(unidentified))
