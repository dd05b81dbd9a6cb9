"""The files of a recorded session: its states at each turn, and which call made each change."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import agentobs
from agentobs.effects import workspaces
from agentobs.recording.journal.home import open_home
from agentobs.store.backend import open_store
from agentobs.store.label_texts import LabelTexts
from tests import queries
from tests.effects.workspaces.scripted_agent import Agent, Provider, Script, call_id, observed
from tests.effects.workspaces.trees import FileState, files_of, git, write

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
