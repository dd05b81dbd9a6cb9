"""Snapshots: the state of a workspace at one time, as a tree in its shadow repository.

`git ls-files` lists what differs from the index, without reading unchanged files. Only these files are then added, and
each one is checked first: large files, files that cannot be read and files with secrets are noted instead. If something
was added, the list is made again, so that a snapshot without remaining differences is a state that existed at one time.
"""

from __future__ import annotations

import errno
import fnmatch
import hashlib
import json
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from agentobs import world
from agentobs.effects.workspaces.shadow_git import (
    PACK_FILES_MAX,
    PACKED_FILES,
    ShadowGit,
    ShadowGitError,
)

FILE_BYTES_MAX = 50 * 1024 * 1024
"""Larger files are not read. Our choice."""
FILES_MAX = 500_000
"""The maximum number of new files in one snapshot; more are not a project but a disk. Our choice."""
SNAPSHOT_BYTES_MAX = 10 * 1024**3
"""The maximum size of the new files in one snapshot. Our choice."""
ROUNDS = 3
"""How often the list of differences is made if files change while they are read. Our choice."""
NESTED_MAX = 100
"""The maximum number of repositories inside the workspace whose files are read. Our choice."""
DEPTH_MAX = 10
"""The maximum depth of nested repositories. Our choice."""
COMPOSED_MAX = 100
"""The maximum number of trees with nested repositories that are remembered. Our choice."""
UNNAMED_MAX = 100
"""The maximum number of files that git may fail to read in one snapshot without naming them. Our choice."""
NOTED_MAX = 1000
"""The maximum number of files of a snapshot that are noted as not captured; more are counted. Our choice."""

Reason = Literal["too_large", "unreadable", "secret", "changing", "nested_limit"]
"""Why a file is not captured.

`too_large`: above the size limit; `unreadable`: the operating system refused to open it, or its path is too long, also
for a directory (its path ends with a slash); `secret`: its name is that of a file with credentials; `changing`: it
changed each time it was read; `nested_limit`: a repository beyond the limit.
"""

SECRET_NAMES = (
    ".env", ".env.*", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "id_rsa", "id_dsa",
    "id_ecdsa", "id_ed25519", ".netrc", ".pgpass", ".npmrc", ".pypirc", ".git-credentials", ".htpasswd",
)  # fmt: skip
"""The names of files that usually hold credentials; their content is never captured. Our choice."""
SECRET_EXCEPTIONS = (".env.example", ".env.sample", ".env.template", ".env.dist")
"""Names that match a pattern of `SECRET_NAMES`, but are templates without values."""

_UNOPENED = re.compile(rb"^warning: could not open directory '(.+?)/?(?:': .*)?$", re.MULTILINE)
"""The message of `git ls-files` about a directory whose files it could not list; git cuts it off after 4,096 bytes.
Source: dir.c and usage.c of git 2.39.
"""
_MISSING = (errno.ENOENT, errno.ENOTDIR)
"""Numbers of errors of the operating system if there is no such file."""
_UNREADABLE = re.compile(rb"Unable to process path (.+)")
"""The message of `git update-index` about a file that it could not read. Source: builtin/update-index.c of git 2.39."""


@dataclass(frozen=True, slots=True)
class Uncaptured:
    """A file that exists, but whose content is not in a snapshot."""

    path: str
    """The path relative to the workspace, as the file system has it."""
    size: int
    """Its size in bytes."""
    mtime_ns: int
    """When it was last changed, in nanoseconds since 1970."""
    reason: Reason

    @property
    def is_closed_directory(self) -> bool:
        """Whether it is a directory that could not be read, so that nothing is known about its files."""
        return self.reason == "unreadable" and self.path.endswith("/")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a workspace at one time."""

    tree: str
    """The ID of the tree in the shadow repository."""
    started_ns: int
    """When the first file was read, in nanoseconds since 1970."""
    ended_ns: int
    """When the last file was read, in nanoseconds since 1970."""
    is_stable: bool
    """Whether no file changed while the files were read, so that this state existed at one time."""
    uncaptured: tuple[Uncaptured, ...] = ()
    """Files without content, at most `NOTED_MAX`, by path."""
    uncaptured_count: int = 0
    """The number of files without content."""
    number: int = 0
    """Orders the snapshots of a workspace; 0 if it is not known."""
    wall_ns: int = 0
    """When it started, by the clock that sets the times of files, in nanoseconds since 1970."""

    def is_same_state(self, other: Snapshot | None) -> bool:
        """Return whether another snapshot has the same files."""
        return other is not None and (self.tree, self.uncaptured) == (other.tree, other.uncaptured)

    def to_json(self) -> str:
        """Return the snapshot as JSON; it is the message of the commit."""
        files = [
            [os.fsencode(e.path).decode("latin-1"), e.size, e.mtime_ns, e.reason]
            for e in self.uncaptured
        ]
        return json.dumps(
            {
                "format": 1,
                "tree": self.tree,
                "started_ns": self.started_ns,
                "ended_ns": self.ended_ns,
                "is_stable": self.is_stable,
                "uncaptured": files,
                "uncaptured_count": self.uncaptured_count,
                "number": self.number,
                "wall_ns": self.wall_ns,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Snapshot:
        """Return a snapshot from its JSON.

        Raises:
            ValueError: it is not the JSON of a snapshot.
        """
        try:
            value = json.loads(text)
            files = [
                Uncaptured(os.fsdecode(path.encode("latin-1")), size, mtime, reason)
                for path, size, mtime, reason in value["uncaptured"]
            ]
            return cls(
                value["tree"],
                value["started_ns"],
                value["ended_ns"],
                value["is_stable"],
                tuple(files),
                value["uncaptured_count"],
                value.get("number", 0),
                value.get("wall_ns", value["started_ns"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError("not a snapshot") from error


_Noted = tuple[bytes, os.stat_result | None, Reason]
"""A file without content: its path, its status if it has one, and the reason."""
_FileIdentity = tuple[int, int, int] | None
"""Inode, time and size of a file; None if it does not exist."""


@dataclass(slots=True)
class _Differences:
    """The differences between an index and the files."""

    added: list[bytes] = field(default_factory=list)
    """Files to add, or whose content has changed."""
    removed: list[bytes] = field(default_factory=list)
    """Files to remove from the index."""
    nested: list[bytes] = field(default_factory=list)
    """Directories that are repositories themselves."""
    uncaptured: list[_Noted] = field(default_factory=list)
    bytes: int = 0
    """The size of the files to add."""


class Snapshots:
    """Takes snapshots of one workspace, and remembers the last one, so that an unchanged workspace takes one command.

    Only one thread may use it.
    """

    def __init__(
        self,
        shadow: ShadowGit,
        *,
        skipped: Path | None = None,
        file_bytes_max: int = FILE_BYTES_MAX,
    ) -> None:
        """Prepare to take snapshots.

        Args:
            shadow: the shadow repository of the workspace.
            skipped: a directory that is never part of a snapshot: the home of the recordings.
            file_bytes_max: the size above which files are not captured, in bytes.
        """
        self._shadow, self._file_bytes_max = shadow, file_bytes_max
        self._skipped = os.fsencode(skipped.resolve()) if skipped is not None else None
        self._trees: dict[Path, tuple[_FileIdentity, str]] = {}
        """The tree of each index, with the identity of the index as a file."""
        self._composed: dict[tuple[object, ...], str] = {}
        """The last tree with the files of nested repositories, by its parts."""
        self._unreadable: dict[bytes, None] = {}
        """The files that changed, or could not be opened, while this snapshot read them."""

    def take(self) -> Snapshot:
        """Return the current state of the workspace.

        Raises:
            ShadowGitError: git failed, or the disk is full.
            OSError: the workspace or the home cannot be read.
        """
        with self._shadow.locked():
            started_ns, wall_ns = world.now(), world.wall()
            number = self._shadow.next_number()
            self._unreadable = {}
            try:
                tree, is_stable, uncaptured = self._captured(
                    self._shadow.root, self._shadow.git_dir / "index", b"", 0
                )
            except ShadowGitError as error:
                if error.reason == "disk_full":
                    self._shadow.delete_drafts()
                raise
            noted = [_uncaptured(*each) for each in uncaptured]
            # Directories are noted first, because nothing is known about their files.
            noted.sort(key=lambda each: (not each.is_closed_directory, each.path))
            listed = sorted(noted[:NOTED_MAX], key=lambda each: each.path)
            return Snapshot(
                tree=tree,
                started_ns=started_ns,
                ended_ns=world.now(),
                is_stable=is_stable,
                uncaptured=tuple(listed),
                uncaptured_count=len(noted),
                number=number,
                wall_ns=wall_ns,
            )

    def _captured(
        self, directory: Path, index: Path, prefix: bytes, depth: int
    ) -> tuple[str, bool, list[_Noted]]:
        """Capture a repository, or a workspace without one, and the repositories in it.

        Args:
            directory: its directory.
            index: its index in the shadow repository.
            prefix: its path in the workspace, with a slash at the end.
            depth: how many repositories contain it.

        Returns:
            The tree, whether no file changed meanwhile, and the files without content.
        """
        is_stable = True
        for number in range(ROUNDS + 1):
            found = self._differences(directory, index)
            if not found.added and not found.removed:
                break
            if number == ROUNDS:
                is_stable = False
                break
            self._update(directory, index, found)
        uncaptured = [(prefix + path, status, reason) for path, status, reason in found.uncaptured]
        trees: list[tuple[bytes, str]] = []
        for number, path in enumerate(sorted(found.nested)):
            if number >= NESTED_MAX or depth >= DEPTH_MAX:
                uncaptured.append((prefix + path, None, "nested_limit"))
                continue
            inner = Path(os.fsdecode(os.fsencode(directory) + b"/" + path))
            name = hashlib.sha256(prefix + path).hexdigest()[:16]
            try:
                tree, inner_is_stable, noted = self._captured(
                    inner, self._shadow.git_dir / f"index-{name}", prefix + path, depth + 1
                )
            except ShadowGitError as error:
                if error.reason != "git_failed" or inner.is_dir():
                    raise
                is_stable = False  # it was deleted meanwhile
                continue
            trees.append((path.rstrip(b"/"), tree))
            uncaptured += noted
            is_stable &= inner_is_stable
        return self._with_nested(self._tree(directory, index), trees), is_stable, uncaptured

    def _differences(self, directory: Path, index: Path) -> _Differences:
        """Return what differs between an index and the files."""
        listed, messages = self._listed(directory, index)
        found, tags = _Differences(), dict[bytes, bytes]()
        unopened = dict.fromkeys(_UNOPENED.findall(messages))
        found.uncaptured += [(path + b"/", None, "unreadable") for path in unopened]
        for entry in listed.split(b"\0"):
            # A removed file is also listed as changed.
            if entry and tags.get(entry[2:]) != b"R":
                tags[entry[2:]] = entry[:1]
        root = os.fsencode(directory)
        for path, tag in tags.items():
            if tag == b"R":
                found.removed.append(path)
            else:
                self._sort(found, path, root + b"/" + path, is_known=tag == b"C")
        return found

    def _listed(self, directory: Path, index: Path) -> tuple[bytes, bytes]:
        """Return the files that differ from an index, as git lists them, and the messages of git."""
        for number in range(ROUNDS + 1):
            messages: list[bytes] = []
            try:
                listed = self._shadow.run(
                    *("ls-files", "-z", "-t", "-m", "-d", "-o", "--exclude-standard"),
                    work_tree=directory,
                    index=index,
                    messages=messages,
                )
            except ShadowGitError as error:
                # Git is killed by SIGBUS if a file shrinks while it is compared.
                if error.reason != "git_failed" or number == ROUNDS:
                    raise
            else:
                return listed, b"".join(messages)
        raise AssertionError("unreachable")

    def _sort(self, found: _Differences, path: bytes, full: bytes, *, is_known: bool) -> None:
        """Add an existing file that differs from the index to the differences."""
        if self._skipped is not None and (full + b"/").startswith(self._skipped + b"/"):
            return
        if path.endswith(b"/"):
            found.nested.append(path)
            return
        try:
            status: os.stat_result | None = os.lstat(full)
        except OSError as error:
            if error.errno not in _MISSING:
                found.uncaptured.append((path, None, "unreadable"))
            status = None
        is_file = status is not None and (
            stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)
        )
        reason = self._reason(full, status) if is_file and status is not None else None
        if is_file and reason is None:
            found.added.append(path)
            found.bytes += status.st_size if status is not None else 0
            return
        if is_known:
            found.removed.append(path)
        if reason is not None:
            found.uncaptured.append((path, status, reason))

    def _reason(self, full: bytes, status: os.stat_result) -> Reason | None:
        """Return why a file is not captured; None if it is captured."""
        if full in self._unreadable:
            return "changing" if os.access(full, os.R_OK) else "unreadable"
        if is_secret_name(os.fsdecode(full.rpartition(b"/")[2])):
            return "secret"
        if not stat.S_ISREG(status.st_mode):
            return None
        if status.st_size > self._file_bytes_max:
            return "too_large"
        return None if os.access(full, os.R_OK) else "unreadable"

    def _update(self, directory: Path, index: Path, found: _Differences) -> None:
        """Change an index as the files have changed."""
        if len(found.added) > FILES_MAX or found.bytes > SNAPSHOT_BYTES_MAX:
            raise ShadowGitError("too_large")
        if found.removed:
            self._shadow.run(
                *("update-index", "-z", "--force-remove", "--stdin"),
                text=b"".join(path + b"\0" for path in found.removed),
                work_tree=directory,
                index=index,
            )
        # With this setting, git writes all blobs to one pack.
        is_packed = len(found.added) > PACKED_FILES
        settings = {"core.bigFileThreshold": "1"} if is_packed else {}
        for start in range(0, len(found.added), PACK_FILES_MAX):
            self._add(directory, index, found.added[start : start + PACK_FILES_MAX], settings)

    def _add(
        self, directory: Path, index: Path, pending: list[bytes], settings: dict[str, str]
    ) -> None:
        """Add files to an index; a file that cannot be read is remembered, and left out."""
        while pending:
            try:
                self._shadow.run(
                    *("update-index", "-z", "--add", "--remove", "--replace", "--stdin"),
                    text=b"".join(path + b"\0" for path in pending),
                    work_tree=directory,
                    index=index,
                    settings=settings,
                )
                return
            except ShadowGitError as error:
                if error.reason != "git_failed":
                    raise
                named = _UNREADABLE.search(error.message)
                if named is None or named[1] not in pending:
                    self._add_halves(directory, index, pending, settings, error)
                    return
                self._unreadable[os.fsencode(directory) + b"/" + named[1]] = None
                pending = [path for path in pending if path != named[1]]

    def _add_halves(
        self,
        directory: Path,
        index: Path,
        pending: list[bytes],
        settings: dict[str, str],
        error: ShadowGitError,
    ) -> None:
        """Add files of which git cannot read one, without naming it.

        Git is killed by SIGBUS if a file shrinks while it is mapped.
        """
        self._shadow.delete_drafts()
        if len(pending) == 1:
            self._unreadable[os.fsencode(directory) + b"/" + pending[0]] = None
            if len(self._unreadable) > UNNAMED_MAX:
                raise error
            return
        half = len(pending) // 2
        self._add(directory, index, pending[:half], settings)
        self._add(directory, index, pending[half:], settings)

    def _tree(self, directory: Path, index: Path) -> str:
        """Return the tree of an index."""
        identity = _identity(index)
        known = self._trees.get(index)
        if known is not None and known[0] == identity:
            return known[1]
        tree = self._shadow.run("write-tree", work_tree=directory, index=index).decode().strip()
        # Git stores the trees that it has computed in the index.
        self._trees[index] = _identity(index), tree
        return tree

    def _with_nested(self, tree: str, nested: Sequence[tuple[bytes, str]]) -> str:
        """Return a tree with the trees of nested repositories inserted at their paths."""
        if not nested:
            return tree
        key = (tree, *nested)
        if key not in self._composed:
            index = self._shadow.temporary_index()
            try:
                self._shadow.run("read-tree", tree, index=index)
                for path, inner in nested:
                    prefix = f"--prefix={os.fsdecode(path)}/"
                    self._shadow.run("read-tree", prefix, inner, index=index)
                composed = self._shadow.run("write-tree", index=index).decode().strip()
            finally:
                index.unlink(missing_ok=True)
            if len(self._composed) > COMPOSED_MAX:
                self._composed.clear()
            self._composed[key] = composed
        return self._composed[key]


def is_secret_name(name: str) -> bool:
    """Return whether a file with this name usually holds credentials."""
    lower = name.lower()
    return lower not in SECRET_EXCEPTIONS and any(
        fnmatch.fnmatchcase(lower, pattern) for pattern in SECRET_NAMES
    )


def _identity(path: Path) -> _FileIdentity:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _uncaptured(path: bytes, status: os.stat_result | None, reason: Reason) -> Uncaptured:
    size, mtime_ns = (status.st_size, status.st_mtime_ns) if status is not None else (0, 0)
    return Uncaptured(os.fsdecode(path), size, mtime_ns, reason)
