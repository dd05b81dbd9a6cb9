"""Files: the calls to the operating system that writing a segment makes, as one frozen bundle of functions.

A test puts another bundle in its place, in which a call fails, hangs, or is noted, so that what a power loss would
leave can be built. The functions are looked up when they are called.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

INTERRUPTED_MAX = 100
"""How often a call that a signal interrupts is made again. Our choice: Python itself never gives up."""


def _create(path: Path) -> int:
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW
    return os.open(path, flags, 0o600)


def _chmod(descriptor: int) -> None:
    os.fchmod(descriptor, 0o600)  # whatever the umask


def _lock(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_EX)  # a reader that looks in holds it for an instant


def _write(descriptor: int, data: memoryview) -> int:
    return os.write(descriptor, data)


def _sync(descriptor: int) -> None:
    os.fdatasync(descriptor)


def _truncate(descriptor: int, size: int) -> None:
    os.ftruncate(descriptor, size)


def _close(descriptor: int) -> None:
    os.close(descriptor)


def _unlink(path: Path) -> None:
    path.unlink()


def _identity(path: Path) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino


def _identity_of(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def _sync_names(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Files:
    """What the write path may ask of the operating system; each raises OSError where that refuses."""

    create: Callable[[Path], int] = _create
    """Create a file that must not exist, for appending, without following a link; return its descriptor."""
    chmod: Callable[[int], None] = _chmod
    """Give it mode 0600."""
    lock: Callable[[int], None] = _lock
    """Lock it until it is closed."""
    write: Callable[[int, memoryview], int] = _write
    """Append; return how many bytes were taken, which may be fewer than given."""
    sync: Callable[[int], None] = _sync
    """Make what was written to it survive a power loss."""
    truncate: Callable[[int, int], None] = _truncate
    """Cut it to a size."""
    close: Callable[[int], None] = _close
    """Let go of it."""
    unlink: Callable[[Path], None] = _unlink
    """Remove a name."""
    identity: Callable[[Path], tuple[int, int]] = _identity
    """Which file a name leads to."""
    identity_of: Callable[[int], tuple[int, int]] = _identity_of
    """Which file a descriptor leads to."""
    sync_names: Callable[[Path], None] = _sync_names
    """Make the names in a directory survive a power loss."""

    def write_all(self, descriptor: int, data: bytes) -> int:
        """Append some bytes; returns how many were taken before it was refused: all of them, or see `Refused`.

        Raises:
            Refused: not all of them were taken.
        """
        done, whole = 0, memoryview(data)
        interrupted = 0
        while done < len(data):
            try:
                taken = self.write(descriptor, whole[done:])
            except InterruptedError as error:
                interrupted += 1
                if interrupted > INTERRUPTED_MAX:
                    raise Refused(done, error) from error
                continue
            except BaseException as error:
                raise Refused(done, error) from error
            if taken <= 0:
                nothing = OSError(errno.EIO, "nothing was written")
                raise Refused(done, nothing) from nothing
            done += taken
        return done


class Refused(Exception):
    """A write ended early; says how many bytes were taken, and what was raised."""

    def __init__(self, done: int, error: BaseException) -> None:
        super().__init__(done, error)
        self.done, self.error = done, error


OS = Files()
"""The operating system's own."""
