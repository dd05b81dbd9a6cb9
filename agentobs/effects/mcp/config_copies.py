"""Copies of MCP configurations, which a recorded command reads; they may contain credentials.

    home/mcp/<id>/   mode 0700, locked by the process that records the command
      mcp-1.json     mode 0600

The directory is deleted at the end of the recording. If the recorder was killed, the lock is free, and the next
recording or `agentobs prune` deletes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from pathlib import Path
from typing import Any

from agentobs import world
from agentobs.recording.journal.home import Home

DIRECTORY = "mcp"
"""The directory of all copies in a home."""


class ConfigCopies:
    """The copies for one recorded command."""

    def __init__(self, home: Home) -> None:
        """Create the directory of the copies, and delete those that killed recorders have left.

        Raises:
            OSError: the home cannot be written.
        """
        remove_leftovers(home)
        while True:
            self._directory = home.path.resolve() / DIRECTORY / world.new_id()
            self._directory.mkdir(mode=0o700, parents=True)
            # Until it is locked, another process may take it for a leftover, and delete it.
            try:
                self._lock = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            except FileNotFoundError:
                continue
            if _is_locked_here(self._lock) and self._directory.is_dir():
                break
            os.close(self._lock)
        self._count = 0

    def write(self, config: dict[str, Any]) -> Path:
        """Write a copy; return its path.

        Raises:
            OSError: the home cannot be written.
        """
        self._count += 1
        path = self._directory / f"mcp-{self._count}.json"
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(json.dumps(config))
        return path

    def remove(self) -> None:
        """Delete the copies."""
        shutil.rmtree(self._directory, ignore_errors=True)
        os.close(self._lock)


def remove_leftovers(home: Home) -> None:
    """Delete the copies whose recorder has ended; those that cannot be deleted stay."""
    for directory in (home.path / DIRECTORY).glob("*"):
        with contextlib.suppress(OSError):
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if _is_locked_here(descriptor):
                    shutil.rmtree(directory, ignore_errors=True)
            finally:
                os.close(descriptor)


def _is_locked_here(descriptor: int) -> bool:
    """Lock a directory; return whether no other process has locked it.

    Raises:
        OSError: the file system has no locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


__all__ = ["ConfigCopies", "remove_leftovers"]
