"""Power losses: what the write path asked of the system is traced, and disks are built as it could leave them.

What was not synced may be there or not, sector by sector and in any order; a file may be shorter, or have holes; a name
may be missing where its directory was not synced. What was synced is there.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentobs.recording.journal.file_system import OS, Files
from agentobs.recording.journal.home import Home, open_home
from agentobs.recording.journal.segments import Line, facts_path, read, segment_ids
from agentobs.recording.options import Options
from agentobs.recording.recorder import Recorder
from tests.soak.kills import name_of, name_of_line, story

SECTOR = 512
"""What a disk writes as one."""


@dataclass
class Traced:
    """The operating system, with a note of each call: verb, path, and bytes, a size, or what was acknowledged."""

    trace: list[tuple[str, Path, Any]] = field(default_factory=list)
    paths: dict[int, Path] = field(default_factory=dict)

    def files(self) -> Files:
        return Files(
            create=self.create,
            write=self.write,
            sync=self.sync,
            truncate=self.truncate,
            sync_names=self.sync_names,
            unlink=self.unlink,
        )

    def create(self, path: Path) -> int:
        descriptor = OS.create(path)
        self.paths[descriptor] = path
        self.trace.append(("create", path, None))
        return descriptor

    def write(self, descriptor: int, data: memoryview) -> int:
        taken = OS.write(descriptor, data)
        self.trace.append(("write", self.paths[descriptor], bytes(data[:taken])))
        return taken

    def sync(self, descriptor: int) -> None:
        # What is written while this runs may or may not be part of it: only what was there before is.
        before = len(self.trace)
        OS.sync(descriptor)
        self.trace.append(("sync", self.paths[descriptor], before))

    def truncate(self, descriptor: int, size: int) -> None:
        OS.truncate(descriptor, size)
        self.trace.append(("truncate", self.paths[descriptor], size))

    def sync_names(self, path: Path) -> None:
        before = len(self.trace)
        OS.sync_names(path)
        self.trace.append(("sync_names", path, before))

    def unlink(self, path: Path) -> None:
        OS.unlink(path)
        self.trace.append(("unlink", path, None))


def traced(folder: Path, seed: int, sync: Any) -> Traced:
    """Record some sessions; with `always` the trace says what was acknowledged, and when."""
    chance, found = random.Random(seed), Traced()
    recorder = Recorder(open_home(folder), Options(files=found.files(), sync=sync))
    waiting: list[str] = []
    for number in range(seed * 100, seed * 100 + 4):
        for record in story(number, chance):
            recorder(record)
            waiting.append(name_of(record))
            if chance.random() < 0.5:
                assert recorder.flush(30)
                if sync == "always":
                    found.trace.append(("acknowledged", folder, waiting))
                    waiting = []
    assert recorder.close(30)
    return found


@dataclass
class _File:
    data: bytearray = field(default_factory=bytearray)
    durable: int = 0
    """Its first bytes that were synced."""
    is_named: bool = False


def image(
    found: Traced, home: Home, place: Path, seed: int
) -> tuple[Home, dict[str, int], set[str]]:
    """Build a disk as it may be after a power loss at some point; return its home, how much of each file was synced,
    and what had been acknowledged.
    """
    chance = random.Random(seed)
    end = chance.randint(1, len(found.trace))
    files: dict[Path, _File] = {}
    acknowledged: set[str] = set()
    sizes: list[dict[Path, int]] = []
    for verb, path, given in found.trace[:end]:
        sizes.append({each: len(file.data) for each, file in files.items()})
        _apply(files, acknowledged, sizes, verb, path, given)
    made = Home(place)
    made.segments.mkdir(parents=True, mode=0o700)
    (place / "key").write_bytes(b"k" * 32)
    for path, file in files.items():
        if file.is_named or chance.random() < 0.5:
            (made.segments / path.name).write_bytes(_left(file, chance))
    named = {path.name: file.durable for path, file in files.items() if file.is_named}
    return made, named, acknowledged


def _apply(
    files: dict[Path, _File],
    acknowledged: set[str],
    sizes: list[dict[Path, int]],
    verb: str,
    path: Path,
    given: Any,
) -> None:
    match verb:
        case "create":
            files[path] = _File()
        case "write":
            files[path].data += given
        case "sync":
            files[path].durable = max(
                files[path].durable, sizes[given].get(path, 0) if given < len(sizes) else 0
            )
        case "truncate":
            del files[path].data[given:]
            files[path].durable = min(files[path].durable, given)
        case "sync_names":
            for each in sizes[given] if given < len(sizes) else ():
                if each in files and each.parent == path:
                    files[each].is_named = True
        case "unlink":
            files.pop(path, None)
        case "acknowledged":
            acknowledged.update(given)


def _left(file: _File, chance: random.Random) -> bytes:
    """Return what a disk holds of a file: all that was synced, and of the rest any sectors."""
    size = chance.choice(
        [file.durable, len(file.data), chance.randint(file.durable, len(file.data))]
    )
    left = bytearray(file.data[: file.durable]).ljust(size, b"\0")
    share = chance.choice([0.0, 0.5, 0.9, 1.0])
    for start in range(file.durable // SECTOR * SECTOR, size, SECTOR):
        first, last = max(start, file.durable), min(start + SECTOR, size)
        if first < last and chance.random() < share:
            left[first:last] = file.data[first:last]
    return bytes(left)


def names_in(home: Home) -> set[str]:
    """Return the records of a home that read back, without raising whatever it holds."""
    lines = [line for each in segment_ids(home) for line in read(facts_path(home, each))]
    return {name for each in lines if isinstance(each, Line) and (name := name_of_line(each))}
