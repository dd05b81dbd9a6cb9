"""Which directories can become a home, and what happens if a directory cannot."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

import agentobs
from agentobs import errors
from agentobs.errors import HomeError
from agentobs.recording.journal.home import open_home
from tests.agentobs_warnings import own_warnings


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_new_home_is_private(tmp_path: Path) -> None:
    """Only the owner can access a new home and its segments; parent directories that are created with it keep the
    default mode.
    """
    home = open_home(tmp_path / "above" / "home")
    assert (mode(home.path), mode(home.segments)) == (0o700, 0o700)
    assert mode(tmp_path / "above") != 0o700


@pytest.mark.parametrize("inside", ["main.py", "segments/intro.mp3", "segments/../main.py"])
def test_a_directory_with_other_files_is_rejected(tmp_path: Path, inside: str) -> None:
    """A directory with other files cannot become a home, even if it has an empty directory `segments`, and nothing in
    it changes.
    """
    project = tmp_path / "project"
    project.mkdir(mode=0o755)
    (project / inside).parent.mkdir(parents=True, exist_ok=True)
    (project / inside).write_text("x")
    project.chmod(0o755)
    before = sorted(project.rglob("*"))
    with pytest.raises(HomeError, match="contains other files") as refused:
        open_home(project)
    assert (refused.value.where, bool(refused.value.todo)) == (str(project), True)
    assert (mode(project), sorted(project.rglob("*"))) == (0o755, before)


def test_the_mode_of_an_existing_home_is_restricted(tmp_path: Path) -> None:
    """A home, or an empty directory, that others can read is made private when it is opened."""
    home = open_home(tmp_path / "home")
    home.key()
    home.path.chmod(0o755)
    assert mode(open_home(home.path).path) == 0o700
    (tmp_path / "empty").mkdir(mode=0o755)
    assert mode(open_home(tmp_path / "empty").path) == 0o700


def test_a_home_that_is_a_link_is_rejected(tmp_path: Path) -> None:
    """Neither the home nor its directory of segments may be a symbolic link."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(HomeError, match="not a directory"):
        open_home(tmp_path / "link")


@pytest.mark.parametrize("found", [b"", b"k" * 31, b"k" * 33])
def test_a_damaged_key_is_rejected(
    found: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the key of a home is damaged, one warning states what is wrong, where, and what to do; the agent continues,
    and nothing is recorded.
    """
    home = open_home(tmp_path / "home")
    (home.path / "key").write_bytes(found)
    monkeypatch.setenv("AGENTOBS_HOME", str(home.path))
    monkeypatch.setattr(errors, "_reported", set())
    agentobs.stop_recorder()
    with pytest.warns(RuntimeWarning) as warned:
        for name in ("one", "two"):
            with agentobs.session(name):
                pass
    [warning] = own_warnings(warned)
    assert all(
        word in warning
        for word in (f"{len(found)} bytes, not 32", str(home.path / "key"), "delete it")
    )
    assert (list(home.segments.iterdir()), (home.path / "key").read_bytes()) == ([], found)


def test_a_key_is_written_completely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the system writes only a part of the key at a time, the key is complete.

    If the system then refuses the rest, there is no key file, so that a later process can create one.
    """
    real, refuses = os.write, [False]

    def write(descriptor: int, data: bytes) -> int:
        if refuses[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data[:5])

    monkeypatch.setattr(os, "write", write)
    assert len(open_home(tmp_path / "complete").key()) == 32

    def write_once(descriptor: int, data: bytes) -> int:
        written = write(descriptor, data)
        refuses[0] = True
        return written

    monkeypatch.setattr(os, "write", write_once)
    home = open_home(tmp_path / "refused")
    with pytest.raises(HomeError, match="No space left on device"):
        home.key()
    assert not list(home.path.glob("key*"))
    monkeypatch.setattr(os, "write", real)
    assert len(home.key()) == 32


def test_a_key_is_durable_before_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key file is synced before it gets its name, and the directory is synced before the key is used."""
    home = open_home(tmp_path / "home")
    calls: list[str] = []
    fsync, link = os.fsync, os.link

    def synced(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        calls.append("directory" if path == home.path else f"{path.stat().st_size} bytes")
        fsync(descriptor)

    def linked(*paths: Path) -> None:
        calls.append("named")
        link(*paths)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "link", linked)
    assert len(home.key()) == 32
    assert calls == ["32 bytes", "named", "directory"]


def test_a_home_of_which_a_power_loss_left_only_the_key(tmp_path: Path) -> None:
    """A directory that contains only the key of a home, or its draft, becomes a home again."""
    for name in ("key", f"key.{'0' * 32}"):
        folder = tmp_path / name
        folder.mkdir(mode=0o700)
        (folder / name).write_bytes(bytes(32))
        assert open_home(folder).segments.is_dir()
