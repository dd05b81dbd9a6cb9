"""Blocks: groups the lines of a segment into the blocks of a compressed file, each with its summary."""

from __future__ import annotations

import contextlib
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from agentobs.recording.journal.compression import Summary
from agentobs.recording.journal.segments import Line, lines

BLOCK_BYTES = 2 * 1024 * 1024
"""The size of a block before compression, in bytes. To read one record, a reader has to decompress one block."""

_SESSION = re.compile(rb'"session_id":"([^"\\]{1,128})"')
_CONTENT = re.compile(rb'"content_id":"([^"\\]{1,128})"')


def blocks_of(data: Iterable[bytes], segment_id: str) -> Iterator[tuple[bytes, Summary]]:
    """Group complete lines into blocks, each with its summary."""
    seed = zlib.crc32(segment_id.encode())
    gathered: list[bytes] = []
    size = 0
    for each in data:
        gathered.append(each)
        size += len(each)
        if size >= BLOCK_BYTES:
            block = b"".join(gathered)
            yield block, _summarized(block, seed)
            gathered, size = [], 0
    if gathered:
        block = b"".join(gathered)
        yield block, _summarized(block, seed)


def line_chunks(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a file in chunks of complete lines; a torn last line is part of the last chunk."""
    with contextlib.closing(path.open("rb")) as file:
        while data := file.read(BLOCK_BYTES):
            yield data + file.readline()


def _summarized(data: bytes, seed: int) -> Summary:
    """Return the summary of a block of complete lines: their numbers, kinds, sessions and content IDs."""
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
