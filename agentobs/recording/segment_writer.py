"""The writer: puts what the recorder makes of records into this process's segment."""

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
"""A segment is closed and the next one opened beyond this size."""


class Writer:
    """Appends to segments of one home, one after the other.

    All but `sync` and `stuck_ns` is for the recorder's thread alone.
    """

    def __init__(
        self, home: Home, files: Files = OS, *, sync: bool = True, key: bytes | None = None
    ) -> None:
        """Write into `home`; the first segment is created with the first record. A `key` seals the content."""
        self._key = key
        self._sealer: Sealer | None = None
        self._home, self._files, self._syncs = home, files, sync
        self._segment: Segment | None = None
        self._since: int | None = None
        self._started: dict[str, str] = {}
        """The attempts of which something was written to this segment, and not their end; each with its session."""
        self.unsealed = 0
        """Segments that could not be closed in order; all that was written to them is there."""

    def turn(self) -> bool:
        """Begin another segment where there is none, or the last one is full; returns whether it did.

        Raises:
            OSError: it cannot be created.
            HomeError: what is in the place of the home now is none.
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
        """Append what one record says, content first.

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
        """Return content lines as they are written: sealed where there is a key."""
        if self._key is None:
            return lines
        if self._sealer is None or self._sealer.segment_id != segment.segment_id:
            self._sealer = Sealer(self._key, segment.segment_id)
        first = segment.content.sequence + 1
        sealer = self._sealer
        return [(kind, sealer.seal(kind, value, n)) for n, (kind, value) in enumerate(lines, first)]

    def started_in(self) -> frozenset[str]:
        """Return the sessions of which an attempt has begun in this segment and not ended."""
        return frozenset(self._started.values())

    def is_torn(self) -> bool:
        """Return whether nothing more may be appended to this segment."""
        return self._segment is not None and self._segment.is_torn

    def is_in_place(self) -> bool:
        """Return whether the segment is where it was made, or there is none."""
        return self._segment is None or self._segment.is_in_place()

    def sync(self) -> None:
        """Make what was written survive a power loss.

        Raises:
            OSError: it may not.
        """
        segment = self._segment
        if segment is not None:
            segment.sync()

    def stuck_ns(self) -> int:
        """Return for how long the operating system has not answered the call that the writer makes; 0 without one."""
        since = self._since
        return 0 if since is None else world.monotonic() - since

    def forget(self, session_id: str) -> None:
        """Let the attempts of a session that have not ended be told as they are now: no end of theirs will come."""
        self._started = {each: of for each, of in self._started.items() if of != session_id}

    def seal(self) -> None:
        """Close the last segment in order."""
        self._close({})

    def retire(self) -> None:
        """Close the segment as it stands; the next record begins another one."""
        segment, self._segment = self._segment, None
        self._started = {}
        if segment is not None:
            segment.abandon()

    def abandon(self) -> None:
        """Let go of the segment without writing: it is the parent's."""
        self._since = None
        self.retire()

    def _make_home(self) -> None:
        """Make the directory anew where somebody took it away, so that what is recorded from now on has one.

        Raises:
            OSError: that cannot be.
            HomeError: something else is in its place.
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
        """Keep in mind which attempts have begun and not ended."""
        for told in interpretation.so_far:
            if isinstance(told.fact, Attempt):
                self._started[told.fact.attempt_id] = told.fact.session_id
        for told in interpretation.told:
            if isinstance(told.fact, Attempt):
                self._started.pop(told.fact.attempt_id, None)

    @contextlib.contextmanager
    def _calling(self) -> Iterator[None]:
        """Note since when the operating system is at work."""
        self._since = world.monotonic()
        try:
            yield
        finally:
            self._since = None


def _line(told: Told, kind: str = "") -> tuple[str, dict[str, Any]]:
    row = {**columns(told.fact), "session_sequence": told.sequence or None}
    return TABLES[type(told.fact)] + kind, row
