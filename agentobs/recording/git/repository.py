"""A git repository, read from its files: which branch and commit are checked out, and where the repository comes from.

Reading the files takes about 0.2 ms of CPU time, starting `git` takes several milliseconds. Only the state of the
working tree, and references in the format `reftable`, need `git`. The formats are those of gitrepository-layout(5) and
git-pack-refs(1).
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from agentobs import world

PARENTS_MAX = 64
"""The maximum number of parent directories that are searched for a repository. Our choice."""
FILE_BYTES_MAX = 16 * 1024 * 1024
"""Larger files, such as a list of a hundred thousand packed references, are not read. Our choice."""
LINKS_MAX = 5
"""The maximum number of symbolic references that are followed, as in git itself (SYMREF_MAXDEPTH)."""
STATUS_SECONDS = 3.0
"""How long `git` may take, in seconds; then its result counts as unknown. Our choice."""
HISTORY_SECONDS = 60.0
"""How long `git` may search the history of a repository, in seconds. Our choice."""

_COMMIT = re.compile(r"(?:[0-9a-f]{40}|[0-9a-f]{64})\Z")
_HEADS = "refs/heads/"
_URL = re.compile(r"[a-z][a-z0-9+.-]*://(?:[^/@]*@)?([^/:]+)(?::\d+)?/(.+)\Z", re.IGNORECASE)
_SHORT_URL = re.compile(r"(?:[^/@:]+@)?([^/@:]{2,}):(?!//)(.+)\Z")
"""The form `user@host:path` of a remote; a single letter before the colon is a drive of Windows."""


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository, and what is checked out in one of its working trees."""

    tree: Path
    """The working tree."""
    git_dir: Path
    """The directory with `HEAD`: `.git`, or the directory of a linked working tree."""
    name: str
    """Host and path of the remote `origin`, without credentials; the directory of the repository if there is none."""
    branch: str | None = None
    """The branch; None if no branch is checked out, or if unknown."""
    commit: str | None = None
    """The ID of the commit; None if there is none, or if unknown."""
    is_complete: bool = True
    """Whether branch and commit were read; False if only `git` can read them."""

    @property
    def objects(self) -> Path:
        """The directory with the objects of the repository, which all its working trees share."""
        return _common(self.git_dir) / "objects"


def find_repository(directory: Path) -> Repository | None:
    """Return the repository of a directory; None if it is not in one.

    Raises:
        OSError, ValueError: a file of the repository cannot be read.
    """
    for tree in (directory, *list(directory.parents)[:PARENTS_MAX]):
        dot_git = tree / ".git"
        if dot_git.is_dir():
            git_dir = dot_git
        elif dot_git.is_file():
            # A linked working tree or a submodule.
            git_dir = tree / _text(dot_git).removeprefix("gitdir:").strip()
        else:
            continue
        if not (git_dir / "HEAD").exists():
            continue
        return _read(tree, git_dir)
    return None


def containing_repositories(directory: Path) -> Iterator[Repository]:
    """Yield the repositories that contain a directory, the innermost one first.

    A repository that cannot be read is skipped.
    """
    for each in (directory, *directory.parents):
        try:
            found = find_repository(each) if os.path.lexists(each / ".git") else None
        except (OSError, ValueError):
            continue
        if found is not None and found.tree == each:
            yield found


def _common(git_dir: Path) -> Path:
    """Return the directory that all working trees of a repository share.

    Raises:
        OSError, ValueError: a file of the repository cannot be read.
    """
    file = git_dir / "commondir"
    return git_dir / _text(file).strip() if file.is_file() else git_dir


def _read(tree: Path, git_dir: Path) -> Repository:
    common = _common(git_dir)
    config = common / "config"
    found = Repository(tree, git_dir, _name(_text(config) if config.is_file() else "", common))
    if (common / "reftable").is_dir():
        return replace(found, is_complete=False)
    head = _text(git_dir / "HEAD").strip()
    if not head.startswith("ref:"):
        return replace(found, commit=head if _COMMIT.match(head) else None)
    name = head.removeprefix("ref:").strip()
    branch = name.removeprefix(_HEADS) if name.startswith(_HEADS) else None
    return replace(found, branch=branch, commit=_resolved(name, git_dir, common))


def _resolved(name: str, git_dir: Path, common: Path) -> str | None:
    """Return the commit of a reference; None if it does not exist yet, as in a new repository."""
    for _ in range(LINKS_MAX):
        if ".." in name.split("/") or name.startswith("/"):
            return None
        value = next(
            (_text(path).strip() for each in (git_dir, common) if (path := each / name).is_file()),
            None,
        )
        if value is None:
            return _packed(name, common / "packed-refs")
        if not value.startswith("ref:"):
            return value if _COMMIT.match(value) else None
        name = value.removeprefix("ref:").strip()
    return None


def _packed(name: str, path: Path) -> str | None:
    if not path.is_file():
        return None
    found = re.search(rf"^([0-9a-f]+) {re.escape(name)}$", _text(path), re.MULTILINE)
    return found[1] if found is not None and _COMMIT.match(found[1]) else None


def _name(config: str, common: Path) -> str:
    """Return the name of a repository, from its configuration."""
    section = re.search(r'^\s*\[remote "origin"\]\s*$([^\[]*)', config, re.MULTILINE)
    url = re.search(r"^\s*url\s*=\s*(.+?)\s*$", section[1], re.MULTILINE) if section else None
    if url is not None and (remote := remote_name(url[1].strip('"'))) is not None:
        return remote
    place = common.resolve()
    return str(place.parent if place.name == ".git" else place)


def remote_name(url: str) -> str | None:
    """Return host and path of the URL of a remote, without credentials, port and `.git`; None for a local path."""
    found = _URL.match(url) or _SHORT_URL.match(url)
    if found is None or not found[1]:
        return None
    path = found[2].strip("/").removesuffix(".git")
    return f"{found[1].lower()}/{path}"


def with_head_of_git(repository: Repository) -> Repository:
    """Return a repository with its branch and commit as `git` reports them; unknown values stay None."""
    branch = _git(repository, "symbolic-ref", "--quiet", "--short", "HEAD")
    commit = _git(repository, "rev-parse", "--verify", "--quiet", "HEAD")
    return replace(
        repository,
        branch=branch.strip() or None if branch is not None else None,
        commit=commit.strip() if commit is not None and _COMMIT.match(commit.strip()) else None,
        is_complete=branch is not None or commit is not None,
    )


def is_dirty(repository: Repository) -> bool | None:
    """Return whether there are uncommitted changes or untracked files; None if `git` is missing, fails or is slow."""
    status = _git(repository, "status", "--porcelain", "--untracked-files=normal")
    return None if status is None else bool(status.strip())


def references_with(repository: Repository, commit: str) -> list[str]:
    """Return the branches, remote branches and tags that contain a commit; an empty list if they are not known.

    Args:
        repository: the repository.
        commit: the ID of the commit, 40 hex digits.
    """
    found = _git(
        repository,
        *("for-each-ref", "--format=%(refname)", f"--contains={commit}"),
        *("refs/heads", "refs/remotes", "refs/tags"),
        environment=_NO_SETTINGS,
        seconds=HISTORY_SECONDS,
    )
    return (found or "").splitlines()


def ignored_patterns(repository: Repository) -> str:
    """Return the patterns of files that `git` ignores in addition to the files `.gitignore`: those of the repository
    (`info/exclude`) and of the user (`core.excludesFile`).
    """
    named = _git(repository, "config", "--path", "--get", "core.excludesFile")
    users = world.environ("XDG_CONFIG_HOME") or "~/.config"
    try:
        common = _common(repository.git_dir)
        chosen = Path(named.rstrip("\n")) if named else Path(users).expanduser() / "git" / "ignore"
        # The last pattern that matches decides, and those of the repository take precedence.
        files = (chosen, common / "info" / "exclude")
        return "".join(f"{_text(each)}\n" for each in files if each.is_file())
    except (OSError, ValueError, RuntimeError):
        return ""


_NO_SETTINGS = {
    "LC_ALL": "C",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    # A partial clone would download missing objects.
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_TERMINAL_PROMPT": "0",
}
"""An environment without the user's settings of git, in which git sends nothing."""


def _git(
    repository: Repository,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    seconds: float = STATUS_SECONDS,
) -> str | None:
    """Return the output of `git`; None if it fails or takes too long. It writes nothing and runs no hook.

    Args:
        repository: the repository.
        arguments: the command and its arguments.
        environment: its variables, in addition to `PATH`; None for those of this process.
        seconds: how long it may take.
    """
    command = [
        "git",
        "--no-optional-locks",
        # The configuration of a repository may name a program for this.
        "-c",
        "core.fsmonitor=false",
        f"--git-dir={repository.git_dir}",
        f"--work-tree={repository.tree}",
        *arguments,
    ]
    try:
        ended = subprocess.run(
            command,
            cwd=repository.tree,
            env=None if environment is None else {**_path(), **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=True,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return ended.stdout.decode("utf-8", "replace")


def _path() -> dict[str, str]:
    """Return the variable `PATH`, in which `git` is found."""
    return {"PATH": world.environ("PATH") or os.defpath}


def _text(path: Path) -> str:
    """Return the text of a small file.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is too large.
    """
    if path.stat().st_size > FILE_BYTES_MAX:
        raise ValueError(f"{path.name} is too large")
    return path.read_text("utf-8", "replace")
