"""Lines that edits add and remove, from inputs of edit tools and from the patches in logs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentobs.importers.claude_code.transcript_import import import_logs, logs_in
from agentobs.recording.facts.line_changes import (
    LINES_MAX,
    LineChange,
    change_of_input,
    change_of_patch,
)
from tests import queries
from tests.cli.test_commands import Shell
from tests.store.recordings import a_home, record
from tests.store.wire_conversations import WireConversation
from tests.write_diagnose import TRANSCRIPTS

EDIT = {"file_path": "a", "old_string": "one\ntwo\nthree", "new_string": "one\n2\n2.5\nthree"}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (EDIT, (2, 1)),
        ({**EDIT, "replace_all": True}, (None, None)),
        ({"command": "str_replace", "path": "a", "old_str": "x\ny", "new_str": "x"}, (0, 1)),
        ({"command": "str_replace", "path": "a", "old_str": "x\ny"}, (0, 2)),
        ({"edits": [EDIT, EDIT], "file_path": "a"}, (4, 2)),
        ({"edits": [EDIT, {**EDIT, "replace_all": True}]}, (None, None)),
        ({"edits": [EDIT, {"other": 1}]}, None),
        ({"command": "insert", "path": "a", "insert_line": 3, "insert_text": "a\nb\n"}, (2, 0)),
        ({"file_path": "a", "content": "a\nb"}, (2, None)),
        ({"command": "create", "path": "a", "file_text": "a\n"}, (1, None)),
        ({"old_string": "x", "new_string": 1}, None),
        ({"city": "Bern"}, None),
        ([EDIT], None),
        (None, None),
        ({"old_string": "a\n" * LINES_MAX, "new_string": "b\n"}, (None, None)),
    ],
)
def test_lines_of_an_input(value: Any, expected: tuple[int | None, int | None] | None) -> None:
    """Known edit tools have numbers; other inputs have none, and unknown numbers are None."""
    assert change_of_input(value) == (None if expected is None else LineChange(*expected))


@given(st.lists(st.sampled_from("abc"), max_size=20), st.lists(st.sampled_from("abc"), max_size=20))
def test_an_edit_explains_the_difference_in_length(old: list[str], new: list[str]) -> None:
    """Added minus removed lines is the difference in length, and equal texts change nothing."""
    found = change_of_input({"old_string": "\n".join(old), "new_string": "\n".join(new)})
    assert found is not None
    assert found.added is not None
    assert found.removed is not None
    assert found.added - found.removed == len(new) - len(old)
    assert (found == (0, 0)) == (old == new)


def test_lines_of_a_patch() -> None:
    """The lines of all parts of a patch are counted by their first character; anything else is not a patch."""
    patch = [{"lines": [" a", "-b", "+c", "+d"]}, {"lines": ["-e"]}]
    assert change_of_patch(patch) == (2, 2)
    wrong: Any
    for wrong in (None, [], "x", [{"lines": [1]}], [{}], ["+a"]):
        assert change_of_patch(wrong) is None


def test_only_successful_calls_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The view has the calls without an error, with NULL where a number is unknown; `lines` sums them by tool."""
    home, talk = a_home(tmp_path), WireConversation(1)
    calls = talk.calls(
        ("edit", EDIT),
        ("edit", EDIT),
        ("write", {"file_path": "a", "content": "x\ny"}),
        ("look", {}),
    )
    for number, each in enumerate(calls):
        talk.result(each, is_error=number == 1)
    talk.says("Done.")
    record(home, talk.whole())
    rows = queries.query(
        "SELECT name, lines_added, lines_removed, source FROM line_changes ORDER BY name",
        home=home.path,
    )
    assert rows == [("edit", 2, 1, "input"), ("write", 2, None, "input")]
    shown = [
        json.loads(line) for line in Shell(home.path, capsys)("lines", "--json").out.splitlines()
    ]
    assert [(row["tool"], row["lines_added"], row["lines_removed"], row["removed_unknown"]) for row in shown] == [
        ("edit", 2, 1, 0),
        ("write", 2, None, 1),
    ]  # fmt: skip


def logged_patches() -> Iterator[tuple[int, int]]:
    """Yield the added and removed lines of each patch in the logs, counted independently."""
    seen = set()
    for path in logs_in([TRANSCRIPTS]):
        for line in path.read_text("utf-8").splitlines():
            entry = json.loads(line)
            result = entry.get("toolUseResult")
            if (
                isinstance(result, dict)
                and result.get("structuredPatch")
                and entry["uuid"] not in seen
            ):
                seen.add(entry["uuid"])
                lines = [each for hunk in result["structuredPatch"] for each in hunk["lines"]]
                yield sum(x[0] == "+" for x in lines if x), sum(x[0] == "-" for x in lines if x)


@pytest.mark.slow
@pytest.mark.skipif(
    not TRANSCRIPTS.is_dir(), reason="no logs: set AGENTOBS_TRANSCRIPTS to their folder"
)
def test_patches_of_real_logs_are_counted(tmp_path: Path) -> None:
    """The lines of imported edits are those of the patches in the logs."""
    home = a_home(tmp_path)
    import_logs(home, logs_in([TRANSCRIPTS]), remove_session=lambda *_: None)
    rows = queries.query(
        "SELECT lines_added, lines_removed FROM line_changes WHERE source = 'result' AND name = 'Edit'",
        home=home.path,
    )
    patches = list(logged_patches())
    assert len(rows) > 50
    assert all(row in patches for row in rows)
