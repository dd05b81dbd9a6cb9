"""The writer: writes the facts and content of records into the segment of this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentobs import world
from agentobs.recording.facts.interpreter import Interpretation
from agentobs.recording.journal.file_system import OS, Files
from agentobs.recording.journal.home import Home, open_home
from agentobs.recording.journal.segments import Segment
from agentobs.recording.journal.unfinished_attempts import DRAFT_SUFFIX, MOVED
from agentobs.recording.vault.encryption import Sealer
from agentobs.recording.vault.stored_lines import ContentLine
from agentobs.records.backend import WrittenFact
from agentobs.records.facts import TABLES, Attempt, columns

SEGMENT_BYTES = 64 * 1024 * 1024
"""Beyond this size, a segment is closed and the next one is opened. Our choice."""


class Writer:
    """Appends to segments of one home, one after the other.

    Only the recorder's worker thread calls the methods, except `sync` and `current_call_ns`.
    """

    def __init__(
        self, home: Home, files: Files = OS, *, sync: bool = True, key: bytes | None = None
    ) -> None:
        """Write into `home`; the first segment is created with the first record. A `key` encrypts the content."""
        self._key = key
        self._sealer: Sealer | None = None
        self._home, self._files, self._syncs = home, files, sync
        self._segment: Segment | None = None
        self._unsynced_segment: Segment | None = None
        """The last segment whose sync failed. The operating system may treat its lost pages as written from then on, so
        it gets no more records and is not synced again: a second sync could succeed although data is lost.
        """
        self._sync_error: Exception | None = None
        """The error of that sync."""
        self._attempted_bytes = 0
        """The size of that segment when its sync started."""
        self._call_started_ns: int | None = None
        self._started: dict[str, str] = {}
        """The sessions of the attempts that have started but not ended in this segment, by attempt ID."""
        self.writes = 0
        """How often `write` succeeded."""
        self.unsealed = 0
        """Segments that could not be closed properly; everything that was written to them is still there.

        Their last records may not survive a power loss, and no failed sync was counted for these records.
        """

    def ensure_segment(self) -> bool:
        """Open a segment if there is none, if its last sync failed or if it is full; return whether one was opened.

        Raises:
            OSError: the segment cannot be created.
            HomeError: the path of the home is no longer a home.
        """
        if self._segment is not None and self._segment is self._unsynced_segment:
            self.seal()
        if self._segment is not None and self._segment.size > SEGMENT_BYTES:
            self._close(self._started)
        if self._segment is not None:
            return False
        with self._timed_operation():
            try:
                self._segment = Segment(self._home, self._files)
            except FileNotFoundError:
                self._make_home()
                self._segment = Segment(self._home, self._files)
        return True

    def write(self, interpretation: Interpretation) -> None:
        """Append the lines of one record, content first.

        Raises:
            OSError: a line was not written completely.
        """
        segment = self._segment
        assert segment is not None
        with self._timed_operation():
            if interpretation.contents:
                segment.content.append_all(self._sealed(segment, interpretation.contents))
            if interpretation.facts:
                segment.facts.append_all(_line(fact) for fact in interpretation.facts)
            if interpretation.drafts:
                segment.facts.append_all(
                    _line(fact, DRAFT_SUFFIX) for fact in interpretation.drafts
                )
        self.writes += 1
        self._track_attempts(interpretation)

    def _sealed(self, segment: Segment, lines: Sequence[ContentLine]) -> Sequence[ContentLine]:
        """Return content lines as they are written: encrypted if there is a key."""
        if self._key is None:
            return lines
        if self._sealer is None or self._sealer.segment_id != segment.segment_id:
            self._sealer = Sealer(self._key, segment.segment_id)
        first = segment.content.sequence + 1
        sealer = self._sealer
        return [(kind, sealer.seal(kind, value, n)) for n, (kind, value) in enumerate(lines, first)]

    def sessions_in_progress(self) -> frozenset[str]:
        """Return the sessions with an attempt that has started but not ended in this segment."""
        return frozenset(self._started.values())

    def is_torn(self) -> bool:
        """Return whether nothing more may be appended to this segment."""
        return self._segment is not None and self._segment.is_torn

    def is_in_place(self) -> bool:
        """Return whether the segment still exists at its path; True if there is no segment."""
        return self._segment is None or self._segment.is_in_place()

    def sync(self) -> None:
        """Sync what was written, so that it survives a power loss.

        Raises:
            OSError: the sync failed, or an earlier sync of this segment has failed; it is not repeated then.
        """
        segment = self._segment
        if segment is None:
            return
        if segment is self._unsynced_segment and self._sync_error is not None:
            self._attempted_bytes = segment.size
            raise self._sync_error
        size = segment.size
        try:
            segment.sync()
        except Exception as error:
            self._sync_error, self._attempted_bytes = error, size
            self._unsynced_segment = segment
            raise

    def current_call_ns(self) -> int:
        """Return how long the current call to the operating system has taken, in nanoseconds; 0 if there is none."""
        started_ns = self._call_started_ns
        return 0 if started_ns is None else world.monotonic() - started_ns

    def forget_session(self, session_id: str) -> None:
        """Forget the attempts of a session that have not ended, because their ends will not be written."""
        self._started = {a: s for a, s in self._started.items() if s != session_id}

    def seal(self) -> None:
        """Close the last segment properly."""
        self._close({})

    def abandon_segment(self) -> None:
        """Release the segment without writing; the next record opens another one."""
        segment, self._segment = self._segment, None
        self._started = {}
        if segment is not None:
            segment.abandon()

    def reset_in_child(self) -> None:
        """In a child process, release the segment without writing, because it belongs to the parent process."""
        self._call_started_ns = None
        self.abandon_segment()

    def _make_home(self) -> None:
        """Create the directory again if it was deleted, so that later records can be written.

        Raises:
            OSError: the directory cannot be created.
            HomeError: something else is at its path.
        """
        if (self._home.path / "key").is_file():
            self._home.segments.mkdir(mode=0o700, exist_ok=True)
        open_home(self._home.path)

    def _close(self, moving: Mapping[str, str]) -> None:
        """Close the segment; `moving` are the attempts that continue in the next segment, each with its session.

        A segment whose sync failed is closed without a sync.
        """
        segment, self._segment = self._segment, None
        if segment is None:
            return
        is_unsynced = segment is self._unsynced_segment
        is_closed = not is_unsynced or segment.size == self._attempted_bytes
        moves = [
            (MOVED, {"session_id": session_id, "attempt_id": attempt_id})
            for attempt_id, session_id in moving.items()
        ]
        self._started = {}
        try:
            with self._timed_operation():
                if moves:
                    segment.facts.append_all(moves)
                segment.close(sync=self._syncs and not is_unsynced)
        except OSError:
            is_closed = False
            segment.abandon()
        if not is_closed:
            self.unsealed += 1

    def _track_attempts(self, interpretation: Interpretation) -> None:
        """Remember which attempts have started but not ended."""
        for draft in interpretation.drafts:
            if isinstance(draft.fact, Attempt):
                self._started[draft.fact.attempt_id] = draft.fact.session_id
        for final in interpretation.facts:
            if isinstance(final.fact, Attempt):
                self._started.pop(final.fact.attempt_id, None)

    @contextlib.contextmanager
    def _timed_operation(self) -> Iterator[None]:
        """Note when a call to the operating system started, until it ends."""
        self._call_started_ns = world.monotonic()
        try:
            yield
        finally:
            self._call_started_ns = None


def _line(written: WrittenFact, suffix: str = "") -> tuple[str, dict[str, Any]]:
    """Return the kind and the payload of the line of a fact."""
    row = {**columns(written.fact), "session_sequence": written.sequence or None}
    return TABLES[type(written.fact)] + suffix, row
