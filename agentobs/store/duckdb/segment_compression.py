"""Compressing: the files of segments that have ended take a tenth of the room, and are never there in no form.

Done by whoever ingests, under the home's lock, never by an agent's process. A file is written beside the plain
one, made durable, read back and held against it, and renamed; then the directory is made durable, and only
then the plain file goes. While both are there the compressed one counts.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from agentobs import world
from agentobs.errors import DamagedError, ForeignError
from agentobs.recording.journal import compression
from agentobs.recording.journal.compression import Index, Summary, compressed_path
from agentobs.recording.journal.home import Home, create, sync_directory
from agentobs.recording.journal.segments import Line, is_alive, lines
from agentobs.store.duckdb.generations import DRAFT, file_digest
from agentobs.store.duckdb.journal_tail import Mark

BLOCK_BYTES = 2 * 1024 * 1024
"""How much of a plain file makes a block: what is decompressed to read one record of it."""
RESTED_NS = 600 * 1_000_000_000
"""How long a segment has rested before an ingest that a reader waits for compresses it. Our choice."""
AT_ONCE_BYTES = 16 * 1024 * 1024
"""How much such an ingest compresses: a fifth of a second. Our choice."""

_PLAIN = (".content", ".facts")
_SESSION = re.compile(rb'"session_id":"([^"\\]{1,128})"')
_CONTENT = re.compile(rb'"content_id":"([^"\\]{1,128})"')


@dataclass(slots=True)
class Compressed:
    """What was compressed."""

    files: int = 0
    before: int = 0
    """Bytes of the plain files."""
    after: int = 0
    """Bytes of the compressed ones."""

    def __str__(self) -> str:
        return f"{self.files} files compressed: {self.before:,} bytes to {self.after:,}"


def compress_ended(
    home: Home, marks: Mapping[str, Mark], *, is_awaited: bool = False
) -> Compressed:
    """Compress the segments that have ended and were read to their end; the caller holds the lock.

    Args:
        home: where they are.
        marks: how far each was read.
        is_awaited: whether somebody waits for an answer: then only a bounded part of it is done.

    Raises:
        OSError: the disk is full, or the home cannot be written; every file is whole in one form.
    """
    done = Compressed()
    waiting: list[Path] = []
    for path in _ended(home, marks, is_awaited=is_awaited):
        if is_awaited and done.before >= AT_ONCE_BYTES:
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


def replace(home: Home, path: Path, pieces: Iterable[tuple[bytes, Summary]]) -> Index:
    """Put other lines in the place of a file, in compressed form; the plain one goes.

    Raises:
        OSError: it could not be written; the file is as it was.
        DamagedError: what was written does not read back; the file is as it was.
    """
    index = _write(home, path, pieces, rewritten=True)
    sync_directory(home.segments)
    path.unlink(missing_ok=True)
    return index


def summarised(data: bytes, seed: int) -> Summary:
    """Return what some whole lines are: their numbers, kinds, sessions and content ids."""
    kinds: Counter[str] = Counter()
    sessions: dict[str, None] = {}
    contents: list[str] = []
    first = last = 0
    has_contents = False
    for line in lines(data, seed, 0):
        if not isinstance(line, Line):
            contents.append("")
            continue
        first, last = first or line.first, line.sequence
        kinds[line.kind] += 1
        if found := _SESSION.search(line.payload):
            sessions[found[1].decode("utf-8", "replace")] = None
        content = _CONTENT.search(line.payload)
        contents.append(content[1].decode("utf-8", "replace") if content else "")
        has_contents = has_contents or content is not None
    return Summary(
        first, last, dict(kinds), tuple(sessions), tuple(contents) if has_contents else ()
    )


def pieces_of(data: Iterable[bytes], segment_id: str) -> Iterator[tuple[bytes, Summary]]:
    """Gather whole lines into blocks, each with its summary."""
    seed = zlib.crc32(segment_id.encode())
    gathered: list[bytes] = []
    size = 0
    for each in data:
        gathered.append(each)
        size += len(each)
        if size >= BLOCK_BYTES:
            block = b"".join(gathered)
            yield block, summarised(block, seed)
            gathered, size = [], 0
    if gathered:
        block = b"".join(gathered)
        yield block, summarised(block, seed)


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
    """Compress one file, or find that it was; None where that cannot be, such as for a record without an end."""
    index = _whole(path)
    if index is not None:
        return index
    try:
        data = _blocks_of(path)
        return _write(home, path, pieces_of(data, compression.segment_of(path)), rewritten=False)
    except DamagedError:
        return None


def _whole(path: Path) -> Index | None:
    """Return the index of a compressed file that stands beside the plain one since somebody was killed."""
    try:
        file, index = compression.read_index(compressed_path(path))
    except (FileNotFoundError, DamagedError, ForeignError):
        return None
    with file:
        return index if index.rewritten or _reads_back(file, index, file_digest(path)) else None


def _write(
    home: Home, path: Path, pieces: Iterable[tuple[bytes, Summary]], *, rewritten: bool
) -> Index:
    draft = home.path / f"{DRAFT}{world.new_id()}{compression.ENDING}"
    segment_id = compression.segment_of(path)
    create(draft)
    try:
        with draft.open("r+b") as out:
            index = compression.write(out, segment_id, pieces, rewritten=rewritten)
            out.flush()
            os.fsync(out.fileno())
        _check(draft, path, index)
        draft.replace(compressed_path(path))
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    return index


def _check(draft: Path, path: Path, written: Index) -> None:
    """Read a draft back.

    Raises:
        DamagedError: it is not what was to be written.
    """
    file, index = compression.read_index(draft, written.segment_id)
    with file:
        expected = index.digest if index.rewritten else file_digest(path)
        if index != written or not _reads_back(file, index, expected):
            raise DamagedError("a compressed file that does not read back", where=str(path))


def _reads_back(file: BinaryIO, index: Index, digest: str) -> bool:
    hashed = hashlib.blake2b(digest_size=16)
    try:
        for block in index.blocks:
            hashed.update(compression.read_block(file, index, block))
    except DamagedError:
        return False
    return f"b2:{hashed.hexdigest()}" == index.digest == digest


def _blocks_of(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a file in pieces that end with a line; a torn last line comes with the last."""
    with contextlib.closing(path.open("rb")) as file:
        while data := file.read(BLOCK_BYTES):
            yield data + file.readline()
