"""Compression of ended segments: their files shrink to a tenth, and at least one form of each file exists at any time.

Only an ingest that holds the home's lock compresses files. The compressed file is written next to the plain file,
synced to disk, read back and compared with the plain file, and renamed. Then the directory is synced to disk, and only
then is the plain file deleted. While both files exist, readers use the compressed file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from agentobs import world
from agentobs.errors import DamagedError, ForeignError
from agentobs.recording.journal import compression
from agentobs.recording.journal.compression import Index, Summary, compressed_path
from agentobs.recording.journal.home import Home, create, sync_directory
from agentobs.recording.journal.segment_blocks import blocks_of, line_chunks
from agentobs.recording.journal.segments import is_alive
from agentobs.store.duckdb.generations import DRAFT, file_digest
from agentobs.store.duckdb.journal_tail import Mark

RESTED_NS = 600 * 1_000_000_000
"""If a reader waits for an ingest, only segments that were not changed for this time are compressed. Our choice."""
AWAITED_BYTES = 16 * 1024 * 1024
"""If a reader waits for an ingest, it compresses at most about this many bytes, which takes a fifth of a second. Our
choice.
"""

_PLAIN = (".content", ".facts")


@dataclass(slots=True)
class Compressed:
    """The result of compressing segments."""

    files: int = 0
    before: int = 0
    """Total size of the plain files in bytes."""
    after: int = 0
    """Total size of the compressed files in bytes."""

    def __str__(self) -> str:
        return f"{self.files} files compressed: {self.before:,} bytes to {self.after:,}"


def compress_ended(
    home: Home, marks: Mapping[str, Mark], *, is_awaited: bool = False
) -> Compressed:
    """Compress the segments that have ended and were read to their end; the caller holds the lock.

    Args:
        home: the home of the segments.
        marks: the marks of the segments, up to which they were read.
        is_awaited: whether a reader waits for the result. In this case the amount of work is limited.

    Raises:
        OSError: the disk is full, or the home cannot be written; each file is still complete in at least one form.
    """
    done = Compressed()
    waiting: list[Path] = []
    for path in _ended(home, marks, is_awaited=is_awaited):
        if is_awaited and done.before >= AWAITED_BYTES:
            break
        index = _compress(home, path)
        if index is not None:
            waiting.append(path)
            done.files += 1
            done.before += index.bytes
            done.after += compressed_path(path).stat().st_size
    if waiting:
        sync_directory(home.segments)
    for path in waiting:
        path.unlink(missing_ok=True)
    return done


def replace(home: Home, path: Path, blocks: Iterable[tuple[bytes, Summary]]) -> Index:
    """Replace a file by a compressed file with other lines; the plain file is deleted.

    Raises:
        OSError: the new file could not be written; the original file is unchanged.
        DamagedError: the new file cannot be read back; the original file is unchanged.
    """
    index = _write(home, path, blocks, rewritten=True)
    sync_directory(home.segments)
    path.unlink(missing_ok=True)
    return index


def _ended(home: Home, marks: Mapping[str, Mark], *, is_awaited: bool) -> Iterator[Path]:
    """Yield the plain files of segments that have ended and were read to their end, content first."""
    if not home.segments.is_dir():
        return
    paths = sorted(path for path in home.segments.iterdir() if path.suffix in _PLAIN)
    for path in paths:
        mark = marks.get(path.stem)
        if mark is None or mark.state == "open":
            continue
        found = path.stat()
        has_rested = world.now() - found.st_mtime_ns >= RESTED_NS
        if found.st_size and (has_rested or not is_awaited) and not is_alive(path):
            yield path


def _compress(home: Home, path: Path) -> Index | None:
    """Compress a file, unless a complete compressed file already exists; return its index. Return None if the file
    cannot be compressed, for example because its last record is incomplete.
    """
    index = _existing_index(path)
    if index is not None:
        return index
    try:
        data = line_chunks(path)
        return _write(home, path, blocks_of(data, compression.segment_of(path)), rewritten=False)
    except DamagedError:
        return None


def _existing_index(path: Path) -> Index | None:
    """Return the index of a complete compressed file that a killed process left next to the plain file, or None."""
    try:
        file, index = compression.read_index(compressed_path(path))
    except (FileNotFoundError, DamagedError, ForeignError):
        return None
    with file:
        # After a power loss, the plain file may lack records that the synced compressed file has.
        has_all = path.stat().st_size <= index.bytes and _reads_back(file, index, index.digest)
        return index if index.rewritten or has_all else None


def _write(
    home: Home, path: Path, blocks: Iterable[tuple[bytes, Summary]], *, rewritten: bool
) -> Index:
    draft = home.path / f"{DRAFT}{world.new_id()}{compression.ENDING}"
    segment_id = compression.segment_of(path)
    create(draft)
    try:
        with draft.open("r+b") as out:
            index = compression.write(out, segment_id, blocks, rewritten=rewritten)
            out.flush()
            os.fsync(out.fileno())
        _check(draft, path, index)
        draft.replace(compressed_path(path))
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    return index


def _check(draft: Path, path: Path, written: Index) -> None:
    """Read a draft back and compare it with the data that was written.

    Raises:
        DamagedError: the draft cannot be read or differs.
    """
    file, index = compression.read_index(draft, written.segment_id)
    with file:
        expected = index.digest if index.rewritten else file_digest(path)
        if index != written or not _reads_back(file, index, expected):
            raise DamagedError("the compressed file cannot be read back", where=str(path))


def _reads_back(file: BinaryIO, index: Index, digest: str) -> bool:
    hashed = hashlib.blake2b(digest_size=16)
    try:
        for block in index.blocks:
            hashed.update(compression.read_block(file, index, block))
    except DamagedError:
        return False
    return f"b2:{hashed.hexdigest()}" == index.digest == digest
