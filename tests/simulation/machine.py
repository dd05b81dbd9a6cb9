"""The simulated machine: a disk, a clock and processes, whose system calls can fail, hang, be interrupted or be the
last one.

While a machine is running, it replaces the functions of `os` and `open`, so every call of Python code that changes or
reads the disk passes through it, whatever module makes it. DuckDB writes its files with its own system calls; see
`tests/simulation/__init__.py` for what this means.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import hashlib
import io
import os
import random
import shutil
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentobs import world
from tests.simulation.disk import Disk, Node

EPOCH_NS = 1_795_000_000_000_000_000
"""The start of the simulated clock: November 2026, two months after the recorded sessions."""
ANY = ("ENOSPC", "EIO", "EROFS", "EDQUOT", "EACCES", "EMFILE")
POSSIBLE: dict[str, tuple[str, ...]] = {
    "create": ANY,
    "open": ("EIO", "EMFILE", "EACCES"),
    "write": ("ENOSPC", "EIO", "EDQUOT", "EROFS", "EINTR", "short", "torn"),
    "sync": ("EIO", "ENOSPC"),
    "truncate": ("EIO",),
    "rename": ("EIO", "ENOSPC", "EROFS"),
    "link": ("EIO", "ENOSPC", "EROFS"),
    "mkdir": ANY,
    "unlink": ("EIO", "EROFS"),
    "rmdir": ("EIO", "EROFS"),
    "list": ("EIO", "EMFILE"),
    "lock": (),
}
"""The faults that a call can have, in addition to those that any call can have: the name of an error, `short` (only a
part of the data is written) or `torn` (a part of the data is written, and then the process dies).
"""
ANYWHERE = ("die", "power", "hang", "meanwhile")
"""The faults of any call: the process dies before it, the power fails before it, it takes a while, or another process
runs before it.
"""


class Died(BaseException):
    """The process that made a system call is dead. No code can catch this and continue."""


class PowerLost(Died):
    """The machine is off."""


@dataclass(frozen=True)
class Fault:
    """What happens to a system call of a step."""

    at: int
    """The number of the call in its step, from 1; if this call cannot have the fault, the next one that can."""
    kind: str
    count: int = 1
    """The number of calls in a row that have the fault."""
    other: Any = None
    """The step of another process, for `meanwhile`."""

    def __str__(self) -> str:
        times = f" {self.count} times" if self.count > 1 else ""
        other = f": {self.other}" if self.other is not None else ""
        return f"{self.kind}{times} at call {self.at}{other}"


@dataclass(eq=False)
class Process:
    """A process of the machine."""

    name: str
    descriptors: dict[int, tuple[Path, Node | None]] = field(default_factory=dict)
    is_dead: bool = False


@dataclass
class _Running:
    """A step that runs now."""

    process: Process
    faults: list[Fault]
    calls: int = 0


class Machine:
    """One machine, with a directory of the real file system as its disk."""

    def __init__(self, root: Path, seed: str) -> None:
        """Create a machine whose disk is the directory `root`."""
        self.root = root
        self.disk = Disk(root, root.with_name(f"{root.name}.copies"))
        self._chance = random.Random(f"{seed}:ids")
        self.wall_ns, self.monotonic_ns = EPOCH_NS, 10**15
        self.history: dict[str, bytearray] = {}
        """All bytes that a segment file has contained, by the name of the file."""
        self.published: dict[str, set[bytes]] = {}
        """The digests of all contents that got a name by a rename, by the name."""
        self.on_meanwhile: Callable[[Any], None] = lambda step: None
        self.on_hang: Callable[[Process], None] = lambda process: None
        self.calls = 0
        self.injected: Counter[str] = Counter()
        """The faults that have happened, by kind."""
        self.trace = hashlib.blake2b(digest_size=8)
        """A digest of all calls: the same seed has the same digest."""
        self._thread = threading.get_ident()
        self._running: list[_Running] = []
        self._is_inside = False

    # Processes.

    @contextlib.contextmanager
    def step(self, process: Process, faults: tuple[Fault, ...] = ()) -> Iterator[None]:
        """Run code as a process; its system calls may have faults."""
        self._running.append(_Running(process, list(faults)))
        try:
            yield
        finally:
            self._running.pop()

    @property
    def process(self) -> Process | None:
        """The process that runs now."""
        return self._running[-1].process if self._running else None

    def had_faults(self) -> int:
        """Return the number of faults so far."""
        return self.injected.total()

    def kill(self, process: Process) -> None:
        """End a process: its descriptors are closed, and its locks released."""
        process.is_dead = True
        for descriptor in list(process.descriptors):
            process.descriptors.pop(descriptor)
            with contextlib.suppress(OSError):
                _REAL["os.close"](descriptor)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Let the caller change the disk from outside."""
        self._is_inside = True
        try:
            yield
        finally:
            self._is_inside = False

    # System calls.

    def call(self, name: str, path: Path, real: Callable[[], Any]) -> Any:
        """Make a system call, unless it has a fault."""
        fault = self.before(name, path)
        if fault is not None:
            raise OSError(getattr(errno, fault), os.strerror(getattr(errno, fault)))
        return real()

    def before(self, name: str, path: Path) -> str | None:
        """Count a call, and return its fault: the name of an error, `short`, `torn`, or None.

        Raises:
            Died: the process ends before this call.
        """
        if not self._running or self._is_inside or threading.get_ident() != self._thread:
            return None
        running = self._running[-1]
        if running.process.is_dead:
            raise Died
        running.calls += 1
        self.calls += 1
        self.trace.update(f"{name} {path.name}\n".encode())
        for index, fault in enumerate(running.faults):
            if fault.at > running.calls:
                continue
            if fault.kind not in ANYWHERE and fault.kind not in POSSIBLE[name]:
                continue
            left = Fault(fault.at, fault.kind, fault.count - 1, fault.other)
            running.faults[index : index + 1] = [left] if left.count else []
            self.injected[fault.kind] += 1
            self.trace.update(f"{fault.kind}\n".encode())
            return self._happens(fault, running)
        return None

    def _happens(self, fault: Fault, running: _Running) -> str | None:
        match fault.kind:
            case "die":
                running.process.is_dead = True
                raise Died
            case "power":
                for each in self._running:
                    each.process.is_dead = True
                raise PowerLost
            case "hang":
                self.monotonic_ns += 30 * 10**9
                self.wall_ns += 30 * 10**9
                self.on_hang(running.process)
            case "meanwhile":
                self.on_meanwhile(fault.other)
                if running.process.is_dead:
                    raise Died
            case _:
                return fault.kind
        return None

    # The clock.

    def now(self) -> int:
        self.wall_ns += 1_000
        return self.wall_ns

    def monotonic(self) -> int:
        self.monotonic_ns += 1_000
        return self.monotonic_ns

    def new_id(self) -> str:
        high = (self.now() // 1_000_000) << 16 | 0x7000 | self._chance.getrandbits(12)
        return f"{high:016x}{0x8000_0000_0000_0000 | self._chance.getrandbits(62):016x}"

    def pause(self, seconds: float) -> None:
        self.monotonic_ns += int(seconds * 1e9)

    # Replacements of the functions of the operating system.

    def inside(self, path: Any) -> Path | None:
        """Return the path if it is on the disk of this machine, else None."""
        if isinstance(path, int) or self._is_inside or threading.get_ident() != self._thread:
            return None
        place = Path(os.path.abspath(os.fsdecode(path)))  # noqa: PTH100
        return place if place.is_relative_to(self.root) else None

    def described(self, descriptor: int) -> tuple[Path, Node | None] | None:
        for running in reversed(self._running):
            if descriptor in running.process.descriptors:
                return running.process.descriptors[descriptor]
        return None

    def os_open(
        self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None
    ) -> int:
        place = self.inside(path)
        if place is None:
            return _REAL["os.open"](path, flags, mode, dir_fd=dir_fd)
        creates = bool(flags & os.O_CREAT)
        descriptor: int = self.call(
            "create" if creates else "open",
            place,
            lambda: _REAL["os.open"](place, flags, mode),
        )
        node = self.disk.created(place)
        if creates:
            self._stamp(place)
        if self._running:
            self._running[-1].process.descriptors[descriptor] = place, node
        return descriptor

    def os_close(self, descriptor: int) -> None:
        for running in self._running:
            running.process.descriptors.pop(descriptor, None)
        _REAL["os.close"](descriptor)

    def os_write(self, descriptor: int, data: Any) -> int:
        found = self.described(descriptor)
        if found is None:
            return int(_REAL["os.write"](descriptor, data))
        path, _ = found
        fault = self.before("write", path)
        if fault == "EINTR":
            raise InterruptedError(errno.EINTR, "interrupted")
        if fault in ("short", "torn"):
            size = self._chance.randint(0 if fault == "torn" else 1, max(1, len(data) - 1))
            data = memoryview(data)[:size]
        elif fault in ("ENOSPC", "EDQUOT") and len(data) > 1 and self._chance.random() < 0.5:
            # A full disk takes a part, and refuses the rest.
            running = self._running[-1]
            running.faults.insert(0, Fault(running.calls + 1, fault))
            data = memoryview(data)[: self._chance.randint(1, len(data) - 1)]
        elif fault is not None:
            raise OSError(getattr(errno, fault), os.strerror(getattr(errno, fault)))
        written = int(_REAL["os.write"](descriptor, data))
        if path.suffix in (".facts", ".content"):
            self.history.setdefault(path.name, bytearray()).extend(data[:written])
        self._stamp(path)
        if fault == "torn" and self._running:
            self._running[-1].process.is_dead = True
            raise Died
        return written

    def os_fsync(self, descriptor: int) -> None:
        found = self.described(descriptor)
        if found is None:
            _REAL["os.fsync"](descriptor)
            return
        try:
            self.call("sync", found[0], lambda: None)
        except OSError:
            self.disk.sync_failed(*found)
            raise
        self._stamp(found[0])
        self.disk.synced(*found)

    def os_ftruncate(self, descriptor: int, size: int) -> None:
        found = self.described(descriptor)
        if found is None:
            _REAL["os.ftruncate"](descriptor, size)
            return
        self.call("truncate", found[0], lambda: _REAL["os.ftruncate"](descriptor, size))
        if found[0].name in self.history:
            del self.history[found[0].name][size:]

    def os_rename(self, path: Any, other: Any, **options: Any) -> None:
        a, b = self.inside(path), self.inside(other)
        if a is None or b is None:
            _REAL["os.rename"](path, other, **options)
            return
        self.call("rename", b, lambda: _REAL["os.rename"](a, b))
        self.disk.renamed(a, b)
        if b.is_file():
            self.published.setdefault(b.name, set()).add(digest_of(b))

    def os_link(self, path: Any, other: Any, **options: Any) -> None:
        a, b = self.inside(path), self.inside(other)
        if a is None or b is None:
            _REAL["os.link"](path, other, **options)
            return
        self.call("link", b, lambda: _REAL["os.link"](a, b))
        self.disk.linked(a, b)

    def os_unlink(self, path: Any, **options: Any) -> None:
        place = self.inside(path)
        if place is None:
            _REAL["os.unlink"](path, **options)
            return
        self.call("unlink", place, lambda: _REAL["os.unlink"](place))
        self.disk.removed(place)

    def os_rmdir(self, path: Any, **options: Any) -> None:
        place = self.inside(path)
        if place is None:
            _REAL["os.rmdir"](path, **options)
            return
        self.call("rmdir", place, lambda: _REAL["os.rmdir"](place))
        self.disk.removed(place)

    def os_mkdir(self, path: Any, mode: int = 0o777, **options: Any) -> None:
        place = self.inside(path)
        if place is None:
            _REAL["os.mkdir"](path, mode, **options)
            return
        self.call("mkdir", place, lambda: _REAL["os.mkdir"](place, mode))
        self.disk.created(place)

    def os_listdir(self, path: Any = ".") -> list[Any]:
        place = self.inside(path)
        if place is None:
            return list(_REAL["os.listdir"](path))
        return sorted(self.call("list", place, lambda: _REAL["os.listdir"](place)))

    def os_scandir(self, path: Any = ".") -> Any:
        place = self.inside(path)
        if place is None:
            return _REAL["os.scandir"](path)
        return _Entries(self.call("list", place, lambda: _REAL["os.scandir"](path)))

    def os_chmod(self, path: Any, mode: int, **options: Any) -> None:
        _REAL["os.chmod"](path, mode, **options)
        if (place := self.inside(path)) is not None and place.is_file():
            self._stamp(place)

    def lock(self, descriptor: int, operation: int) -> None:
        found = self.described(descriptor)
        if found is not None:
            self.before("lock", found[0])
        _REAL["fcntl.flock"](descriptor, operation)

    def open(self, file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if isinstance(file, int):  # from now on, a file object owns this descriptor
            for running in self._running:
                running.process.descriptors.pop(file, None)
        place = self.inside(file)
        if place is None:
            return _REAL["open"](file, mode, *arguments, **options)
        writes = any(letter in mode for letter in "wax+")
        if not writes:
            return self.call(
                "open", place, lambda: _REAL["open"](file, mode, *arguments, **options)
            )
        assert "b" in mode, mode
        raw = self.call("create", place, lambda: _File(self, place, mode.replace("b", "")))
        self.disk.created(place)
        self._running[-1].process.descriptors[raw.fileno()] = place, self.disk.node(place)
        return io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)

    def _stamp(self, path: Path) -> None:
        """Set the time of the last change by the simulated clock."""
        with contextlib.suppress(FileNotFoundError):
            os.utime(path, ns=(self.wall_ns, self.wall_ns))

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Replace the functions of the operating system, of the clock and of the source of IDs."""
        changes: list[tuple[Any, str, Any]] = [
            (os, "open", self.os_open),
            (os, "close", self.os_close),
            (os, "write", self.os_write),
            (os, "fsync", self.os_fsync),
            (os, "fdatasync", self.os_fsync),
            (os, "ftruncate", self.os_ftruncate),
            (os, "rename", self.os_rename),
            (os, "replace", self.os_rename),
            (os, "link", self.os_link),
            (os, "unlink", self.os_unlink),
            (os, "remove", self.os_unlink),
            (os, "rmdir", self.os_rmdir),
            (os, "mkdir", self.os_mkdir),
            (os, "listdir", self.os_listdir),
            (os, "scandir", self.os_scandir),
            (os, "chmod", self.os_chmod),
            (os, "register_at_fork", lambda **functions: None),
            (__import__("fcntl"), "flock", self.lock),
            (io, "open", self.open),
            (builtins, "open", self.open),
            (world, "now", self.now),
            (world, "monotonic", self.monotonic),
            (world, "new_id", self.new_id),
            (world, "pause", self.pause),
            (world, "random_bytes", lambda count: self._chance.randbytes(count)),
            (world, "new_span_id", lambda: f"{self._chance.getrandbits(64):016x}"),
            (shutil, "_use_fd_functions", False),
        ]
        changes += [
            (shutil, name, False)
            for name in ("_USE_CP_SENDFILE", "_USE_CP_COPY_FILE_RANGE")
            if hasattr(shutil, name)
        ]
        before = [(place, name, getattr(place, name)) for place, name, _ in changes]
        try:
            for place, name, value in changes:
                setattr(place, name, value)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        finally:
            for place, name, value in before:
                setattr(place, name, value)


def digest_of(path: Path) -> bytes:
    """Return a digest of the bytes of a file."""
    return hashlib.blake2b(path.read_bytes(), digest_size=16).digest()


class _File(io.FileIO):
    """A file that was opened with `open` for writing; each write is a system call of the machine."""

    def __init__(self, machine: Machine, path: Path, mode: str) -> None:
        super().__init__(path, mode)
        self._machine, self._path = machine, path

    def write(self, data: Any) -> int:
        fault = self._machine.before("write", self._path)
        if fault in ("short", "torn"):
            data = memoryview(data)[: max(1, len(data) // 2)]
        elif fault == "EINTR":
            fault = None  # Python repeats the call
        elif fault is not None:
            raise OSError(getattr(errno, fault), os.strerror(getattr(errno, fault)))
        written = super().write(data)
        self._machine._stamp(self._path)
        if fault == "torn":
            running = self._machine.process
            assert running is not None
            running.is_dead = True
            raise Died
        return written or 0

    def close(self) -> None:
        if not self.closed:
            for running in self._machine._running:
                running.process.descriptors.pop(self.fileno(), None)
        super().close()


class _Entries:
    """The entries of a directory, in the order of their names."""

    def __init__(self, entries: Any) -> None:
        with entries:
            self._entries = iter(sorted(entries, key=lambda each: str(each.name)))

    def __iter__(self) -> Iterator[Any]:
        return self._entries

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass


_REAL: dict[str, Callable[..., Any]] = {
    "open": builtins.open,
    "fcntl.flock": __import__("fcntl").flock,
    **{
        f"os.{name}": getattr(os, name)
        for name in (
            "open", "close", "write", "fsync", "ftruncate", "rename", "link", "unlink", "rmdir", "mkdir", "listdir",
            "scandir", "chmod",
        )
    },
}  # fmt: skip
