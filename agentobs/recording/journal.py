r"""The journal: append-only segments, each a pair of files, facts and content; writer and reader together.

A segment belongs to one process, which holds a lock on its facts file for as long as it lives. A file
is a sequence of lines

    <crc32, 8 hex digits> <sequence> <kind> <JSON>\n

where the check sum covers the segment's id and all that follows it, the sequence counts 1, 2, 3, and
JSON text holds no newline of its own. The first line has the kind `segment`, the last of a segment that
was closed in order has the kind `seal`. Lines, not length-prefixed frames: after damage a reader finds
the next record at the next newline, people read the file with `cat`, and DuckDB's own reader takes the
JSON as it is. What a flipped bit turns into still parses as JSON two times in three; the check sum
tells.
"""

from __future__ import annotations

import fcntl
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agentobs import world
from agentobs.errors import ForeignError
from agentobs.recording.home import Home, create, sync_directory

FORMAT = 1
"""The version of the line format; a reader refuses newer ones."""

Side = Literal["facts", "content"]


@dataclass(frozen=True, slots=True)
class Line:
    """One record of a segment that reads back as it was written."""

    sequence: int
    kind: str
    payload: bytes
    """JSON, as written."""
    start: int
    """Offset of the line in its file, bytes."""
    end: int
    """Offset after its newline, bytes."""

    def value(self) -> dict[str, Any]:
        """Return the parsed payload."""
        parsed: dict[str, Any] = json.loads(self.payload.decode("utf-8", "surrogatepass"))
        return parsed


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a segment that do not read back."""

    start: int
    end: int
    reason: str
    """What is wrong with them, for people."""


_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


class SegmentFile:
    """One file of a segment, open for appending by the one process that owns it."""

    def __init__(self, path: Path, segment_id: str) -> None:
        """Create the file and write its first line.

        Raises:
            OSError: it cannot be created or written.
        """
        create(path)
        self.path = path
        self.size = 0
        self.sequence = 0
        self._seed = zlib.crc32(segment_id.encode())
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
        fcntl.flock(
            self._descriptor, fcntl.LOCK_EX
        )  # a reader that looks in holds it for an instant
        self.append(
            "segment", {"format": FORMAT, "segment_id": segment_id, "opened_ns": world.now()}
        )

    def append(self, kind: str, value: dict[str, Any]) -> int:
        """Write one line with one `write` and return its offset; what is returned survives the process.

        Raises:
            OSError: it was not written; the file is cut back to its last whole line.
        """
        text = _encode(value)
        rest = f"{self.sequence + 1} {kind} {text}".encode("utf-8", "surrogatepass")
        line = b"%08x %s\n" % (zlib.crc32(rest, self._seed), rest)
        offset = self.size
        try:
            written = os.write(self._descriptor, line)
            while written < len(line):
                written += os.write(self._descriptor, line[written:])
        except OSError:
            os.ftruncate(self._descriptor, offset)
            raise
        self.sequence += 1
        self.size += len(line)
        return offset

    def sync(self) -> None:
        """Make what was written survive a power loss."""
        os.fdatasync(self._descriptor)

    def close(self, *, seal: bool = True) -> None:
        """Write the last line, sync and let go; a second call does nothing."""
        if self._descriptor < 0:
            return
        try:
            if seal:
                self.append("seal", {"lines": self.sequence})
                self.sync()
        finally:
            os.close(self._descriptor)
            self._descriptor = -1

    def abandon(self) -> None:
        """Close without a word: for a child process that must not touch its parent's file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class Segment:
    """The pair of files that one process appends to."""

    def __init__(self, home: Home) -> None:
        """Create a new segment in `home`; the content file comes with its first record."""
        self.segment_id = world.new_id()
        self._home = home
        self.facts = SegmentFile(facts_path(home, self.segment_id), self.segment_id)
        self._content: SegmentFile | None = None
        sync_directory(home.segments)

    @property
    def content(self) -> SegmentFile:
        """The content file, created at first use."""
        if self._content is None:
            self._content = SegmentFile(content_path(self._home, self.segment_id), self.segment_id)
        return self._content

    @property
    def size(self) -> int:
        """Bytes in both files."""
        return self.facts.size + (self._content.size if self._content else 0)

    def sync(self) -> None:
        """Make both files survive a power loss, content first."""
        if self._content:
            self._content.sync()
        self.facts.sync()

    def close(self) -> None:
        """Seal and close both files."""
        if self._content:
            self._content.close()
        self.facts.close()

    def abandon(self) -> None:
        """Let go of both files without writing."""
        if self._content:
            self._content.abandon()
        self.facts.abandon()


def facts_path(home: Home, segment_id: str) -> Path:
    """Return the path of a segment's facts."""
    return home.segments / f"{segment_id}.facts"


def content_path(home: Home, segment_id: str) -> Path:
    """Return the path of a segment's content."""
    return home.segments / f"{segment_id}.content"


def segment_ids(home: Home) -> list[str]:
    """Return the ids of the segments of a home, oldest first."""
    return sorted(path.stem for path in home.segments.glob("*.facts"))


def read(path: Path, offset: int = 0, sequence: int = 0) -> Iterator[Line | Damage]:
    """Read a file's lines from `offset` on, where `sequence` is that of the line before.

    Damaged bytes come as `Damage`, and reading goes on after them. A last line without its newline is
    not reported: it may be written right now; `tail` tells.

    Raises:
        ForeignError: the segment is of a newer format.
    """
    seed = zlib.crc32(path.stem.encode())
    data = path.read_bytes() if not offset else _read_from(path, offset)
    if not offset:
        _check_first(path, data, seed)
    at = 0
    while (newline := data.find(b"\n", at)) != -1:
        start, end = offset + at, offset + newline + 1
        parsed = _parse(data[at:newline], seed, start, end)
        if isinstance(parsed, Line):
            if parsed.sequence != sequence + 1:
                yield Damage(start, start, _gap(sequence, parsed.sequence))
            sequence = parsed.sequence
        yield parsed
        at = newline + 1


def tail(path: Path) -> int:
    """Return how many bytes follow the last newline: a record that was being written."""
    data = path.read_bytes()
    return len(data) - (data.rfind(b"\n") + 1)


def is_alive(path: Path) -> bool:
    """Return whether the process that writes this file still runs: it holds the lock until it ends."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


def _read_from(path: Path, offset: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read()


def _check_first(path: Path, data: bytes, seed: int) -> None:
    """Refuse a newer format. Its first line must stay as it is now, or nobody could tell it from damage."""
    first = _parse(data.partition(b"\n")[0], seed, 0, 0)
    if not isinstance(first, Line) or first.kind != "segment":
        return
    version = first.value().get("format")
    if isinstance(version, int) and version > FORMAT:
        raise ForeignError(
            f"a segment of format {version}; this version of agentobs reads up to {FORMAT}",
            where=str(path),
            todo="Install the version that wrote it, or a newer one",
        )


def _parse(line: bytes, seed: int, start: int, end: int) -> Line | Damage:
    fields = line.split(b" ", 3)
    if len(fields) != 4:
        return Damage(start, end, "not a record")
    check, sequence, kind, payload = fields
    if b"%08x" % zlib.crc32(line[len(check) + 1 :], seed) != check:
        return Damage(start, end, "its check sum does not match")
    if not sequence.isdigit() or not kind.replace(b"_", b"").isalpha():
        return Damage(start, end, "not a record")
    return Line(int(sequence), kind.decode("ascii"), payload, start, end)


def _gap(before: int, after: int) -> str:
    if after <= before:
        return f"record {after} stands after record {before}"
    missing = after - before - 1
    return f"{missing} record{'s' * (missing != 1)} missing before record {after}"
