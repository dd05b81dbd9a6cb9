"""A scratch directory with recorded files, in which an agent or a command runs again.

The repository that holds the files is outside of the directory, so the program sees the files only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from agentobs.effects.workspaces.file_changes import Change, patch, tree_changes
from agentobs.effects.workspaces.new_directory import complete_or_empty
from agentobs.effects.workspaces.shadow_git import ShadowGit, ShadowGitError, shadow_in
from agentobs.effects.workspaces.snapshots import Snapshots
from agentobs.errors import UsageError
from replay.workspace.base_commit import add_base_files
from replay.workspace.bundle_file import read_bundle
from replay.workspace.bundle_limits import checked_objects
from replay.workspace.file_difference import PATCH_BYTES, FileDifference
from replay.workspace.new_repository import create_repository
from replay.workspace.recorded_workspace import RecordedWorkspace, is_left_out

CACHES = frozenset(("__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache"))
"""Directories that are not compared: tools write times into their files, so they differ in each run."""
PATCH_FILES = 500
"""The maximum number of files in a patch. Our choice."""
_REMOVE = ("update-index", "-z", "--force-remove", "--stdin")


class TreeRepository:
    """A temporary git repository that can read the trees of a recorded workspace; its source is never changed."""

    def __init__(self, workspace: RecordedWorkspace, root: Path | None = None) -> None:
        """Create it.

        Args:
            workspace: the recorded files.
            root: the existing directory with the files of a run; None if there is none.

        Raises:
            UsageError: the trees cannot be read, or git is missing.
        """
        self._path = Path(tempfile.mkdtemp(prefix="agentobs-trees-")).resolve()
        try:
            self.shadow: ShadowGit = shadow_in(self._path, root or self._path)
            self._connect(workspace)
            exclude = self.shadow.git_dir / "info" / "exclude"
            exclude.write_text(ignored_patterns(workspace), "utf-8", "surrogateescape")
            with _readable(workspace.source):
                self.shadow.run("cat-file", "-e", f"{workspace.start}^{{tree}}")
        except BaseException:
            self.close()
            raise

    def _connect(self, workspace: RecordedWorkspace) -> None:
        source = workspace.source
        if not source.exists():
            raise UsageError(
                "the recorded files do not exist",
                where=str(source),
                todo="Restore this file, or freeze the session again with --workspace",
            )
        with _readable(source):
            if source.is_dir():
                self.shadow.read_objects_of(source)
                return
            read_bundle(self.shadow, source)
            if workspace.base is None:
                if checked_objects(self.shadow, workspace.trees, source).missing:
                    raise ShadowGitError("git_failed", b"the bundle is incomplete")
                return
        add_base_files(self.shadow, workspace.base, workspace.trees, source)

    def close(self) -> None:
        """Delete the repository."""
        shutil.rmtree(self._path, ignore_errors=True)

    def without(self, tree: str, patterns: Sequence[str]) -> str:
        """Return a tree without the files that match a pattern; see `is_left_out`.

        Raises:
            ShadowGitError: git failed.
        """
        if not patterns:
            return tree
        listed = self.shadow.run("ls-tree", "-r", "-z", "--name-only", tree)
        if not (removed := _left_out(listed, patterns)):
            return tree
        index = self.shadow.temporary_index()
        try:
            self.shadow.run("read-tree", tree, work_tree=self._path, index=index)
            self.shadow.run(*_REMOVE, text=removed, work_tree=self._path, index=index)
            return self.shadow.run("write-tree", work_tree=self._path, index=index).decode().strip()
        finally:
            index.unlink(missing_ok=True)


class Scratch:
    """A directory with the files of a recorded workspace."""

    def __init__(self, workspace: RecordedWorkspace, root: Path) -> None:
        """Write the files at the start of the session into a directory.

        Args:
            workspace: the recorded files.
            root: a directory that is empty or does not exist.

        Raises:
            UsageError: the directory is not empty, or the files cannot be read or written.
        """
        if os.path.lexists(root) and (not root.is_dir() or any(root.iterdir())):
            raise UsageError(
                "the directory is not empty" if root.is_dir() else "this is not a directory",
                where=str(root),
                todo="Choose a new directory",
            )
        self.workspace = workspace
        with complete_or_empty(root):
            try:
                root.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UsageError(
                    f"the directory cannot be created: {error.strerror}", where=str(root)
                ) from error
            self.root = root.resolve()
            self._trees = TreeRepository(workspace, self.root)
            self._snapshots = Snapshots(self._trees.shadow)
            try:
                self._write_files()
            except BaseException:
                self.close()
                raise

    def _write_files(self) -> None:
        with _readable(self.workspace.source):
            self._trees.shadow.run("read-tree", self.workspace.start)
            self._trees.shadow.run("checkout-index", "--all", "--quiet", "--index")
        if self.workspace.has_repository:
            create_repository(self.root, ignored_patterns(self.workspace))
        self._add_links()

    def _add_links(self) -> None:
        for name, target in self.workspace.links.items():
            link = self.root / name
            if not link.parent.resolve().is_relative_to(self.root) or os.path.lexists(link):
                raise UsageError(
                    "this path cannot be linked into the workspace, because the session recorded it",
                    where=name,
                    todo="Leave it out",
                )
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(target)

    @property
    def directory(self) -> Path:
        """The working directory of the program; it is created if it contains no recorded file."""
        inner = (self.root / self.workspace.directory).resolve()
        if not inner.is_relative_to(self.root):
            raise UsageError("the working directory is outside of the workspace", where=str(inner))
        try:
            inner.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"the working directory cannot be created: {error.strerror}", where=str(inner)
            ) from error
        return inner

    def close(self) -> None:
        """Forget how the files were recorded; the directory stays."""
        self._trees.close()

    def tree(self) -> str:
        """Return the tree of the current files, without those that were left out of the recorded ones.

        Raises:
            ShadowGitError: git failed.
        """
        return self._trees.without(self._snapshots.take().tree, self.workspace.left_out)

    def restore(self, tree: str) -> int:
        """Change the files to those of a recorded tree; return how many differed.

        Files that are ignored, were left out or were never recorded stay.

        Raises:
            ShadowGitError: git failed.
        """
        shadow = self._trees.shadow
        found = tree_changes(shadow, self.tree(), tree, renames=False)
        if found:
            # Files that are not in the index are not deleted.
            if removed := _left_out(shadow.run("ls-files", "-z"), self.workspace.left_out):
                shadow.run(*_REMOVE, text=removed)
            shadow.run("read-tree", "--reset", "-u", tree)
        return len(found)

    def difference(self, tree: str, *, to: str | None = None) -> FileDifference:
        """Return how the current files, or those of another tree, differ from a recorded tree.

        Raises:
            ShadowGitError: git failed.
        """
        current = self.tree() if to is None else to
        shadow = self._trees.shadow
        found = _compared(tree_changes(shadow, tree, current))
        paths = [path for each in found for path in (each.old_path, each.path) if path is not None]
        text = patch(shadow, tree, current, paths[:PATCH_FILES]) if found else b""
        shown = text[:PATCH_BYTES].decode("utf-8", "replace")
        is_cut = len(text) > PATCH_BYTES or len(paths) > PATCH_FILES
        return FileDifference(found, shown, is_cut)


def changed_files(workspace: RecordedWorkspace, root: Path) -> FileDifference:
    """Return how the files in a directory differ from those at the start of a session.

    Raises:
        UsageError: the recorded files cannot be read.
        ShadowGitError: git failed.
    """
    repository = TreeRepository(workspace, root.resolve())
    try:
        repository.shadow.run("read-tree", workspace.start)
        tree = Snapshots(repository.shadow).take().tree
        current = repository.without(tree, workspace.left_out)
        return FileDifference(_compared(tree_changes(repository.shadow, workspace.start, current)))
    finally:
        repository.close()


@contextlib.contextmanager
def temporary_scratch(workspace: RecordedWorkspace) -> Iterator[Scratch]:
    """Yield a scratch directory that is deleted at the end.

    Raises:
        UsageError: the recorded files cannot be read.
    """
    folder = Path(tempfile.mkdtemp(prefix="agentobs-replay-")).resolve()
    try:
        scratch = Scratch(workspace, folder / workspace.name)
        try:
            yield scratch
        finally:
            scratch.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _left_out(listed: bytes, patterns: Sequence[str]) -> bytes:
    """Return the paths of a list that match a pattern, each with a NUL byte at its end."""
    paths = [each for each in listed.split(b"\0") if each]
    return b"".join(each + b"\0" for each in paths if is_left_out(os.fsdecode(each), patterns))


def _compared(changes: Iterable[Change]) -> tuple[Change, ...]:
    """Return the changes that are not in caches."""
    return tuple(each for each in changes if CACHES.isdisjoint(each.path.split("/")))


def ignored_patterns(workspace: RecordedWorkspace) -> str:
    """Return the patterns of ignored files and of added links, one per line."""
    patterns = [*workspace.ignored, *(f"/{each}" for each in workspace.links)]
    return "".join(f"{each}\n" for each in patterns)


@contextlib.contextmanager
def _readable(source: Path) -> Iterator[None]:
    """Report an error of git as one about the recorded files.

    Raises:
        UsageError: git failed.
    """
    try:
        yield
    except ShadowGitError as error:
        if error.reason != "git_failed":
            raise
        raise UsageError(
            "the recorded files cannot be read",
            where=str(source),
            todo="Restore this file, or freeze the session again with --workspace; if it was pruned, record it again",
        ) from error


__all__ = ["Scratch", "TreeRepository", "changed_files", "temporary_scratch"]
