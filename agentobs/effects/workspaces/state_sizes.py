"""How much of the recorded files would be deleted with each session. Sessions of a workspace share equal files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from agentobs.effects.workspaces.shadow_git import ShadowGit, ShadowGitError, all_shadows
from agentobs.effects.workspaces.tree_objects import tree_entries
from agentobs.recording.journal.home import Home


def deleted_bytes(home: Home, session_ids: Sequence[str]) -> dict[str, int]:
    """Return how many bytes of recorded files are deleted with each session, if they are deleted in this order.

    A file that several of these sessions have is deleted with the last one. A file that another session has stays. If
    git fails, each session counts with an equal part of its repository.

    Args:
        home: the home of the sessions.
        session_ids: the sessions to delete, in the order in which they are deleted.
    """
    found: dict[str, int] = {}
    for shadow in all_shadows(home):
        here = shadow.sessions()
        deleted = [each for each in session_ids if each in here]
        if not deleted:
            continue
        try:
            sizes = _deleted_bytes(shadow, deleted, here - set(deleted))
        except (ShadowGitError, OSError):
            part = _directory_bytes(shadow.git_dir) // len(here)
            sizes = dict.fromkeys(deleted, part)
        for session_id, size in sizes.items():
            found[session_id] = found.get(session_id, 0) + size
    return found


def _deleted_bytes(shadow: ShadowGit, deleted: Sequence[str], kept: set[str]) -> dict[str, int]:
    states = _states(shadow)
    sizes = _object_sizes(shadow)
    seen: set[str] = set()
    found: dict[str, int] = {}
    with shadow.object_contents() as content:
        # What a session has that no later one has is deleted with it.
        for session_id in [*sorted(kept), *reversed(deleted)]:
            new = _new_bytes(states.get(session_id, ()), sizes, seen, content)
            if session_id not in kept:
                found[session_id] = new
    if not kept:
        # With its last state, the repository itself is deleted, such as its indexes.
        rest = _directory_bytes(shadow.git_dir) - sum(sizes.values())
        found[deleted[-1]] += max(rest, 0)
    return found


def _new_bytes(
    states: Sequence[tuple[str, str]],
    sizes: Mapping[str, int],
    seen: set[str],
    content: Callable[[str], bytes],
) -> int:
    """Return the size of the objects of some states that were not seen before, and note them as seen."""
    total = 0
    pending = [each for commit, tree in states for each in ((False, commit), (True, tree))]
    while pending:
        is_tree, name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        total += sizes.get(name, 0)
        if is_tree:
            pending += (each for each in tree_entries(content(name)) if each[1] not in seen)
    return total


def _states(shadow: ShadowGit) -> dict[str, list[tuple[str, str]]]:
    """Return the commit and the tree of each state, by session."""
    found: dict[str, list[tuple[str, str]]] = {}
    listed = shadow.run(
        "for-each-ref", "--format=%(refname) %(objectname) %(tree)", "refs/sessions/"
    )
    for line in listed.decode().splitlines():
        name, commit, tree = line.split(" ")
        found.setdefault(name.split("/")[2], []).append((commit, tree))
    return found


def _object_sizes(shadow: ShadowGit) -> dict[str, int]:
    """Return how many bytes each object takes on the disk."""
    listed = shadow.run(
        "cat-file", "--batch-all-objects", "--batch-check=%(objectname) %(objectsize:disk)"
    )
    pairs = (each.split(" ") for each in listed.decode().splitlines())
    return {name: int(size) for name, size in pairs}


def _directory_bytes(directory: Path) -> int:
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size  # noqa: PTH118
            except OSError:
                continue
    return total


__all__ = ["deleted_bytes"]
