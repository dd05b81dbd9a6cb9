"""The file system: the calls to the operating system that write a segment, as one frozen set of functions.

A test can replace the set with one in which a call fails or hangs. It can also trace the calls, and then reconstruct
the state of the disk after a power loss. The functions of `os` are looked up at each call.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

INTERRUPTED_MAX = 100
"""How often a call that was interrupted by a signal is repeated. Our choice: Python itself never gives up."""


def _create(path: Path) -> int:
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW
    return os.open(path, flags, 0o600)


def _chmod(descriptor: int) -> None:
    os.fchmod(descriptor, 0o600)  # regardless of the umask


def _lock(descriptor: int) -> None:
    fcntl.flock(
        descriptor, fcntl.LOCK_EX
    )  # waits, because a reader that checks the lock holds it for a moment


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
    """The calls of the write path to the operating system; each raises OSError on failure."""

    create: Callable[[Path], int] = _create
    """Create a file that must not exist, for appending, without following a link; return its descriptor."""
    chmod: Callable[[int], None] = _chmod
    """Set the mode of the file to 0600."""
    lock: Callable[[int], None] = _lock
    """Lock the file until it is closed."""
    write: Callable[[int, memoryview], int] = _write
    """Append bytes; return how many were written, which may be fewer."""
    sync: Callable[[int], None] = _sync
    """Sync the file, so that its bytes survive a power loss."""
    truncate: Callable[[int, int], None] = _truncate
    """Truncate the file to a size."""
    close: Callable[[int], None] = _close
    """Close the file."""
    unlink: Callable[[Path], None] = _unlink
    """Remove a name."""
    identity: Callable[[Path], tuple[int, int]] = _identity
    """Return the device and inode of the file with a name."""
    identity_of: Callable[[int], tuple[int, int]] = _identity_of
    """Return the device and inode of an open file."""
    sync_names: Callable[[Path], None] = _sync_names
    """Sync a directory, so that the names in it survive a power loss."""

    def write_all(self, descriptor: int, data: bytes) -> int:
        """Append all bytes, and return their number.

        Raises:
            Refused: not all bytes were written.
        """
        done, view = 0, memoryview(data)
        interrupted = 0
        while done < len(data):
            try:
                written = self.write(descriptor, view[done:])
            except InterruptedError as error:
                interrupted += 1
                if interrupted > INTERRUPTED_MAX:
                    raise Refused(done, error) from error
                continue
            except BaseException as error:
                raise Refused(done, error) from error
            if written <= 0:
                nothing = OSError(errno.EIO, "nothing was written")
                raise Refused(done, nothing) from nothing
            done += written
        return done


class Refused(Exception):
    """A write ended early. `done` is the number of bytes that were written, `error` the original error."""

    def __init__(self, done: int, error: BaseException) -> None:
        super().__init__(done, error)
        self.done, self.error = done, error


OS = Files()
"""The real calls to the operating system."""
