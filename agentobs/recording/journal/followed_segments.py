"""Follow segments while their processes write them: each look returns the facts that are new since the last one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from agentobs.recording.journal.home import Home
from agentobs.recording.journal.segments import Damage, Line, facts_path, forms, is_alive, read


class Appended(NamedTuple):
    """A fact that was appended to a segment."""

    segment_id: str
    line: Line


@dataclass(slots=True)
class _Position:
    """How far a segment was read."""

    offset: int = 0
    sequence: int = 0
    is_complete: bool = False
    has_damage: bool = False


class FollowedSegments:
    """The segments of a home, which are read from their start.

    A segment that was compressed before the first look has ended; it is read only if it is wanted.
    """

    def __init__(self, home: Home, wanted: Collection[str] = ()) -> None:
        """Start without reading.

        Args:
            home: the home of the segments.
            wanted: the segments to read even if they are compressed.
        """
        self._home, self._wanted = home, wanted
        self._positions: dict[str, _Position] = {}
        self.damaged: set[str] = set()
        """The compressed segments with damage. In others, it may be a line that is still being written."""

    def look(self) -> list[Appended]:
        """Return the facts that were appended since the last look, segment by segment, in the order of the file.

        Damaged lines and lines that are still being written are left out.

        Raises:
            ForeignError: a segment has a newer format.
        """
        found: list[Appended] = []
        for segment_id, is_compressed in sorted(forms(self._home).items()):
            position = self._positions.get(segment_id)
            if position is None:
                position = _Position(is_complete=is_compressed and segment_id not in self._wanted)
                self._positions[segment_id] = position
            if not position.is_complete and self._has_grown(segment_id, position, is_compressed):
                found += self._read(segment_id, position)
                position.is_complete = is_compressed
                if is_compressed and position.has_damage:
                    self.damaged.add(segment_id)
        return found

    def is_written(self, segment_id: str) -> bool:
        """Return whether the process of a segment still runs."""
        return is_alive(facts_path(self._home, segment_id))

    def _has_grown(self, segment_id: str, position: _Position, is_compressed: bool) -> bool:
        if is_compressed:
            return True
        try:
            return facts_path(self._home, segment_id).stat().st_size > position.offset
        except FileNotFoundError:  # it was compressed meanwhile; the next look reads the rest
            return False

    def _read(self, segment_id: str, position: _Position) -> list[Appended]:
        found = []
        try:
            for line in read(
                facts_path(self._home, segment_id), position.offset, position.sequence
            ):
                position.offset = line.end
                if isinstance(line, Damage):
                    position.has_damage = True
                else:
                    position.sequence = line.sequence
                    found.append(Appended(segment_id, line))
        except FileNotFoundError:  # it was pruned meanwhile
            position.is_complete = True
        return found
