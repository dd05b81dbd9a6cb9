"""Line lookup: the lines of one content file by content ID, whether the file is compressed or not.

The index of a compressed file names the block of each line, so reading one line decompresses only one block.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path

from agentobs.errors import DamagedError
from agentobs.recording.journal import compression
from agentobs.recording.journal.compression import Index, compressed_path
from agentobs.recording.journal.segments import Line, read

KEPT_BLOCKS = 4
"""The number of decompressed blocks that are cached, 2 MB each; the next line is nearly always near the previous one.
Our choice.
"""


ENDS = ("start", "end", "label")
"""The kinds of small lines: the start of a session with the arguments, its end, and texts that digests replace."""


def small_lines(path: Path, content_ids: AbstractSet[str]) -> dict[str, bytes]:
    """Return the payloads of lines of session starts and ends, by content ID; other lines are not kept in memory.

    Raises:
        FileNotFoundError: neither the plain file nor its compressed form exists.
    """
    if compressed_path(path).exists():
        lookup = Lookup(path)
        payloads = {each: lookup.payload(each) for each in sorted(content_ids, key=lookup.place)}
        return {each: payload for each, payload in payloads.items() if payload is not None}
    found: dict[str, bytes] = {}
    for line in read(path):
        if isinstance(line, Line) and line.kind in ENDS:
            content_id = str(line.value().get("content_id"))
            if content_id in content_ids:
                found[content_id] = line.payload
    return found


@dataclass(slots=True)
class Lookup:
    """The lines of a content file; a missing file has none."""

    path: Path
    """The path of the plain file, whether it exists or was compressed."""
    _payloads: dict[str, bytes] = field(default_factory=dict)
    _places: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Block and line of each content ID, if the file is compressed and its index can be read."""
    _pruned: dict[str, int] | None = None
    _index: Index | None = None
    _blocks: OrderedDict[int, list[bytes]] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        """Read the index of a compressed file, or all lines of a plain one."""
        try:
            file, self._index = compression.read_index(compressed_path(self.path))
        except (FileNotFoundError, DamagedError):
            self._read_all()
            return
        file.close()
        for number, block in enumerate(self._index.blocks):
            for place, content_id in enumerate(block.summary.contents):
                if content_id:
                    self._places[content_id] = number, place

    def __len__(self) -> int:
        return len(self._payloads) or len(self._places)

    def __contains__(self, content_id: str) -> bool:
        return content_id in self._payloads or content_id in self._places

    def place(self, content_id: str) -> tuple[int, int]:
        """Return the block and the line of a content ID. In this order, each block is decompressed once."""
        return self._places.get(content_id, (0, 0))

    def payload(self, content_id: str) -> bytes | None:
        """Return the JSON of a line, or None if it is missing or damaged."""
        if content_id in self._places:
            number, place = self._places[content_id]
            try:
                return self._block(number)[place].split(b" ", 3)[3]
            except (DamagedError, OSError, IndexError):
                self._places = {}
                self._read_all()
        return self._payloads.get(content_id)

    def pruned_ns(self, session_id: str) -> int | None:
        """Return when the content of a session was pruned from this file, or None."""
        if self._pruned is None:
            self._pruned = {}
            for line in read(self.path) if self._index else ():
                if isinstance(line, Line) and line.kind == "pruned":
                    self._remember_pruning(line)
        return self._pruned.get(session_id)

    def _block(self, number: int) -> list[bytes]:
        """Return the lines of a block; the checksum of the block has already checked each of them."""
        if number not in self._blocks:
            assert self._index is not None
            # Opened for each access, so that no caller has to close it; if the file was replaced, the checksum fails.
            with compressed_path(self.path).open("rb") as file:
                block = compression.read_block(file, self._index, self._index.blocks[number])
            self._blocks[number] = block.split(b"\n")
            while len(self._blocks) > KEPT_BLOCKS:
                self._blocks.popitem(last=False)
        return self._blocks[number]

    def _read_all(self) -> None:
        try:
            for line in read(self.path):
                if isinstance(line, Line) and line.kind == "pruned":
                    self._remember_pruning(line)
                elif isinstance(line, Line) and line.kind not in ("segment", "seal", "lost"):
                    self._payloads[str(line.value().get("content_id"))] = line.payload
        except FileNotFoundError:
            return

    def _remember_pruning(self, line: Line) -> None:
        value = line.value()
        at_ns = value.get("pruned_ns")
        if self._pruned is None:
            self._pruned = {}
        for session_id in value.get("sessions", []):
            self._pruned[str(session_id)] = at_ns if isinstance(at_ns, int) else 0
