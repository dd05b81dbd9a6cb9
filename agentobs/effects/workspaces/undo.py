"""Undo: puts files of the real workspace back as they were before a turn.

Only files that the session changed after that turn are touched. A file that was changed after the session is work of
the user: it is a conflict. A copy of everything that is replaced or deleted is kept in the home.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentobs import world
from agentobs.effects.workspaces.file_changes import Change, patch, tree_changes
from agentobs.effects.workspaces.shadow_git import ShadowGit, existing_shadow
from agentobs.effects.workspaces.snapshots import Snapshot, Snapshots, Uncaptured
from agentobs.errors import UsageError
from agentobs.recording.journal.home import Home

REPLACED = "replaced"
"""The directory with copies of replaced files, next to the shadow repository."""


@dataclass(frozen=True, slots=True)
class Undo:
    """What has to be done to put files back."""

    shadow: ShadowGit
    changes: tuple[Change, ...]
    """The changes to make, by path; none of them is a renaming."""
    conflicts: tuple[str, ...]
    """Paths that were changed after the session, and that the changes would overwrite or delete."""
    unrestorable: tuple[Uncaptured, ...]
    """Files whose earlier content was not captured; they are not touched."""
    patch: bytes
    """The changes as a patch that people can read."""


def plan_undo(
    home: Home,
    workspace_id: str,
    before: Snapshot,
    last: Snapshot,
    paths: Sequence[Path] = (),
) -> Undo:
    """Return what has to be done to put files back; this changes nothing.

    Args:
        home: the home in which the session was recorded.
        workspace_id: the ID of its workspace.
        before: the state to go back to.
        last: the last state of the session.
        paths: only these files and directories; empty for all that the session changed.

    Raises:
        UsageError: the workspace is not in this home or does not exist any more, or a path is outside of it.
        ShadowGitError: git failed.
    """
    shadow = existing_shadow(home, workspace_id)
    if not shadow.root.is_dir():
        raise UsageError(
            "the workspace does not exist any more",
            where=str(shadow.root),
            todo="Use `agentobs workspace` to restore its files into another directory",
        )
    chosen = [_relative(shadow.root, each) for each in paths]
    wanted = [
        each
        for each in tree_changes(shadow, last.tree, before.tree, renames=False)
        if not chosen
        or any(each.path == path or path in ("", *_parents(each.path)) for path in chosen)
    ]
    missing = {each.path: each for each in before.uncaptured}
    current = Snapshots(shadow, skipped=home.path).take()
    since = {each.path for each in tree_changes(shadow, last.tree, current.tree, renames=False)}
    still = {
        each.path: each for each in tree_changes(shadow, current.tree, before.tree, renames=False)
    }
    unrestorable = [missing[each.path] for each in wanted if each.path in missing]
    changes = [
        still[each.path] for each in wanted if each.path in still and each.path not in missing
    ]
    conflicts = [
        each.path for each in changes if each.path in since or _is_hidden(shadow.root, each)
    ]
    for each in changes:
        _check_parents(shadow.root, each.path, {e.path for e in changes if e.kind == "deleted"})
    listed = [each.path for each in changes]
    text = patch(shadow, current.tree, before.tree, listed) if listed else b""
    return Undo(shadow, tuple(changes), tuple(conflicts), tuple(unrestorable), text)


def undo(plan: Undo) -> Path | None:
    """Put files back; return the directory with copies of what was replaced, None if nothing was.

    Raises:
        OSError: a file cannot be written; the copies of all replaced files exist then.
        ShadowGitError: git failed.
    """
    root = plan.shadow.root
    contents = {
        each.path: plan.shadow.run("cat-file", "blob", each.new_blob)
        for each in plan.changes
        if each.new_blob is not None
    }
    replaced = [each.path for each in plan.changes if os.path.lexists(root / each.path)]
    copies = plan.shadow.path / REPLACED / world.new_id() if replaced else None
    for path in replaced:
        assert copies is not None
        target = copies / path
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.copy2(root / path, target, follow_symlinks=False)
    for each in plan.changes:
        if each.kind == "deleted" or (each.old_mode or "")[:2] != (each.new_mode or "")[:2]:
            (root / each.path).unlink(missing_ok=True)
        if each.kind == "deleted":
            _remove_empty(root, (root / each.path).parent)
    for each in plan.changes:
        if each.path in contents:
            _write(root / each.path, contents[each.path], each.new_mode or "100644")
    return copies


def _relative(root: Path, path: Path) -> str:
    full = os.path.normpath(Path.cwd() / path)
    for base in (root, root.resolve()):
        if full == str(base):
            return ""
        if full.startswith(f"{base}/"):
            return full[len(str(base)) + 1 :]
    raise UsageError(
        "this path is not in the workspace of the session",
        where=str(path),
        todo=f"Name a path in {root}",
    )


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def _is_hidden(root: Path, change: Change) -> bool:
    """Return whether a file that would be created exists already, but is ignored or not captured."""
    return change.kind == "added" and os.path.lexists(root / change.path)


def _check_parents(root: Path, path: str, deleted: set[str]) -> None:
    """Check that no link leads out of the workspace on the way to a file.

    Raises:
        UsageError: a parent directory is a symbolic link or a file.
    """
    for parent in _parents(path):
        full = root / parent
        is_other = os.path.lexists(full) and not stat.S_ISDIR(full.lstat().st_mode)
        if is_other and parent not in deleted:
            raise UsageError(
                "this is not a directory any more, so the files in it cannot be put back",
                where=str(full),
                todo="Move it away, or name the paths to put back",
            )


def _remove_empty(root: Path, directory: Path) -> None:
    """Remove directories that have become empty."""
    while directory != root:
        try:
            directory.rmdir()
        except OSError:
            return
        directory = directory.parent


def _write(path: Path, content: bytes, mode: str) -> None:
    """Replace a file or a link by a new one in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".agentobs-{world.new_id()}")
    try:
        if mode == "120000":
            draft.symlink_to(os.fsdecode(content))
        else:
            is_executable = mode == "100755"
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW
            descriptor = os.open(draft, flags, 0o777 if is_executable else 0o666)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                with contextlib.suppress(FileNotFoundError):
                    old = stat.S_IMODE(path.lstat().st_mode)
                    executable = old | (old & 0o444) >> 2 if is_executable else old & ~0o111
                    if stat.S_ISREG(path.lstat().st_mode):
                        os.fchmod(descriptor, executable)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


__all__ = ["Undo", "plan_undo", "undo"]
