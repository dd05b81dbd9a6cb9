"""States: read and restore the snapshots of a session in its shadow repository.

A state is a commit without parents: its tree has the files, and its message is the JSON of the snapshot. The reference
`refs/sessions/<session id>/<number>` keeps it; numbers start at 1, and equal consecutive snapshots share a number. The
date of the commit is the number of the snapshot, which orders the states of all sessions.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from agentobs.effects.workspaces.file_changes import Change, changes
from agentobs.effects.workspaces.new_directory import complete_or_empty
from agentobs.effects.workspaces.shadow_git import (
    ShadowGit,
    ShadowGitError,
    all_shadows,
    existing_shadow,
)
from agentobs.effects.workspaces.snapshots import Snapshot, Uncaptured
from agentobs.errors import DamagedError, UsageError, error_kind, warn_once
from agentobs.recording.journal.home import Home


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """The result of restoring files into a directory."""

    files: int
    """The number of restored files and symbolic links."""
    uncaptured: tuple[Uncaptured, ...]
    """Files that existed but were not captured, so they are missing in the restored state."""


def keep_state(shadow: ShadowGit, session_id: str, number: int, snapshot: Snapshot) -> None:
    """Keep a snapshot as a state of a session.

    Raises:
        ShadowGitError: git failed, or the disk is full.
    """
    message = snapshot.to_json().encode()
    date = {f"GIT_{who}_DATE": f"@{snapshot.number} +0000" for who in ("AUTHOR", "COMMITTER")}
    commit = shadow.run("commit-tree", snapshot.tree, text=message, variables=date).decode().strip()
    shadow.run("update-ref", f"refs/sessions/{session_id}/{number}", commit)


def state(home: Home, workspace_id: str, session_id: str, number: int) -> Snapshot:
    """Return a state of a session.

    Args:
        home: the home in which the session was recorded.
        workspace_id: the ID of its workspace.
        session_id: the full ID of the session.
        number: the number of the state.

    Raises:
        UsageError: there is no such state in this home.
        DamagedError: the state cannot be read.
        ShadowGitError: git failed.
    """
    shadow = existing_shadow(home, workspace_id)
    name = f"refs/sessions/{session_id}/{number}"
    commit = shadow.references(name).get(name)
    if commit is None:
        raise UsageError(
            f"state {number} of session {session_id} is not in this home",
            where=str(shadow.path),
            todo="It was pruned; record the session again",
        )
    message = shadow.run("cat-file", "commit", commit).partition(b"\n\n")[2]
    try:
        return Snapshot.from_json(message.decode())
    except ValueError as error:
        raise DamagedError(
            "a state of a workspace cannot be read", where=f"{shadow.path}: {name}"
        ) from error


def state_trees(shadow: ShadowGit, session_id: str) -> dict[int, str]:
    """Return the tree of each state of a session, by its number.

    Raises:
        ShadowGitError: git failed.
    """
    listed = shadow.run(
        "for-each-ref", "--format=%(refname) %(tree)", f"refs/sessions/{session_id}/"
    )
    lines = (each.split(" ") for each in listed.decode().splitlines())
    return {int(name.rpartition("/")[2]): tree for name, tree in lines}


def restore_state(
    home: Home, workspace_id: str, snapshot: Snapshot, directory: Path
) -> RestoreReport:
    """Write the files of a state into a new directory, byte for byte, with links and executable bits.

    If this fails, nothing is left in the directory.

    Args:
        home: the home in which the session was recorded.
        workspace_id: the ID of its workspace.
        snapshot: the state.
        directory: a directory that is empty or does not exist.

    Raises:
        UsageError: the directory is not empty, or is not a directory.
        ShadowGitError: git failed, or the disk is full.
        OSError: the directory cannot be created.
    """
    shadow = existing_shadow(home, workspace_id)
    if os.path.lexists(directory) and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(
            "the directory is not empty" if directory.is_dir() else "this is not a directory",
            where=str(directory),
            todo="Choose a new directory",
        )
    index = shadow.temporary_index()
    try:
        with complete_or_empty(directory):
            directory.mkdir(parents=True, exist_ok=True)
            shadow.run("read-tree", snapshot.tree, index=index)
            checkout = ("checkout-index", "--all", "--quiet")
            shadow.run(*checkout, work_tree=directory.resolve(), index=index)
            files = shadow.run("ls-files", "-z", index=index).count(b"\0")
    finally:
        index.unlink(missing_ok=True)
    return RestoreReport(files, snapshot.uncaptured)


def state_changes(
    home: Home, workspace_id: str, before: Snapshot | None, after: Snapshot
) -> list[Change]:
    """Return the files that differ between two states of a workspace, by path; None means no files.

    Raises:
        UsageError: the workspace is not in this home.
        ShadowGitError: git failed.
    """
    return changes(existing_shadow(home, workspace_id), before, after)


def blob_content(home: Home, workspace_id: str, blob: str) -> bytes:
    """Return the content of a file by its ID in a `Change`; for a symbolic link, its target.

    Raises:
        UsageError: the workspace is not in this home.
        ShadowGitError: there is no such content.
    """
    return existing_shadow(home, workspace_id).run("cat-file", "blob", blob)


def file_content(home: Home, workspace_id: str, snapshot: Snapshot, path: str) -> bytes | None:
    """Return the content of a file of a state; None if the state has no such file, or not its content.

    Raises:
        UsageError: the workspace is not in this home.
        ShadowGitError: git failed.
    """
    shadow = existing_shadow(home, workspace_id)
    listed = shadow.run("ls-tree", "-z", "--full-tree", snapshot.tree, "--", path)
    if not listed:
        return None
    _, kind, blob = listed.split(b"\t", 1)[0].decode().split(" ")
    return shadow.run("cat-file", "blob", blob) if kind == "blob" else None


def forget_states(home: Home, session_ids: Collection[str]) -> int:
    """Delete the states of sessions, and all content that belongs to no other state; return the number of workspaces.

    If git fails, this warns, and the next call tries to delete the content again.
    """
    changed = 0
    for shadow in all_shadows(home):
        here = shadow.sessions() & set(session_ids)
        for session_id in here:
            shadow.delete_session(session_id)
        changed += bool(here)
        if shadow.has_garbage:
            try:
                shadow.collect()
            except (ShadowGitError, OSError) as error:
                warn_once(
                    f"files of deleted sessions are still in {shadow.path}: {error_kind(error)}. The next "
                    "`agentobs prune` tries to delete them again.",
                    about=f"garbage {shadow.path}",
                )
    return changed


__all__ = [
    "RestoreReport", "blob_content", "file_content", "forget_states", "keep_state", "restore_state", "state",
    "state_changes", "state_trees",
]  # fmt: skip
