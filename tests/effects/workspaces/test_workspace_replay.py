"""Fixtures with recorded files: what is stored, replays in these files, and the comparison of the files at the end."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from agentobs.errors import UsageError
from replay import load, run_command
from replay.command.command_replay import CommandDivergenceError
from replay.workspace.recorded_workspace import workspace_of
from replay.workspace.scratch import Scratch
from tests.cli.test_commands import Shell
from tests.effects.workspaces.file_sessions import (
    RECORDED,
    RECORDED_TURNS,
    START,
    FileProvider,
    record_python_session,
    record_session,
    serving,
)
from tests.effects.workspaces.trees import FileState, files_of, write

SECRET = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"


class Session(NamedTuple):
    """A recorded session, and its fixture."""

    folder: Path
    at_turn: dict[int, dict[bytes, FileState]]
    end: dict[bytes, FileState]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    folder = tmp_path_factory.mktemp("files")
    with serving(FileProvider({RECORDED: RECORDED_TURNS})) as provider:
        at_turn = record_session(folder, provider)
    return Session(folder, at_turn, files_of(folder / "project"))


@pytest.fixture
def shell(
    session: Session,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Shell:
    """Run commands in an empty directory."""
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    return Shell(session.folder / "home", capsys)


@pytest.fixture
def frozen(shell: Shell, session: Session) -> Path:
    """Freeze the session once."""
    folder = session.folder / "fix"
    if not folder.exists():
        ended = shell("freeze", "fix", "--workspace", "-o", str(folder))
        assert ended.code == 0, ended.err
        assert "replays: yes, 12 of 12 requests are exact" in ended.out
    return folder


@pytest.mark.slow
def test_a_fixture_carries_the_files_of_each_turn(
    frozen: Path, session: Session, tmp_path: Path
) -> None:
    """They are restored byte for byte, with executable bits; no path of this machine is stored."""
    fixture = load(frozen)
    workspace = workspace_of(fixture)
    assert workspace is not None
    assert sorted(workspace.turns) == list(range(1, 13))
    scratch = Scratch(workspace, tmp_path / "out")
    try:
        for turn in (12, 1, 5):
            scratch.restore(workspace.at_turn(turn))
            assert files_of(scratch.root) == session.at_turn[turn]
        assert workspace.end is not None
        scratch.restore(workspace.end)
        assert files_of(scratch.root) == session.end
        (scratch.root / "notes.md").unlink()
        assert [each.path for each in scratch.difference(workspace.end).changes] == ["notes.md"]
    finally:
        scratch.close()
    listed = subprocess.run(
        ["git", "bundle", "list-heads", frozen / "workspace.bundle"],
        capture_output=True,
        check=True,
    )
    assert (
        str(session.folder).encode()
        not in listed.stdout + (frozen / "workspace.bundle").read_bytes()
    )


@pytest.mark.slow
def test_a_command_is_replayed_in_the_recorded_files(
    frozen: Path, shell: Shell, session: Session, tmp_path: Path
) -> None:
    """The current directory is not used and not changed; the verdict covers the files at the end."""
    ended = shell("replay", str(frozen))
    assert ended.code == 0, ended.out
    assert "files at the end: equal to the recorded ones" in ended.out
    assert list(Path.cwd().iterdir()) == []
    assert files_of(session.folder / "project") == session.end


@pytest.mark.slow
def test_files_that_differ_at_the_end_are_a_divergence(
    frozen: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All requests are exact, but the program writes another file; the diff is in the report and in JSON."""
    monkeypatch.setenv("FILE_AGENT_WRITES", "src/extra.py")
    ended = shell("replay", str(frozen), "--explain")
    assert ended.code == 1
    assert "files at the end: 1 differs from the recorded ones: src/extra.py (added)" in ended.out
    assert "+extra" in ended.out
    value = json.loads(shell("replay", str(frozen), "--json").out)
    assert value["result"] == "diverged"
    assert [each["path"] for each in value["files"]["changes"]] == ["src/extra.py"]
    assert "+extra" in value["files"]["diff"]
    with pytest.raises(CommandDivergenceError, match=r"(?s)src/extra.py.*\+extra"):
        run_command(frozen).check()


@pytest.mark.slow
def test_the_marker_runs_a_command_in_the_recorded_files(
    frozen: Path, pytester: pytest.Pytester
) -> None:
    ran = pytester.runpytest_inprocess(
        "-p", "no:cacheprovider", "--replay-no-fork", f"--rootdir={frozen.parent}", str(frozen)
    )
    ran.assert_outcomes(passed=1)


def test_a_fixture_without_its_files_is_refused(frozen: Path, shell: Shell, tmp_path: Path) -> None:
    """A missing or damaged bundle is one error that names it."""
    copy = Path(shutil.copytree(frozen, tmp_path / "copy"))
    (copy / "workspace.bundle").write_bytes(b"no bundle")
    damaged = shell("replay", str(copy))
    (copy / "workspace.bundle").unlink()
    missing = shell("replay", str(copy))
    assert (damaged.code, missing.code) == (1, 1)
    assert "the recorded files cannot be read" in damaged.err
    assert "the recorded files do not exist" in missing.err
    assert "freeze the session again with --workspace" in missing.err
    with pytest.raises(UsageError, match="do not exist"):
        run_command(copy)


def test_freezing_without_the_option_removes_the_files(
    frozen: Path, shell: Shell, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(frozen, tmp_path / "copy"))
    ended = shell("freeze", "fix", "--no-check", "-o", str(copy))
    assert ended.code == 0, ended.err
    assert not (copy / "workspace.bundle").exists()
    assert workspace_of(load(copy)) is None


def test_files_that_are_too_large_are_named(shell: Shell, tmp_path: Path) -> None:
    out = tmp_path / "small"
    ended = shell("freeze", "fix", "--workspace", "--workspace-mib", "0.0001", "-o", str(out))
    assert ended.code == 1
    assert "check.sh (51 bytes)" in ended.err
    assert not out.exists()
    ended = shell("freeze", "fix", "--leave-out", "*.py", "-o", str(out))
    assert (ended.code, "requires --workspace" in ended.err) == (1, True)


@pytest.fixture(scope="module")
def python_session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("python")
    write(folder / "project", {"src/settings.py": f"TOKEN = {SECRET!r}\n", ".env": "KEY=1\n"})
    with serving(FileProvider({RECORDED: RECORDED_TURNS})) as provider:
        record_python_session(folder, provider, "py_fix_agent")
    return folder


@pytest.mark.slow
def test_secrets_in_files_are_refused_and_can_be_left_out(
    python_session: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names file and line, and nothing is written; without the file, nothing of it is in the bundle."""
    shell, out = Shell(python_session / "home", capsys), tmp_path / "py-fix"
    ended = shell("freeze", "py-fix", "--workspace", "--no-check", "-o", str(out))
    assert ended.code == 1
    assert "src/settings.py line 1 (github_token)" in ended.err
    assert "not recorded: .env (secret)" in ended.err
    assert SECRET not in ended.err
    assert not out.exists()
    options = ("--no-check", "--leave-out", "src/settings.py", "-o", str(out))
    ended = shell("freeze", "py-fix", "--workspace", *options)
    assert ended.code == 0, ended.err
    workspace = workspace_of(load(out))
    assert workspace is not None
    scratch = Scratch(workspace, tmp_path / "files")
    scratch.close()
    names = {each.decode() for each in files_of(tmp_path / "files", skipped=("__pycache__",))}
    assert names == {*START, "py_fix_agent.py"}


@pytest.mark.slow
def test_a_python_agent_is_replayed_in_the_recorded_files(
    python_session: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    pytester: pytest.Pytester,
) -> None:
    """Its tools run for real in a scratch directory; the check of `freeze` passes, and a changed tool is found."""
    shell, out = Shell(python_session / "home", capsys), tmp_path / "py-fix"
    project = python_session / "project"
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(str(project))
    before = files_of(project, skipped=("__pycache__",))
    ended = shell(
        "freeze", "py-fix", "--workspace", "--leave-out", "src/settings.py", "-o", str(out)
    )
    assert ended.code == 0, ended.err
    assert "replays: yes" in ended.out, ended.out
    ended = shell("replay", str(out))
    assert ended.code == 0, ended.out + ended.err
    assert "files at the end: equal to the recorded ones" in ended.out
    assert Path.cwd() == project
    assert files_of(project, skipped=("__pycache__",)) == before
    options = ("-p", "no:cacheprovider", "--replay-no-fork", f"--rootdir={project}", str(out))
    pytester.runpytest_inprocess(*options).assert_outcomes(passed=1)
    assert Path.cwd() == project
    monkeypatch.setattr("py_fix_agent.run", _other_run)
    pytester.runpytest_inprocess(*options).assert_outcomes(failed=1)
    ended = shell("replay", str(out), "--explain")
    assert ended.code == 1
    assert "notes.md (modified)" in ended.out
    assert "+other" in ended.out


def _other_run(name: str, value: dict[str, str]) -> str:
    from tests.effects.workspaces.file_agent import run

    if name == "edit" and value["path"] == "notes.md":
        value = {**value, "new": "other"}
    return run(name, value)
