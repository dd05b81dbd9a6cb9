"""Causes of effects: `agentobs why` and `agentobs blame`, on a recorded agent of twelve turns."""

from __future__ import annotations

import json
import os
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import agentobs
from agentobs.cli import main
from agentobs.recording.journal.home import open_home
from agentobs.store.backend import open_store
from agentobs.store.label_texts import LabelTexts
from tests import queries
from tests.cli.test_commands import Shell
from tests.effects.jumping_clock import jumping
from tests.effects.workspaces.release_agent import (
    MESS,
    PROMPT,
    Release,
    record_mess,
    record_release,
)
from tests.effects.workspaces.scripted_agent import Agent, Provider, call_id, observed
from tests.effects.workspaces.trees import files_of, write
from tests.marks import mark_all_but_first
from tests.shared_stores import shared_store

DOCS_LANE = f"main/{call_id(PROMPT.replace(' ', '-'), 8, 0)}"
TESTS_LANE = f"main/{call_id(PROMPT.replace(' ', '-'), 8, 1)}"


@pytest.fixture(scope="module", params=mark_all_but_first(["steady", "jumps"], pytest.mark.crash))
def release(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Release]:
    """Record both sessions, and one without effects, once; also with a wall clock that jumps all the time."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "jumps":
            patch.setattr(time, "time_ns", jumping())
        recorded = record_release(tmp_path_factory.mktemp("release"))
        record_mess(recorded)
    agentobs.start(str(recorded.home))
    with agentobs.session("plain"):
        pass
    agentobs.stop_recorder()
    main(["--home", str(recorded.home), "ingest"])
    with shared_store(recorded.home):
        yield recorded


@pytest.fixture
def shell(
    release: Release, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Shell:
    """Return a function that runs commands on the home, in the workspace."""
    monkeypatch.chdir(release.root)
    return Shell(release.home, capsys)


def why(shell: Shell, session: str, *arguments: str) -> dict[str, Any]:
    """Return the graph that `agentobs why` prints."""
    ended = shell("why", session, *arguments, "--json")
    assert ended.code == 0, ended.err
    graph: dict[str, Any] = json.loads(ended.out)
    return graph


def calls(graph: dict[str, Any]) -> list[tuple[str, str | None, int | None]]:
    """Return the tool calls of a graph."""
    return [(e["name"], e["lane"], e["turn"]) for e in graph["nodes"] if e["kind"] == "tool_call"]


def edges(graph: dict[str, Any], kind: str) -> list[tuple[str, str, str]]:
    """Return the kind of the cause, the certainty and the rule of all edges to nodes of a kind."""
    return [
        (each["source"].partition(":")[0], each["certainty"], each["rule"])
        for each in graph["edges"]
        if each["target"].startswith(f"{kind}:")
    ]


def nodes(graph: dict[str, Any], kind: str) -> list[tuple[str, str]]:
    """Return names and facts of the nodes of a kind."""
    return [(each["name"], each["detail"]) for each in graph["nodes"] if each["kind"] == kind]


def blame(shell: Shell, path: str, *arguments: str) -> list[tuple[Any, ...]]:
    """Return text, lane, turn, tool, prompt and origin of the lines of a file."""
    ended = shell("blame", path, *arguments, "--json")
    assert ended.code == 0, ended.err
    lines = [json.loads(line) for line in ended.out.splitlines()]
    return [(e["text"], e["lane"], e["turn"], e["tool"], e["prompt"], e["origin"]) for e in lines]


@pytest.mark.slow
def test_every_change_of_twelve_turns_has_its_call(release: Release) -> None:
    """Each change is attributed to the call that made it, including changes by concurrent sub-agents; no attribution is
    wrong.
    """
    rows = queries.query(
        "SELECT path, change, lane, turn, certainty, rule FROM file_changes JOIN sessions USING (session_id) "
        "WHERE name = 'release' ORDER BY state, path",
        home=release.home,
    )
    with open_store(open_home(release.home)) as store:
        found = {row[:4]: row[4:] for row in LabelTexts(store).replace_in_rows(rows)}
    assert found == {
        ("src/total.py", "added", "main", 1): ("observed", "content"),
        ("check.sh", "added", "main", 1): ("observed", "content"),
        ("src/total.py", "modified", "main", 2): ("observed", "content"),
        ("src/total.py", "modified", "main", 4): ("observed", "content"),
        ("result.txt", "added", "main", 5): ("inferred", "path"),
        ("src/sums.py", "renamed", "main", 7): ("inferred", "path"),
        ("docs/sums.md", "added", DOCS_LANE, 1): ("observed", "content"),
        ("docs/sums.md", "modified", DOCS_LANE, 2): ("observed", "content"),
        ("tests/sums.sh", "added", TESTS_LANE, 1): ("observed", "content"),
        ("tests/old.sh", "deleted", TESTS_LANE, 2): ("inferred", "path"),
        ("notes.md", "deleted", "main", 9): ("inferred", "path"),
        ("data.bin", "added", "main", 10): ("inferred", "path"),
        ("README.md", "modified", "main", 11): ("observed", "content"),
    }  # fmt: skip
    assert len(rows) == 13
    commands = queries.query(
        "SELECT program, turn, exit_code FROM commands JOIN sessions USING (session_id) "
        "ORDER BY sessions.name DESC, commands.started_ns",
        home=release.home,
    )
    assert commands == [("sh", 3, 1), ("sh", 5, 0), ("sh", 10, 0), *([("sh", 1, 0)] * 2)]


@pytest.mark.slow
def test_the_workspace_of_each_turn_is_restored(
    shell: Shell, release: Release, tmp_path: Path
) -> None:
    for turn, files in release.at_turn.items():
        ended = shell("workspace", "release", "--at", str(turn), "-o", str(tmp_path / str(turn)))
        assert ended.code == 0, ended.err
        assert files_of(tmp_path / str(turn)) == files
    assert sorted(release.at_turn) == [*range(1, 13)]


@pytest.mark.parametrize(
    ("path", "expected"),
    mark_all_but_first([
        ("check.sh", [("write", "main", 1)]),
        ("src/sums.py", [("write", "main", 1), ("edit", "main", 2), ("edit", "main", 4), ("move", "main", 7)]),
        ("src/total.py", [("write", "main", 1), ("edit", "main", 2), ("edit", "main", 4), ("move", "main", 7)]),
        ("docs/sums.md", [("task", "main", 8), ("write", DOCS_LANE, 1), ("edit", DOCS_LANE, 2)]),
        ("tests/old.sh", [("task", "main", 8), ("remove", TESTS_LANE, 2)]),
        ("notes.md", [("remove", "main", 9)]),
        ("README.md", [("edit", "main", 11)]),
        ("data.bin", [("run", "main", 10)]),
    ], pytest.mark.slow, kept=5),
)  # fmt: skip
def test_which_calls_changed_a_file(shell: Shell, path: str, expected: list[Any]) -> None:
    """The chain of a file contains the calls that changed it, even under a former name, and the calls that started
    those.
    """
    graph = why(shell, "release", "--file", path)
    # Calls of concurrent agents are in no certain order.
    assert sorted(calls(graph), key=repr) == sorted(expected, key=repr)
    assert nodes(graph, "prompt") == [(PROMPT, "")]


def test_why_a_command_wrote_a_file(shell: Shell) -> None:
    """The chain leads from the prompt over request, call and command to the file, and to the next request."""
    graph = why(shell, "release", "--file", "result.txt")
    kinds = sorted(each["kind"] for each in graph["nodes"])
    assert kinds == ["command", "file_change", "prompt", "request", "request", "tool_call"]
    assert edges(graph, "file_change") == [
        ("tool_call", "inferred", "path"),
        ("command", "inferred", "only_command"),
    ]
    assert edges(graph, "command") == [("tool_call", "inferred", "equal_command")]
    assert edges(graph, "tool_call") == [("request", "recorded", "in_response")]
    assert edges(graph, "request") == [
        ("prompt", "recorded", "same_interaction"),
        ("tool_call", "recorded", "in_next_request"),
    ]
    assert [each[0] for each in nodes(graph, "request")] == ["turn 5 of main", "turn 6 of main"]


def test_why_a_failing_test_ran(shell: Shell) -> None:
    graph = why(shell, "release", "--command", "1")
    assert calls(graph) == [("run", "main", 3)]
    [(name, detail)] = nodes(graph, "command")
    assert (name, detail.partition(",")[0]) == ("1 sh", "exit code 1")
    assert nodes(graph, "file_change") == []
    assert [each[0] for each in nodes(graph, "request")] == ["turn 3 of main", "turn 4 of main"]
    graph = why(shell, "release", "--command", "2")
    assert [each[0] for each in nodes(graph, "file_change")] == ["result.txt"]


def test_what_a_turn_caused(shell: Shell) -> None:
    """A turn shows its calls, the MCP calls, the sub-agents that they started, and the request with the results."""
    graph = why(shell, "release", "--turn", "6")
    assert calls(graph) == [("mcp__calc__add", "main", 6)]
    assert [each[0].split()[-1] for each in nodes(graph, "mcp_call")] == ["add"]
    assert edges(graph, "mcp_call") == [("tool_call", "inferred", "equal_call")]
    graph = why(shell, "release", "--turn", "8")
    assert calls(graph) == [("task", "main", 8)] * 2
    requests = {each[0] for each in nodes(graph, "request")}
    assert requests == {
        "turn 8 of main",
        "turn 9 of main",
        *(f"turn {turn} of agent {number}" for turn in (1, 2, 3) for number in (1, 2)),
    }
    assert edges(graph, "request").count(("tool_call", "inferred", "derived_lane")) == 6
    graph = why(shell, "release", "--turn", "2", "--lane", TESTS_LANE)
    assert calls(graph) == [("task", "main", 8), ("remove", TESTS_LANE, 2)]
    assert [each[0] for each in nodes(graph, "file_change")] == ["tests/old.sh"]


@pytest.mark.slow
def test_why_a_line_is_there(shell: Shell) -> None:
    assert calls(why(shell, "release", "--line", "docs/sums.md:3"))[-1] == ("edit", DOCS_LANE, 2)
    assert calls(why(shell, "release", "--line", "src/sums.py:2")) == [("write", "main", 1)]
    assert calls(why(shell, "release", "--line", "src/sums.py:3")) == [("edit", "main", 4)]
    ended = shell("why", "release", "--line", "README.md:1")
    assert (ended.code, "before the first recorded state" in ended.err) == (1, True)


@pytest.mark.slow
def test_who_wrote_the_lines(shell: Shell) -> None:
    """Lines name session, turn and prompt, even in a renamed file; lines that no session wrote have none."""
    by_call = "by a tool call"
    assert blame(shell, "src/sums.py") == [
        ("# Adds.", "main", 2, "edit", PROMPT, by_call),
        ("def total(a, b):", "main", 1, "write", PROMPT, by_call),
        ("    return a + b", "main", 4, "edit", PROMPT, by_call),
    ]
    nobody = (None, None, None, None)
    assert blame(shell, "README.md") == [
        ("# Sums", "main", 2, "edit", MESS, by_call),
        ("new text", "main", 11, "edit", PROMPT, by_call),
        ("between", *nobody, "not by a recorded session: changed between two sessions"),
        ("after", *nobody, "not by a recorded session: changed after the last recorded state"),
    ]
    assert [each[1:4] for each in blame(shell, "docs/sums.md")] == [
        (DOCS_LANE, 1, "write"),
        (DOCS_LANE, 1, "write"),
        (DOCS_LANE, 2, "edit"),
    ]
    assert blame(shell, "tests/sums.sh", "--lines", "2,9") == [
        ("echo two", TESTS_LANE, 1, "write", PROMPT, by_call)
    ]
    assert blame(shell, "mix.txt") == [
        ("by a person", *nobody, "not by a recorded session: changed between two sessions"),
        ("messy", "main", 1, None, MESS, "one of 3 tool calls may have written it"),
    ]
    text = shell("blame", "README.md").out.splitlines()
    assert text[1].split('turn 11 edit "Prepare the release of the sums"')[1].split() == [
        "2",
        "new",
        "text",
    ]
    assert text[3].endswith("  4  after")


def test_an_unknown_cause_is_stated(shell: Shell) -> None:
    """If several calls may have changed a file, none is named, and the open calls are listed."""
    text = shell("why", "mess", "--file", "mix.txt").out
    assert (
        "unknown cause, 3 tool calls were open (look of turn 1, run of turn 1, run of turn 1); "
        "none is known to have changed it\n*   file mix.txt, modified" in text
    )
    text = shell("why", "mess", "--file", "person.txt").out
    assert "1 tool call was open (edit of turn 2); none is known to have changed it" in text
    assert calls(why(shell, "mess", "--file", "mix.txt")) == []


def test_content_is_shown_on_request_only(shell: Shell, tmp_path: Path) -> None:
    """Arguments, inputs and changed lines need --content; without it, an SVG has no paths and titles either."""
    secret = ("echo passed", "+passed", "sh check.sh")
    plain = shell("why", "release", "--command", "2", "--svg", str(tmp_path / "plain.svg"))
    assert PROMPT in plain.out
    assert "result.txt" in plain.out
    assert not any(each in plain.out for each in secret)
    drawn = (tmp_path / "plain.svg").read_text()
    assert not any(each in drawn for each in (*secret, PROMPT, "result.txt"))
    assert "file 1, added, 7 bytes" in drawn
    full = shell(
        "why", "release", "--command", "2", "--content", "--svg", str(tmp_path / "full.svg")
    )
    assert all(each in full.out for each in secret)
    drawn = (tmp_path / "full.svg").read_text()
    assert "result.txt" in drawn
    tags = {each.tag.rpartition("}")[2] for each in ElementTree.fromstring(drawn).iter()}
    assert tags <= {"svg", "style", "rect", "g", "title", "text", "path"}
    assert "prefers-color-scheme: dark" in drawn


@pytest.mark.slow
def test_changed_files_are_in_the_timeline(shell: Shell) -> None:
    lines = [" ".join(line.split()) for line in shell("show", "release").out.splitlines()]
    [at] = [
        i
        for i, line in enumerate(lines)
        if "command sh equal_command" in line and "exited 1" in line
    ]
    assert "call run" in lines[at - 1]
    [at] = [i for i, line in enumerate(lines) if "file result.txt path - added +1 -0" in line]
    assert "command sh" in lines[at - 1]
    assert sum(" file " in line for line in lines) == 13


def test_the_effects_of_a_session_are_listed(shell: Shell) -> None:
    lines = shell("why", "release").out.splitlines()
    assert len(lines) == 1 + 3 + 13
    assert "command  1 sh" in lines[1]
    assert "run, turn 3 of main" in lines[1]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    mark_all_but_first([
        (("why", "release", "--file", "/etc/passwd"), "not in the workspace of the session"),
        (("why", "release", "--file", "none.py"), "this file was not changed in the session"),
        (("why", "release", "--turn", "40"), "it has turns 1 to 12"),
        (("why", "release", "--turn", "1", "--lane", "x"), "Choose another turn, or another lane"),
        (("why", "release", "--command", "9"), "Choose a command from 1 to 3"),
        (("why", "release", "--line", "src/sums.py"), "expected PATH:LINE"),
        (("why", "release", "--line", "src/sums.py:9"), "the file has 3 lines"),
        (("why", "release", "--line", "data.bin:1"), "binary file"),
        (("why", "release", "--line", "gone.py:1"), "left no file with this path"),
        (("why", "release", "--turn", "1", "--command", "1"), "exclude each other"),
        (("why", "release", "--json"), "need a step"),
        (("why", "release", "--turn", "1", "--svg", "/no/such/x.svg"), "cannot be written"),
        (("why", "plain", "--file", "a"), "agentobs record --effects all"),
        (("why", "plain", "--command", "1"), "agentobs record --effects all"),
        (("why", "plain", "--line", "a:1"), "recorded no files"),
        (("blame", "/etc/passwd"), "no session in this home recorded the files of this directory"),
        (("blame", "none.py"), "cannot be read"),
        (("blame", "src"), "not a file"),
        (("blame", "data.bin"), "binary file"),
        (("blame", "README.md", "--lines", "3,1"), "expected A,B"),
        (("blame", "README.md", "--lines", "90,91"), "the file has 4 lines"),
        (("blame", ".env"), "no recorded state has this file"),
    ], pytest.mark.slow, kept=11),
)  # fmt: skip
def test_bad_input_is_one_clear_error(
    shell: Shell, release: Release, arguments: tuple[str, ...], expected: str
) -> None:
    write(release.root, {".env": "KEY=1\n"})
    ended = shell(*arguments)
    assert ended.code == 1
    assert expected in ended.err, ended.err
    assert ended.err.count("\n") == 1


@pytest.mark.slow
def test_names_with_escapes_and_long_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any name and any encoding is blamed; a file of 100,000 lines is shown in part."""
    from agentobs.effects import workspaces

    agentobs.stop_recorder()
    root = tmp_path / "tree"
    odd = 'od"d\\na\tme\n\x1b[31m.txt'
    write(root, {odd: "one\r\ntwo\x1b[0m\n", "long.txt": "line\n" * 100_000})
    latin = os.fsdecode(b"caf\xe9.txt")
    (root / latin).write_bytes(b"\xe9\n")
    monkeypatch.chdir(root)
    agentobs.start(str(tmp_path / "home"))
    with agentobs.session("odd", effects=["files"]):
        pass
    agentobs.stop_recorder()
    assert workspaces.workspace_root(root) == root.resolve()
    shell = Shell(tmp_path / "home", capsys)
    before = "before the first recorded state"
    for path in (odd, latin):
        ended = shell("blame", path)
        assert (ended.code, before in ended.out, "\x1b" in ended.out) == (0, True, False), ended.err
    for number, expected in ((2, before), (3, "the file has 2 lines"), ("9" * 5000, "PATH:LINE")):
        ended = shell("why", "odd", "--line", f"{odd}:{number}")
        assert (ended.code, expected in ended.err) == (1, True), ended.err
    write(root, {odd: "one\r\nchanged\n"})
    assert [line[-1] for line in blame(shell, odd)] == [
        before,
        "not by a recorded session: changed after the last recorded state",
    ]
    ended = shell("blame", "long.txt")
    assert ended.out.count("\n") == 1000
    assert "1,000 of 100,000 lines are shown" in ended.err
    assert len(blame(shell, "long.txt", "--lines", "99999,200000")) == 2
    assert not list((tmp_path / "home" / "workspaces").glob("*/derived-*"))


@pytest.mark.slow
def test_two_sessions_record_one_directory_at_the_same_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line belongs to the session whose call wrote it, even if the other session saw it first."""
    agentobs.stop_recorder()
    root = tmp_path / "tree"
    write(root, {"start.txt": "start\n"})
    monkeypatch.chdir(root)
    outer = Provider({"outer": [[("write", {"path": "outer.txt", "content": "outer\n"})]]})
    inner = Provider({"inner": [[("write", {"path": "inner.txt", "content": "inner\n"})]]})

    def run_inner() -> None:
        with observed(monkeypatch, inner), agentobs.session("inner", effects=["files"]):
            Agent(root, inner).run("inner")

    def after(prompt: str, turn: int) -> None:
        if turn == 1:
            thread = threading.Thread(target=run_inner)
            thread.start()
            thread.join()

    with observed(monkeypatch, outer):
        agentobs.start(str(tmp_path / "home"))
        agent = Agent(root, outer)
        agent.after_tools = after
        with agentobs.session("outer", effects=["files"]):
            agent.run("outer")
    agentobs.stop_recorder()
    shell = Shell(tmp_path / "home", capsys)
    by_call = "by a tool call"
    assert blame(shell, "outer.txt") == [("outer", "main", 1, "write", "outer", by_call)]
    assert blame(shell, "inner.txt") == [("inner", "main", 1, "write", "inner", by_call)]
    assert blame(shell, "start.txt")[0][-1] == "before the first recorded state"
