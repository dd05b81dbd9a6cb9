"""The writer: writes the facts and content of records into the segment of this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentobs import world
from agentobs.recording.facts.interpreter import ContentLine, Interpretation
from agentobs.recording.journal.file_system import OS, Files
from agentobs.recording.journal.home import Home, open_home
from agentobs.recording.journal.segments import Segment
from agentobs.recording.journal.unfinished_attempts import GOES_ON, STARTS
from agentobs.recording.vault.encryption import Sealer
from agentobs.records.backend import Told
from agentobs.records.facts import TABLES, Attempt, columns

SEGMENT_BYTES = 64 * 1024 * 1024
"""Beyond this size a segment is closed and the next one is opened."""


class Writer:
    """Appends to segments of one home, one after the other.

    All methods except `sync` and `stuck_ns` are for the recorder's worker thread only.
    """

    def __init__(
        self, home: Home, files: Files = OS, *, sync: bool = True, key: bytes | None = None
    ) -> None:
        """Write into `home`; the first segment is created with the first record. A `key` encrypts the content."""
        self._key = key
        self._sealer: Sealer | None = None
        self._home, self._files, self._syncs = home, files, sync
        self._segment: Segment | None = None
        self._since: int | None = None
        self._started: dict[str, str] = {}
        """The attempts that have started but not ended in this segment, each with its session."""
        self.unsealed = 0
        """Segments that could not be closed properly; everything that was written to them is there."""

    def turn(self) -> bool:
        """Open a segment if there is none or the last one is full; return whether one was opened.

        Raises:
            OSError: it cannot be created.
            HomeError: the path of the home is not a home any more.
        """
        if self._segment is not None and self._segment.size > SEGMENT_BYTES:
            self._close(self._started)
        if self._segment is not None:
            return False
        with self._calling():
            try:
                self._segment = Segment(self._home, self._files)
            except FileNotFoundError:
                self._make_home()
                self._segment = Segment(self._home, self._files)
        return True

    def write(self, interpretation: Interpretation) -> None:
        """Append the lines of one record, content first.

        Raises:
            OSError: not all of it was written.
        """
        segment = self._segment
        assert segment is not None
        with self._calling():
            if interpretation.contents:
                segment.content.append_all(self._sealed(segment, interpretation.contents))
            if interpretation.told:
                segment.facts.append_all(_line(told) for told in interpretation.told)
            if interpretation.so_far:
                segment.facts.append_all(_line(told, STARTS) for told in interpretation.so_far)
        self._follow(interpretation)

    def _sealed(self, segment: Segment, lines: Sequence[ContentLine]) -> Sequence[ContentLine]:
        """Return content lines as they are written: encrypted if there is a key."""
        if self._key is None:
            return lines
        if self._sealer is None or self._sealer.segment_id != segment.segment_id:
            self._sealer = Sealer(self._key, segment.segment_id)
        first = segment.content.sequence + 1
        sealer = self._sealer
        return [(kind, sealer.seal(kind, value, n)) for n, (kind, value) in enumerate(lines, first)]

    def started_in(self) -> frozenset[str]:
        """Return the sessions with an attempt that has started and not ended in this segment."""
        return frozenset(self._started.values())

    def is_torn(self) -> bool:
        """Return whether nothing more may be appended to this segment."""
        return self._segment is not None and self._segment.is_torn

    def is_in_place(self) -> bool:
        """Return whether the segment still exists at its path, or there is none."""
        return self._segment is None or self._segment.is_in_place()

    def sync(self) -> None:
        """Sync what was written, so that it survives a power loss.

        Raises:
            OSError: the sync failed.
        """
        segment = self._segment
        if segment is not None:
            segment.sync()

    def stuck_ns(self) -> int:
        """Return how long the current call to the operating system has taken, in nanoseconds; 0 without one."""
        since = self._since
        return 0 if since is None else world.monotonic() - since

    def forget(self, session_id: str) -> None:
        """Treat the open attempts of a session as final, because no end of them will come."""
        self._started = {each: of for each, of in self._started.items() if of != session_id}

    def seal(self) -> None:
        """Close the last segment properly."""
        self._close({})

    def retire(self) -> None:
        """Abandon the segment; the next record opens another one."""
        segment, self._segment = self._segment, None
        self._started = {}
        if segment is not None:
            segment.abandon()

    def abandon(self) -> None:
        """Release the segment without writing, because it belongs to the parent process."""
        self._since = None
        self.retire()

    def _make_home(self) -> None:
        """Create the directory again if somebody has deleted it, so that later records have one.

        Raises:
            OSError: it cannot be created.
            HomeError: something else is at its path.
        """
        if (self._home.path / "key").is_file():
            self._home.segments.mkdir(mode=0o700, exist_ok=True)
        open_home(self._home.path)

    def _close(self, going_on: Mapping[str, str]) -> None:
        segment, self._segment = self._segment, None
        if segment is None:
            return
        moves = [
            (GOES_ON, {"session_id": session_id, "attempt_id": attempt_id})
            for attempt_id, session_id in going_on.items()
        ]
        self._started = {}
        try:
            with self._calling():
                if moves:
                    segment.facts.append_all(moves)
                segment.close(sync=self._syncs)
        except OSError:
            self.unsealed += 1
            segment.abandon()

    def _follow(self, interpretation: Interpretation) -> None:
        """Remember which attempts have started and not ended."""
        for told in interpretation.so_far:
            if isinstance(told.fact, Attempt):
                self._started[told.fact.attempt_id] = told.fact.session_id
        for told in interpretation.told:
            if isinstance(told.fact, Attempt):
                self._started.pop(told.fact.attempt_id, None)

    @contextlib.contextmanager
    def _calling(self) -> Iterator[None]:
        """Note the time since which the operating system is working on a call."""
        self._since = world.monotonic()
        try:
            yield
        finally:
            self._since = None


def _line(told: Told, kind: str = "") -> tuple[str, dict[str, Any]]:
    row = {**columns(told.fact), "session_sequence": told.sequence or None}
    return TABLES[type(told.fact)] + kind, row
