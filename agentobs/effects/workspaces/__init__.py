"""The files of a session's workspace, at each of its turns.

    from agentobs.store.recorded_workspaces import recorded_states, snapshot_of, state_at

    found = recorded_states(store, session_id)  # one for each request, oldest first
    at = state_at(found, turn=5)  # before the tools of turn 5 ran; without a turn, the last state
    snapshot = snapshot_of(home, at)  # or state(home, workspace_id, session_id, number)
    restore_state(home, at.workspace_id, snapshot, Path("out"))
    state_changes(home, at.workspace_id, earlier, snapshot)  # a list of `Change`: kind, path, blobs, sizes, lines
    file_content(home, at.workspace_id, snapshot, "src/a.py")
    blob_content(home, at.workspace_id, change.new_blob)

`Snapshots(open_shadow(home, workspace_root(directory))).take()` takes a snapshot, and `keep_state` keeps it for a
session. The tables `workspace_states` and `file_changes` have the same facts for SQL, without content.
"""

from __future__ import annotations

from agentobs.effects.workspaces.file_changes import Change, ChangeKind, changes, patch
from agentobs.effects.workspaces.kept_states import (
    RestoreReport,
    blob_content,
    file_content,
    forget_states,
    keep_state,
    restore_state,
    state,
    state_changes,
)
from agentobs.effects.workspaces.shadow_git import (
    ShadowGit,
    ShadowGitError,
    check_git,
    existing_shadow,
    open_shadow,
    workspace_root,
)
from agentobs.effects.workspaces.snapshots import Snapshot, Snapshots, Uncaptured

__all__ = [
    "Change", "ChangeKind", "RestoreReport", "ShadowGit", "ShadowGitError", "Snapshot", "Snapshots", "Uncaptured",
    "blob_content", "changes", "check_git", "existing_shadow", "file_content", "forget_states", "keep_state",
    "open_shadow", "patch", "restore_state", "state", "state_changes", "workspace_root",
]  # fmt: skip
