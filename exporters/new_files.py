"""New files: each for its owner alone, and there when it is whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from agentobs import world
from agentobs.errors import UsageError

_OTHERS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISLNK, "a link"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


@contextlib.contextmanager
def new_file(path: Path, *, force: bool = False) -> Iterator[Path]:
    """Give a place beside `path` to write to; what is written there takes its name when the context ends in order.

    The file is for its owner alone (0600), whatever the umask. Where something raises, nothing is left.

    Args:
        path: the file that shall be.
        force: replace the file that is there.

    Raises:
        UsageError: the file exists, or it cannot be written there.
    """
    check_place(path, force=force)
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
        raise unwritable(path, "it was made by somebody else at this moment") from error
    except OSError as error:
        raise unwritable(path, str(error.strerror or error).partition("\n")[0]) from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def write_text(path: Path, text: str, *, force: bool = False) -> None:
    """Write a text to a new file, see `new_file`; what UTF-8 cannot hold stands as its escape.

    Raises:
        UsageError: the file exists, or it cannot be written there.
    """
    with new_file(path, force=force) as draft:
        draft.write_bytes(text.encode("utf-8", "backslashreplace"))


def check_place(path: Path, *, force: bool = False) -> None:
    """Refuse a place where no new file can be, before there is any work for it.

    Only a plain file is ever replaced: whoever names a device or a pipe wants it written to, which a new file is not,
    and would lose it; and what a link leads to, or the link, is not for us to choose.

    Raises:
        UsageError: the file exists and is not to be replaced, or what is there is no plain file.
    """
    try:
        mode = path.lstat().st_mode
    except OSError:
        return
    if not force:
        raise _exists(path)
    if not stat.S_ISREG(mode):
        found = next((word for is_one, word in _OTHERS if is_one(mode)), "no plain file")
        raise unwritable(path, f"it is {found}, which is never replaced")


def unwritable(path: Path, why: str) -> UsageError:
    """Return the error that says why a file cannot be written."""
    return UsageError(
        f"cannot be written: {why}", where=str(path), todo="Name a file in a directory of your own"
    )


def _exists(path: Path) -> UsageError:
    return UsageError("the file exists", where=str(path), todo="Name another one, or say --force")


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
