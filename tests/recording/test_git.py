"""The git repository of a session: what is recorded at its start, on request, and from logs of Claude Code."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import agentobs
from agentobs.errors import UsageError
from agentobs.recording.git import states
from agentobs.recording.git.repository import (
    Repository,
    find_repository,
    is_dirty,
    remote_name,
    with_head_of_git,
)
from agentobs.recording.journal.home import existing_home
from agentobs.recording.options import Options
from agentobs.runtime import process
from tests import queries
from tests.agentobs_warnings import own_warnings
from tests.cli.test_commands import Shell
from tests.cli.test_scores import agent
from tests.cli.test_titles import files_with
from tests.dashboards.live_app import serving
from tests.exporters.recount import folder
from tests.exporters.sample_agents import recording

TRANSCRIPTS = folder()
REMOTE = "https://user:canary-token@example.com:8443/team/shop.git"


def git(directory: Path, *arguments: str) -> str:
    """Run `git` without the configuration of the machine, and return its output."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    named = ("-c", "user.name=T", "-c", "user.email=t@example.com")
    command = ["git", *named, *arguments]
    ended = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=True
    )
    return ended.stdout.strip()


def repository(path: Path, *options: str) -> Path:
    """Create a repository with one commit on the branch canary-branch."""
    path.mkdir()
    git(path, "init", "-q", "-b", "canary-branch", *options)
    git(path, "remote", "add", "origin", REMOTE)
    (path / "file.txt").write_text("one")
    git(path, "add", ".")
    git(path, "commit", "-q", "-m", "first")
    return path


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository that is the working directory, with git states enabled."""
    path = repository(tmp_path / "shop")
    monkeypatch.chdir(path)
    monkeypatch.setenv("AGENTOBS_GIT", "on")
    return path


def examined() -> None:
    """Wait until no working tree is being examined."""
    state = process.state(states.Examinations)
    while True:
        with state.lock:
            if not state.running:
                return


def found(directory: Path) -> Repository:
    """Return the repository of a directory, which exists."""
    result = find_repository(directory)
    assert result is not None
    return result


def head(directory: Path) -> tuple[str | None, str | None]:
    """Return branch and commit as agentobs reads them."""
    result = found(directory)
    return result.branch, result.commit


def make_detached(path: Path) -> None:
    git(path, "checkout", "-q", "--detach")


def make_packed(path: Path) -> None:
    git(path, "pack-refs", "--all")
    assert not (path / ".git" / "refs" / "heads" / "canary-branch").exists()


def make_nested_branch(path: Path) -> None:
    git(path, "checkout", "-q", "-b", "user/feature-1")


def make_new_commit_after_packing(path: Path) -> None:
    make_packed(path)
    git(path, "commit", "-q", "--allow-empty", "-m", "second")


@pytest.mark.parametrize(
    "change",
    [
        lambda path: None,
        make_detached,
        make_packed,
        make_nested_branch,
        make_new_commit_after_packing,
    ],
)
def test_branch_and_commit_are_those_of_git(tmp_path: Path, change: Callable[[Path], None]) -> None:
    """Branch and commit are read from files as `git` reports them, in each directory of the working tree."""
    path = repository(tmp_path / "shop")
    change(path)
    (path / "inner" / "most").mkdir(parents=True)
    branch = git(path, "branch", "--show-current") or None
    assert head(path / "inner" / "most") == (branch, git(path, "rev-parse", "HEAD"))


def test_a_linked_working_tree_has_its_own_branch(tmp_path: Path) -> None:
    """A linked working tree has its own branch and the repository of its main working tree."""
    path = repository(tmp_path / "shop")
    git(path, "worktree", "add", "-q", "-b", "other", str(tmp_path / "linked"))
    git(tmp_path / "linked", "commit", "-q", "--allow-empty", "-m", "second")
    assert head(tmp_path / "linked") == ("other", git(tmp_path / "linked", "rev-parse", "HEAD"))
    assert found(tmp_path / "linked").name == found(path).name == "example.com/team/shop"
    assert is_dirty(found(tmp_path / "linked")) is False
    (tmp_path / "linked" / "new").write_text("x")
    assert is_dirty(found(tmp_path / "linked")) is True
    assert is_dirty(found(path)) is False


def test_a_submodule_is_a_repository_of_its_own(tmp_path: Path) -> None:
    """Inside a submodule, branch and commit are those of the submodule."""
    inner, outer = repository(tmp_path / "inner"), repository(tmp_path / "outer")
    allowed = ("-c", "protocol.file.allow=always")
    git(outer, *allowed, "submodule", "--quiet", "add", str(inner), "sub")
    assert head(outer / "sub")[1] == git(inner, "rev-parse", "HEAD")


def test_a_new_repository_has_no_commit(tmp_path: Path) -> None:
    """Before the first commit, the branch is known, and there is no commit."""
    git(tmp_path, "init", "-q", "-b", "main")
    assert head(tmp_path) == ("main", None)
    assert found(tmp_path).name == str(tmp_path)
    assert find_repository(Path("/")) is None


def test_references_that_only_git_can_read(tmp_path: Path) -> None:
    """If the references are not in files, `git` reads them."""
    path = repository(tmp_path / "shop")
    known = found(path)
    (path / ".git" / "reftable").mkdir()
    hidden = found(path)
    assert (hidden.branch, hidden.commit, hidden.is_complete) == (None, None, False)
    (path / ".git" / "reftable").rmdir()
    assert with_head_of_git(hidden) == known


def test_damaged_files_are_unknown(tmp_path: Path) -> None:
    """Files with an unexpected text give no branch and no commit, and never a path outside the repository."""
    path = repository(tmp_path / "shop")
    head_file = path / ".git" / "HEAD"
    for text in ("", "nonsense", "ref: ", "ref: ../../secret", "ref: /etc/passwd", "zz" * 20):
        head_file.write_text(text)
        assert found(path).commit is None, text
    head_file.write_text("ref: refs/heads/loop")
    (path / ".git" / "refs" / "heads" / "loop").write_text("ref: refs/heads/loop")
    assert head(path) == ("loop", None)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://github.com/team/shop.git", "github.com/team/shop"),
        ("https://user:token@GitHub.com/team/shop", "github.com/team/shop"),
        ("ssh://git@host:2222/team/shop.git/", "host/team/shop"),
        ("git@github.com:team/shop.git", "github.com/team/shop"),
        ("host:shop.git", "host/shop"),
        ("/srv/shop.git", None),
        ("../shop", None),
        ("C:\\shop", None),
        ("file:///srv/shop.git", None),
    ],
)
def test_the_name_of_a_remote_has_no_credentials(url: str, name: str | None) -> None:
    """A repository is named by host and path of its remote, however its URL is written."""
    assert remote_name(url) == name


def test_a_session_records_its_repository(shop: Path, tmp_path: Path) -> None:
    """The start of a session has the commit as a fact, the names as digests, and later the uncommitted changes."""
    home = tmp_path / "home"
    (shop / "untracked").write_text("x")
    with recording(home):
        session_id = agent("working")
        examined()
    rows = queries.query(
        "SELECT session_id, commit, dirty, source, directory FROM git_states ORDER BY sequence",
        home=home,
    )
    commit = git(shop, "rev-parse", "HEAD")
    assert rows == [(session_id, commit, dirty, "start", None) for dirty in (None, True)]
    [row] = queries.query("SELECT * EXCLUDE (session_id) FROM session_git", home=home)
    repository_digest, branch_digest, *others = row
    assert others == [commit, True, None, 1]
    assert repository_digest.startswith("digest:")
    assert branch_digest.startswith("digest:")
    assert not [n for n in files_with(home, "canary-branch") if not n.endswith(".content")]
    assert not files_with(home, "canary-token")


@pytest.mark.slow
def test_names_are_shown_locally(
    shop: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`show`, `cost --by` and the page of a session show the names; without content they show digests."""
    home = tmp_path / "home"
    with recording(home):
        session_id = agent("working")
        examined()
        git(shop, "checkout", "-q", "-b", "second")
        agent("later")
        agent("silent", content="off")
        examined()
    shell = Shell(home, capsys)
    shown = [
        " ".join(line.split()) for line in shell("show", "working", "--facts").out.splitlines()
    ]
    commit = git(shop, "rev-parse", "HEAD")
    for line in (
        "repository example.com/team/shop", "branch canary-branch", f"commit {commit}", "dirty no",
    ):  # fmt: skip
        assert line in shown
    costs = shell("cost", "--by", "branch", "--json").out.splitlines()
    by_branch = {row["branch"]: row["calls"] for row in map(json.loads, costs)}
    assert by_branch == {"canary-branch": 2, "second": 4}
    sql = "SELECT count(DISTINCT session_id) AS n FROM git_states WHERE branch = $branch"
    selected = shell("sql", sql, "--param", "branch=canary-branch", "--json").out
    assert json.loads(selected) == {"n": 1}
    [row] = map(json.loads, shell("cost", "--by", "repository", "--json").out.splitlines())
    assert (row["repository"], row["calls"]) == ("example.com/team/shop", 6)
    commits = [
        json.loads(each) for each in shell("cost", "--by", "commit", "--json").out.splitlines()
    ]
    assert {(row["commit"], row["branch"]) for row in commits} == {
        (commit, "canary-branch"),
        (commit, "second"),
    }
    with serving(existing_home(home)) as client:
        page = client.get(f"/sessions/{session_id}").words
    assert f"example.com/team/shop branch canary-branch commit {commit[:12]}" in page


def test_readable_names_are_opted_in(shop: Path, tmp_path: Path) -> None:
    """With `Options(git="names")`, repository and branch are readable in the facts."""
    home = tmp_path / "home"
    with recording(home, git="names"):
        agent("working")
    [row] = queries.query("SELECT repository, branch FROM session_git", home=home)
    assert row == ("example.com/team/shop", "canary-branch")


@pytest.mark.slow
@pytest.mark.parametrize("variable", [True, False])
def test_git_can_be_switched_off(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: bool
) -> None:
    """With `off`, nothing is read and nothing is recorded, not even on request."""
    home = tmp_path / "home"
    if variable:
        monkeypatch.setenv("AGENTOBS_GIT", "off")
    monkeypatch.setattr(states, "find_repository", lambda _: pytest.fail("it was read"))
    with recording(home, **({} if variable else {"git": "off"})):
        agent("working", agentobs.record_git)
    assert queries.query("FROM git_states", home=home) == []


def test_an_unknown_mode_is_an_error_or_a_warning(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """An unknown option is an error; an unknown value of the variable is one warning, and nothing is recorded."""
    with pytest.raises(UsageError, match="git is 'yes'"):
        Options(git="yes")  # type: ignore[arg-type]
    monkeypatch.setenv("AGENTOBS_GIT", "yes")
    with recording(tmp_path / "home"):
        agent("working")
    assert queries.query("FROM git_states", home=tmp_path / "home") == []
    [warning] = [each for each in own_warnings(recwarn) if "AGENTOBS_GIT" in each]
    assert "use off, on or names" in warning


def test_a_program_records_the_state_again(shop: Path, tmp_path: Path) -> None:
    """`agentobs.record_git` records the state of now, with the lane and the turn; the start stays as it was."""
    home = tmp_path / "home"

    def commit() -> None:
        (shop / "file.txt").write_text("two")
        git(shop, "commit", "-q", "-a", "-m", "second")
        agentobs.record_git()

    before = git(shop, "rev-parse", "HEAD")
    with recording(home):
        agentobs.record_git()  # outside a session
        agent("working", commit)
        examined()
    after = git(shop, "rev-parse", "HEAD")
    rows = queries.query("SELECT DISTINCT source, commit, lane FROM git_states", home=home)
    assert sorted(rows) == [("program", after, "main"), ("start", before, None)]
    [row] = queries.query("SELECT commit, states FROM session_git", home=home)
    assert row == (before, 2)


@pytest.mark.slow
@pytest.mark.parametrize("failure", ["missing", "slow"])
def test_what_git_cannot_tell_is_unknown(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    """Without `git`, or if it does not end in time, the session has branch and commit, and NULL for the rest."""
    tools = tmp_path / "tools"
    tools.mkdir()
    if failure == "slow":
        (tools / "git").write_text("#!/bin/sh\nexec sleep 1000\n")
        (tools / "git").chmod(0o755)
        monkeypatch.setattr("agentobs.recording.git.repository.STATUS_SECONDS", 0.01)
    commit = git(shop, "rev-parse", "HEAD")
    monkeypatch.setenv("PATH", f"{tools}:/bin" if failure == "slow" else str(tools))
    home = tmp_path / "home"
    with recording(home):
        agent("working")
        examined()
    [row] = queries.query("SELECT commit, dirty, states FROM session_git", home=home)
    assert row == (commit, None, 1)


def test_a_repository_that_cannot_be_read_does_not_break_the_session(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """An error while reading is one warning; the session is recorded without a git state."""

    def fail(_: Path) -> None:
        raise PermissionError(13, "no")

    monkeypatch.setattr(states, "find_repository", fail)
    home = tmp_path / "home"
    with recording(home):
        agent("working")
    [[status]] = queries.query("SELECT status FROM sessions", home=home)
    assert status == "completed"
    [warning] = [each for each in own_warnings(recwarn) if "git repository" in each]
    assert "PermissionError" in warning


def test_git_runs_no_program_of_the_repository(shop: Path, tmp_path: Path) -> None:
    """The monitor that a repository configures is not started, and the index is not written."""
    monitor = tmp_path / "monitor"
    monitor.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    monitor.chmod(0o755)
    git(shop, "config", "core.fsmonitor", str(monitor))
    os.utime(shop / "file.txt", (1, 1))  # `git status` would refresh the index
    index = (shop / ".git" / "index").read_bytes()
    assert is_dirty(found(shop)) is False
    assert not (tmp_path / "started").exists()
    assert (shop / ".git" / "index").read_bytes() == index


def test_values_do_not_change() -> None:
    """A repository is a frozen value, because two threads use it."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        Repository(Path(), Path(), "x").branch = "y"  # type: ignore[misc]


@pytest.mark.slow
@pytest.mark.skipif(
    TRANSCRIPTS is None, reason="no transcripts: set AGENTOBS_TRANSCRIPTS to their folder"
)
def test_imported_logs_keep_branch_and_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A log of Claude Code has branch and working directory as digests; costs are shown by branch."""
    home = tmp_path / "home"
    shell = Shell(home, capsys)
    assert TRANSCRIPTS is not None
    log = next(TRANSCRIPTS.rglob("42-d34ec97ff8-0.jsonl"))
    assert shell("import", "claude-code", str(log)).code == 0
    rows: list[tuple[Any, ...]] = queries.query(
        "SELECT DISTINCT branch, directory, source, commit, dirty FROM git_states", home=home
    )
    assert all(row[0].startswith("digest:") and row[1].startswith("digest:") for row in rows)
    assert {row[2:] for row in rows} == {("log", None, None)}
    costs = [
        json.loads(each) for each in shell("cost", "--by", "branch", "--json").out.splitlines()
    ]
    assert "user/refactor-trailer-checkpoint-id" in {row["branch"] for row in costs}
    shown = shell("show", "claude-code", "--facts").out
    assert "/Users/user/Work/entire/devenv/cli" in shown
