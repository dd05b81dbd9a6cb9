"""The sentence about the files at the end of a run."""

from __future__ import annotations

import pytest

from agentobs.effects.workspaces.file_changes import Change
from replay.workspace.file_difference import SHOWN, FileDifference


@pytest.mark.parametrize(
    ("count", "start", "end"),
    [
        (0, "files at the end: equal", "to the recorded ones"),
        (1, "files at the end: 1 differs from", "recorded ones: 0.py (added)"),
        (2, "files at the end: 2 differ from", "0.py (added), 1.py (added)"),
        (SHOWN + 2, f"files at the end: {SHOWN + 2} differ from", "and 2 more"),
    ],
)
def test_the_sentence_about_changed_files(count: int, start: str, end: str) -> None:
    """The sentence has the number of the files, and the names of the first ones."""
    line = FileDifference(tuple(Change("added", f"{each}.py") for each in range(count))).line()
    assert line.startswith(start)
    assert line.endswith(end)
