"""Power losses: traces the system calls of the write path, and builds disk images that a power loss could leave.

Synced data is present. Each sector that was not synced may be present or missing, in any order, so a file may be
shorter or have holes. A file name may be missing if its directory was not synced.
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
from tests.soak.kills import name_of, name_of_line, session_records

SECTOR = 512
"""The number of bytes that a disk writes atomically."""


@dataclass
class TracedFiles:
    """The file functions of the operating system, with a trace of all calls."""

    trace: list[tuple[str, Path, Any]] = field(default_factory=list)
    """The function, the path, and the argument of each call: the written bytes, a size, an earlier length of the trace,
    or acknowledged records."""
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
        written = OS.write(descriptor, data)
        self.trace.append(("write", self.paths[descriptor], bytes(data[:written])))
        return written

    def sync(self, descriptor: int) -> None:
        # Only data that was written before this call is certainly synced; data written during the call may not be.
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


def record_traced(folder: Path, seed: int, sync: Any) -> TracedFiles:
    """Record some sessions; with `always`, the trace also contains the acknowledged records."""
    chance, traced = random.Random(seed), TracedFiles()
    recorder = Recorder(open_home(folder), Options(files=traced.files(), sync=sync))
    unacknowledged: list[str] = []
    for number in range(seed * 100, seed * 100 + 4):
        for record in session_records(number, chance):
            recorder(record)
            unacknowledged.append(name_of(record))
            if chance.random() < 0.5:
                assert recorder.flush(30)
                if sync == "always":
                    traced.trace.append(("acknowledged", folder, unacknowledged))
                    unacknowledged = []
    assert recorder.close(30)
    return traced


@dataclass
class _File:
    data: bytearray = field(default_factory=bytearray)
    durable: int = 0
    """The number of synced bytes at the start of the file."""
    is_named: bool = False
    """Whether the file's directory was synced after the file was created."""


def disk_image(
    traced: TracedFiles, home: Home, folder: Path, seed: int
) -> tuple[Home, dict[str, int], set[str]]:
    """Build a disk image that a power loss at a random point of the trace could leave.

    Returns its home, the number of synced bytes by file, and the acknowledged records.
    """
    chance = random.Random(seed)
    end = chance.randint(1, len(traced.trace))
    files: dict[Path, _File] = {}
    acknowledged: set[str] = set()
    sizes: list[dict[Path, int]] = []
    for function, path, argument in traced.trace[:end]:
        sizes.append({each: len(file.data) for each, file in files.items()})
        _apply(files, acknowledged, sizes, function, path, argument)
    image = Home(folder)
    image.segments.mkdir(parents=True, mode=0o700)
    (folder / "key").write_bytes(b"k" * 32)
    for path, file in files.items():
        if file.is_named or chance.random() < 0.5:
            (image.segments / path.name).write_bytes(_remaining_bytes(file, chance))
    named = {path.name: file.durable for path, file in files.items() if file.is_named}
    return image, named, acknowledged


def _apply(
    files: dict[Path, _File],
    acknowledged: set[str],
    sizes: list[dict[Path, int]],
    function: str,
    path: Path,
    argument: Any,
) -> None:
    """Apply one call of the trace; `sizes` holds the size of each file before each earlier call."""
    match function:
        case "create":
            files[path] = _File()
        case "write":
            files[path].data += argument
        case "sync":
            files[path].durable = max(
                files[path].durable, sizes[argument].get(path, 0) if argument < len(sizes) else 0
            )
        case "truncate":
            del files[path].data[argument:]
            files[path].durable = min(files[path].durable, argument)
        case "sync_names":
            for each in sizes[argument] if argument < len(sizes) else ():
                if each in files and each.parent == path:
                    files[each].is_named = True
        case "unlink":
            files.pop(path, None)
        case "acknowledged":
            acknowledged.update(argument)


def _remaining_bytes(file: _File, chance: random.Random) -> bytes:
    """Return the bytes of a file after a power loss: all synced bytes, and some of the other sectors."""
    size = chance.choice(
        [file.durable, len(file.data), chance.randint(file.durable, len(file.data))]
    )
    remaining = bytearray(file.data[: file.durable]).ljust(size, b"\0")
    share = chance.choice([0.0, 0.5, 0.9, 1.0])
    for start in range(file.durable // SECTOR * SECTOR, size, SECTOR):
        first, last = max(start, file.durable), min(start + SECTOR, size)
        if first < last and chance.random() < share:
            remaining[first:last] = file.data[first:last]
    return bytes(remaining)


def readable_records(home: Home) -> set[str]:
    """Return the names of all records of a home that can be read; damaged files do not raise an error."""
    lines = [line for each in segment_ids(home) for line in read(facts_path(home, each))]
    return {name for each in lines if isinstance(each, Line) and (name := name_of_line(each))}
