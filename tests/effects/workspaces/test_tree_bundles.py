"""Recorded files in a git bundle: any tree comes back byte for byte, and freezing again writes the same bytes."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentobs.effects.workspaces.shadow_git import open_shadow, workspace_root
from agentobs.effects.workspaces.snapshots import Snapshots
from agentobs.errors import RecordingError, UsageError
from agentobs.recording.journal.home import open_home
from replay.fixture.line_check import HEADER
from replay.freeze.conversion import FrozenWorkspace
from replay.workspace.recorded_workspace import RecordedWorkspace, workspace_of
from replay.workspace.scratch import Scratch, TreeRepository, changed_files
from replay.workspace.tree_bundle import write_bundle
from tests.effects.workspaces.trees import files_of, git, hostile_repository, write

SECRET = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"


def captured(home: Path, root: Path) -> RecordedWorkspace:
    """Return the current files of a directory as a recorded workspace."""
    shadow = open_shadow(open_home(str(home)), workspace_root(root))
    tree = Snapshots(shadow).take().tree
    return RecordedWorkspace(shadow.git_dir / "objects", tree, tree, {1: tree}, root.name)


def test_a_hostile_tree_comes_back_byte_for_byte(tmp_path: Path) -> None:
    """Submodules, filters, CRLF, links, names that are not UTF-8, a rebase in progress; git converts nothing."""
    root = tmp_path / "root"
    hostile_repository(root)
    recorded = captured(tmp_path / "home", root)
    bundled = write_bundle(recorded, tmp_path / "fixture" / "workspace.bundle")
    first = bundled.source.read_bytes()
    assert write_bundle(recorded, bundled.source).source.read_bytes() == first
    expected = {
        path: state for path, state in files_of(root).items() if not path.endswith(b"ignored.log")
    }
    for workspace in (recorded, bundled):
        scratch = Scratch(workspace, tmp_path / workspace.source.name / "out")
        assert files_of(scratch.root) == expected
        assert scratch.difference(recorded.start).is_equal
        (scratch.root / "run.sh").chmod(0o644)
        (scratch.root / "link").unlink()
        (scratch.root / "link").mkdir()
        write(scratch.root, {"link/inner": "x", "src/a.py": "other\n"})
        changed = {each.path for each in scratch.difference(recorded.start).changes}
        assert changed == {"run.sh", "link", "link/inner", "src/a.py"}
        assert len(changed_files(workspace, scratch.root).changes) == 4
        assert scratch.restore(recorded.start) == 4
        assert files_of(scratch.root) == expected
        scratch.close()


def test_the_home_may_have_any_path(tmp_path: Path) -> None:
    """Git reads the directories with recorded files from a list, in which quotes and line breaks are special."""
    root, home = tmp_path / "root", tmp_path / 'ho\nme "1" \\n#'
    write(root, {"a.txt": "a\n"})
    recorded = captured(home, root)
    scratch = Scratch(recorded, tmp_path / "out")
    assert files_of(scratch.root) == files_of(root)
    scratch.close()
    with open_shadow(open_home(str(home)), workspace_root(root)).derived() as derived:
        assert derived.run("ls-tree", "--name-only", recorded.start) == b"a.txt\n"


def test_a_session_of_a_repository_gets_a_repository(tmp_path: Path) -> None:
    """Its only commit has the files, so changes are shown by git; the comparison of files does not see it."""
    root = tmp_path / "root"
    write(
        root,
        {"a.txt": b"one\r\n", ".gitattributes": "* text=auto eol=lf\n", ".gitignore": "*.log\n"},
    )
    recorded = dataclasses.replace(captured(tmp_path / "home", root), has_repository=True)
    scratch = Scratch(recorded, tmp_path / "out")
    assert files_of(scratch.root) == files_of(root)
    assert git(scratch.root, "status", "--porcelain") == ""
    assert git(scratch.root, "log", "--format=%an %s") == (
        "agentobs files at the start of a recorded session\n"
    )
    assert scratch.difference(recorded.start).is_equal
    write(scratch.root, {"b.txt": "new\n"})
    assert git(scratch.root, "status", "--porcelain") == "?? b.txt\n"
    write(scratch.root, {"src/__pycache__/a.pyc": "time"})
    found = scratch.difference(recorded.start)
    assert [each.path for each in found.changes] == ["b.txt"]
    assert "+new" in found.patch
    assert "pycache" not in found.patch
    assert len(changed_files(recorded, scratch.root).changes) == 1
    scratch.close()


def test_a_part_of_a_session_has_only_its_turns(tmp_path: Path) -> None:
    """The files of later turns are not in the bundle; patterns leave out files, directories and names in any case."""
    root = tmp_path / "root"
    write(root, {"a.txt": "1", "data/b.bin": "2", "data/deep/c.txt": "3", "d.bin": "4"})
    first = captured(tmp_path / "home", root)
    write(root, {"later.txt": "later"})
    later = captured(tmp_path / "home", root).start
    whole = dataclasses.replace(first, end=later, turns={1: first.start, 2: later})
    part, stored = FrozenWorkspace(whole, ("*.bin", "data/deep/")).written(
        tmp_path / "part.bundle", 1
    )
    assert stored == "all"
    assert (part.end, sorted(part.turns)) == (None, [1])
    assert part.start != first.start
    scratch = Scratch(part, tmp_path / "out")
    assert files_of(scratch.root).keys() == {b"a.txt"}
    write(scratch.root, {"new.bin": "x"})
    assert scratch.difference(part.start).is_equal
    with pytest.raises(UsageError, match="has the files of turns 1 to 1"):
        part.at_turn(2)
    scratch.close()


def test_a_tree_cannot_lead_out_of_its_directory(tmp_path: Path) -> None:
    """A fixture may come from others: a path with dots is refused, and a link is never followed."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    outside.mkdir()
    write(root, {"inner/file": "content"})
    recorded = captured(tmp_path / "home", root)
    scratch = Scratch(recorded, tmp_path / "out")
    (scratch.root / "inner" / "file").unlink()
    (scratch.root / "inner").rmdir()
    (scratch.root / "inner").symlink_to(outside)
    scratch.restore(recorded.start)
    assert files_of(scratch.root) == files_of(root)
    assert list(outside.iterdir()) == []
    scratch.close()
    plain = tmp_path / "plain"
    git(tmp_path, "init", "-q", str(plain))
    write(plain, {"file": "x"})
    blob = git(plain, "hash-object", "-w", "file").strip()
    entry = b"100644 ..\0" + bytes.fromhex(blob)
    (plain / "tree").write_bytes(entry)
    tree = git(plain, "hash-object", "-t", "tree", "-w", "--literally", "tree").strip()
    hostile = RecordedWorkspace(plain / ".git" / "objects", tree, None)
    with pytest.raises(UsageError, match="cannot be read"):
        Scratch(hostile, tmp_path / "hostile")
    for name in ("../up", os.devnull):
        leading = dataclasses.replace(recorded, directory=name)
        scratch = Scratch(leading, tmp_path / f"leading-{len(name)}")
        with pytest.raises(UsageError, match="outside of the workspace"):
            _ = scratch.directory
        scratch.close()


def test_files_that_were_left_out_stay_when_files_are_restored(tmp_path: Path) -> None:
    """The replayed tools have produced them, and the live tools may need them."""
    root = tmp_path / "root"
    write(root, {"a.txt": "1", "model.bin": "2"})
    recorded = captured(tmp_path / "home", root)
    part = write_bundle(recorded, tmp_path / "workspace.bundle", ("*.bin",))
    scratch = Scratch(part, tmp_path / "out")
    write(scratch.root, {"model.bin": "produced", "b.txt": "x"})
    assert scratch.restore(part.start) == 1
    assert files_of(scratch.root).keys() == {b"a.txt", b"model.bin"}
    scratch.close()


def test_a_secret_in_any_name_of_equal_files_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write(root, {"a.txt": "", f"z-{SECRET}.txt": ""})
    with pytest.raises(RecordingError, match=r"z-ghp_.* line 0"):
        write_bundle(captured(tmp_path / "home", root), tmp_path / "workspace.bundle")


def test_a_bundle_that_expands_to_too_many_files_is_refused(tmp_path: Path) -> None:
    """Ten nested trees with ten equal directories each have 10,000,000,000 files, and 2 kB."""
    root = tmp_path / "root"
    write(root, {"a.txt": "1"})
    recorded = captured(tmp_path / "home", root)
    trees = TreeRepository(recorded, root)
    tree = recorded.start
    for _ in range(10):
        listing = b"".join(b"040000 tree %b\t%d\n" % (tree.encode(), n) for n in range(10))
        tree = trees.shadow.run("mktree", text=listing).decode().strip()
    commit = trees.shadow.run("commit-tree", tree, "-m", "x").decode().strip()
    trees.shadow.run("update-ref", "refs/trees/x", commit)
    bundle = tmp_path / "workspace.bundle"
    trees.shadow.run("bundle", "create", "--quiet", bundle, "--all")
    trees.close()
    hostile = RecordedWorkspace(bundle, tree, tree, {1: tree})
    with pytest.raises(UsageError, match="more than 500,000 files"):
        Scratch(hostile, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(UsageError, match="cannot be created"):
        file = dataclasses.replace(recorded, directory="a.txt")
        _ = Scratch(file, tmp_path / "file").directory


@pytest.mark.parametrize(
    "changed",
    [
        {"turns": {"9" * 5000: "a" * 40}},
        {"turns": {"0": "a" * 40}},
        {"name": "a\0b"},
        {"name": "\ud800"},
        {"directory": "a\0b"},
        {"ignored": ["\ud800"]},
        {"bundle": "../workspace.bundle"},
    ],
)
def test_a_header_that_cannot_be_files_is_refused(changed: dict[str, Any]) -> None:
    header = {"bundle": "w", "name": "p", "directory": ".", "start": "a" * 40, "turns": {}}
    is_valid, _ = HEADER["workspace"]
    assert is_valid(header)
    assert not is_valid({**header, **changed})


def test_a_bundle_is_a_regular_file(tmp_path: Path) -> None:
    """A link or a directory could lead to the objects of another repository of the user."""
    header = {"bundle": "w", "name": "p", "directory": ".", "start": "a" * 40, "turns": {}}
    value: Any = SimpleNamespace(path=tmp_path / "recording.jsonl", header={"workspace": header})
    (tmp_path / "w").symlink_to(tmp_path)
    with pytest.raises(UsageError, match="must be a regular file"):
        workspace_of(value)
    (tmp_path / "w").unlink()
    (tmp_path / "w").mkdir()
    with pytest.raises(UsageError, match="must be a regular file"):
        workspace_of(value)
