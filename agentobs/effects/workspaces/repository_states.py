"""Repository states: branch, commit and uncommitted changes of the user's repository at each snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agentobs.recording.git.repository import (
    find_repository,
    is_dirty,
    with_head_of_git,
)


@dataclass(frozen=True, slots=True)
class RepositoryState:
    """The checked-out commit of a repository, and whether files differ from it."""

    name: str
    branch: str | None
    commit: str | None
    dirty: bool | None


class RepositoryStates:
    """Reads the state of a repository; `git status` runs only if files, the index or the commit have changed."""

    def __init__(self, root: Path) -> None:
        """Read the repository of a workspace."""
        self._root = root
        self._known: tuple[object, bool | None] | None = None

    def read(self, tree: str) -> RepositoryState | None:
        """Return the current state; None if there is no repository, or if it cannot be read.

        Args:
            tree: the tree of the workspace's current snapshot.
        """
        try:
            found = find_repository(self._root)
            if found is None or found.tree.resolve() != self._root:
                return None
            if not found.is_complete:
                found = with_head_of_git(found)
            index = found.git_dir / "index"
            stamp = index.stat().st_mtime_ns if index.exists() else None
        except (OSError, ValueError):
            return None
        key = (tree, found.branch, found.commit, stamp)
        if self._known is None or self._known[0] != key or self._known[1] is None:
            self._known = key, is_dirty(found)
        return RepositoryState(found.name, found.branch, found.commit, self._known[1])


__all__ = ["RepositoryState", "RepositoryStates"]
