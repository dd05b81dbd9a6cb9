"""The end of recorded files: how much a pruning deletes, and the directories of forks."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest

import agentobs
from agentobs.effects.workspaces import fork_directories
from agentobs.effects.workspaces.fork_directories import create_fork_directory, forget_forks
from agentobs.effects.workspaces.shadow_git import ShadowGit, ShadowGitError, all_shadows
from agentobs.effects.workspaces.state_sizes import deleted_bytes
from agentobs.recording.journal.home import Home, existing_home, open_home
from agentobs.store.disk_usage import home_bytes
from agentobs.store.duckdb.ingest import ingest
from agentobs.store.maintenance import prune
from tests.effects.workspaces.trees import write
from tests.queries import query

OWNER = ".agentobs-owner"
PART = 4_000_000
"""The size of a file, in bytes: much more than the store, whose size varies by 1 MB."""


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record three sessions in one directory: each adds a file and removes that of the one before."""
    folder = tmp_path_factory.mktemp("recorded")
    root = folder / "project"
    write(root, {"deep/shared.bin": os.urandom(2 * PART)})
    agentobs.stop_recorder()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        agentobs.start(str(folder / "home"))
        for number in range(3):
            with agentobs.session(f"session-{number}", effects=["files"]):
                write(root, {f"deep/{number}.bin": os.urandom(PART)})
                (root / "deep" / f"{number - 1}.bin").unlink(missing_ok=True)
        agentobs.stop_recorder()
    ingest(open_home(str(folder / "home")))
    return folder / "home"


@pytest.fixture
def recorded(recording: Path, tmp_path: Path) -> Home:
    """Return a copy of the home."""
    return existing_home(shutil.copytree(recording, tmp_path / "copy"))


def sessions(home: Home) -> list[str]:
    return [
        row[0] for row in query("SELECT session_id FROM sessions ORDER BY name", home=home.path)
    ]


@pytest.mark.slow
def test_files_count_with_the_last_session_that_has_them(recorded: Home) -> None:
    """Each session has a file that the next one has at its start; the shared file is deleted with the last session."""
    first, second, third = sessions(recorded)
    sizes = deleted_bytes(recorded, [first, second, third])
    assert [round(sizes[each] / PART, 1) for each in (first, second, third)] == [0.0, 1.0, 4.0]
    assert round(sum(deleted_bytes(recorded, [third, first]).values()) / PART, 1) == 1.0
    assert deleted_bytes(recorded, ["unknown"]) == {}


@pytest.mark.slow
def test_a_size_is_reached_without_deleting_more(recorded: Home) -> None:
    """The two oldest sessions have one file of their own, so reducing the home by half of it deletes these two only."""
    first, second, _ = sessions(recorded)
    before = home_bytes(recorded)
    dry = prune(recorded, keep_bytes=before - PART // 2, dry_run=True)
    assert [each.session_id for each in dry.chosen] == [first, second]
    assert abs(sum(each.bytes for each in dry.chosen) - PART) < PART // 10
    done = prune(recorded, keep_bytes=before - PART // 2)
    assert [each.session_id for each in done.chosen] == [first, second]
    assert done.after is not None
    assert abs(before - done.after - PART) < PART // 3


@pytest.mark.slow
def test_the_last_session_is_deleted_with_the_repository(recorded: Home) -> None:
    *_, third = sessions(recorded)
    everything = prune(recorded, sessions=sessions(recorded), what="content", dry_run=True)
    total = sum(each.bytes for each in everything.chosen)
    repository = sum(home_bytes(Home(each.path)) for each in all_shadows(recorded))
    assert repository > 5 * PART
    assert abs(total - repository) < PART // 10
    assert everything.chosen[-1].session_id == third
    paths = [os.fsencode(each.root) for each in all_shadows(recorded)]
    prune(recorded, sessions=sessions(recorded), what="content")
    assert not list(all_shadows(recorded))
    left = [each for each in (recorded.path / "workspaces").rglob("*") if each.is_file()]
    assert not [each for each in left for path in paths if path in each.read_bytes()]


@pytest.mark.slow
def test_an_estimate_needs_no_git(recorded: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without git, each session counts with an equal part."""

    def failing(*_: object, **__: object) -> bytes:
        raise ShadowGitError("no_git")

    monkeypatch.setattr(ShadowGit, "run", failing)
    sizes = deleted_bytes(recorded, sessions(recorded))
    assert len(set(sizes.values())) == 1
    assert abs(sum(sizes.values()) - 5 * PART) < PART // 10


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return open_home(str(tmp_path / "home"))


def test_a_directory_is_deleted_with_its_last_session(home: Home, tmp_path: Path) -> None:
    """Links in it are not followed; a directory of other sessions stays."""
    outside = tmp_path / "outside"
    write(outside, {"file": "x"})
    first, other = (create_fork_directory(home, "agentobs-fork-") for _ in range(2))
    (first.path / "link").symlink_to(outside)
    write(first.path, {"read/only/file": "x"})
    for folder in (first.path / "read" / "only", first.path / "read"):
        folder.chmod(0o500)
    first.belongs_to(["a", "b"])
    other.belongs_to(["c"])
    forget_forks(home, ["a"])
    assert first.path.is_dir()
    forget_forks(home, ["b"])
    assert (first.path.exists(), first.record.exists()) == (False, False)
    assert (other.path.is_dir(), (outside / "file").is_file()) == (True, True)


def test_only_the_directory_that_was_created_is_deleted(home: Home, tmp_path: Path) -> None:
    """The path may belong to something else later, or lead somewhere else."""
    outside = tmp_path / "outside"
    write(outside, {"file": "x"})
    replaced, linked, damaged = (create_fork_directory(home, "x") for _ in range(3))
    for each in (replaced, linked):
        each.belongs_to(["a"])
        (each.path / OWNER).unlink()
        each.path.rmdir()
    write(replaced.path, {OWNER: "somebody else"})
    (outside / OWNER).write_text(linked.record.stem)
    linked.path.symlink_to(outside)
    damaged.record.write_text("{")
    with pytest.warns(match=r"a pruned fork was not deleted: JSONDecodeError"):
        forget_forks(home, ["a"])
    assert (replaced.path / OWNER).is_file()
    assert (outside / "file").is_file()
    assert damaged.path.is_dir()
    assert not replaced.record.exists()


def test_a_directory_without_a_session_is_deleted_later(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its fork was killed; within a week, it may still run."""
    killed = create_fork_directory(home, "x")
    forget_forks(home, [])
    assert killed.path.is_dir()
    value = json.loads(killed.record.read_text())
    week = fork_directories._WITHOUT_SESSION_NS
    killed.record.write_text(json.dumps({**value, "created_ns": value["created_ns"] - week - 1}))
    forget_forks(home, [])
    assert not killed.path.exists()
