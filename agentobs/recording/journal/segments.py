r"""The journal: the writer and the reader of append-only segments, each a pair of files, one for facts and one for
content.

A segment belongs to one process, which locks the facts file until it exits. A file is a sequence of lines

    <crc32, 8 hex digits> <sequence> <kind> <JSON>\n

The checksum covers the segment ID and the rest of the line, the sequence counts 1, 2, 3, and the JSON contains no
newline. The first line has the kind `segment`; the last line of a segment that was closed properly has the kind `seal`.
Lines were chosen over length-prefixed frames: after damage, a reader finds the next record at the next newline, people
can read the file with `cat`, and DuckDB can read the JSON. After a flipped bit, two of three lines still parse as JSON,
so the checksum is needed to detect the damage. The ingester compresses closed segments (`compression.py`); readers
accept both forms. If records were pruned, or are missing since a repair, one line of the kind `pruned` or `lost`
replaces them: its sequence number is that of the last missing record, and its field `from` is that of the first.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
import zlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from agentobs import world
from agentobs.errors import DamagedError, ForeignError
from agentobs.recording.journal import compression
from agentobs.recording.journal.compression import Index, Summary, compressed_path
from agentobs.recording.journal.file_system import OS, Files, Refused
from agentobs.recording.journal.home import Home

FORMAT = 1
"""The version of the line format; a reader rejects newer versions."""

Side = Literal["facts", "content"]
_DIGITS_MAX = 18
"""The maximum length of a sequence number; it then fits in 64 bits."""
REPLACED_KINDS = ("pruned", "lost")
"""The kinds of lines that replace several records."""


@dataclass(frozen=True, slots=True)
class Line:
    """One undamaged record of a segment."""

    sequence: int
    kind: str
    payload: bytes
    """The JSON, as written."""
    start: int
    """Offset of the line in the uncompressed file, in bytes, even if the file has been compressed."""
    end: int
    """Offset after its newline, in bytes."""

    @property
    def first(self) -> int:
        """The sequence number of the first record that the line replaces; nearly always its own number."""
        if self.kind not in REPLACED_KINDS:
            return self.sequence
        try:
            return int(self.value()["from"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return self.sequence

    def value(self) -> dict[str, Any]:
        """Return the parsed payload."""
        parsed: dict[str, Any] = json.loads(self.payload.decode("utf-8", "surrogatepass"))
        return parsed


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a segment that are damaged."""

    start: int
    end: int
    reason: str
    """A readable description of the damage."""
    missing: int = 0
    """The number of records that are missing, if the sequence numbers show it; the damage is not a range of bytes
    then.
    """
    summary: Summary | None = None
    """A description of the damaged records, if an index contains one."""


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive undamaged records."""

    first: int
    """The sequence number of the first record."""
    kinds: list[bytes]
    payloads: list[bytes]
    """The JSON of the records, as written."""
    end: int
    """Offset after the last record, in bytes."""


_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


class SegmentFile:
    """One file of a segment, open for appending by the process that owns it."""

    def __init__(self, path: Path, segment_id: str, files: Files = OS) -> None:
        """Create the file and write its first line.

        Raises:
            OSError: the file cannot be created or written; it does not exist then.
        """
        self.path = path
        self.size = 0
        """The size of all complete lines, in bytes."""
        self.sequence = 0
        """The number of the last line."""
        self.is_torn = False
        """Whether the file ends with an incomplete line that could not be cut off, so nothing more may be appended."""
        self._files = files
        self._seed = zlib.crc32(segment_id.encode())
        self._in_use = threading.Lock()
        """Held while the file is synced, on a separate thread, and while it is closed."""
        self._descriptor = files.create(path)
        try:
            files.chmod(self._descriptor)
            files.lock(self._descriptor)
            first = {"format": FORMAT, "segment_id": segment_id, "opened_ns": world.now()}
            self.append("segment", first)
        except BaseException:
            self._remove()
            raise

    def append(self, kind: str, value: Mapping[str, Any]) -> int:
        """Write one line and return its offset; see `append_all`.

        Raises:
            OSError: the line was not written; the file is cut back to its last complete line.
        """
        offset = self.size
        self.append_all([(kind, value)])
        return offset

    def append_all(self, records: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Write lines with one `write`. When this returns, they survive the end of the process.

        Raises:
            OSError: not all lines were written. Complete lines stay, because a reader may have seen them; an incomplete
                line is cut off.
        """
        lines: list[bytes] = []
        for sequence, (kind, value) in enumerate(records, self.sequence + 1):
            rest = f"{sequence} {kind} {_encode(value)}".encode("utf-8", "surrogatepass")
            lines.append(b"%08x %s\n" % (zlib.crc32(rest, self._seed), rest))
        try:
            self._files.write_all(self._descriptor, b"".join(lines))
        except Refused as refused:
            self._count([line for line, end in _with_ends(lines) if end <= refused.done])
            self._cut()
            raise refused.error from None
        self._count(lines)

    def sync(self) -> None:
        """Sync the file, so that its bytes survive a power loss. A closed file is ignored.

        Raises:
            OSError: the sync failed.
        """
        with self._in_use:
            if self._descriptor >= 0:
                self._files.sync(self._descriptor)

    def is_in_place(self) -> bool:
        """Return whether the path still refers to this file; the directory may have been deleted or replaced."""
        for _ in range(2):
            try:
                own = self._files.identity_of(self._descriptor)
            except OSError:
                return True  # unknown
            try:
                return self._files.identity(self.path) == own
            except FileNotFoundError:
                continue  # checked twice, because all records of the file count as lost if it is not in place
            except OSError:
                return True
        return False

    def close(self, *, seal: bool = True, sync: bool = True) -> None:
        """Write the last line, sync and release the file; a second call does nothing.

        The file is synced even if its last line cannot be written, for example because the disk is full.

        Raises:
            OSError: the last line is missing, or may not survive a power loss. The file is closed in any case.
        """
        with self._in_use:
            if self._descriptor < 0:
                return
            try:
                try:
                    if seal and not self.is_torn:
                        self.append("seal", {"lines": self.sequence})
                finally:
                    if sync:
                        self._files.sync(self._descriptor)
            finally:
                self.abandon()

    def abandon(self) -> None:
        """Close the descriptor without writing, for example in a child process, which must not change its parent's
        file.
        """
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):  # the descriptor is closed in any case
                self._files.close(descriptor)

    def _count(self, lines: Sequence[bytes]) -> None:
        self.sequence += len(lines)
        self.size += sum(len(line) for line in lines)

    def _cut(self) -> None:
        """Remove an incomplete line at the end of the file."""
        try:
            self._files.truncate(self._descriptor, self.size)
        except OSError:
            self.is_torn = True

    def _remove(self) -> None:
        """Remove a file whose first line could not be written."""
        self.abandon()
        with contextlib.suppress(OSError):
            self._files.unlink(self.path)


class Segment:
    """The pair of files that one process appends to."""

    def __init__(self, home: Home, files: Files = OS, *, segment_id: str | None = None) -> None:
        """Create a new segment in `home`; the content file is created with its first record.

        Args:
            home: where to create it.
            files: the calls to the operating system.
            segment_id: the ID of the segment; default a new one.

        Raises:
            OSError: the segment cannot be created.
        """
        self.segment_id = segment_id or world.new_id()
        self._home, self._files = home, files
        self.facts = SegmentFile(facts_path(home, self.segment_id), self.segment_id, files)
        self._content: SegmentFile | None = None
        self._is_named = False
        """Whether the names of its files would survive a power loss."""

    @property
    def content(self) -> SegmentFile:
        """The content file, created at first use."""
        if self._content is None:
            path = content_path(self._home, self.segment_id)
            self._content = SegmentFile(path, self.segment_id, self._files)
            self._is_named = False
        return self._content

    @property
    def size(self) -> int:
        """The size of both files, in bytes."""
        return sum(each.size for each in self._all())

    @property
    def is_torn(self) -> bool:
        """Whether nothing more may be appended, see `SegmentFile`."""
        return any(each.is_torn for each in self._all())

    def is_in_place(self) -> bool:
        """Return whether both paths still refer to its files."""
        return all(each.is_in_place() for each in self._all())

    def sync(self) -> None:
        """Sync both files, content first, and their names, so that they survive a power loss.

        Raises:
            OSError: a sync failed.
        """
        named, files = self._is_named, self._all()
        for each in files:
            each.sync()
        if not named:
            # If the content file is created during this call, the next call syncs its name.
            for path in (self._home.segments, self._home.path):
                self._files.sync_names(path)
            with contextlib.suppress(OSError):  # it may belong to another user
                self._files.sync_names(self._home.path.parent)
            self._is_named = len(self._all()) == len(files)

    def close(self, *, seal: bool = True, sync: bool = True) -> None:
        """Seal and close both files.

        Raises:
            OSError: a file was not closed properly.
        """
        with contextlib.ExitStack() as stack:
            for each in reversed(self._all()):
                stack.callback(each.close, seal=seal, sync=sync)

    def abandon(self) -> None:
        """Release both files without writing."""
        for each in self._all():
            each.abandon()

    def _all(self) -> list[SegmentFile]:
        """Return its files, content first, so that facts never become durable before the content that they refer to."""
        return [each for each in (self._content, self.facts) if each is not None]


def _with_ends(lines: Iterable[bytes]) -> Iterator[tuple[bytes, int]]:
    """Yield each line with the offset of its end, in bytes after the start of the first line."""
    end = 0
    for line in lines:
        end += len(line)
        yield line, end


def facts_path(home: Home, segment_id: str) -> Path:
    """Return the path of the facts file of a segment."""
    return home.segments / f"{segment_id}.facts"


def content_path(home: Home, segment_id: str) -> Path:
    """Return the path of the content file of a segment."""
    return home.segments / f"{segment_id}.content"


def segment_ids(home: Home) -> list[str]:
    """Return the IDs of the segments of a home, oldest first."""
    return list(forms(home))


def forms(home: Home) -> dict[str, bool]:
    """Return the IDs of the segments of a home, oldest first, each mapped to whether its facts file is compressed."""
    try:
        names = os.listdir(home.segments)  # noqa: PTH208  # half the cost of `Path.iterdir`
    except FileNotFoundError:  # a copy of only the published file has no segments
        return {}
    parts = (name.partition(".") for name in names)
    found = {(name, rest) for name, _, rest in parts if rest in ("facts", "facts.zst")}
    return {name: rest == "facts.zst" for name, rest in sorted(found)}


def file_exists(path: Path) -> bool:
    """Return whether a file of a segment exists, plain or compressed."""
    return path.exists() or compressed_path(path).exists()


def read(path: Path, offset: int = 0, sequence: int = 0) -> Iterator[Line | Damage]:
    """Read the lines of a file, like `read_runs`, but each record separately."""
    for item in read_runs(path, offset, sequence):
        assert not isinstance(item, Run)
        yield item


def read_runs(
    path: Path, offset: int = 0, sequence: int = 0, wanted: Container[bytes] = ()
) -> Iterator[Line | Damage | Run]:
    """Read the lines of a file from `offset` on, or of a compressed file after the record `sequence`.

    Damaged bytes are yielded as `Damage`, and reading continues after them. A last line without a newline is ignored,
    because the process may still be writing it; `tail` returns its size.

    Args:
        path: the plain file, whether it exists or was compressed.
        offset: where to start.
        sequence: the number of the record before `offset`.
        wanted: the kinds of records that may be yielded as runs, which takes half as much time. The caller can change
            this container while reading, because it is checked before each run.

    Raises:
        FileNotFoundError: neither the plain file nor its compressed form exists.
        ForeignError: the segment has a newer format.
    """
    try:
        data = _compressed(path) or _read_from(path, offset)
    except FileNotFoundError:
        compressed = _compressed(path)  # the ingester has just compressed the file
        if compressed is None:
            raise
        data = compressed
    if isinstance(data, bytes):
        yield from _lines_and_gaps(path, [(data, offset)], sequence, wanted=wanted)
        return
    file, index = data
    with file:
        if index is None:
            yield Damage(0, 0, "the index of its compressed file cannot be read")
            salvaged = _salvaged(file.read())
            yield from _lines_and_gaps(path, salvaged, sequence, known=sequence, wanted=wanted)
        else:
            blocks = _blocks(file, index, sequence)
            yield from _lines_and_gaps(
                path, blocks, sequence, known=sequence, last=index.last, wanted=wanted
            )


def tail(path: Path) -> int:
    """Return the number of bytes after the last newline; they are an incomplete record."""
    found = _compressed(path)
    if found is not None:
        found[0].close()
        return found[1].torn if found[1] else 0
    data = path.read_bytes()
    return len(data) - (data.rfind(b"\n") + 1)


def file_size(path: Path) -> int:
    """Return the size of a plain file, even if it has been compressed; 0 if it does not exist."""
    found = _compressed(path)
    if found is not None:
        found[0].close()
        return found[1].bytes if found[1] else 0
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def is_alive(path: Path) -> bool:
    """Return whether the process that writes this file still runs: it holds a lock until it exits."""
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


def _compressed(path: Path) -> tuple[BinaryIO, Index | None] | None:
    """Open the compressed form of a file and return it with its index (None if the index is damaged).

    Return None if the file has no compressed form.
    """
    compressed = compressed_path(path)
    try:
        return compression.read_index(compressed)
    except FileNotFoundError:
        return None
    except DamagedError:
        return compressed.open("rb"), None


def _blocks(file: BinaryIO, index: Index, sequence: int) -> Iterator[tuple[bytes, int] | Damage]:
    """Yield the blocks that hold records after `sequence`; if a block is damaged, only its readable part."""
    for block in index.blocks:
        if 0 < block.summary.last <= sequence:
            continue
        try:
            yield compression.read_block(file, index, block), block.start
        except DamagedError as error:
            end = block.start + block.bytes
            yield Damage(block.start, end, error.found, summary=block.summary)
            file.seek(block.at)
            yield from _salvaged(file.read(block.compressed_bytes), block.start)


def _salvaged(data: bytes, start: int = 0) -> Iterator[tuple[bytes, int] | Damage]:
    """Yield the readable parts of damaged blocks; their offsets in the plain file are approximate."""
    for part in compression.salvage(data):
        yield part, start
        start += len(part)


def _lines_and_gaps(
    path: Path,
    parts: Iterable[tuple[bytes, int] | Damage],
    sequence: int,
    *,
    known: int = 0,
    last: int = 0,
    wanted: Container[bytes],
) -> Iterator[Line | Damage | Run]:
    """Yield the lines in parts of a file, and missing sequence numbers as `Damage`.

    Args:
        path: the plain file.
        parts: consecutive parts of complete lines, each with its offset, or damage.
        sequence: the number of the record before the first part.
        known: records up to this number are skipped.
        last: the number of the last record that must exist.
        wanted: the kinds of records that are yielded as runs while there is no damage.
    """
    seed = zlib.crc32(path.stem.encode())
    end = 0
    summary: Summary | None = None
    for part in parts:
        if isinstance(part, Damage):
            yield part
            end, summary = max(end, part.end), part.summary
            continue
        data, start = part
        is_salvaged = start < end
        at = start
        while at < start + len(data):
            run = _run(data, at - start, at, seed, sequence, wanted) if wanted else None
            if run:
                yield run
                sequence += len(run.kinds)
                at = run.end
            newline = data.find(b"\n", at - start)
            if newline < 0:
                break
            begin, at = at, start + newline + 1
            parsed = _parse(data[begin - start : newline], seed, begin, at)
            if isinstance(parsed, Damage):
                if not is_salvaged:  # the damage of its block was reported already
                    yield parsed
                continue
            if parsed.sequence <= known:
                continue
            if parsed.kind == "segment":
                _check_format(path, parsed)
            first = max(parsed.first, known + 1)
            if first != sequence + 1:
                yield _gap(sequence, first, parsed.start, summary)
            sequence = parsed.sequence
            yield parsed
        end = start + len(data)
    if sequence < last:
        yield _gap(sequence, last + 1, end, summary)


def _run(
    data: bytes, place: int, at: int, seed: int, sequence: int, wanted: Container[bytes]
) -> Run | None:
    """Return the records from an offset on that are undamaged, wanted and consecutive; None if there are none."""
    kinds: list[bytes] = []
    payloads: list[bytes] = []
    crc32, find = zlib.crc32, data.find
    begin = place
    while (newline := find(b"\n", begin)) >= 0:
        fields = data[begin + 9 : newline].split(b" ", 2)
        if len(fields) < 3 or fields[1] not in wanted or fields[0] != b"%d" % (sequence + 1):
            break
        if b"%08x " % crc32(data[begin + 9 : newline], seed) != data[begin : begin + 9]:
            break
        sequence += 1
        kinds.append(fields[1])
        payloads.append(fields[2])
        begin = newline + 1
    if not kinds:
        return None
    return Run(sequence - len(kinds) + 1, kinds, payloads, at + begin - place)


def lines(data: bytes, seed: int, start: int) -> Iterator[Line | Damage]:
    """Yield the lines in bytes that start at offset `start` of a file; `seed` is the CRC-32 of its segment ID."""
    at = 0
    while (newline := data.find(b"\n", at)) != -1:
        yield _parse(data[at:newline], seed, start + at, start + newline + 1)
        at = newline + 1


def line_of(seed: int, sequence: int, kind: str, value: bytes | dict[str, Any]) -> bytes:
    """Return a line in the format of the journal."""
    payload = (
        value if isinstance(value, bytes) else json.dumps(value, separators=(",", ":")).encode()
    )
    rest = b"%d %s %s" % (sequence, kind.encode(), payload)
    return b"%08x %s\n" % (zlib.crc32(rest, seed), rest)


def _check_format(path: Path, first: Line) -> None:
    """Reject a newer format. Future formats must keep this form of the first line, or they would look like damage."""
    try:
        version = first.value()["format"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return
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
        return Damage(start, end, "its checksum does not match")
    if (
        not sequence.isdigit()
        or len(sequence) > _DIGITS_MAX
        or not kind.replace(b"_", b"").isalpha()
    ):
        return Damage(start, end, "not a record")
    return Line(int(sequence), kind.decode("ascii"), payload, start, end)


def _gap(before: int, after: int, at: int, summary: Summary | None) -> Damage:
    """Return the damage between two records; `summary` describes the damaged block between them, if there is one."""
    if after <= before:
        return Damage(at, at, f"record {after} follows record {before}")
    missing = after - before - 1
    reason = f"{missing} record{'s' * (missing != 1)} missing before record {after}"
    is_covered = summary is not None and summary.first <= before + 1 and after - 1 <= summary.last
    return Damage(at, at, reason, missing, summary if is_covered else None)
