"""Result files: a tool result that is too long for the model is written only to the directory of its session."""

from __future__ import annotations

import asyncio
import os
import re
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import agentobs
from agentobs import tracing, wiring
from agentobs.agent.execution.tool_runner import live_tools
from agentobs.agent.tools.tool import tool
from agentobs.errors import HomeError, RecordingError
from agentobs.recording.journal.home import open_home
from agentobs.records.exchanges import Place, ToolQuestion

KEY = "sk-ant-api03-another-key-for-the-tests-0123"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("AGENTOBS_HOME", str(tmp_path / "home"))
    agentobs.stop_recorder()
    yield tmp_path / "home"
    agentobs.stop_recorder()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_a_result_is_in_the_directory_of_its_session(home: Path) -> None:
    """Each long result is a separate file that is numbered within its session and readable only by its owner."""
    with agentobs.session("one") as one:
        first = wiring.keep_result("toolu_01", "first\n")
        second = wiring.keep_result("toolu_01", "caf\udce9")
    with agentobs.session("two") as two:
        third = wiring.keep_result("toolu_02", "third")
    folder = home / "sessions" / one.session_id / "results"
    assert first == str(folder / "1-toolu_01.txt")
    assert second == str(folder / "2-toolu_01.txt")
    assert third == str(home / "sessions" / two.session_id / "results" / "1-toolu_02.txt")
    assert Path(first).read_text() == "first\n"
    assert Path(second).read_text() == "caf?"
    assert [mode(Path(path)) for path in (first, second)] == [0o600] * 2
    assert [mode(path) for path in (folder, folder.parent, folder.parent.parent)] == [0o700] * 3
    assert open_home(home).path == home


def test_no_result_is_kept_if_content_is_off(home: Path) -> None:
    """If the content of a session is off, no file contains a tool result."""
    with agentobs.session("one", content="off"), pytest.raises(RecordingError, match="is off"):
        wiring.keep_result("toolu_01", "what a tool returned")
    assert not (home / "sessions").exists()


def test_no_result_is_kept_if_content_is_encrypted(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If content is encrypted, no file contains a tool result in plain text."""
    monkeypatch.setenv("AGENTOBS_CONTENT_KEY", "ab" * 32)
    with agentobs.session("one"), pytest.raises(RecordingError, match="is sealed"):
        wiring.keep_result("toolu_01", "what a tool returned")
    assert not (home / "sessions").exists()


def test_secrets_are_redacted(home: Path) -> None:
    """A key that a tool returned is replaced by a placeholder."""
    with agentobs.session("one"):
        path = wiring.keep_result("toolu_01", f"before {KEY} after")
    assert re.fullmatch(
        r"before \[redacted:anthropic_key:[0-9a-f]{8}\] after", Path(path).read_text()
    )


@pytest.mark.parametrize(
    "hostile", ["../../escape", "/etc/passwd", "", "a\0b", "x" * 5_000, "..", "caf\udce9", "a b\n"]
)
def test_hostile_ids_never_become_paths(home: Path, hostile: str) -> None:
    """If the ID of a call or a session could be a path, a digest replaces it in the file name."""
    agentobs.session("one").open()
    with tracing.at(Place(hostile or "..")):
        path = Path(wiring.keep_result(hostile, "text"))
    assert path.parent.parent.parent == home / "sessions"
    assert path.resolve() == path
    assert path.name.startswith("1-")
    assert len(path.name) == len("1-.txt") + 32
    assert path.read_text() == "text"


def test_the_results_of_a_session_have_a_size_limit(home: Path) -> None:
    """A result beyond the size limit is truncated between two characters, with a note, and no further result of the
    session is kept.
    """
    with agentobs.session("one"):
        wiring.keep_result("a", "x" * 400, session_bytes_max=1_000)
        path = Path(wiring.keep_result("b", "é" * 2_000, session_bytes_max=1_000))
        text = path.read_text()
        with pytest.raises(RecordingError, match="already use 1,000 bytes"):
            wiring.keep_result("c", "more than fits", session_bytes_max=1_000)
    assert set(text.partition("\n")[0]) == {"é"}
    assert text.endswith("\n[cut here: the results of this session may use 1,000 bytes]\n")
    assert 598 <= path.stat().st_size <= 600
    with agentobs.session("two"):
        wiring.keep_result("a", "x" * 400, session_bytes_max=1_000)


def test_links_are_not_followed(home: Path, tmp_path: Path) -> None:
    """If the directory of a session is a link, keeping a result fails; a file that is a link is skipped."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with agentobs.session("one") as one:
        folder = home / "sessions" / one.session_id / "results"
        folder.mkdir(parents=True)
        (folder / "2-a.txt").symlink_to(elsewhere / "made")
        assert wiring.keep_result("a", "text") == str(folder / "3-a.txt")
        (home / "sessions").chmod(0o755)
        wiring.keep_result("a", "text")
        assert mode(home / "sessions") == 0o700
    with agentobs.session("two") as two:
        (home / "sessions" / two.session_id).symlink_to(elsewhere)
        with pytest.raises(HomeError, match="results cannot be stored here"):
            wiring.keep_result("a", "text")
    assert list(elsewhere.iterdir()) == []


def test_no_result_is_kept_outside_a_session(home: Path) -> None:
    """Keeping a result outside of every session fails, and creates no directory."""
    with pytest.raises(RecordingError, match="only inside a session that is recorded"):
        wiring.keep_result("a", "text")
    assert not (home / "sessions").exists()


def test_no_result_is_kept_without_recording(home: Path) -> None:
    """If the home cannot be used, the session continues, and keeping a result raises an error with the reason."""
    home.write_text("not a directory")
    with pytest.warns(RuntimeWarning, match="not recording"), agentobs.session("one"):
        with pytest.raises(RecordingError, match="only inside a session that is recorded"):
            wiring.keep_result("a", "text")


def test_concurrent_results_have_separate_files(home: Path) -> None:
    """Threads that keep results of one session concurrently get separate files."""
    paths: list[str] = []
    with agentobs.session("one"):
        here = tracing.place()
        assert here is not None

        def keep(text: str) -> None:
            with tracing.at(here):
                paths.append(wiring.keep_result("call", text))

        threads = [threading.Thread(target=keep, args=[str(n)]) for n in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {Path(path).read_text() for path in paths} == {str(n) for n in range(20)}


def test_a_failed_write_leaves_no_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the disk is full, keeping a result raises an error and leaves no incomplete file."""

    def full(descriptor: int, mode: int) -> None:
        raise OSError(28, "No space left on device")

    with agentobs.session("one") as one:
        with monkeypatch.context() as disk, pytest.raises(OSError, match="No space left"):
            disk.setattr(os, "fchmod", full)
            wiring.keep_result("a", "text")
        assert list((home / "sessions" / one.session_id / "results").iterdir()) == []


def test_long_results_of_tools_are_kept(home: Path) -> None:
    """If a tool result is too long, the model gets its start, its end, and the path of the complete result."""

    @tool
    def look() -> str:
        return "line\n" * 50_000

    live = live_tools([look], keep=wiring.keep_result)
    with agentobs.session("one") as one:
        found = asyncio.run(live.run_tool(ToolQuestion("toolu_01", "look", {})))
    path = home / "sessions" / one.session_id / "results" / "1-toolu_01.txt"
    assert f"The complete result is in {path}]" in found.content
    assert path.read_text() == "line\n" * 50_000
