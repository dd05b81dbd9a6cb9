"""Fixtures that contain only the difference to a git commit: any clone with the commit supplies the other files."""

from __future__ import annotations

import dataclasses
import os
import shutil
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import agentobs
from agentobs.effects.workspaces.shadow_git import existing_shadow, open_shadow, workspace_root
from agentobs.effects.workspaces.snapshots import Snapshots
from agentobs.errors import RecordingError, UsageError
from agentobs.recording.journal.home import open_home
from agentobs.store.backend import open_store
from agentobs.store.recorded_workspaces import recorded_states, snapshot_of
from replay import load
from replay.fixture.line_check import HEADER
from replay.freeze.conversion import FrozenWorkspace
from replay.workspace.base_commit import VARIABLE, object_reader
from replay.workspace.bundle_file import bundle_bytes, read_bundle
from replay.workspace.recorded_workspace import RecordedWorkspace, workspace_of
from replay.workspace.scratch import Scratch
from tests.cli.test_commands import Shell
from tests.effects.workspaces.file_sessions import (
    RECORDED,
    RECORDED_TURNS,
    FileProvider,
    record_session,
    serving,
)
from tests.effects.workspaces.trees import FileState, files_of, git, hostile_repository, write
from tests.marks import mark_all_but_first

SECRET = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
Files = dict[bytes, FileState]


def captured(home: Path, root: Path, commit: str | None = None) -> RecordedWorkspace:
    """Return the current files of a repository as a recorded workspace; `commit` is that of HEAD by default."""
    shadow = open_shadow(open_home(str(home)), workspace_root(root))
    tree = Snapshots(shadow).take().tree
    head = commit or git(root, "rev-parse", "HEAD").strip()
    objects = shadow.git_dir / "objects"
    return RecordedWorkspace(
        objects, tree, tree, {1: tree}, root.name, has_repository=True, commit=head
    )


def frozen(
    recorded: RecordedWorkspace, folder: Path, *, standalone: bool = False
) -> tuple[RecordedWorkspace, str]:
    """Return the files as the fixture in a folder has them, and which ones are stored."""
    files = FrozenWorkspace(recorded, is_standalone=standalone)
    return files.written(folder / "workspace.bundle", None)


def moved(workspace: RecordedWorkspace, folder: Path) -> RecordedWorkspace:
    """Return the files of a fixture that was copied to another folder."""
    folder.mkdir(parents=True)
    shutil.copy(workspace.source, folder)
    return dataclasses.replace(workspace, source=folder / workspace.source.name)


def restored(workspace: RecordedWorkspace, out: Path) -> Files:
    """Return the files at the start of a session, written into a new directory."""
    scratch = Scratch(workspace, out)
    try:
        assert scratch.difference(workspace.start).is_equal
        return files_of(scratch.root)
    finally:
        scratch.close()


def stored_objects(workspace: RecordedWorkspace) -> Counter[str]:
    """Return how many objects of each kind are in a bundle."""
    with object_reader() as reader:
        read_bundle(reader, workspace.source)
        listed = reader.run("cat-file", "--batch-all-objects", "--batch-check").decode()
    return Counter(each.split(" ")[1] for each in listed.splitlines())


def repository(root: Path, **options: str) -> str:
    """Create a repository with a commit of 13 files, 10 of them of 10 kB; return the ID of the commit."""
    root.mkdir(parents=True)
    git(root, "init", "-q", *(f"--{name}={value}" for name, value in options.items()))
    write(root, {f"src/{n}/module.py": f"x = {n}\n" * 1500 for n in range(10)})
    write(root, {"run.sh": "#!/bin/sh\n", "docs/a.md": "a\n", "docs/b.md": "b\n"})
    git(root, "add", "-A")
    git(root, "commit", "-qm", "start")
    return git(root, "rev-parse", "HEAD").strip()


def changed(root: Path) -> Files:
    """Change a repository in all ways; return its files."""
    write(root, {"src/7/module.py": "x = 7\r\n", "new/file.bin": b"\x00\xff"})
    (root / "run.sh").chmod(0o755)
    (root / "docs" / "a.md").unlink()
    (root / "docs" / "a.md").symlink_to("b.md")
    shutil.rmtree(root / "src" / "8")
    write(root, {"src/8": "a file instead of a directory\n"})
    return files_of(root)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def whole_clone(origin: Path, clone: Path) -> None:
    git(origin, "clone", "-q", str(origin), str(clone))


def shallow_clone(origin: Path, clone: Path) -> None:
    git(origin, "clone", "-q", "--depth=1", f"file://{origin}", str(clone))


def borrowing_clone(origin: Path, clone: Path) -> None:
    git(origin, "clone", "-q", "--shared", str(origin), str(clone))


def working_tree(origin: Path, clone: Path) -> None:
    git(origin, "worktree", "add", "-q", "-b", "topic", str(clone))


def submodule(origin: Path, clone: Path) -> None:
    git(clone.parent, "init", "-q")
    git(clone.parent, "submodule", "--quiet", "add", str(origin), clone.name)


@pytest.mark.parametrize(
    "cloned",
    mark_all_but_first(
        [whole_clone, shallow_clone, borrowing_clone, working_tree, submodule],
        pytest.mark.slow,
    ),
)
def test_any_clone_with_the_commit_supplies_the_files(
    cloned: Callable[[Path, Path], None], tmp_path: Path, home: Path
) -> None:
    """Changed, added and deleted files, modes and links are in the fixture, and nothing else is."""
    origin, clone = tmp_path / "origin", tmp_path / 'a "clone"'
    commit = repository(origin)
    cloned(origin, clone)
    expected = changed(origin)
    recorded = captured(home, origin)
    for number, place in enumerate((origin, clone)):
        workspace, stored = frozen(recorded, place / "fixtures" / "fix")
        assert workspace.base == commit
        local = ", which only local branches contain"
        is_local = place == origin or cloned is working_tree
        assert stored == f"those that differ from the git commit {commit}{local * is_local}"
        assert stored_objects(workspace) == {"blob": 4, "tree": 5, "commit": 1}
        assert restored(workspace, tmp_path / f"out-{number}") == expected
    workspace = moved(workspace, clone / "deep" / "other")
    assert restored(workspace, tmp_path / "moved") == expected
    first = workspace.source.read_bytes()
    git(origin, "gc", "-q")
    assert frozen(recorded, clone / "again")[0].source.read_bytes() == first


@pytest.mark.slow
def test_files_are_those_that_were_recorded_byte_for_byte(tmp_path: Path, home: Path) -> None:
    """Submodules, Git LFS, line endings, keywords, odd names, a rebase in progress; no filter and no hook runs."""
    root = tmp_path / "root"
    hostile_repository(root)
    # Git itself cannot add a file of this repository, because its encoding is wrong.
    recorded = dataclasses.replace(captured(home, root), has_repository=False)
    expected = {
        path: state for path, state in files_of(root).items() if not path.endswith(b"ignored.log")
    }
    shallow = tmp_path / "shallow"
    git(root, "clone", "-q", "--depth=1", "--branch=main", f"file://{root}", str(shallow))
    for name in ("clean", "smudge", "process"):
        git(shallow, "config", f"filter.lfs.{name}", "false")
    git(shallow, "config", "core.autocrlf", "true")
    for place in (root, shallow):
        workspace, stored = frozen(recorded, place / "fixture")
        assert "those that differ" in stored
        assert restored(workspace, tmp_path / place.name / "out") == expected


def test_converted_files_are_stored_with_the_recorded_bytes(tmp_path: Path, home: Path) -> None:
    """A checkout converts line endings, so the file in the workspace is not that of the commit."""
    root = tmp_path / "root"
    repository(root)
    write(root, {".gitattributes": "*.md text eol=crlf\n*.bin filter=lfs\n", "a.bin": "pointer\n"})
    git(root, "add", "-A")
    git(root, "commit", "-qm", "attributes")
    for name in ("docs/a.md", "docs/b.md", "a.bin"):
        (root / name).unlink()
    git(root, "-c", "filter.lfs.smudge=echo the file itself", "checkout", "--", ".")
    assert (root / "docs" / "a.md").read_bytes() == b"a\r\n"
    assert (root / "a.bin").read_bytes() == b"the file itself\n"
    workspace, _ = frozen(captured(home, root), root / "fixture")
    assert workspace.base is not None
    shutil.rmtree(root / "docs")
    (root / "a.bin").unlink()
    found = restored(workspace, tmp_path / "out")
    assert found[b"docs/a.md"] == ("file", b"a\r\n")
    assert found[b"a.bin"] == ("file", b"the file itself\n")


@pytest.mark.slow
def test_a_large_repository_makes_a_small_fixture(tmp_path: Path, home: Path) -> None:
    """25 MB in 5 files, and a change of 1 kB; the size limit counts what is stored."""
    root = tmp_path / "root"
    root.mkdir()
    git(root, "init", "-q")
    write(root, {f"data/{n}.txt": f"{n:0100}\n".encode() * 49_505 for n in range(5)})
    git(root, "add", "-A")
    git(root, "commit", "-qm", "data")
    write(root, {"change.txt": os.urandom(1000)})
    recorded = captured(home, root)
    workspace, _ = frozen(recorded, root / "fixture")
    assert workspace.source.stat().st_size < 2500
    expected = files_of(root, skipped=(".git", "fixture"))
    assert sum(len(content) for _, content in expected.values()) > 25_000_000
    assert restored(workspace, tmp_path / "out") == expected
    with pytest.raises(
        UsageError, match=r"have 23\.\d MiB, but a fixture stores at most 20\.0 MiB"
    ):
        frozen(recorded, root / "other", standalone=True)


def test_a_missing_commit_is_one_error_and_fetching_it_helps(tmp_path: Path, home: Path) -> None:
    origin, shallow = tmp_path / "origin", tmp_path / "shallow"
    commit = repository(origin)
    expected = changed(origin)
    workspace, _ = frozen(captured(home, origin), origin / "fixture")
    git(origin, "commit", "-qam", "later")
    shallow_clone(origin, shallow)
    copy = moved(workspace, shallow / "fixture")
    with pytest.raises(UsageError) as raised:
        Scratch(copy, tmp_path / "missing")
    text = str(raised.value)
    assert f"the git commit {commit}, which is not in {shallow}" in text
    assert "--workspace --standalone" in text
    assert f"git fetch origin {commit}" in text
    git(shallow, "fetch", "-q", "--depth=1", "origin", commit)
    assert restored(copy, tmp_path / "fetched") == expected
    outside = moved(workspace, tmp_path / "outside")
    with pytest.raises(UsageError, match="and the fixture is not in a git repository"):
        Scratch(outside, tmp_path / "no-repository")


@pytest.mark.slow
def test_another_repository_can_be_named(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clone, a directory in it or a bare repository; then no other one is used."""
    origin, bare = tmp_path / "origin", tmp_path / "bare.git"
    repository(origin)
    expected = changed(origin)
    git(origin, "clone", "-q", "--bare", str(origin), str(bare))
    recorded = captured(home, origin)
    for number, place in enumerate((origin, origin / "src", bare)):
        monkeypatch.setenv(VARIABLE, str(place))
        workspace, _ = frozen(recorded, tmp_path / f"fixture-{number}")
        assert workspace.base is not None
        assert restored(workspace, tmp_path / f"out-{number}") == expected
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(UsageError, match="not a git repository"):
        Scratch(moved(workspace, origin / "fixture"), tmp_path / "wrong")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prepared", "why"),
    [
        (lambda root: git(root, "checkout", "-q", "--detach"), None),
        (lambda root: git(root, "tag", "v1"), None),
        (lambda root: (git(root, "tag", "v1"), git(root, "checkout", "--orphan", "new")), None),
        (lambda root: git(root, "pack-refs", "--all"), None),
        (lambda root: _lost(root), "no branch or tag"),
        (lambda root: _lost(root, "stash"), "no branch or tag"),
        (lambda root: shutil.rmtree(root / ".git"), "not in a git repository"),
        (lambda root: (root / ".git" / "config").write_text("["), "no branch or tag"),
        (lambda root: (root / ".git" / "HEAD").unlink(), "not in a git repository"),
    ],
)
def test_the_commit_must_be_on_a_branch_or_tag(
    prepared: Callable[[Path], object], why: str | None, tmp_path: Path, home: Path
) -> None:
    """A commit that only HEAD or the stash has is deleted sooner or later, so all files are stored."""
    root = tmp_path / "root"
    commit = repository(root)
    prepared(root)
    if (root / ".git" / "HEAD").exists() and why is not None:
        commit = (root / "commit").read_text() if (root / "commit").exists() else commit
    expected = changed(root)
    workspace, stored = frozen(captured(home, root, commit), root / "fixture")
    assert (workspace.base, why or "those that differ") == (
        None if why else commit,
        why or "those that differ",
    )
    assert (why or "those that differ") in stored
    assert restored(workspace, tmp_path / "out") == expected


def _lost(root: Path, reference: str | None = None) -> None:
    """Create a commit that no branch has, and write its ID into the file `commit`."""
    git(root, "checkout", "-q", "--detach")
    git(root, "commit", "-q", "--allow-empty", "-m", "lost")
    lost = git(root, "rev-parse", "HEAD").strip()
    if reference is not None:
        git(root, "update-ref", f"refs/{reference}", lost)
        git(root, "checkout", "-q", "main")
    (root / "commit").write_text(lost)


def test_without_a_commit_all_files_are_stored(tmp_path: Path, home: Path) -> None:
    """No commit yet, a repository with SHA-256, and a commit that shares no file with the workspace."""
    root = tmp_path / "root"
    repository(root)
    recorded = captured(home, root)
    assert frozen(dataclasses.replace(recorded, commit=None), root / "a") == (
        dataclasses.replace(recorded, commit=None, source=root / "a" / "workspace.bundle"), "all",
    )  # fmt: skip
    other = tmp_path / "other"
    repository(other, **{"object-format": "sha256"})
    workspace, stored = frozen(captured(home, other), other / "fixture")
    assert (workspace.base, stored) == (
        None, "all, because the repository of the session does not use SHA-1",
    )  # fmt: skip
    empty = dataclasses.replace(recorded, start=_empty_tree(root), end=None, turns={})
    workspace, stored = frozen(empty, root / "c")
    assert (workspace.base, stored.startswith("all, because")) == (None, True)


def _empty_tree(root: Path) -> str:
    return git(root, "hash-object", "-t", "tree", "-w", "/dev/null").strip()


def test_a_repository_around_that_of_the_fixture_is_searched(tmp_path: Path, home: Path) -> None:
    """The fixture may be in a submodule, and the session in the repository around it."""
    root = tmp_path / "root"
    commit = repository(root)
    expected = changed(root)
    recorded = captured(home, root)
    repository(root / "tests" / "data")
    workspace, _ = frozen(recorded, root / "tests" / "data" / "fixture")
    assert workspace.base == commit
    assert restored(workspace, tmp_path / "out") == expected


def test_a_partial_clone_is_not_completed(tmp_path: Path, home: Path) -> None:
    """Nothing is downloaded: all files are stored, and a fixture of another clone is refused."""
    origin, partial = tmp_path / "origin", tmp_path / "partial"
    commit = repository(origin)
    git(origin, "config", "uploadpack.allowFilter", "true")
    git(
        origin,
        "clone",
        "-q",
        "--filter=blob:none",
        "--no-checkout",
        f"file://{origin}",
        str(partial),
    )
    before = _state(partial / ".git")
    recorded = captured(home, origin)
    workspace, stored = frozen(recorded, partial / "fixture")
    assert (workspace.base, "lacks some of its files" in stored) == (None, True)
    workspace, _ = frozen(recorded, origin / "fixture")
    with pytest.raises(UsageError, match=rf"{commit}, and the repository lacks \d+ of its objects"):
        Scratch(moved(workspace, partial / "other"), tmp_path / "out")
    assert _state(partial / ".git") == before


def test_the_repository_is_never_changed(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hooks, a monitor of files, replacements and variables of git have no effect, and no file gets another time."""
    root, marker = tmp_path / "root", tmp_path / "marker"
    repository(root)
    expected = changed(root)
    git(root, "add", "docs")
    recorded = captured(home, root)
    hook = tmp_path / "hooks" / "hook"
    write(tmp_path, {"hooks/hook": f"#!/bin/sh\ntouch {marker}\n"})
    hook.chmod(0o755)
    for name in ("post-checkout", "post-index-change", "reference-transaction", "pre-commit"):
        shutil.copy(hook, hook.with_name(name))
    git(root, "config", "core.hooksPath", str(hook.parent))
    git(root, "config", "core.fsmonitor", str(hook))
    blob = git(root, "rev-parse", "HEAD:docs/b.md").strip()
    git(root, "replace", blob, git(root, "rev-parse", "HEAD:run.sh").strip())
    marker.unlink(missing_ok=True)
    before = _state(root / ".git")
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_WORK_TREE"):
        monkeypatch.setenv(name, str(tmp_path / "nowhere"))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", str(hook))
    workspace, _ = frozen(recorded, root / "fixture")
    assert workspace.base is not None
    assert restored(workspace, tmp_path / "out") == expected
    assert _state(root / ".git") == before
    assert not marker.exists()


def _state(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Return the time and the content of all files of a directory."""
    files = (each for each in directory.rglob("*") if each.is_file())
    return {str(each): (each.stat().st_mtime_ns, each.read_bytes()) for each in files}


def test_a_difference_with_a_secret_is_refused(tmp_path: Path, home: Path) -> None:
    """A secret in the commit is not in the fixture; one in a name is in the listing of its directory."""
    root = tmp_path / "root"
    repository(root)
    write(root, {"settings.py": f"TOKEN = {SECRET!r}\n"})
    git(root, "add", "-A")
    git(root, "commit", "-qm", "token")
    workspace, _ = frozen(captured(home, root), root / "fixture")
    assert workspace.base is not None
    git(root, "checkout", "-q", "--orphan", "other")
    git(root, "commit", "-qm", "one file less", "--", "docs")
    with pytest.raises(RecordingError, match=r"settings\.py line 1 \(github_token\)"):
        frozen(captured(home, root), root / "other")
    write(root, {f"docs/{SECRET}": ""})
    git(root, "add", "-A")
    git(root, "commit", "-qm", "name")
    write(root, {"docs/b.md": "changed\n"})
    with pytest.raises(RecordingError, match=r"line 0 \(github_token\)"):
        frozen(captured(home, root), root / "third")


@pytest.mark.parametrize(
    "base",
    ["HEAD", "--all", "refs/heads/main", "a" * 39, "A" * 40, "a" * 64, "a" * 40 + "\n", None, 1],
)
def test_a_base_is_the_id_of_a_commit(base: object) -> None:
    header = {"bundle": "w", "name": "p", "directory": ".", "start": "a" * 40, "turns": {}}
    is_valid, _ = HEADER["workspace"]
    assert is_valid({**header, "base": "b" * 40})
    assert not is_valid({**header, "base": base})


def hostile(folder: Path, root: Path, entries: bytes, base: str | None = None) -> RecordedWorkspace:
    """Return a fixture in `folder` whose only tree has the given entries, which are in the repository `root`."""
    (root / "tree").write_bytes(entries)
    tree = git(root, "hash-object", "-t", "tree", "-w", "--literally", "tree").strip()
    (root / "tree").unlink()
    with object_reader(root / ".git" / "objects") as reader:
        head = git(root, "rev-parse", "HEAD").strip()
        data = bundle_bytes(reader, {"refs/trees/x": head}, [(head, b"")], base or head)
    folder.mkdir(parents=True)
    (folder / "workspace.bundle").write_bytes(data)
    return RecordedWorkspace(folder / "workspace.bundle", tree, None, base=base or head)


def test_a_hostile_fixture_cannot_lead_out_of_its_directory(tmp_path: Path) -> None:
    """Paths with dots, `.git`, a file below a link, and an object that is something else."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    repository(root)
    outside.mkdir()
    blob = bytes.fromhex(git(root, "rev-parse", "HEAD:run.sh").strip())
    docs = bytes.fromhex(git(root, "rev-parse", "HEAD:docs").strip())
    (root / "target").write_bytes(bytes(outside))
    link = bytes.fromhex(git(root, "hash-object", "-w", "target").strip())
    cases = {
        "dots": b"40000 ..\0" + docs,
        "dot": b"40000 .\0" + docs,
        "git": b"40000 .git\0" + docs,
        "upper": b"40000 .GIT\0" + docs,
        "slash": b"100644 ../up\0" + blob,
        "link": b"120000 a\0" + link + b"40000 a\0" + docs,
        "kind": b"40000 a\0" + blob,
        "file": b"100644 a\0" + docs,
        "absent": b"100644 a\0" + b"\x11" * 20,
        "text": b"no tree",
        "short": b"40000 a\0" + docs[:5],
    }
    for name, entries in cases.items():
        workspace, out = hostile(root / "fixtures" / name, root, entries), tmp_path / name
        if name == "link":  # git writes the directory only
            Scratch(workspace, out).close()
            continue
        with pytest.raises(UsageError):
            Scratch(workspace, out).close()
        assert [path for path in out.rglob("*") if path.is_file()] == [], name
    assert list(outside.iterdir()) == []


def test_a_base_that_is_not_a_commit_is_refused(tmp_path: Path, home: Path) -> None:
    """The ID of a tree or a file of the repository is not searched for files."""
    root = tmp_path / "root"
    repository(root)
    workspace, _ = frozen(captured(home, root), root / "fixture")
    for name in ("HEAD^{tree}", "HEAD:run.sh"):
        base = git(root, "rev-parse", name).strip()
        with pytest.raises(UsageError, match=rf"the git commit {base}, which is not in"):
            Scratch(dataclasses.replace(workspace, base=base), tmp_path / "out")


def test_an_object_whose_hash_does_not_fit_is_refused(tmp_path: Path, home: Path) -> None:
    """A file and a directory of the repository have the content of another one, or cannot be read."""
    root = tmp_path / "root"
    repository(root)
    workspace, _ = frozen(captured(home, root), root / "fixture")
    blob, tree = (git(root, "rev-parse", f"HEAD:{each}").strip() for each in ("run.sh", "docs"))
    other = git(root, "rev-parse", "HEAD:src/1").strip()
    for number, (name, data) in enumerate(
        (
            (blob, zlib.compress(b"blob 10\0#!/bin/no\n")),
            (tree, _object(root, other).read_bytes()),
            (blob, b"damaged"),
        )
    ):
        file = _object(root, name)
        before = file.read_bytes()
        file.chmod(0o644)
        file.write_bytes(data)
        with pytest.raises(UsageError, match=r"damaged in the repository.*|lacks 1 of its objects"):
            Scratch(workspace, tmp_path / f"out-{number}")
        file.write_bytes(before)
    restored(workspace, tmp_path / "repaired")


def _object(root: Path, name: str) -> Path:
    return root / ".git" / "objects" / name[:2] / name[2:]


def test_the_bundle_is_one_that_git_reads(tmp_path: Path, home: Path) -> None:
    """Git names the required commit, and can fetch the files into a clone that has it."""
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    commit = repository(origin)
    whole_clone(origin, clone)
    changed(origin)
    recorded = captured(home, origin)
    workspace, _ = frozen(recorded, origin / "fixture")
    bundle = str(workspace.source)
    assert commit in git(clone, "bundle", "verify", bundle)
    git(clone, "fetch", "-q", bundle, "refs/trees/*:refs/trees/*")
    assert (
        git(clone, "rev-parse", f"refs/trees/{workspace.start}^{{tree}}").strip() == workspace.start
    )
    whole, _ = frozen(recorded, origin / "whole", standalone=True)
    git(tmp_path, "init", "-q", "empty")
    git(tmp_path / "empty", "fetch", "-q", str(whole.source), "refs/trees/*:refs/trees/*")
    git(tmp_path / "empty", "fsck", "--strict")


def _rebasing(root: Path) -> Path:
    for branch, start, text in (("topic", "main", "topic\n"), ("other", "main", "other\n")):
        git(root, "checkout", "-qb", branch, start)
        write(root, {"docs/a.md": text})
        git(root, "commit", "-qam", branch)
    git(root, "rebase", "topic", check=False)  # stops with a conflict
    assert (root / ".git" / "rebase-merge").is_dir()
    return root


def _detached(root: Path) -> Path:
    git(root, "checkout", "-q", "--detach")
    return root


def _unborn(root: Path) -> Path:
    git(root, "checkout", "-q", "--orphan", "new")
    return root


def _linked(root: Path) -> Path:
    working_tree(root, root.parent / "linked")
    return root.parent / "linked"


def _without_git(root: Path) -> Path:
    shutil.rmtree(root / ".git")
    return root


@pytest.mark.parametrize(
    ("prepared", "has_commit"),
    mark_all_but_first(
        [
            (lambda root: root, True),
            (lambda root: root / "src" / "7", True),
            (_detached, True),
            (_rebasing, True),
            (_linked, True),
            (_unborn, False),
            (_without_git, False),
        ],
        pytest.mark.slow,
    ),
)
def test_the_commit_is_that_of_the_start_of_the_session(
    prepared: Callable[[Path], Path],
    has_commit: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A session in a subdirectory, a detached HEAD, a rebase, a working tree; later commits do not matter."""
    root = tmp_path / "root"
    repository(root)
    directory = prepared(root)
    expected = git(directory, "rev-parse", "HEAD").strip() if has_commit else None
    monkeypatch.chdir(directory)
    agentobs.stop_recorder()
    agentobs.start(str(tmp_path / "home"))
    with agentobs.session("fix", effects=["files"]) as found:
        write(directory, {"later.txt": "later\n"})
        git(directory, "add", "later.txt", check=False)
        git(directory, "commit", "-qm", "later", check=False)
    agentobs.stop_recorder()
    with open_store(str(tmp_path / "home"), ingest=False) as store:
        states = recorded_states(store, found.session_id)
        snapshot = snapshot_of(store.home, states[0])
        objects = existing_shadow(store.home, states[0].workspace_id).git_dir / "objects"
    assert states[0].commit == expected
    recorded = RecordedWorkspace(objects, snapshot.tree, None, commit=states[0].commit)
    workspace, stored = frozen(recorded, directory / "fixture")
    assert workspace.base == expected
    assert stored.startswith("those that differ" if has_commit else "all")
    files = restored(workspace, tmp_path / "out")
    assert len(files) == 13
    assert b"later.txt" not in files


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record a session in a repository with a commit, in a directory with the home and the project."""
    folder = tmp_path_factory.mktemp("base")
    with serving(FileProvider({RECORDED: RECORDED_TURNS})) as provider:
        record_session(folder, provider, is_committed=True)
    return folder


@pytest.mark.slow
def test_a_fixture_replays_in_a_clone_and_nowhere_else(
    session: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    pytester: pytest.Pytester,
) -> None:
    """The check of `freeze`, the replay and the test use the repository of the fixture."""
    shell, clone = Shell(session / "home", capsys), tmp_path / "clone"
    start = git(session / "project", "rev-parse", "HEAD").strip()
    shallow_clone(session / "project", clone)
    monkeypatch.chdir(tmp_path)
    ended = shell("freeze", "fix", "--workspace", "-o", str(clone / "fixtures" / "fix"))
    assert ended.code == 0, ended.err
    assert f"files  stored: those that differ from the git commit {start}" in ended.out
    assert "replays: yes, 12 of 12 requests are exact" in ended.out
    workspace = workspace_of(load(clone / "fixtures" / "fix"))
    assert workspace is not None
    assert workspace.base == start
    assert start in (clone / "fixtures" / "fix" / "README.md").read_text()
    ended = shell("replay", str(clone / "fixtures" / "fix"))
    assert ended.code == 0, ended.out
    assert "files at the end: equal to the recorded ones" in ended.out
    options = ("-p", "no:cacheprovider", "--replay-no-fork", f"--rootdir={clone}")
    ran = pytester.runpytest_inprocess(*options, str(clone / "fixtures"))
    ran.assert_outcomes(passed=1)
    outside = Path(shutil.copytree(clone / "fixtures" / "fix", tmp_path / "outside"))
    ended = shell("replay", str(outside))
    assert ended.code == 1
    assert f"the files that differ from the git commit {start}" in ended.err
    assert "Traceback" not in ended.err
    monkeypatch.setenv(VARIABLE, str(clone))
    assert shell("replay", str(outside)).code == 0


@pytest.mark.slow
def test_a_standalone_fixture_replays_anywhere(
    session: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Freezing again without the option returns to the difference."""
    shell, folder = Shell(session / "home", capsys), session / "project" / "fixtures" / "fix"
    monkeypatch.chdir(tmp_path)
    ended = shell("freeze", "fix", "--standalone", "-o", str(folder))
    assert (ended.code, "requires --workspace" in ended.err) == (1, True)
    options = ("--no-check", "-o", str(folder))
    ended = shell("freeze", "fix", "--workspace", "--standalone", *options)
    assert (ended.code, "files  stored: all\n" in ended.out) == (0, True)
    outside = Path(shutil.copytree(folder, tmp_path / "outside"))
    assert shell("replay", str(outside)).code == 0
    large = (folder / "workspace.bundle").stat().st_size
    assert shell("freeze", "fix", "--workspace", *options).code == 0
    assert (folder / "workspace.bundle").stat().st_size < large
    assert workspace_of(load(folder)) != workspace_of(load(outside))
    shutil.rmtree(folder)
