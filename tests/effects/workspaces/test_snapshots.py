"""Snapshots of workspaces: exact bytes, an untouched repository, and what happens to files that cannot be captured."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentobs import world
from agentobs.effects import workspaces
from agentobs.effects.workspaces.file_changes import changes, tree_size
from agentobs.effects.workspaces.shadow_git import (
    ShadowGit,
    ShadowGitError,
    open_shadow,
    workspace_root,
)
from agentobs.effects.workspaces.snapshots import Snapshot, Snapshots, is_secret_name
from agentobs.errors import UsageError
from agentobs.recording.journal.home import Home, open_home
from tests.effects.workspaces.trees import files_of, git, hostile_repository, write


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Return a home next to the workspace."""
    return open_home(tmp_path / "home")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a workspace without a repository."""
    path = tmp_path / "workspace"
    path.mkdir()
    return path


def kept(home: Home, shadow: ShadowGit, snapshot: Snapshot, out: Path) -> Path:
    """Keep a snapshot as a state, and return a directory into which it was restored from there."""
    workspaces.keep_state(shadow, "a1", 1, snapshot)
    read = workspaces.state(home, shadow.workspace_id, "a1", 1)
    assert read == snapshot
    workspaces.restore_state(home, shadow.workspace_id, read, out)
    return out


def test_every_byte_comes_back_and_the_repository_is_not_touched(
    tmp_path: Path, home: Home
) -> None:
    """A repository with a submodule, filters, conversions, links, odd names and a rebase is restored byte for byte."""
    root = tmp_path / "workspace"
    hostile_repository(root)
    hook = root / "hooks" / "post-index-change"
    write(root, {"hooks/post-index-change": f"#!/bin/sh\ntouch {tmp_path}/hook-ran\n"})
    hook.chmod(0o755)
    before, status = files_of(root, skipped=()), git(root, "status", "--porcelain")
    (tmp_path / "hook-ran").unlink(missing_ok=True)
    before = files_of(root, skipped=())
    assert workspace_root(root / "src") == root
    shadow = open_shadow(home, root)
    snapshot = Snapshots(shadow).take()
    assert (snapshot.is_stable, snapshot.uncaptured) == (True, ())
    assert files_of(root, skipped=()) == before, (
        "the index and everything else in .git have the same bytes"
    )
    assert not (tmp_path / "hook-ran").exists()
    restored = files_of(kept(home, shadow, snapshot, tmp_path / "out"))
    wanted = files_of(root)
    del wanted[b"plain/nested/ignored.log"]
    assert restored == wanted
    assert b"caf\xe9.txt" in restored
    assert b"vendor/library/deep/inner.txt" in restored
    assert git(root, "status", "--porcelain") == status
    assert tree_size(shadow, snapshot.tree)[0] == len(restored)


def test_changes_between_two_states(home: Home, root: Path) -> None:
    """Each changed file is added, modified, deleted or renamed, and has its size and its lines."""
    write(
        root,
        {"a.txt": "1\n2\n", "b.txt": "b\n" * 9, "c.txt": "c\n", "d": b"\x00\x01", ".env": "KEY=1"},
    )
    shadow = open_shadow(home, root)
    snapshots = Snapshots(shadow, skipped=home.path)
    first = snapshots.take()
    write(root, {"a.txt": "1\n3\n4\n", "new/e.txt": "e\n", "d": b"\x00\x01\x02", ".env": "KEY=22"})
    (root / "b.txt").rename(root / "moved.txt")
    (root / "c.txt").unlink()
    (root / "c.txt").mkdir()
    write(root, {"c.txt/inside": "c"})
    second = snapshots.take()
    found = [
        (e.kind, e.path, e.old_path, e.old_bytes, e.new_bytes, e.lines_added, e.lines_removed)
        for e in changes(shadow, first, second)
    ]
    assert found == [
        ("modified", ".env", None, 5, 6, None, None),
        ("modified", "a.txt", None, 4, 6, 2, 1),
        ("deleted", "c.txt", None, 2, None, 0, 1),
        ("added", "c.txt/inside", None, None, 1, 1, 0),
        ("modified", "d", None, 2, 3, None, None),
        ("renamed", "moved.txt", "b.txt", 18, 18, 0, 0),
        ("added", "new/e.txt", None, None, 2, 1, 0),
    ]
    assert changes(shadow, second, second) == []
    assert workspaces.file_content(home, shadow.workspace_id, second, "a.txt") == b"1\n3\n4\n"
    assert workspaces.file_content(home, shadow.workspace_id, second, "c.txt") is None


def test_files_that_are_not_captured_are_noted(home: Home, root: Path) -> None:
    """Large, unreadable and secret files are noted with their size; ignored files and the home are not part of it."""
    git(root, "init", "-q")
    write(
        root,
        {
            ".gitignore": "*.log\n",
            "a.log": "x",
            "kept.txt": "k",
            ".env": "K=1",
            ".env.example": "K=",
        },
    )
    write(root, {".git/info/exclude": "local/\n", "local/x": "x", ".agentobs/segments/x": "x"})
    (root / "large").write_bytes(b"")
    os.truncate(
        root / "large", 5 * 1024**3
    )  # a sparse file: reading it would exceed the time limit of this test
    shadow = open_shadow(home, root)
    snapshots = Snapshots(shadow, skipped=root / ".agentobs", file_bytes_max=100)
    snapshot = snapshots.take()
    listed = shadow.run("ls-tree", "-r", "--name-only", snapshot.tree).decode().split()
    assert listed == [".env.example", ".gitignore", "kept.txt"]
    assert [(e.path, e.size, e.reason) for e in snapshot.uncaptured] == [
        (".env", 3, "secret"),
        ("large", 5 * 1024**3, "too_large"),
    ]
    os.truncate(root / "large", 3)  # it becomes small, and a captured file becomes large
    (root / "kept.txt").write_bytes(b"k" * 101)
    later = snapshots.take()
    assert [(e.path, e.reason) for e in later.uncaptured] == [
        (".env", "secret"),
        ("kept.txt", "too_large"),
    ]
    assert [(e.kind, e.path, e.new_blob is None) for e in changes(shadow, snapshot, later)] == [
        ("modified", "kept.txt", True),
        ("modified", "large", False),
    ]


def test_an_unreadable_file_is_noted(
    home: Home, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root, {"a": "1", "b": "2"})
    monkeypatch.setattr(os, "access", lambda path, *_: not os.fsdecode(path).endswith("/b"))
    snapshot = Snapshots(open_shadow(home, root)).take()
    assert [(e.path, e.size, e.reason) for e in snapshot.uncaptured] == [("b", 1, "unreadable")]
    assert snapshot.is_stable


class Rewriting(ShadowGit):
    """A shadow repository in whose workspace something happens after each update of the index."""

    def __init__(self, shadow: ShadowGit, happens: Callable[[], None]) -> None:
        """Call `happens` after each update."""
        super().__init__(shadow.path, shadow.root)
        self.happens = happens

    def run(self, *arguments: str | os.PathLike[str], **options: Any) -> bytes:
        """Run git, then change the files."""
        result = super().run(*arguments, **options)
        if arguments[0] == "update-index":
            self.happens()
        return result


def test_a_tree_that_changes_while_it_is_read_is_marked(home: Home, root: Path) -> None:
    """A file that changes each time gives an unstable snapshot; one that changes once gives its last content."""
    write(root, {"log": "0"})
    count = [0]

    def append() -> None:
        count[0] += 1
        write(root, {"log": "x" * count[0]})

    shadow = open_shadow(home, root)
    assert not Snapshots(Rewriting(shadow, append)).take().is_stable

    def append_once() -> None:
        if count[0] < 100:
            count[0] = 100
            write(root, {"log": "last"})

    write(root, {"log": "first"})
    snapshot = Snapshots(Rewriting(shadow, append_once)).take()
    assert snapshot.is_stable
    assert workspaces.file_content(home, shadow.workspace_id, snapshot, "log") == b"last"


def fake_git(directory: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a program in front of git: the script may pass on to `"$real" "$@"`."""
    real = next(p for p in os.environ["PATH"].split(":") if (Path(p) / "git").exists())
    directory.mkdir()
    (directory / "git").write_text(f"#!/bin/sh\nreal={real}/git\n{script}\n")
    (directory / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")


def test_a_full_disk_and_a_missing_git_are_told_apart(
    tmp_path: Path, home: Home, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root, {"a": "1"})
    shadow = open_shadow(home, root)
    full = 'case "$*" in *update-index*) echo "fatal: write error: No space left on device" >&2; exit 128;; esac'
    with monkeypatch.context() as patch:
        fake_git(tmp_path / "bin", f'{full}\nexec "$real" "$@"', patch)
        with pytest.raises(ShadowGitError) as error:
            Snapshots(shadow).take()
        assert error.value.reason == "disk_full"
    assert workspaces.file_content(home, shadow.workspace_id, Snapshots(shadow).take(), "a") == b"1"
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="`git` was not found"):
        workspaces.check_git()
    with pytest.raises(ShadowGitError, match="`git` was not found"):
        Snapshots(shadow).take()


def test_a_snapshot_that_fills_the_disk_leaves_space_for_other_recordings(
    tmp_path: Path, home: Home, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What git wrote before it failed is deleted; nothing else is."""
    write(root, {"a": "1"})
    shadow = open_shadow(home, root)
    first = Snapshots(shadow).take()
    objects = shadow.git_dir / "objects"
    before = sorted(objects.rglob("*"))
    leaves = f"for each in {objects}/tmp_obj_1 {objects}/pack/tmp_pack_1; do echo x > $each; done"
    fails = 'echo "fatal: sha1 file write error. Out of diskspace" >&2; exit 128'
    write(root, {"b": "2"})
    fake_git(
        tmp_path / "bin",
        f'case "$*" in *update-index*) {leaves}; {fails};; esac\nexec "$real" "$@"',
        monkeypatch,
    )
    with pytest.raises(ShadowGitError, match=r"the disk is full\. Free space in the home"):
        Snapshots(shadow).take()
    assert sorted(objects.rglob("*")) == before
    assert workspaces.file_content(home, shadow.workspace_id, first, "a") == b"1"


@pytest.mark.parametrize("exists", [False, True])
def test_a_full_disk_leaves_no_half_of_the_files(
    tmp_path: Path, home: Home, root: Path, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    """Files that were cut off would look like those of the session, and the command could not be repeated."""
    write(root, {"a": "1", "d/b": "2"})
    shadow = open_shadow(home, root)
    snapshot = Snapshots(shadow).take()
    out = tmp_path / "out"
    if exists:
        out.mkdir()
    with monkeypatch.context() as patch:
        fake_git(
            tmp_path / "bin",
            'case "$*" in checkout-index*) mkdir d; echo 1 > d/b; ln -s d link; '
            'echo "error: unable to write file a" >&2; exit 1;; esac\nexec "$real" "$@"',
            patch,
        )
        with pytest.raises(ShadowGitError, match="the disk is full"):
            workspaces.restore_state(home, shadow.workspace_id, snapshot, out)
    assert (out.exists(), list(out.glob("*"))) == (exists, [])
    assert workspaces.restore_state(home, shadow.workspace_id, snapshot, out).files == 2


def test_numbers_of_snapshots_never_go_back(
    home: Home, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They order states of sessions whose clocks disagree; a full disk is an error of the snapshot."""
    shadow = open_shadow(home, root)
    numbers = []
    for seconds in (5000, 10, 6000, 10):
        monkeypatch.setattr(world, "wall", lambda seconds=seconds: seconds * 10**9)
        numbers.append(Snapshots(shadow).take().number)
    assert numbers == [5000, 5001, 6000, 6001]

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(ShadowGitError, match="the disk is full"):
        Snapshots(shadow).take()


def test_a_file_that_git_cannot_read_does_not_stop_the_others(
    tmp_path: Path, home: Home, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that shrinks while git reads it is noted; the other files are captured."""
    write(root, {"a": "1", "b": "2", "c": "3"})
    shadow, flag = open_shadow(home, root), tmp_path / "flag"
    flag.touch()
    fails = f'if [ -e {flag} ]; then rm {flag}; echo "fatal: Unable to process path b" >&2; exit 128; fi'
    fake_git(
        tmp_path / "bin",
        f'case "$*" in *update-index*) {fails};; esac\nexec "$real" "$@"',
        monkeypatch,
    )
    snapshot = Snapshots(shadow).take()
    assert [(each.path, each.reason) for each in snapshot.uncaptured] == [("b", "changing")]
    assert workspaces.file_content(home, shadow.workspace_id, snapshot, "c") == b"3"


def test_a_file_that_kills_git_does_not_stop_the_others(
    tmp_path: Path, home: Home, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that shrinks while git has mapped it kills git, which does not name the file and leaves its lock."""
    write(root, {f"{n}.txt": str(n) for n in range(9)} | {"shrinks": "x"})
    shadow, text = open_shadow(home, root), tmp_path / "text"
    kills = f'if grep -aq shrinks {text}; then touch "$GIT_INDEX_FILE.lock"; kill -BUS $$; fi'
    fake_git(
        tmp_path / "bin",
        f'case "$*" in *update-index*) cat > {text}; {kills}; exec "$real" "$@" < {text};; esac\nexec "$real" "$@"',
        monkeypatch,
    )
    snapshot = Snapshots(shadow).take()
    assert [(each.path, each.reason) for each in snapshot.uncaptured] == [("shrinks", "changing")]
    listed = shadow.run("ls-tree", "-r", "--name-only", snapshot.tree).decode().split()
    assert listed == [f"{n}.txt" for n in range(9)]


def test_a_comparison_that_kills_git_is_repeated(
    tmp_path: Path, home: Home, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root, {"a": "1"})
    flag = tmp_path / "flag"
    flag.touch()
    fake_git(
        tmp_path / "bin",
        f'case "$*" in *ls-files*) if [ -e {flag} ]; then rm {flag}; kill -BUS $$; fi;; esac\nexec "$real" "$@"',
        monkeypatch,
    )
    shadow = open_shadow(home, root)
    assert workspaces.file_content(home, shadow.workspace_id, Snapshots(shadow).take(), "a") == b"1"
    assert not flag.exists()


def test_directories_that_cannot_be_read_are_noted(
    tmp_path: Path, home: Home, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their files are neither missing without a note, nor deleted; what a file was renamed to is new. A file outside
    that seems to be renamed into them is deleted.
    """
    write(root, {"open/a": "1", "closed/b": "2\n" * 9, "closed/c": "3"})
    shadow = open_shadow(home, root)
    snapshots = Snapshots(shadow)
    first = snapshots.take()
    (root / "closed").rename(tmp_path / "closed")  # as git sees a directory that it must not open
    write(root, {"open/moved": "2\n" * 9})
    warning = "warning: could not open directory 'closed/': Permission denied"
    with monkeypatch.context() as patch:
        fake_git(
            tmp_path / "bin",
            f'case "$*" in *ls-files*) echo "{warning}" >&2;; esac\nexec "$real" "$@"',
            patch,
        )
        second = snapshots.take()
    assert [(e.path, e.reason) for e in second.uncaptured] == [("closed/", "unreadable")]
    found = [(each.kind, each.path, each.old_path) for each in changes(shadow, first, second)]
    assert found == [("added", "open/moved", None)]
    (tmp_path / "closed").rename(root / "closed")
    assert changes(shadow, second, snapshots.take()) == []
    (root / "open" / "moved").unlink()
    [lost] = changes(shadow, second, snapshots.take())
    assert (lost.kind, lost.path) == ("deleted", "open/moved")


def test_special_files_and_the_longest_names(
    tmp_path: Path, home: Home, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pipes, sockets and loops of links do not block; a path that is too long for the system is noted."""
    name = "n" * 255
    write(root, {name: "long"})
    os.mkfifo(root / "pipe")
    listener = socket.socket(socket.AF_UNIX)
    monkeypatch.chdir(root)
    listener.bind("socket")
    (root / "loop").symlink_to("loop")
    for _ in range(25):
        Path("d" * 200).mkdir()
        monkeypatch.chdir("d" * 200)
    Path("deep").write_text("x")
    monkeypatch.chdir(root)
    shadow = open_shadow(home, root)
    snapshot = Snapshots(shadow).take()
    listener.close()
    listed = shadow.run("ls-tree", "-r", "--name-only", snapshot.tree).decode().split()
    assert listed == ["loop", name]
    [noted] = snapshot.uncaptured
    assert (noted.path.strip("d/"), noted.reason) == ("", "unreadable")
    workspaces.keep_state(shadow, "a1", 1, snapshot)
    out = tmp_path / "out"
    assert workspaces.restore_state(home, shadow.workspace_id, snapshot, out).files == 2
    assert (out / name).read_text() == "long"


def test_the_index_of_a_killed_process_does_not_block(home: Home, root: Path) -> None:
    write(root, {"a": "1"})
    shadow = open_shadow(home, root)
    (shadow.git_dir / "index.lock").write_text("")
    assert Snapshots(shadow).take().is_stable


def test_settings_of_the_user_have_no_effect(
    home: Home, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables of git that a hook or a rebase sets, and the user's configuration, do not reach the shadow."""
    write(root, {"a": "1\r\n"})
    git(root, "init", "-q")
    write(root, {"gitconfig": "[core]\n\tautocrlf = input\n"})
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY"):
        monkeypatch.setenv(name, str(root / ".git" / "nowhere"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(root / "gitconfig"))
    shadow = open_shadow(home, root)
    assert (
        workspaces.file_content(home, shadow.workspace_id, Snapshots(shadow).take(), "a")
        == b"1\r\n"
    )
    assert not (root / ".git" / "index").exists()


def test_only_an_empty_directory_is_restored_into(home: Home, root: Path, tmp_path: Path) -> None:
    write(root, {"a": "1"})
    shadow = open_shadow(home, root)
    snapshot = Snapshots(shadow).take()
    for wrong, why in ((root, "is not empty"), (root / "a", "is not a directory")):
        with pytest.raises(UsageError, match=why):
            workspaces.restore_state(home, shadow.workspace_id, snapshot, wrong)
    assert kept(home, shadow, snapshot, tmp_path / "new" / "deep").is_dir()
    with pytest.raises(UsageError, match="state 7 of session a1"):
        workspaces.state(home, shadow.workspace_id, "a1", 7)
    with pytest.raises(UsageError, match="not in this home"):
        workspaces.state(home, "0" * 24, "a1", 1)


def test_forgotten_states_leave_no_content(home: Home, root: Path) -> None:
    """Content that only belongs to forgotten sessions is deleted; that of other sessions stays."""
    shadow = open_shadow(home, root)
    snapshots = Snapshots(shadow)
    blobs = []
    for session_id, text in (("a1", "one"), ("b2", "two")):
        write(root, {"only": text})
        snapshot = snapshots.take()
        workspaces.keep_state(shadow, session_id, 1, snapshot)
        blobs.append(shadow.run("rev-parse", f"{snapshot.tree}:only").decode().strip())
    assert workspaces.forget_states(home, {"a1", "other"}) == 1
    assert workspaces.blob_content(home, shadow.workspace_id, blobs[1]) == b"two"
    with pytest.raises(ShadowGitError):
        workspaces.blob_content(home, shadow.workspace_id, blobs[0])
    assert (
        Snapshots(shadow).take().is_same_state(workspaces.state(home, shadow.workspace_id, "b2", 1))
    )
    assert workspaces.forget_states(home, {"b2"}) == 1
    assert not shadow.git_dir.exists()


def test_modes_and_places(home: Home, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory of the states is closed to others, and no home directory is recorded."""
    shadow = open_shadow(home, root)
    for path in (shadow.path, shadow.path.parent):
        assert path.stat().st_mode & 0o777 == 0o700
    assert open_home(home.path) == home
    monkeypatch.setenv("HOME", str(root))
    for wrong in (root, Path("/")):
        with pytest.raises(UsageError, match="home directory"):
            workspace_root(wrong)


def test_secret_names() -> None:
    for name in (".env", ".ENV", ".env.local", "server.pem", "id_rsa", ".netrc"):
        assert is_secret_name(name), name
    for name in (".env.example", "env", "environment.py", "id_rsa.pub", "key.py"):
        assert not is_secret_name(name), name
