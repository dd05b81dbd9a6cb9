"""The temporary directories in which forks have worked. Each belongs to the sessions of its forks, and is deleted when
these are pruned. They are not in the home, because programs would find the files of a project around it.

    home/forks/ID.json    {"directory": PATH, "created_ns": N, "sessions": [ID, ...]}
    PATH/.agentobs-owner  the ID, so that no other directory with this path is deleted
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentobs import world
from agentobs.errors import error_kind, warn_once
from agentobs.recording.journal.home import Home

DIRECTORY = "forks"
"""The directory in a home that lists the directories of forks."""
_OWNER = ".agentobs-owner"
_WITHOUT_SESSION_NS = 7 * 24 * 3600 * 10**9
"""After this time, the next pruning deletes a directory that belongs to no session, because its fork was killed. Our
choice.
"""


@dataclass(frozen=True, slots=True)
class ForkDirectory:
    """A temporary directory of forks."""

    path: Path
    record: Path
    """The file in the home that lists it."""

    def belongs_to(self, session_ids: Collection[str]) -> None:
        """Note the sessions with which it is deleted.

        Raises:
            OSError: the home cannot be written.
        """
        value = json.loads(self.record.read_text("utf-8"))
        _write(self.record, {**value, "sessions": sorted(session_ids)})

    def delete(self) -> None:
        """Delete it, if it is still the directory that was created.

        Raises:
            OSError: a file cannot be deleted.
        """
        if _is_owned(self.path, self.record.stem):
            _delete(self.path)
        self.record.unlink(missing_ok=True)


def create_fork_directory(home: Home, prefix: str) -> ForkDirectory:
    """Create a directory for forks in the directory for temporary files.

    Args:
        home: the home in which the forks are recorded.
        prefix: the start of its name.

    Raises:
        OSError: it cannot be created, or the home cannot be written.
    """
    name = world.new_id()
    record = home.path / DIRECTORY / f"{name}.json"
    record.parent.mkdir(mode=0o700, exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix=prefix)).resolve()
    try:
        (path / _OWNER).write_text(name)
        _write(record, {"directory": os.fspath(path), "created_ns": world.now(), "sessions": []})
    except OSError:
        shutil.rmtree(path, ignore_errors=True)
        raise
    return ForkDirectory(path, record)


def forget_forks(home: Home, session_ids: Collection[str]) -> None:
    """Delete the directories whose sessions are all pruned. If one cannot be deleted, this warns.

    Args:
        home: the home of the sessions.
        session_ids: the sessions that are pruned now.
    """
    for record in sorted((home.path / DIRECTORY).glob("*.json")):
        try:
            value = json.loads(record.read_text("utf-8"))
            before, directory = set(value["sessions"]), Path(value["directory"])
            left = before - set(session_ids)
            is_old = world.now() - value["created_ns"] > _WITHOUT_SESSION_NS
            if left == before and (left or not is_old):
                continue
            # What cannot be deleted now is deleted by the next pruning.
            created_ns = value["created_ns"] if left else 0
            _write(record, {**value, "sessions": sorted(left), "created_ns": created_ns})
            if not left:
                ForkDirectory(directory, record).delete()
        except (OSError, ValueError, KeyError, TypeError) as error:
            warn_once(
                f"the directory of a pruned fork was not deleted: {error_kind(error)}. {record} names it; the next "
                "`agentobs prune` tries to delete it again.",
                about=f"fork {record}",
            )


def _delete(path: Path) -> None:
    """Delete a directory, with the file of its owner last. Links are not followed.

    Raises:
        OSError: a file cannot be deleted.
    """
    for folder, names, _ in os.walk(path):
        # Package managers leave directories that cannot be written.
        for each in (Path(folder, name) for name in names):
            if not each.is_symlink():
                each.chmod(0o700)
    for each in path.iterdir():
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each)
        elif each.name != _OWNER:
            each.unlink()
    shutil.rmtree(path)


def _is_owned(path: Path, name: str) -> bool:
    """Return whether a directory is the one that was created with this ID."""
    try:
        found = path.lstat()
        is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
        return is_own and (path / _OWNER).read_text("utf-8") == name
    except (OSError, ValueError):
        return False


def _write(record: Path, value: dict[str, Any]) -> None:
    draft = record.with_name(f".{record.name}.{os.getpid()}")
    try:
        draft.write_text(json.dumps(value), "utf-8")
        draft.replace(record)
    finally:
        draft.unlink(missing_ok=True)


__all__ = ["ForkDirectory", "create_fork_directory", "forget_forks"]
