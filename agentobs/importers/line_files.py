"""Line files: read files of lines that other tools wrote. Only regular files are read, and line length is limited."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO, NamedTuple

from agentobs.errors import UsageError

LINE_BYTES_MAX = 64 * 1024 * 1024
"""Longer lines are reported and skipped. Our choice: twice the size of a request that the provider accepts."""
FAR_NS = 2**62
"""Timestamps from this time on (the year 2116) are rejected, because the sum of two of them would exceed 64 bits. Our
choice.
"""
_CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that could not be parsed."""

    path: Path
    line: int
    """Its number in the file, from 1."""
    found: str
    """A readable description of the error, which never contains text from the line."""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.found}"


class FileLine(NamedTuple):
    """One line of a file."""

    number: int
    """The number of the line in the file, from 1."""
    text: bytes
    """The line with its newline; empty if the line is too long."""
    size: int
    """The length of the line in bytes."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file that could not be read."""

    path: Path
    found: str
    """A readable description of the reason."""
    todo: str = ""
    """The remedy, as a sentence without a final period."""

    def __str__(self) -> str:
        return f"{self.path}: {self.found}" + (f". {self.todo}" if self.todo else "")


def instant_ns(at: datetime) -> int | None:
    """Return a timestamp in nanoseconds since 1970; None if it is rejected."""
    since = (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000
    return since if 0 < since < FAR_NS else None


def files_under(paths: Iterable[Path], todo: str) -> set[Path]:
    """Return the given files, and the `.jsonl` files in the given directories.

    Raises:
        UsageError: a path does not exist.
    """
    found: set[Path] = set()
    for path in paths:
        if not path.exists():
            raise UsageError("no such file or directory", where=str(path), todo=todo)
        if path.is_dir():
            found |= {each for each in path.rglob("*.jsonl") if not each.is_dir()}
        else:
            found.add(path)
    return found


def lines_in(
    path: Path, bytes_max: int, seen: Callable[[bytes], object] = lambda _: None
) -> Iterator[FileLine]:
    """Yield the lines of a file; for a line that is too long, only its length.

    Args:
        path: the file.
        bytes_max: the maximum length of a line; longer lines are not kept in memory.
        seen: a function that is called with all bytes, in order.

    Raises:
        OSError: the file cannot be read, or is not a regular file, such as a pipe, on which reading would block.
    """
    with _opened(path) as file:
        number = 0
        while text := file.readline(bytes_max + 1):
            number += 1
            seen(text)
            size = len(text)
            if size <= bytes_max:
                yield FileLine(number, text, size)
                continue
            while not text.endswith(b"\n") and (text := file.readline(_CHUNK_BYTES)):
                seen(text)
                size += len(text)
            yield FileLine(number, b"", size)


def file_bytes(path: Path, bytes_max: int) -> bytes:
    """Return the content of a file.

    Raises:
        OSError: the file cannot be read, is not a regular file, or is larger than `bytes_max`.
    """
    with _opened(path) as file:
        found = file.read(bytes_max + 1)
    if len(found) > bytes_max:
        raise OSError(0, f"larger than {bytes_max // 1024**2:,} MiB")
    return found


def file_start(path: Path, size: int) -> bytes:
    """Return the first bytes of a file.

    Raises:
        OSError: the file cannot be read, or is not a regular file.
    """
    with _opened(path) as file:
        return file.read(size)


def reason(error: OSError) -> str:
    """Return a readable reason why a file cannot be read."""
    return (
        error.strerror.lower() if error.errno and error.strerror else str(error.strerror or error)
    )


def _opened(path: Path) -> BinaryIO:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(0, "not a regular file")
    return os.fdopen(descriptor, "rb")
