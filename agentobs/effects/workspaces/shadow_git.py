"""The shadow repository: a bare git repository under the home that stores the states of one workspace.

It has its own object database, index and references, and is always addressed with `GIT_DIR` and
`GIT_WORK_TREE`. So it reads the files of the workspace, but never the user's repository, index, hooks or configuration.
Its attributes take precedence over all others and disable conversions and filters: blobs have the bytes of the files.

home/workspaces/<workspace id>/      mode 0700
  root                               the path of the workspace
  last                               the number of the last snapshot
  lock                               held while the index is used
  git/                               the repository; refs/sessions/<session id>/<number> are the recorded states
  replaced/                          copies of the files that `agentobs restore` has replaced
  garbage                            exists while files of deleted states have to be deleted
  derived-ID/                        a temporary repository, which exists while a command reads the history
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from agentobs import world
from agentobs.errors import AgentobsError, UsageError
from agentobs.recording.git.repository import Repository, find_repository, ignored_patterns
from agentobs.recording.journal.home import Home

DIRECTORY = "workspaces"
"""The directory of all shadow repositories in a home."""
COMMAND_SECONDS = 600.0
"""How long one git command may take, in seconds. Our choice: the first snapshot of a large workspace takes minutes."""
LOCK_SECONDS = 60.0
"""How long to wait for another process that records the same workspace, in seconds. Our choice."""
PACKED_FILES = 500
"""Above this number of new files, blobs are written to one pack instead of one file each, which takes a tenth of the
time. Our choice.
"""
PACK_FILES_MAX = 10_000
"""The maximum number of files that one command writes to a pack. Our choice: git 2.39 compares each new blob with all
earlier ones of the pack, so that 100,000 files take a minute.
"""
FULL_DISK = (
    *(b"No space left on device", b"Disk quota exceeded", b"unable to write file"),
    b"Out of diskspace",
)
"""Parts of git's messages if the disk is full. Source: strerror(3), and object-file.c and csum-file.c of git 2.39."""
FULL_DISK_NUMBERS = (errno.ENOSPC, errno.EDQUOT)
"""Numbers of errors of the operating system if the disk is full."""
FREE_BYTES_MIN = 64 * 1024
"""If git failed without such a message, and the disk has less space, the disk is full. Our choice."""

_CONFIG = """\
[core]
	repositoryformatversion = 0
	bare = false
	fileMode = true
	symlinks = true
	ignoreCase = false
	precomposeUnicode = false
	protectNTFS = false
	protectHFS = false
	autocrlf = false
	safecrlf = false
	eol = lf
	fsmonitor = false
	untrackedCache = false
	splitIndex = false
	sparseCheckout = false
	trustctime = true
	hooksPath = /dev/null
	attributesFile = /dev/null
	excludesFile = /dev/null
	compression = 1
	logAllRefUpdates = false
[index]
	version = 4
[gc]
	auto = 0
	packRefs = false
[maintenance]
	auto = false
[diff]
	renameLimit = 1000
"""
_ATTRIBUTES = "* -text !eol !filter !ident !working-tree-encoding !diff !crlf !export-subst\n"
_IDENTITY = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "agentobs"), ("EMAIL", "agentobs@localhost"))
}


class ShadowGitError(AgentobsError):
    """A git command on a shadow repository failed."""

    def __init__(self, reason: str, message: bytes = b"", *, todo: str = "") -> None:
        """Create the error.

        Args:
            reason: a word: `disk_full`, `too_large`, `no_git`, `locked`, `timeout` or `git_failed`.
            message: what git printed; it may contain paths.
            todo: what the user can do.
        """
        self.reason, self.message = reason, message
        texts = {
            "disk_full": "the disk is full",
            "too_large": "the workspace has too many files for snapshots",
            "no_git": "the command `git` was not found",
            "locked": "another process is using the workspace's snapshots",
            "timeout": "git did not end in time",
        }
        if reason == "disk_full":
            todo = "Free space in the home, in the output directory and in TMPDIR"
        super().__init__(texts.get(reason, "git failed"), where="workspace", todo=todo)


class ShadowGit:
    """The shadow repository of one workspace."""

    def __init__(self, path: Path, root: Path) -> None:
        """Address the repository in `path`, with the files of the workspace `root`."""
        self.path, self.root = path, root
        self.git_dir = path / "git"

    @property
    def workspace_id(self) -> str:
        """The ID of the workspace: a keyed digest of its path."""
        return self.path.name

    def run(
        self,
        *arguments: str | os.PathLike[str],
        text: bytes | BinaryIO = b"",
        output: BinaryIO | None = None,
        work_tree: Path | None = None,
        index: Path | None = None,
        settings: Mapping[str, str] | None = None,
        variables: Mapping[str, str] | None = None,
        messages: list[bytes] | None = None,
    ) -> bytes:
        """Return the output of a git command.

        Args:
            arguments: the command and its arguments.
            text: its standard input; an open file is read from its position.
            output: an open file for its output; None to return it.
            work_tree: the directory of the files, default the workspace.
            index: the index file, default the index of the workspace.
            settings: configuration for this command.
            variables: environment variables for this command.
            messages: receives what the command printed to standard error.

        Raises:
            ShadowGitError: the command failed, or git is missing.
        """
        tree = work_tree or self.root
        options = [
            part for name, value in (settings or {}).items() for part in ("-c", f"{name}={value}")
        ]
        try:
            ended = subprocess.run(
                ["git", *options, *arguments],
                input=text if isinstance(text, bytes) else None,
                stdin=None if isinstance(text, bytes) else text,
                stdout=output or subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=tree if tree.is_dir() else self.path,
                env={**self._environment(tree, index), **(variables or {})},
                timeout=COMMAND_SECONDS,
                # Ctrl-C at the terminal is for the recorded program.
                start_new_session=True,
                check=False,
            )
        except FileNotFoundError as error:
            raise ShadowGitError("no_git", todo="Install git") from error
        except subprocess.TimeoutExpired as error:
            raise ShadowGitError("timeout") from error
        except OSError as error:
            raise ShadowGitError("git_failed", str(error).encode()) from error
        if ended.returncode:
            is_full = any(each in ended.stderr for each in FULL_DISK) or _is_full(self.path)
            raise ShadowGitError("disk_full" if is_full else "git_failed", ended.stderr)
        if messages is not None:
            messages.append(ended.stderr)
        return ended.stdout or b""

    @contextlib.contextmanager
    def object_contents(self) -> Iterator[Callable[[str], bytes]]:
        """Yield a function that returns the content of an object by its ID, with one process for all objects.

        The function raises `ShadowGitError` if there is no such object, and `OSError` if git has ended.

        Raises:
            ShadowGitError: git is missing.
        """
        try:
            process = subprocess.Popen(
                ["git", "cat-file", "--batch"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=self.path,
                env=self._environment(self.root, None),
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise ShadowGitError("no_git", todo="Install git") from error
        assert process.stdin is not None
        assert process.stdout is not None
        questions, answers = process.stdin, process.stdout

        def content(name: str) -> bytes:
            questions.write(f"{name}\n".encode())
            questions.flush()
            about = answers.readline().split()
            if len(about) != 3:
                raise ShadowGitError("git_failed", b"no such object")
            return answers.read(int(about[2]) + 1)[:-1]

        try:
            yield content
        finally:
            process.kill()
            process.communicate()

    def _environment(self, work_tree: Path, index: Path | None) -> dict[str, str]:
        """Return an environment without the user's settings of git."""
        kept = {name: value for name in ("PATH", "TMPDIR") if (value := world.environ(name))}
        return {
            **kept,
            **_IDENTITY,
            "LC_ALL": "C",
            "HOME": str(self.git_dir),
            "XDG_CONFIG_HOME": str(self.git_dir),
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_LITERAL_PATHSPECS": "1",
            "GIT_DIR": str(self.git_dir),
            "GIT_WORK_TREE": str(work_tree),
            "GIT_INDEX_FILE": str(index or self.git_dir / "index"),
        }

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the index, and remove what a killed process has left.

        Raises:
            ShadowGitError: another process holds the lock for too long.
        """
        descriptor = os.open(self.path / "lock", os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        try:
            deadline = world.monotonic() + int(LOCK_SECONDS * 1e9)
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if world.monotonic() > deadline:
                        raise ShadowGitError("locked") from None
                    world.pause(0.02)
            self._delete_locks()
            yield
        finally:
            os.close(descriptor)

    def _delete_locks(self) -> None:
        """Delete the locks of git commands that were killed; the caller holds the lock of the workspace."""
        for stale in self.git_dir.glob("index*.lock"):
            stale.unlink(missing_ok=True)

    def delete_drafts(self) -> None:
        """Delete what a git command has left that was killed or found the disk full; the caller holds the lock."""
        self._delete_locks()
        objects = self.git_dir / "objects"
        for pattern in ("tmp_*", "*/tmp_*"):
            for draft in objects.glob(pattern):
                with contextlib.suppress(OSError):
                    draft.unlink()

    def next_number(self) -> int:
        """Return a number for a new snapshot; the caller holds the lock.

        It is higher than all earlier ones of the workspace, whatever the clock does. If it can be, it is the time in
        seconds since 1970, so that numbers of a file that was lost are also lower.

        Raises:
            ShadowGitError: the disk is full.
            OSError: the number cannot be stored.
        """
        path = self.path / "last"
        try:
            last = int(path.read_bytes())
        except (FileNotFoundError, ValueError):
            last = 0
        number = max(last + 1, world.wall() // 1_000_000_000)
        draft = path.with_name("last.new")
        try:
            draft.write_text(str(number))
            draft.replace(path)
        except OSError as error:
            if error.errno in FULL_DISK_NUMBERS:
                raise ShadowGitError("disk_full") from error
            raise
        return number

    @contextlib.contextmanager
    def derived(self) -> Iterator[ShadowGit]:
        """Return a temporary repository that knows all files of this one; what is written to it is deleted at the end.

        Raises:
            OSError: the home cannot be written.
        """
        path = self.path / f"derived-{world.new_id()}"
        derived = ShadowGit(path, self.root)
        try:
            for name in ("objects/info", "objects/pack", "refs", "info"):
                (derived.git_dir / name).mkdir(mode=0o700, parents=True)
            (derived.git_dir / "HEAD").write_text("ref: refs/heads/history\n")
            (derived.git_dir / "config").write_text(_CONFIG)
            (derived.git_dir / "info" / "attributes").write_text(_ATTRIBUTES)
            derived.read_objects_of(self.git_dir / "objects")
            yield derived
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def read_objects_of(self, *directories: Path) -> None:
        """Let git also read the objects of other repositories.

        Args:
            directories: their directories with objects.

        Raises:
            OSError: the repository cannot be written.
        """
        alternates = self.git_dir / "objects" / "info" / "alternates"
        alternates.write_bytes(b"".join(_quoted(each) + b"\n" for each in directories))

    def temporary_index(self) -> Path:
        """Return the path of an index that does not exist yet; the caller deletes it."""
        return self.git_dir / f"temporary-{world.new_id()}"

    def references(self, prefix: str) -> dict[str, str]:
        """Return the commits of the references under a prefix such as `refs/sessions/`, by name."""
        lines = (
            self.run("for-each-ref", "--format=%(refname) %(objectname)", prefix)
            .decode()
            .splitlines()
        )
        return dict(each.split(" ", 1) for each in lines)

    def sessions(self) -> set[str]:
        """Return the IDs of the sessions with states. References are never packed, so this needs no git."""
        return {each.name for each in (self.git_dir / "refs" / "sessions").glob("*")}

    def delete_session(self, session_id: str) -> None:
        """Delete the references of a session, and note that their files must be deleted; see `collect`."""
        self._garbage.touch()
        shutil.rmtree(self.git_dir / "refs" / "sessions" / session_id, ignore_errors=True)

    @property
    def _garbage(self) -> Path:
        """The file that exists while files of deleted states may exist."""
        return self.path / "garbage"

    @property
    def has_garbage(self) -> bool:
        """Whether files of deleted states may exist."""
        return self._garbage.exists()

    def collect(self) -> None:
        """Delete all files that belong to no state; if no state is left, delete the repository and the noted path.

        Raises:
            ShadowGitError: git failed, is missing, or another process takes a snapshot.
            OSError: a file cannot be deleted.
        """
        with self.locked():
            if not self.sessions():
                shutil.rmtree(self.git_dir)
                (self.path / "root").unlink(missing_ok=True)
            else:
                # An index refers to blobs that belong to no other state, and `gc` keeps these.
                for index in self.git_dir.glob("index*"):
                    index.unlink()
                self.run("gc", "--quiet", "--prune=now")
            self._garbage.unlink(missing_ok=True)


def workspace_root(directory: Path) -> Path:
    """Return the workspace of a directory: the working tree of its git repository, or the directory itself.

    Raises:
        UsageError: it is the root of the file system or the user's home directory.
    """
    repository = _repository(directory)
    root = (repository.tree if repository is not None else directory).resolve()
    if root in (Path(root.anchor), Path("~").expanduser().resolve()):
        raise UsageError(
            "the files of this directory are not recorded, because it is the root or your home directory",
            where=str(root),
            todo="Start the program in the directory of a project",
        )
    return root


def check_git() -> None:
    """Check that git can be used.

    Raises:
        UsageError: there is no git.
    """
    if shutil.which("git", path=world.environ("PATH") or os.defpath) is None:
        raise UsageError(
            "the command `git` was not found, and files are recorded with it",
            where="effects: files",
            todo="Install git, or leave out `files`",
        )


def workspace_id(home: Home, root: Path) -> str:
    """Return the ID of a workspace: a keyed digest of its path, 24 hex digits."""
    return hashlib.blake2b(os.fsencode(root), digest_size=12, key=home.key()).hexdigest()


def open_shadow(home: Home, root: Path) -> ShadowGit:
    """Return the shadow repository of a workspace; create it if it does not exist.

    Raises:
        ShadowGitError: git failed, or is missing.
        OSError: the home cannot be written.
    """
    path = home.path / DIRECTORY / workspace_id(home, root)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    for each in (path.parent, path):
        each.chmod(0o700)
    shadow = shadow_in(path, root)
    repository = _repository(root)
    patterns = ignored_patterns(repository) if repository is not None else ""
    (shadow.git_dir / "info" / "exclude").write_text(patterns, "utf-8", "surrogateescape")
    return shadow


def shadow_in(path: Path, root: Path) -> ShadowGit:
    """Return the shadow repository in an existing directory; create it if it does not exist.

    Args:
        path: the directory of the repository.
        root: the workspace.

    Raises:
        OSError: the directory cannot be written.
    """
    (path / "root").write_bytes(os.fsencode(root))
    shadow = ShadowGit(path, root)
    if not (shadow.git_dir / "HEAD").exists():
        draft = path / f"git-{world.new_id()}"
        for name in ("objects/info", "objects/pack", "refs/sessions", "info"):
            (draft / name).mkdir(parents=True)
        (draft / "HEAD").write_text("ref: refs/heads/none\n")
        (draft / "config").write_text(_CONFIG)
        (draft / "info" / "attributes").write_text(_ATTRIBUTES)
        try:
            draft.rename(shadow.git_dir)
        except OSError:  # another process was faster
            shutil.rmtree(draft, ignore_errors=True)
    return shadow


def existing_shadow(home: Home, workspace: str) -> ShadowGit:
    """Return the shadow repository with an ID.

    Raises:
        UsageError: there is none; it was pruned, or is in another home.
    """
    path = home.path / DIRECTORY / workspace
    if re.fullmatch(r"[0-9a-f]{24}", workspace) is None or not (path / "git" / "HEAD").exists():
        raise UsageError(
            "the files of this session are not in this home",
            where=str(path),
            todo="Use the home in which the session was recorded, or record it again if it was pruned",
        )
    return ShadowGit(path, Path(os.fsdecode((path / "root").read_bytes())))


def all_shadows(home: Home) -> Sequence[ShadowGit]:
    """Return all shadow repositories of a home."""
    found = sorted((home.path / DIRECTORY).glob("*/git/HEAD"))
    return [existing_shadow(home, each.parent.parent.name) for each in found]


def _quoted(path: Path) -> bytes:
    """Return a path in the quotes of C, in which git reads it in a list of alternates."""
    special = {b"\\": b"\\\\", b'"': b'\\"', b"\n": b"\\n"}
    raw = re.sub(rb'[\\"\n]', lambda found: special[found[0]], bytes(path))
    return b'"' + raw + b'"'


def _is_full(directory: Path) -> bool:
    try:
        found = os.statvfs(directory)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < FREE_BYTES_MIN


def _repository(directory: Path) -> Repository | None:
    try:
        return find_repository(directory)
    except (OSError, ValueError):
        return None
