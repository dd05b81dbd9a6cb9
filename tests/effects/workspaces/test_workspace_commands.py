"""The commands `workspace` and `restore`, and the end of recorded files by `prune`."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

import agentobs
from agentobs.store import recorded_workspaces
from agentobs.store.recorded_workspaces import RecordedState, state_at
from tests import queries
from tests.cli.test_commands import Shell
from tests.effects.workspaces.scripted_agent import Agent, Provider, Script, observed
from tests.effects.workspaces.trees import FileState, files_of, write

SCRIPT: Script = {
    "tidy": [
        [("edit", {"path": "src/a.py", "old_string": "1", "new_string": "2"})],
        [("remove", {"path": "src/b.py"}), ("write", {"path": "new/c.py", "content": "c\n"})],
        [("edit", {"path": "src/a.py", "old_string": "2", "new_string": "3"})],
    ]
}
START = {"src/a.py": "a = 1\n", "src/b.py": "b = 1\n", "run.sh": "#!/bin/sh\n", ".env": "KEY=1\n"}


class Recorded(NamedTuple):
    """A recorded session."""

    home: Path
    root: Path
    copy: Path
    """A copy of its workspace at its end."""
    at_turn: dict[int, dict[bytes, FileState]]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Record a session of four turns once."""
    agentobs.stop_recorder()
    folder = tmp_path_factory.mktemp("tidy")
    root = folder / "workspace"
    write(root, START)
    (root / "run.sh").chmod(0o755)
    at_turn: dict[int, dict[bytes, FileState]] = {}
    provider = Provider(SCRIPT)
    provider.before_response = lambda _, turn: at_turn.__setitem__(turn, files_of(root))
    with pytest.MonkeyPatch.context() as patch, observed(patch, provider):
        patch.chdir(root)
        agentobs.start(str(folder / "home"))
        with agentobs.session("tidy", effects=["files"]):
            Agent(root, provider).run("tidy")
        agentobs.stop_recorder()
    shutil.copytree(root, folder / "copy", symlinks=True)
    return Recorded(folder / "home", root, folder / "copy", at_turn)


@pytest.fixture
def recorded(session: Recorded) -> Recorded:
    """Return the session, with its workspace as it was at its end."""
    shutil.rmtree(session.root)
    shutil.copytree(session.copy, session.root, symlinks=True)
    return session


@pytest.fixture
def shell(session: Recorded, capsys: pytest.CaptureFixture[str]) -> Shell:
    """Return a function that runs commands on the home of the session."""
    return Shell(session.home, capsys)


def run(shell: Shell, *arguments: str, home: Path | None = None) -> tuple[int, str]:
    """Return the exit code of a command, and what it printed."""
    ended = shell(*arguments, home=home)
    return ended.code, ended.out + ended.err


def without_secret(files: dict[bytes, FileState]) -> dict[bytes, FileState]:
    return {path: each for path, each in files.items() if path != b".env"}


@pytest.mark.slow
def test_the_workspace_at_each_turn(shell: Shell, recorded: Recorded, tmp_path: Path) -> None:
    for turn in (1, 2, 3, 4):
        code, text = run(shell, "workspace", "tidy", "--at", str(turn), "-o", f"{tmp_path}/{turn}")
        assert code == 0, text
        assert files_of(tmp_path / f"{turn}") == without_secret(recorded.at_turn[turn])
    assert "not restored: .env (secret, 6 bytes)" in text
    _, last = run(shell, "workspace", "tidy", "-o", str(tmp_path / "last"))
    assert last.startswith("restored 3 files into ")
    code, again = run(shell, "workspace", "tidy", "-o", str(tmp_path / "last"))
    assert (code, "the directory is not empty" in again) == (1, True)
    for option, text in (
        ("9", "it has turns 1 to 4"),
        ("1", "no files were recorded at turn 1 of lane x"),
    ):
        lane = ["--lane", "x"] if option == "1" else []
        code, wrong = run(
            shell, "workspace", "tidy", "--at", option, *lane, "-o", str(tmp_path / "no")
        )
        assert (code, text in wrong) == (1, True), wrong


@pytest.mark.slow
def test_files_are_put_back_after_a_confirmation_and_copies_are_kept(
    shell: Shell, recorded: Recorded
) -> None:
    """Without a terminal and --yes, only the changes are shown; then the files are those before the turn."""
    before = files_of(recorded.root)
    code, shown = run(shell, "restore", "tidy", "--before-turn", "2")
    assert code == 1
    for line in ("-a = 3", "+a = 2", "+b = 1", "-c", "pass --yes"):
        assert line in shown
    assert files_of(recorded.root) == before
    code, done = run(shell, "restore", "tidy", "--before-turn", "2", "--yes")
    assert code == 0, done
    assert files_of(recorded.root) == recorded.at_turn[2]
    assert not (recorded.root / "new").exists()
    copies = Path(done.partition("copies   ")[2].strip())
    assert files_of(copies) == {path: before[path] for path in (b"src/a.py", b"new/c.py")}
    _, again = run(shell, "restore", "tidy", "--before-turn", "2", "--yes")
    assert "nothing to do" in again


@pytest.mark.parametrize(
    "arguments", [["workspace", "-o", "out"], ["restore", "--before-turn", "2"]]
)
def test_a_state_that_is_not_exact_is_noted(
    shell: Shell, recorded: Recorded, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    def inexact(states: list[RecordedState], *_: object) -> RecordedState:
        return replace(state_at(states), late=True, is_stable=False)

    monkeypatch.setattr(recorded_workspaces, "state_at", inexact)
    monkeypatch.chdir(recorded.root.parent)
    _, shown = run(shell, arguments[0], "tidy", *arguments[1:])
    assert "recorded late: changes of this turn may be included" in shown
    assert "files changed while they were recorded" in shown


@pytest.mark.slow
def test_work_of_the_user_is_not_replaced(
    shell: Shell, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that was changed after the session needs --force; files that the session did not change stay."""
    write(recorded.root, {"src/a.py": "mine\n", "mine.py": "mine\n", "run.sh": "mine\n"})
    code, refused = run(shell, "restore", "tidy", "--before-turn", "1", "--yes")
    assert code == 1
    assert "1 files were changed after session" in refused
    assert (recorded.root / "src" / "a.py").read_text() == "mine\n"
    monkeypatch.chdir(recorded.root / "src")
    code, one = run(shell, "restore", "tidy", "--before-turn", "1", "--yes", "b.py")
    assert code == 0, one
    assert (recorded.root / "src" / "b.py").read_text() == "b = 1\n"
    assert (recorded.root / "new" / "c.py").exists()
    code, forced = run(shell, "restore", "tidy", "--before-turn", "1", "--yes", "--force")
    assert code == 0, forced
    assert (recorded.root / "src" / "a.py").read_text() == "a = 1\n"
    assert (recorded.root / "mine.py").read_text() == "mine\n"
    assert (recorded.root / "run.sh").read_text() == "mine\n"
    code, outside = run(shell, "restore", "tidy", "--before-turn", "1", "/etc/passwd")
    assert (code, "not in the workspace" in outside) == (1, True)


def test_no_link_leads_out_of_the_workspace(
    shell: Shell, recorded: Recorded, tmp_path: Path
) -> None:
    shutil.rmtree(recorded.root / "src")
    (recorded.root / "src").symlink_to(tmp_path)
    code, result = run(shell, "restore", "tidy", "--before-turn", "1", "--yes", "--force")
    assert (code, "no longer a directory" in result) == (1, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_facts_contain_no_path_and_prune_deletes_the_files(
    shell: Shell, recorded: Recorded, tmp_path: Path
) -> None:
    """Facts have digests of paths and contents; pruning the content of a session deletes its states."""
    home = Path(shutil.copytree(recorded.home, tmp_path / "home"))
    rows = queries.query("FROM file_changes", home=home) + queries.query(
        "FROM workspace_states", home=home
    )
    text = repr(rows)
    assert len(rows) >= 4
    for content in ("a.py", "c.py", "src", str(recorded.root)):
        assert content not in text
    code, pruned = run(shell, "prune", "--session", "tidy", "--content-only", home=home)
    assert code == 0, pruned
    assert not list(home.glob("workspaces/*/git"))
    code, gone = run(shell, "workspace", "tidy", "-o", str(tmp_path / "out"), home=home)
    assert (code, "not in this home" in gone) == (1, True)


def test_a_session_without_files_has_no_workspace(shell: Shell, tmp_path: Path) -> None:
    agentobs.stop_recorder()
    agentobs.start(str(tmp_path / "home"))
    with agentobs.session("plain"):
        pass
    agentobs.stop_recorder()
    out = str(tmp_path / "out")
    code, text = run(shell, "workspace", "plain", "-o", out, home=tmp_path / "home")
    assert (code, "recorded no files" in text) == (1, True)
