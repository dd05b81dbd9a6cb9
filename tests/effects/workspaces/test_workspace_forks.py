"""Forks of sessions with recorded files: they continue from the files of their turn, in a directory of their own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import agentobs
from tests.cli.test_commands import Shell
from tests.effects.workspaces.file_sessions import (
    KEY,
    OTHER,
    OTHER_TURNS,
    RECORDED,
    RECORDED_TURNS,
    FileProvider,
    record_python_session,
    record_session,
    serving,
)
from tests.effects.workspaces.trees import FileState, files_of, git
from tests.queries import query


class Session(NamedTuple):
    """A recorded session, and the provider for its forks."""

    folder: Path
    at_turn: dict[int, dict[bytes, FileState]]
    provider: FileProvider


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    folder = tmp_path_factory.mktemp("forks")
    scripts = {RECORDED: RECORDED_TURNS, OTHER: OTHER_TURNS}
    with serving(FileProvider(scripts)) as provider:
        yield Session(folder, record_session(folder, provider), provider)


@pytest.fixture
def session(recorded: Session, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Session:
    """Work in an empty directory, with the provider."""
    agentobs.stop_recorder()
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", recorded.provider.url)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    recorded.provider.requests.clear()
    return recorded


@pytest.fixture
def shell(session: Session, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(session.folder / "home", capsys)


def passes(directory: Path) -> bool:
    """Return whether the tests of the agent's project pass."""
    return subprocess.run(["sh", "check.sh"], cwd=directory, check=False).returncode == 0


def test_a_fork_with_another_model_fixes_what_the_session_could_not(
    session: Session, shell: Shell, tmp_path: Path
) -> None:
    """It starts from the files of turn 5; the tests that failed in the session pass, and nothing else is changed."""
    project, out = session.folder / "project", tmp_path / "out"
    before = files_of(project)
    files: list[dict[bytes, FileState]] = []
    session.provider.before_response = lambda model, turn: files.append(files_of(out))
    ended = shell("fork", "fix", "--at", "5", "--model", OTHER, "-o", str(out), "--prompt", "Hint.")
    assert ended.code == 0, ended.err
    assert f"files   {out}" in ended.err
    assert "differed" not in ended.err
    assert (passes(project), passes(out)) == (False, True)
    assert files[0] == session.at_turn[6]
    assert files_of(project) == before
    assert list(Path.cwd().iterdir()) == []
    requests = session.provider.requests
    assert [each["model"] for each in requests] == [OTHER] * 3
    hint = {"type": "text", "text": "Hint."}
    for each in requests:
        assert each["messages"][10]["content"][-1] == hint
        assert str(each["messages"]).count("Hint.") == 1
    home = session.folder / "home"
    [parent] = query("SELECT session_id FROM sessions WHERE name = 'fix'", home=home)
    forks = query(
        "SELECT relation, continues_session_id, forked_turn, status FROM sessions "
        "WHERE name = 'fix-fork-5'",
        home=home,
    )
    assert forks == [("fork", parent[0], 5, "completed")]
    states = query(
        "SELECT count(*) FROM workspace_states JOIN sessions USING (session_id) "
        "WHERE name = 'fix-fork-5' AND source = 'end'",
        home=home,
    )
    assert states == [(1,)]
