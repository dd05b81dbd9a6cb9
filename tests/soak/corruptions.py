"""Corruptions: changes files of a segment at random, and checks that no reader accepts a change silently."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

from agentobs.recording.journal.compression import compressed_path
from agentobs.recording.journal.home import Home
from agentobs.recording.journal.segments import (
    Line,
    content_path,
    facts_path,
    read,
    segment_ids,
    tail,
)
from agentobs.store.duckdb.ingest import ingest
from tests.store.recordings import a_home, conversation, record


def _flip(data: bytearray, other: bytes, chance: random.Random) -> None:
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def _overwrite(data: bytearray, other: bytes, chance: random.Random) -> None:
    at = chance.randrange(len(data))
    data[at : at + 4] = chance.randbytes(len(data[at : at + 4]))


def _swap(size: int) -> Callable[[bytearray, bytes, random.Random], None]:
    def swap(data: bytearray, other: bytes, chance: random.Random) -> None:
        places = len(data) // size
        if places > 1:
            a, b = (place * size for place in chance.sample(range(places), 2))
            data[a : a + size], data[b : b + size] = data[b : b + size], data[a : a + size]

    return swap


def _zeros(data: bytearray, other: bytes, chance: random.Random) -> None:
    at = chance.randrange(len(data)) // 512 * 512
    data[at : at + 512] = bytes(len(data[at : at + 512]))


def _remove(data: bytearray, other: bytes, chance: random.Random) -> None:
    at = chance.randrange(len(data))
    del data[at : at + chance.randint(1, 2_000)]


def _repeat(data: bytearray, other: bytes, chance: random.Random) -> None:
    at, size = chance.randrange(len(data)), chance.randint(1, 2_000)
    data[at:at] = data[at : at + size]


def _splice(data: bytearray, other: bytes, chance: random.Random) -> None:
    at, start, size = (
        chance.randrange(len(data)),
        chance.randrange(len(other)),
        chance.randint(1, 2_000),
    )
    data[at : at + size] = other[start : start + size]


def _cut(data: bytearray, other: bytes, chance: random.Random) -> None:
    del data[chance.randrange(len(data)) :]


def _append(data: bytearray, other: bytes, chance: random.Random) -> None:
    data += chance.choice([bytes(512), chance.randbytes(100), other[-200:]])


KINDS = (_flip, _overwrite, _swap(8), _swap(512), _zeros, _remove, _repeat, _splice, _cut, _append)


def made(folder: Path, *, is_compressed: bool) -> tuple[Home, str, str]:
    """Record two segments; return the home and their IDs."""
    home = a_home(folder)
    for number in (1, 2):
        record(home, conversation(number, turns=4))
    if is_compressed:
        ingest(home)
        home.database.unlink()
    first, second = segment_ids(home)
    return home, first, second


def files(home: Home, segment_id: str, *, is_compressed: bool) -> Iterator[tuple[Path, Path]]:
    """Yield the plain path and the existing path of both files of a segment."""
    for path in (facts_path(home, segment_id), content_path(home, segment_id)):
        yield path, compressed_path(path) if is_compressed else path


def accepted_silently(
    folder: Path, seed: int, changes: int, *, is_compressed: bool
) -> tuple[int, list[str]]:
    """Corrupt both files of a segment; return how often, and which changes no reader reports."""
    home, segment_id, other_id = made(folder, is_compressed=is_compressed)
    chance = random.Random(seed)
    count, accepted = 0, list[str]()
    others = [path.read_bytes() for _, path in files(home, other_id, is_compressed=is_compressed)]
    for (plain, path), other in zip(
        files(home, segment_id, is_compressed=is_compressed), others, strict=True
    ):
        intact, lines = path.read_bytes(), _lines(plain)
        for number in range(changes):
            data, kind = bytearray(intact), chance.choice(KINDS)
            kind(data, other, chance)
            if data == intact:
                continue
            count += 1
            path.write_bytes(data)
            if why := _accepted(plain, lines):
                accepted.append(
                    f"seed {seed}, {path.name}, change {number} ({kind.__name__}): {why}"
                )
        path.write_bytes(intact)
    return count, accepted


def _lines(path: Path) -> list[tuple[int, str, bytes]]:
    return [(i.sequence, i.kind, i.payload) for i in read(path) if isinstance(i, Line)]


def _accepted(path: Path, lines: list[tuple[int, str, bytes]]) -> str:
    """Return which corruption a reader accepts; empty if it returns only intact lines and reports the rest.

    A file that was cut after a complete line looks like the file of a process that was killed: it has no last line of
    the kind `seal`, so its segment counts as `dead`.
    """
    found = list(read(path))
    read_back = [(i.sequence, i.kind, i.payload) for i in found if isinstance(i, Line)]
    known = frozenset(lines)
    if wrong := [each for each in read_back if each not in known]:
        return f"a wrong line: {wrong[0]!r}"
    if read_back == lines:
        return ""
    is_reported = len(read_back) < len(found) or tail(path) > 0
    is_sealed = bool(read_back) and read_back[-1][1] == "seal"
    return (
        "" if is_reported or not is_sealed else f"{len(lines) - len(read_back)} lines are missing"
    )
