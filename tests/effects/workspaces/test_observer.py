"""The files of a recorded session: its states at each turn, and which call made each change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import agentobs
from agentobs.effects import workspaces
from agentobs.effects.observation import Scope
from agentobs.effects.workspaces.observer import FileObserver
from agentobs.errors import UsageError
from agentobs.recording.journal.home import open_home
from agentobs.runtime import process
from agentobs.store.backend import open_store
from agentobs.store.label_texts import LabelTexts
from tests import queries
from tests.effects.workspaces.scripted_agent import Agent, Provider, Script, call_id, observed
from tests.effects.workspaces.test_snapshots import fake_git
from tests.effects.workspaces.trees import FileState, files_of, git, write
from tests.provider_script import call, text
from tests.replay.raw_provider import JSON, play_chunks, raw_provider

CHANGES = """
    SELECT path, change, lane, turn, certainty, rule, candidates, tool_use_id, lines_added, lines_removed, late
    FROM file_changes ORDER BY state, sequence
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a workspace, which is the working directory; stop the recorder afterwards."""
    agentobs.stop_recorder()
    path = tmp_path / "workspace"
    path.mkdir()
    monkeypatch.chdir(path)
    yield path
    agentobs.stop_recorder()


def readable(home: Path, sql: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query with the texts of their digests."""
    rows = queries.query(sql, home=home)
    with open_store(open_home(home)) as store:
        return LabelTexts(store).replace_in_rows(rows)


TURNS: Script = {
    "fix it": [
        [("write", {"path": "a.txt", "content": "one\ntwo\n"})],
        [("edit", {"path": "a.txt", "old_string": "two", "new_string": "2"})],
        [("Read", {"path": "a.txt"})],
        [("move", {"path": "a.txt", "to": "b.txt"})],
        [("shell", {"command": "append notes.md hello\nappend other.md there"})],
        [
            ("write", {"path": "c.txt", "content": "c\n"}),
            ("write", {"path": "d.txt", "content": "d\n"}),
        ],
        [("remove", {"path": "c.txt"}), ("shell", {"command": "append d.txt more"})],
        [("look", {}), ("shell", {"command": "append d.txt again"})],
        [("write", {"path": "start.py", "content": "print(1)\n"}), ("remove", {"path": "d.txt"})],
        [("remove", {"path": "b.txt"})],
    ]
}


@pytest.mark.slow
def test_each_change_has_its_call_and_each_turn_its_files(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Edits, renames and deletions get their call, or none if several may have made them; each turn is restored."""
    home = tmp_path / "home"
    git(root, "init", "-q")
    write(root, {"start.py": "print(0)\n"})
    at_turn: dict[int, dict[bytes, FileState]] = {}
    provider = Provider(TURNS)
    provider.before_response = lambda _, turn: at_turn.__setitem__(turn, files_of(root))
    with observed(monkeypatch, provider):
        agentobs.start(str(home))
        agent = Agent(root, provider)
        with agentobs.session("fixer", effects=["files"]):
            agent.run("fix it")
    agentobs.stop_recorder()

    def made(turn: int, at: int = 0) -> str:
        return call_id("fix-it", turn, at)

    changed = [row[:8] for row in readable(home, CHANGES)]
    assert changed == [
        ("a.txt", "added", "main", 1, "observed", "content", 1, made(1)),
        ("a.txt", "modified", "main", 2, "observed", "content", 1, made(2)),
        ("b.txt", "renamed", "main", 4, "inferred", "path", 1, made(4)),
        ("notes.md", "added", "main", 5, "inferred", "path", 1, made(5)),
        ("other.md", "added", "main", 5, "inferred", "path", 1, made(5)),
        ("c.txt", "added", "main", 6, "observed", "content", 2, made(6, 0)),
        ("d.txt", "added", "main", 6, "observed", "content", 2, made(6, 1)),
        # The command may have deleted any file, and `look` may have changed any.
        ("c.txt", "deleted", "main", 7, None, None, 2, None),
        ("d.txt", "modified", "main", 7, "inferred", "path", 2, made(7, 1)),
        ("d.txt", "modified", "main", 8, None, None, 2, None),
        ("d.txt", "deleted", "main", 9, "inferred", "path", 2, made(9, 1)),
        ("start.py", "modified", "main", 9, "observed", "content", 2, made(9, 0)),
        ("b.txt", "deleted", "main", 10, "inferred", "path", 1, made(10)),
    ]
    states = queries.query(
        "SELECT source, turn, state, workspace_id, session_id, late, failure, is_stable FROM workspace_states "
        "ORDER BY at_ns, source DESC",
        home=home,
    )
    assert [(source, turn) for source, turn, *_ in states] == [
        ("start", None),
        *(("request", turn) for turn in range(1, 12)),
        ("end", None),
    ]
    assert {row[5:] for row in states} == {(False, None, True)}
    for _, turn, number, workspace_id, session_id, *_ in states[1:-1]:
        snapshot = workspaces.state(open_home(home), workspace_id, session_id, number)
        out = tmp_path / f"turn{turn}"
        workspaces.restore_state(open_home(home), workspace_id, snapshot, out)
        assert files_of(out) == at_turn[turn]
    assert len({row[2] for row in states}) == 10, "equal states have one number"


TWO: Script = {
    "lead": [[("task", {"prompt": "first part"}), ("task", {"prompt": "second part"})]],
    "first part": [
        [("write", {"path": "one.txt", "content": "by one\n"})],
        [("remove", {"path": "old1.txt"})],
        [("Read", {"path": "shared.txt"}), ("look", {"path": "shared.txt"})],
    ],
    "second part": [
        [("write", {"path": "two.txt", "content": "by two\n"})],
        [("remove", {"path": "old2.txt"})],
        [("shell", {"command": "rm sha*.txt"})],
    ],
}


@pytest.mark.slow
def test_concurrent_sub_agents_never_get_the_change_of_the_other(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes of two sub-agents in one tree have the right call, or none with the number of candidates."""
    home = tmp_path / "home"
    write(root, {name: f"{name}\n" for name in ("old1.txt", "old2.txt", "shared.txt")})
    provider, together = Provider(TWO), threading.Barrier(2)

    def wait(prompt: str, turn: int) -> None:
        if prompt != "lead":
            together.wait(60)

    provider.before_response = wait
    with observed(monkeypatch, provider):
        agentobs.start(str(home))
        agent = Agent(root, provider)
        agent.after_tools = wait
        with agentobs.session("pair", effects=["files"]):
            agent.run("lead")
    agentobs.stop_recorder()
    first, second = (f"main/{call_id('lead', 1, at)}" for at in (0, 1))
    changed = {row[0]: row[1:8] for row in readable(home, CHANGES)}
    assert changed["one.txt"][:5] == ("added", first, 1, "observed", "content")
    assert changed["two.txt"][:5] == ("added", second, 1, "observed", "content")
    assert changed["old1.txt"][:5] == ("deleted", first, 2, "inferred", "path")
    assert changed["old2.txt"][:5] == ("deleted", second, 2, "inferred", "path")
    assert changed["shared.txt"] == ("deleted", None, None, None, None, 2, None)


LATE: Script = {
    "hurry": [
        [("shell", {"command": "append a.txt one"})],
        [("shell", {"command": "append b.txt two"})],
        [("shell", {"command": "append c.txt three"})],
    ]
}


@pytest.mark.slow
def test_a_snapshot_that_ends_after_the_response_is_late(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may contain changes of the next turn, so its time does not attribute any change to one of several calls."""
    home, block = tmp_path / "home", tmp_path / "block"
    fake_git(
        tmp_path / "bin",
        f'case "$*" in *ls-files*) while [ -e {block} ]; do sleep 0.01; done;; esac\nexec "$real" "$@"',
        monkeypatch,
    )
    provider = Provider(LATE)

    def after_tools(_: str, turn: int) -> None:
        if turn == 1:
            provider.waits = False
            block.touch()  # the snapshot of the second request starts after this, and waits
        else:
            block.unlink(missing_ok=True)
            provider.waits = True

    with observed(monkeypatch, provider):
        agentobs.start(str(home))
        agent = Agent(root, provider)
        agent.after_tools = after_tools
        with agentobs.session("hurry", effects=["files"]):
            agent.run("hurry")
    agentobs.stop_recorder()
    marks = queries.query(
        "SELECT turn, late FROM workspace_states WHERE turn IS NOT NULL ORDER BY turn", home=home
    )
    assert marks == [(1, False), (2, True), (3, False), (4, False)]
    changed = {row[0]: (row[3], row[5], row[6], row[10]) for row in readable(home, CHANGES)}
    assert changed == {
        # The path is a word of the only command that was open, or of one of two.
        "a.txt": (None, None, 2, True),
        "b.txt": (None, None, 2, True),
        "c.txt": (3, "path", 1, False),
    }


@pytest.mark.slow
@pytest.mark.parametrize("is_slow", [False, True])
def test_the_start_is_what_the_agent_found(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_slow: bool
) -> None:
    """An agent that changes files at once waits for the first snapshot, or the snapshot is marked."""
    home, block = tmp_path / "home", tmp_path / "block"
    if is_slow:
        monkeypatch.setattr("agentobs.effects.workspaces.observer.START_SECONDS", 0.0)
        fake_git(
            tmp_path / "bin",
            f'case "$*" in *ls-files*) while [ -e {block} ]; do sleep 0.01; done;; esac\nexec "$real" "$@"',
            monkeypatch,
        )
        block.touch()
    else:
        monkeypatch.setattr("agentobs.effects.workspaces.observer.START_SECONDS", 60.0)
    write(root, {"a.txt": "a\n"})
    agentobs.start(str(home))
    with agentobs.session("quick", effects=["files"]):
        (root / "a.txt").unlink()
        block.unlink(missing_ok=True)
    agentobs.stop_recorder()
    states = queries.query("SELECT source, files, late FROM workspace_states", home=home)
    assert sorted(states) == [("end", 0, False), ("start", 0 if is_slow else 1, is_slow)]
    changed = [row[:2] for row in readable(home, CHANGES)]
    assert changed == ([] if is_slow else [("a.txt", "deleted")])


@pytest.mark.slow
def test_a_full_disk_stops_the_snapshots_but_not_the_agent(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason is recorded, the session is complete, and no more snapshots are taken."""
    home, full = tmp_path / "home", tmp_path / "full"
    fake_git(
        tmp_path / "bin",
        f'if [ -e {full} ]; then case "$*" in *update-index*) echo "fatal: No space left on device" >&2; exit 128;; '
        'esac; fi\nexec "$real" "$@"',
        monkeypatch,
    )
    provider = Provider(LATE)
    with observed(monkeypatch, provider), pytest.warns(RuntimeWarning, match="disk full"):
        agentobs.start(str(home))
        agent = Agent(root, provider)
        agent.after_tools = lambda _, turn: full.touch() if turn == 2 else None
        with agentobs.session("full", effects=["files"]):
            assert agent.run("hurry") == "Done: hurry."
    agentobs.stop_recorder()
    states = "SELECT source, state, failure FROM workspace_states ORDER BY at_ns, source DESC"
    assert queries.query(states, home=home) == [
        ("start", 1, None),
        ("request", 1, None),
        ("request", 2, None),
        ("request", None, "disk_full"),
        ("request", None, "disk_full"),
        ("end", None, "disk_full"),
    ]
    assert [row[0] for row in readable(home, CHANGES)] == ["a.txt"]
    assert queries.query("SELECT status FROM sessions", home=home) == [("completed",)]


def test_files_are_content(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session without content, one with encrypted content, and one without the switch record no files."""
    home = tmp_path / "home"
    provider = Provider(LATE)
    with observed(monkeypatch, provider):
        agentobs.start(str(home))
        agent = Agent(root, provider)
        with (
            pytest.warns(RuntimeWarning, match="records no content"),
            agentobs.session("off", content="off", effects=["files", "commands"]),
        ):
            subprocess.run(["sh", "-c", "exit 3"])  # the other effect is observed all the same
            agent.run("hurry")
        with agentobs.session("without"):
            agent.run("hurry")
        monkeypatch.setattr(process.exchange_observer, "is_sealed", True)
        with pytest.raises(UsageError, match="content is encrypted"):
            FileObserver().start(Scope(open_home(home), root, lambda: None))
    agentobs.stop_recorder()
    assert queries.query("FROM workspace_states", home=home) == []
    assert queries.query("SELECT exit_code, content FROM commands", home=home) == [(3, None)]
    assert not (home / "workspaces").exists()


COMMAND = """
import http.client, json, os, sys, urllib.parse
url = urllib.parse.urlsplit(os.environ["ANTHROPIC_BASE_URL"])
messages = [{"role": "user", "content": "go"}]
while True:
    connection = http.client.HTTPConnection(url.netloc)
    body = {"model": "claude-sonnet-5", "max_tokens": 9, "messages": messages, "tools": [{"name": "write"}]}
    connection.request("POST", url.path + "/v1/messages", json.dumps(body), {"anthropic-version": "2023-06-01"})
    message = json.loads(connection.getresponse().read())
    messages.append({"role": "assistant", "content": message["content"]})
    calls = [each for each in message["content"] if each["type"] == "tool_use"]
    if not calls:
        break
    for call in calls:
        open(call["input"]["path"], "w").write(call["input"]["content"])
    messages.append({"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": each["id"], "content": "ok"} for each in calls]})
"""


@pytest.mark.slow
def test_a_recorded_command(root: Path, tmp_path: Path) -> None:
    """The files of a command are recorded by the proxy; each change has its call or none, whatever the timing."""
    home = tmp_path / "home"
    script = tmp_path / "agent.py"
    script.write_text(COMMAND)
    write(root, {"kept": "k"})
    contents = [call(n, "write", path=f"{n}.txt", content=f"{n}\n") for n in (1, 2)]
    answers = [
        play_chunks(200, JSON, json.dumps(message(each)).encode())
        for each in (*contents, text("done"))
    ]
    with raw_provider(answers) as provider:
        ended = subprocess.run(
            [
                sys.executable,
                "-m",
                "agentobs",
                "record",
                "--effects",
                "files",
                "--",
                sys.executable,
                str(script),
            ],
            env={**os.environ, "AGENTOBS_HOME": str(home), "ANTHROPIC_BASE_URL": provider.url},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.splitlines()[0] == (
        f"agentobs: files are recorded into {home}/workspaces as they are: secrets in them are neither redacted nor "
        "encrypted"
    )
    made = {row[0]: (row[7], row[4]) for row in readable(home, CHANGES)}
    assert made == {"1.txt": ("toolu_1", "observed"), "2.txt": ("toolu_2", "observed")}
    states = queries.query(
        "SELECT session_id, source, state, workspace_id FROM workspace_states ORDER BY at_ns, source DESC",
        home=home,
    )
    assert (states[0][1], states[-1][1], len(states)) == ("start", "end", 5)
    session_id, _, number, workspace_id = states[-1]
    snapshot = workspaces.state(open_home(home), workspace_id, session_id, number)
    workspaces.restore_state(open_home(home), workspace_id, snapshot, tmp_path / "out")
    assert files_of(tmp_path / "out") == files_of(root)


def message(content: dict[str, Any]) -> dict[str, Any]:
    """Return a complete response."""
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-5",
        "content": [content],
        "stop_reason": "tool_use" if content["type"] == "tool_use" else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
