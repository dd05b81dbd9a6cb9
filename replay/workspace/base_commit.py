"""The base of a fixture: a git commit of the user's repository that contains the files that the fixture leaves out.

Files are identified by their object IDs, so the files of a fixture never depend on the repository that supplies them.
Git is never started in the user's repository to read files: a temporary repository reads its objects instead, so no
hook, filter, replacement or setting applies, nothing is downloaded, and nothing is written.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentobs import world
from agentobs.effects.workspaces.shadow_git import ShadowGit, ShadowGitError, shadow_in
from agentobs.errors import UsageError
from agentobs.recording.git.repository import (
    Repository,
    containing_repositories,
    references_with,
)
from replay.workspace.bundle_limits import checked_objects, object_sizes

VARIABLE = "AGENTOBS_REPOSITORY"
"""The environment variable with another repository than those that contain the fixture."""
_COMMIT = re.compile(r"[0-9a-f]{40}")
_STANDALONE = "freeze the session again with `--workspace --standalone`"


@dataclass(frozen=True, slots=True)
class Base:
    """A commit whose files a fixture may leave out."""

    commit: str
    objects: frozenset[str]
    """The IDs of its files and directories."""
    directory: Path
    """The directory with the objects of its repository."""
    is_local: bool = False
    """Whether only local branches contain it, so that other clones may not have it."""

    def has_all(self, names: Collection[str]) -> bool:
        """Return whether its repository has all of these files; a partial clone may have only some of them.

        Raises:
            ShadowGitError: git failed.
        """
        with object_reader(self.directory) as reader:
            return object_sizes(reader, names, "blob", "tree").keys() >= set(names)


def find_base(commit: str, folder: Path) -> Base | str:
    """Return the base for a fixture, or a text that explains why it has none.

    Args:
        commit: the commit that was checked out when the session started.
        folder: the folder of the fixture, which may not exist yet.

    Raises:
        UsageError: the variable `AGENTOBS_REPOSITORY` names no repository.
    """
    if _COMMIT.fullmatch(commit) is None:
        return "the repository of the session does not use SHA-1"
    repositories = _repositories(folder)
    for each in repositories:
        if references := references_with(each, commit):
            return _base(each, commit, references)
    if not repositories:
        return "the fixture is not in a git repository"
    return (
        f"no branch or tag of the repository of the fixture is known to contain the commit {commit}"
    )


def _base(repository: Repository, commit: str, references: Sequence[str]) -> Base | str:
    is_local = all(each.startswith("refs/heads/") for each in references)
    try:
        directory = repository.objects.resolve()
        with object_reader(directory) as reader:
            listed = reader.run("ls-tree", "-r", "-t", "-z", "--full-tree", commit)
            # The entry of a submodule is a commit, whose files are in another repository.
            about = (each.split(b"\t", 1)[0].decode().split(" ") for each in listed.split(b"\0"))
            names = [each[2] for each in about if len(each) == 3 and each[1] != "commit"]
            tree = reader.run("cat-file", "--batch-check", text=f"{commit}^{{tree}}\n".encode())
    except (ShadowGitError, OSError, ValueError):
        return f"the files of the commit {commit} cannot be read"
    objects = frozenset([*names, tree.decode().split(" ")[0]])
    return Base(commit, objects, directory, is_local)


def add_base_files(shadow: ShadowGit, commit: str, trees: Sequence[str], fixture: Path) -> None:
    """Copy the objects of trees that a repository lacks from the user's repository, and check them.

    Args:
        shadow: the repository, which has the objects of the fixture.
        commit: the base of the fixture.
        trees: the trees of the fixture.
        fixture: the bundle of the fixture.

    Raises:
        UsageError: no repository has the commit or one of its files, or they are damaged or too large.
        ShadowGitError: git is missing, or the disk is full.
    """
    objects = _objects_with(commit, fixture)
    try:
        with object_reader(shadow.git_dir / "objects", objects) as reader:
            reached = checked_objects(reader, trees, fixture)
            if reached.missing:
                count = len(reached.missing)
                raise _incomplete(commit, fixture, f"the repository lacks {count} of its objects")
            own = object_sizes(shadow, reached.objects, "blob", "tree")
            needed = [each for each in reached.objects if each not in own]
            _copy(reader, shadow, commit, needed)
        # `git index-pack` has computed the IDs from the content.
        is_complete = object_sizes(shadow, needed, "blob", "tree").keys() >= set(needed)
    except ShadowGitError as error:
        if error.reason != "git_failed":
            raise
        is_complete = False
    if not is_complete:
        raise _incomplete(commit, fixture, "some of its objects are damaged in the repository")


def _copy(reader: ShadowGit, shadow: ShadowGit, commit: str, names: Sequence[str]) -> None:
    """Copy objects into the pack of a repository."""
    if not names:
        return
    pack = shadow.git_dir / "objects" / "pack" / f"pack-{commit}.pack"
    with pack.open("wb") as output:
        reader.run(
            *("pack-objects", "--stdout", "--quiet", "--window=0"),
            text="".join(f"{each}\n" for each in names).encode(),
            output=output,
        )
    shadow.run("index-pack", pack)


def _objects_with(commit: str, fixture: Path) -> Path:
    """Return the directory with the objects of the first repository that has a commit.

    Raises:
        UsageError: there is none.
    """
    repositories = _repositories(fixture.parent)
    for each in repositories:
        try:
            directory = each.objects.resolve()
            with object_reader(directory) as reader:
                if object_sizes(reader, [commit], "commit"):
                    return directory
        except (OSError, ValueError):
            continue
    places = ", ".join(str(each.tree) for each in repositories)
    why = f"which is not in {places}" if places else "and the fixture is not in a git repository"
    raise UsageError(
        f"this fixture contains only the files that differ from the git commit {commit}, {why}",
        where=str(fixture),
        todo=f"Fetch the commit with `git fetch origin {commit}` (in a shallow clone with `--depth 1`), set {VARIABLE} "
        f"to a clone that has it, or {_STANDALONE}",
    )


def _incomplete(commit: str, fixture: Path, why: str) -> UsageError:
    return UsageError(
        f"this fixture contains only the files that differ from the git commit {commit}, and {why}",
        where=str(fixture),
        todo=f"Use a clone that was not made with `--filter` and passes `git fsck`, or {_STANDALONE}",
    )


def _repositories(folder: Path) -> list[Repository]:
    """Return the repositories that may have the base of a fixture in a folder, the innermost one first.

    Raises:
        UsageError: the variable `AGENTOBS_REPOSITORY` names no repository.
    """
    named = world.environ(VARIABLE)
    if named is None:
        return list(containing_repositories(folder.resolve()))
    path = Path(named).expanduser().resolve()
    if (path / "HEAD").is_file() and (path / "objects").is_dir():
        return [Repository(path, path, path.name)]
    if not (found := list(containing_repositories(path))):
        raise UsageError(
            "this is not a git repository", where=f"{VARIABLE}={named}", todo="Name a clone"
        )
    return found


@contextlib.contextmanager
def object_reader(*directories: Path) -> Iterator[ShadowGit]:
    """Yield a temporary repository that reads the objects of others. Only commands that write no object may run in it,
    because git changes the time of an object that is written again.

    Args:
        directories: the directories with objects.

    Raises:
        OSError: the temporary directory cannot be written.
    """
    folder = Path(tempfile.mkdtemp(prefix="agentobs-objects-")).resolve()
    try:
        reader = shadow_in(folder, folder)
        reader.read_objects_of(*directories)
        yield reader
    finally:
        shutil.rmtree(folder, ignore_errors=True)


__all__ = ["VARIABLE", "Base", "add_base_files", "find_base", "object_reader"]
