"""Undo restores exactly the files of a session, and loses no other changes."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from agentobs.effects.workspaces import Snapshots, Uncaptured, open_shadow
from agentobs.effects.workspaces import undo as undo_module
from agentobs.effects.workspaces.undo import Undo, plan_undo, undo
from agentobs.errors import UsageError
from agentobs.recording.journal.home import Home, open_home
from tests.effects.workspaces.trees import files_of, write

Action = Callable[[Path], object]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return open_home(str(tmp_path_factory.mktemp("undo") / "home"))


def planned(home: Home, root: Path, start: dict[str, str], session: Action) -> Undo:
    """Return the plan that undoes the changes of a session to some files."""
    write(root, start)
    shadow = open_shadow(home, root)
    snapshots = Snapshots(shadow)
    before = snapshots.take()
    session(root)
    return plan_undo(home, shadow.workspace_id, before, snapshots.take())


def to_directory(root: Path) -> None:
    (root / "a").unlink()
    write(root, {"a/b": "new\n"})
    (root / "a" / "empty").mkdir()


def to_file(root: Path) -> None:
    shutil.rmtree(root / "d")
    write(root, {"d": "new\n"})


def test_files_and_directories_take_the_place_of_each_other(home: Home, tmp_path: Path) -> None:
    def session(root: Path) -> None:
        to_directory(root)
        to_file(root)

    plan = planned(home, tmp_path, {"a": "old\n", "d/e": "old\n"}, session)
    assert plan.conflicts == ()
    copies = undo(plan)
    assert files_of(tmp_path) == {b"a": ("file", b"old\n"), b"d/e": ("file", b"old\n")}
    assert copies is not None
    assert files_of(copies) == {b"a/b": ("file", b"new\n"), b"d": ("file", b"new\n")}


def test_a_directory_with_ignored_files_stays(home: Home, tmp_path: Path) -> None:
    def session(root: Path) -> None:
        to_directory(root)
        write(root, {"a/work.log": "mine\n"})

    with pytest.raises(UsageError, match="a directory with other files"):
        planned(home, tmp_path, {".gitignore": "*.log\n", "a": "old\n"}, session)
    assert (tmp_path / "a" / "work.log").read_text() == "mine\n"


def linked(root: Path) -> None:
    (root / "d").rename(root.with_name("outside"))
    (root / "d").symlink_to(root.with_name("outside"))


LATER: dict[str, Action] = {
    "a changed file": lambda root: write(root, {"a": "mine\n"}),
    "a new file": lambda root: write(root, {"gone": "mine\n"}),
    "a new ignored file": lambda root: write(root, {".git/info/exclude": "", "gone.log": "mine\n"}),
    "a link": linked,
}


@pytest.mark.parametrize("later", LATER)
def test_files_that_change_while_the_plan_is_shown_stay(
    home: Home, tmp_path: Path, later: str
) -> None:
    root = tmp_path / "root"

    def session(root: Path) -> None:
        write(root, {"a": "new\n", "d/e": "new\n"})
        (root / "gone").unlink()
        (root / "gone.log").unlink()
        write(root, {".gitignore": "*.log\n"})

    start = {"a": "old\n", "d/e": "old\n", "gone": "old\n", "gone.log": "old\n"}
    plan = planned(home, root, start, session)
    LATER[later](root)
    before = files_of(tmp_path)
    with pytest.raises(UsageError, match="nothing was done"):
        undo(plan)
    assert files_of(tmp_path) == before


def test_a_file_that_was_ignored_before_is_a_conflict(home: Home, tmp_path: Path) -> None:
    """A session that changes `.gitignore` did not create the files that were ignored."""

    def session(root: Path) -> None:
        write(root, {".gitignore": "", "new.log": "new\n"})

    plan = planned(home, tmp_path, {".gitignore": "*.log\n", "mine.log": "mine\n"}, session)
    assert {each.path for each in plan.changes} == {".gitignore", "mine.log", "new.log"}
    assert plan.conflicts == ("mine.log",)


def test_files_of_a_directory_that_could_not_be_read_before_stay(
    home: Home, tmp_path: Path
) -> None:
    """They are not files of the session, although they are not in the earlier state."""
    write(tmp_path, {"a": "old\n"})
    shadow = open_shadow(home, tmp_path)
    snapshots = Snapshots(shadow)
    closed = Uncaptured("closed/", 0, 0, "unreadable")
    before = dataclasses.replace(snapshots.take(), uncaptured=(closed,), uncaptured_count=1)
    write(tmp_path, {"a": "new\n", "closed/mine": "mine\n"})
    plan = plan_undo(home, shadow.workspace_id, before, snapshots.take())
    assert [each.path for each in plan.changes] == ["a"]
    assert [each.path for each in plan.unrestorable] == ["closed/"]


def test_a_deleted_file_without_content_is_named(home: Home, tmp_path: Path) -> None:
    plan = planned(
        home, tmp_path, {".env": "KEY=1\n", ".npmrc": "x\n"}, lambda root: (root / ".env").unlink()
    )
    assert (plan.changes, [each.path for each in plan.unrestorable]) == ((), [".env"])


def test_a_full_disk_leaves_copies_of_everything(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names what is wrong, and where the copies are; then the command can be run again."""

    def session(root: Path) -> None:
        write(root, {"a": "new\n", "b": "new\n"})

    plan = planned(home, tmp_path, {"a": "old\n", "b": "old\n"}, session)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "b")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copy2", full)
        with pytest.raises(UsageError, match="no file was changed"):
            undo(plan)
    assert files_of(tmp_path)[b"a"] == ("file", b"new\n")
    with monkeypatch.context() as patch:
        patch.setattr(undo_module, "_write", full)
        with pytest.raises(UsageError, match="only some of the files were restored") as caught:
            undo(plan)
    copies = Path(str(caught.value).rpartition(" are in ")[2].rstrip("."))
    assert files_of(copies) == {b"a": ("file", b"new\n"), b"b": ("file", b"new\n")}
