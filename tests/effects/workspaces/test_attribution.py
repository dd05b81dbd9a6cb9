"""The rules by which a change gets a tool call, or none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentobs.effects.workspaces.attribution import Call, Workspace, attribute, candidates
from agentobs.effects.workspaces.file_changes import Change
from agentobs.recording.facts.background_commands import is_background_command, leaves_process

ROOT = Path("/home/ada/project")
BLOBS = {"old": b"one\ntwo\n", "new": b"one\n2\n", "edited": b"1\n2\n"}
MODIFIED = Change("modified", "src/a.py", None, "old", "new", "100644", "100644", 8, 6)
DELETED = Change("deleted", "src/a.py", None, "old", None, "100644", None, 8)
RENAMED = Change("renamed", "src/b.py", "src/a.py", "old", "old", "100644", "100644", 8, 8)
SPACED = Change("deleted", "src/my file.py", None, "old", None, "100644", None, 8)
FILES = {"src/a.py", "src/b.py", "other.py"}


def call(
    number: int,
    value: Any,
    name: str = "tool",
    lane: str = "main",
    opened: int = 10,
    closed: int | None = 20,
) -> Call:
    return Call("s", f"a{number}", 1, f"toolu_{number}", name, value, lane, 1, None, opened, closed)


def made_by(change: Change, *inputs: Any) -> tuple[int | None, str | None, str | None]:
    """Return the number of the call that made a change, from 0, with certainty and rule."""
    calls = [call(number, value) for number, value in enumerate(inputs)]
    workspace = Workspace(ROOT, ROOT / "src")
    found = attribute(change, calls, workspace, FILES.__contains__, BLOBS.__getitem__)
    return (calls.index(found.call) if found.call else None, found.certainty, found.rule)


NONE = (None, None, None)
EDIT = {"old_string": "two", "new_string": "2"}


@pytest.mark.parametrize(
    ("change", "inputs", "expected"),
    [
        # The input contains the change.
        (MODIFIED, [{"path": "a.py", "content": "one\n2\n"}], (0, "observed", "content")),
        (MODIFIED, [{"file_path": "/home/ada/project/src/a.py", **EDIT}], (0, "observed", "content")),
        (MODIFIED, [{"path": "src/a.py", "edits": [EDIT]}, {"command": "x"}], (0, "observed", "content")),
        (MODIFIED, [{"path": "other.py", "content": "one\n2\n"}], NONE),
        # Two calls that contain it: the last one is unknown.
        (MODIFIED, [{"path": "a.py", **EDIT}] * 2, NONE),
        # The input names the path.
        (MODIFIED, [{"path": "a.py", "old_string": "x", "new_string": "y"}], (0, "inferred", "path")),
        (DELETED, [{"command": "rm ./a.py"}], (0, "inferred", "path")),
        (DELETED, [{"path": "../src/a.py"}, {"path": "/home/ada/project/other.py"}], (0, "inferred", "path")),
        (RENAMED, [{"from": "a.py", "to": "b.py"}], (0, "inferred", "path")),
        # Another call may have made the change.
        (DELETED, [{"path": "a.py"}, {"command": "rm *.py"}], NONE),
        (DELETED, [{"path": "a.py"}, {}], NONE),
        (DELETED, [{"path": "a.py"}, {"path": "other.py", "directory": "."}], NONE),
        (DELETED, [{"path": "a.py"}, {"path": "other.py", "in": "/home/ada/project"}], NONE),
        (DELETED, [{"path": "a.py"}, {"paths": ["a.py"]}], NONE),
        # The provider's text editor only changes the file that its input names.
        (DELETED, [{"path": "a.py"}, {"command": "create", "path": "b.py"}], (0, "inferred", "path")),
        # A name with a blank, in quotes.
        (SPACED, [{"command": "rm 'my file.py'"}, {"path": "other.py"}], (0, "inferred", "path")),
        # There is only one call.
        (MODIFIED, [{"command": "make"}], (0, "inferred", "only_call")),
        (MODIFIED, ["incomplete JSON"], (0, "inferred", "only_call")),
        (MODIFIED, [{"path": "/home/ada/project/other.py"}], NONE),
        (MODIFIED, [], NONE),
    ],
)  # fmt: skip
def test_rules(change: Change, inputs: list[Any], expected: tuple[Any, ...]) -> None:
    """A change is attributed only if no other candidate can have made it."""
    assert made_by(change, *inputs) == expected


def made(change: Change, *calls: Call, before_ns: int = 0, after_ns: int = 15) -> Any:
    """Return the ID of the call that made a change, and the rule."""
    found = attribute(
        change,
        calls,
        Workspace(ROOT, ROOT),
        FILES.__contains__,
        BLOBS.__getitem__,
        before_ns,
        after_ns,
    )
    return found.call and found.call.tool_use_id, found.rule


def test_commands_in_the_background_stay_candidates() -> None:
    """A command in the background prevents that an unnamed change is attributed to the only other call. It does not
    prevent it if the other call names the file.
    """
    server = call(1, {"command": "npm run dev", "run_in_background": True}, opened=1, closed=None)
    server.returned_ns = 5
    build, named = call(2, {"command": "make"}), call(3, {"command": "make src/a.py"})
    assert made(MODIFIED, server, build, before_ns=6) == (None, None)
    assert made(MODIFIED, server, named, before_ns=6) == ("toolu_3", "path")
    assert made(MODIFIED, server, before_ns=6) == ("toolu_1", "only_call")
    # In the turn in which it starts, it is a call like any other.
    assert made(MODIFIED, server, named, before_ns=4) == (None, None)


def test_a_call_that_was_opened_after_the_reading_is_not_the_only_one() -> None:
    """If the snapshot was late, a call of the next turn may be a candidate, but the change may be older."""
    assert made(MODIFIED, call(1, {"command": "make"}, opened=14)) == ("toolu_1", "only_call")
    assert made(MODIFIED, call(1, {"command": "make"}, opened=16)) == (None, None)
    assert made(MODIFIED, call(1, {"command": "make src/a.py"}, opened=16)) == ("toolu_1", "path")


def test_a_new_file_is_another_file() -> None:
    """A tool that writes one file did not change another one, even if its file does not exist yet."""
    new = {"file_path": str(ROOT / "new.py"), "content": "x"}
    assert made(MODIFIED, call(1, new)) == ("toolu_1", "only_call")
    assert made(MODIFIED, call(1, new, name="Write")) == (None, None)
    assert made(DELETED, call(1, new, name="Write"), call(2, {"command": "rm src/a.py"})) == (
        "toolu_2",
        "path",
    )


def test_the_directory_of_a_command_is_known() -> None:
    """The shells of some agents keep the directory of `cd`, to which the paths of later commands refer."""
    removal = call(1, {"command": "rm a.py"})
    other = call(2, {"path": "other.py"})
    assert made(DELETED, removal, other) == (None, None)
    removal.directory = str(ROOT / "src")
    assert made(DELETED, removal, other) == ("toolu_1", "path")


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("npm start &", True),
        ("(npm start &)", True),
        ("npm start > log 2>&1 & echo $!", True),
        ("nohup npm start &> log &\nsleep 1", True),
        ("make && make test", False),
        ("make > log 2>&1", False),
        ("make &> log", False),
        ("a & b & wait", False),
        ("cat > page.html <<'END'\nfish & chips\nEND\nls", False),
        ("cat <<END | server &\nfish\nEND", True),
        ("cat <<A && cat <<B\nfish & chips\nA\nB", False),
        ("echo $((1<<n)); cat <<-END\nfish & chips\n\tEND\nls", False),
        ("echo 'unbalanced & quote", False),
        ("curl 'http://x/?a=1&b=2'", False),
    ],
)
def test_commands_that_leave_a_process(command: str, expected: bool) -> None:
    assert leaves_process({"command": command}) is expected
    assert not leaves_process({"content": command})
    assert not is_background_command({"command": command})
    assert is_background_command({"command": command, "run_in_background": True})
    assert not is_background_command({"prompt": command, "run_in_background": True})


def test_a_command_with_many_here_documents_is_searched_in_linear_time() -> None:
    """A search that reads the rest of the command again at each of its characters would take hours."""
    assert leaves_process({"command": "npm start & " + "<<A " * 2000 + "\n" * 11_000})
    assert leaves_process({"command": "npm start & <<" + "A" * 19_000})


def test_only_calls_that_were_open_are_candidates() -> None:
    """Calls before and after, of reading tools and of sub-agents that have their own calls are not candidates."""
    calls = [
        call(1, {}, opened=1, closed=5),
        call(2, {}, opened=1, closed=None),
        call(3, {}, opened=6, closed=7),
        call(4, {}, opened=9, closed=None),
        call(5, {}, name="Grep"),
        call(6, {}, opened=1, closed=None),
        call(7, {}, opened=6, closed=7, lane="main/toolu_6"),
        call(8, {"command": "view", "path": "a.py"}),
    ]
    found = candidates(calls, ["main", "main/toolu_6"], 5, 9)
    assert [each.tool_use_id for each in found] == ["toolu_2", "toolu_3", "toolu_7"]
