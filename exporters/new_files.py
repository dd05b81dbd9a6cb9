"""New files: readable only by their owner, and either complete or absent."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from agentobs import world
from agentobs.errors import UsageError

_NOT_REGULAR = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISLNK, "a link"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


@contextlib.contextmanager
def new_file(path: Path, *, force: bool = False) -> Iterator[Path]:
    """Yield a temporary path next to `path`; the file is renamed to `path` when the context ends without an exception.

    Only the owner can read the file (0600), regardless of the umask. After an exception, no file remains.

    Args:
        path: the file to create.
        force: replace an existing file.

    Raises:
        UsageError: the file exists, or cannot be written.
    """
    check_new_path(path, force=force)
    draft = path.with_name(f".{path.name}.{world.new_id()}")
    try:
        _create(draft)
        yield draft
        _sync(draft)
        if force:
            draft.replace(path)
        else:
            os.link(draft, path)
    except FileExistsError as error:
        raise unwritable(path, "another process created it at the same moment") from error
    except OSError as error:
        raise unwritable(path, str(error.strerror or error).partition("\n")[0]) from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def write_text(path: Path, text: str, *, force: bool = False) -> None:
    """Write a text to a new file (see `new_file`); characters that UTF-8 cannot encode are escaped.

    Raises:
        UsageError: the file exists, or cannot be written.
    """
    with new_file(path, force=force) as draft:
        draft.write_bytes(text.encode("utf-8", "backslashreplace"))


def check_new_path(path: Path, *, force: bool = False) -> None:
    """Check that a new file can be created at a path, before any work is done.

    Only a regular file is replaced. Devices, pipes and links are never replaced.

    Raises:
        UsageError: the file exists and `force` is not set, or it is not a regular file.
    """
    try:
        mode = path.lstat().st_mode
    except OSError:
        return
    if not force:
        raise _exists(path)
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _NOT_REGULAR if is_kind(mode)), "not a regular file")
        raise unwritable(path, f"it is {kind}, which is never replaced")


def unwritable(path: Path, why: str) -> UsageError:
    """Return the error for a file that cannot be written."""
    return UsageError(
        f"cannot be written: {why}",
        where=str(path),
        todo="Choose a file in a directory that you can write to",
    )


def _exists(path: Path) -> UsageError:
    return UsageError(
        "the file exists",
        where=str(path),
        todo="Choose another file, or pass --force to replace it",
    )


def _create(path: Path) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
    os.fchmod(descriptor, 0o600)
    os.close(descriptor)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
