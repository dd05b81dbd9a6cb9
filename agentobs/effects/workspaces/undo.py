"""Undo: restores files of the real workspace to their state before a turn.

Only files that the session changed after that turn are touched. A file that was changed after the session is work of
the user: it is a conflict. A copy of everything that is replaced or deleted is kept in the home.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Mapping, Sequence, Set
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
    """The changes that restore files."""

    shadow: ShadowGit
    changes: tuple[Change, ...]
    """The changes to make, by path. None of them is a rename."""
    conflicts: tuple[str, ...]
    """Paths that the changes would overwrite or delete, although they were changed after the session, or existed before
    and were not captured.
    """
    unrestorable: tuple[Uncaptured, ...]
    """Files that have changed since, and whose earlier content was not captured; they are not touched."""
    patch: bytes
    """The changes as a readable patch."""
    snapshots: Snapshots
    current: Snapshot
    """The state in which the changes were planned."""


def plan_undo(
    home: Home,
    workspace_id: str,
    before: Snapshot,
    last: Snapshot,
    paths: Sequence[Path] = (),
) -> Undo:
    """Return the changes that restore files; this changes nothing.

    Args:
        home: the home in which the session was recorded.
        workspace_id: the ID of its workspace.
        before: the state to go back to.
        last: the last state of the session.
        paths: only these files and directories; empty for all that the session changed.

    Raises:
        UsageError: the workspace is not in this home or no longer exists, or a path is outside of it.
        ShadowGitError: git failed.
    """
    shadow = existing_shadow(home, workspace_id)
    if not shadow.root.is_dir():
        raise UsageError(
            "the workspace no longer exists",
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
    snapshots = Snapshots(shadow, skipped=home.path)
    current = snapshots.take()
    since = {each.path for each in tree_changes(shadow, last.tree, current.tree, renames=False)}
    still = {
        each.path: each for each in tree_changes(shadow, current.tree, before.tree, renames=False)
    }
    closed = tuple(each.path for each in before.uncaptured if each.is_closed_directory)
    changes = [
        still[each.path]
        for each in wanted
        if each.path in still and each.path not in missing and not each.path.startswith(closed)
    ]
    has_ignored = any(path.rpartition("/")[2] == ".gitignore" for path in still)
    conflicts = [
        each.path
        for each in changes
        if each.path in since
        or _is_hidden(shadow.root, each)
        or (has_ignored and _existed(shadow.root, each, before))
    ]
    _check_places(shadow.root, changes)
    listed = [each.path for each in changes]
    text = patch(shadow, current.tree, before.tree, listed) if listed else b""
    unrestorable = tuple(
        each
        for each in _lost(before, last, current)
        if not chosen or any(path in ("", each.path, *_parents(each.path)) for path in chosen)
    )
    return Undo(shadow, tuple(changes), tuple(conflicts), unrestorable, text, snapshots, current)


def undo(plan: Undo) -> Path | None:
    """Put files back; return the directory with copies of what was replaced, None if nothing was.

    Raises:
        UsageError: a file was changed after the plan was made, so that nothing was done, or a file cannot be written;
            the copies of all replaced files exist then.
        ShadowGitError: git failed; nothing was done.
    """
    root = plan.shadow.root
    contents = {
        each.path: plan.shadow.run("cat-file", "blob", each.new_blob)
        for each in plan.changes
        if each.new_blob is not None
    }
    _check_unchanged(plan)
    replaced = [each.path for each in plan.changes if _is_entry(root / each.path)]
    copies = plan.shadow.path / REPLACED / world.new_id() if replaced else None
    try:
        for path in replaced:
            assert copies is not None
            target = copies / path
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.copy2(root / path, target, follow_symlinks=False)
    except OSError as error:
        raise UsageError(
            f"no file was changed, because the copies cannot be written: {_reason(error)}",
            where=str(copies),
            todo="Check the disk and the permissions of this file",
        ) from error
    try:
        _make(root, plan.changes, contents)
    except OSError as error:
        raise UsageError(
            f"only some of the files were restored: {_reason(error)}",
            where=str(root),
            todo=f"Fix this, and run the command again; copies of what was replaced are in {copies}",
        ) from error
    return copies


def _make(root: Path, changes: Sequence[Change], contents: Mapping[str, bytes]) -> None:
    """Make the changes: first delete what is in the way of new files.

    Raises:
        OSError: a file cannot be written or deleted.
    """
    for each in changes:
        is_other = (each.old_mode or "")[:2] != (each.new_mode or "")[:2]
        if (each.kind == "deleted" or is_other) and _is_entry(root / each.path):
            (root / each.path).unlink()
        if each.kind == "deleted":
            _remove_empty(root, (root / each.path).parent)
    for each in changes:
        if each.path in contents:
            for folder, _, _ in os.walk(root / each.path, topdown=False):
                Path(folder).rmdir()  # only empty directories are left
            _write(root / each.path, contents[each.path], each.new_mode or "100644")


def _check_unchanged(plan: Undo) -> None:
    """Check that the changes are the same as the ones that were shown.

    Raises:
        UsageError: a file that would be replaced was changed since.
    """
    root, now = plan.shadow.root, plan.snapshots.take()
    paths = {each.path for each in plan.changes}
    since = tree_changes(plan.shadow, plan.current.tree, now.tree, renames=False)
    hidden = {each.path for each in plan.changes if _is_hidden(root, each)} - {*plan.conflicts}
    if changed := sorted(hidden | (paths & {each.path for each in since})):
        raise UsageError(
            f"nothing was done, because {len(changed)} files were changed after the changes were shown",
            where=str(root / changed[0]),
            todo="Run the command again",
        )
    _check_places(root, plan.changes)


def _lost(before: Snapshot, last: Snapshot, current: Snapshot) -> list[Uncaptured]:
    """Return the files without content that the session changed or deleted, and that still differ."""
    same = {
        (each.path, each.size, each.mtime_ns) for each in (*last.uncaptured, *current.uncaptured)
    }
    noted = {each.path for each in last.uncaptured}
    is_complete = last.uncaptured_count == len(last.uncaptured)
    return [
        each
        for each in before.uncaptured
        if (each.path, each.size, each.mtime_ns) not in same and (is_complete or each.path in noted)
    ]


def _reason(error: OSError) -> str:
    text = error.strerror or str(error)
    return f"{text} ({error.filename})" if error.filename else text


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


def _is_entry(path: Path) -> bool:
    """Return whether there is a file or a link, and not a directory."""
    return os.path.lexists(path) and not _is_directory(path)


def _is_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _is_hidden(root: Path, change: Change) -> bool:
    """Return whether a file that would be created exists already, but is ignored or not captured."""
    return change.kind == "added" and _is_entry(root / change.path)


def _existed(root: Path, change: Change, before: Snapshot) -> bool:
    """Return whether a file that would be deleted existed in the earlier state: it was ignored then.

    The operating system sets the time of the last change of its status, and programs cannot set it back.
    """
    if change.kind != "deleted":
        return False
    try:
        return (root / change.path).lstat().st_ctime_ns < before.wall_ns
    except OSError:
        return False


def _check_places(root: Path, changes: Sequence[Change]) -> None:
    """Check that no link leads out of the workspace on the way to a file, and that no directory is in its place.

    Raises:
        UsageError: a parent directory is a symbolic link or a file, or a directory with other files is in the way.
    """
    deleted = {each.path for each in changes if each.kind == "deleted"}
    for each in changes:
        for parent in _parents(each.path):
            full = root / parent
            is_other = os.path.lexists(full) and not stat.S_ISDIR(full.lstat().st_mode)
            if is_other and parent not in deleted:
                raise UsageError(
                    "this is no longer a directory, so the files in it cannot be restored",
                    where=str(full),
                    todo="Move it away, or name the paths to restore",
                )
        if each.kind != "deleted" and _has_other_files(root, each.path, deleted):
            raise UsageError(
                "this is a directory with other files, so the file of this name cannot be restored",
                where=str(root / each.path),
                todo="Move it away, or name the paths to restore",
            )


def _has_other_files(root: Path, path: str, deleted: Set[str]) -> bool:
    """Return whether a directory has files that are not deleted; False if it is not a directory."""
    if not _is_directory(root / path):
        return False
    return any(
        str(Path(folder, name).relative_to(root)) not in deleted
        for folder, directories, files in os.walk(root / path)
        for name in [*files, *(each for each in directories if Path(folder, each).is_symlink())]
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
