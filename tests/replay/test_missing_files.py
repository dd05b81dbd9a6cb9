"""The files that an agent reads by a relative path, when it is replayed in another directory."""

from __future__ import annotations

import os
from contextlib import chdir
from pathlib import Path

import pytest

from replay.agent_code.project import project_at
from replay.trial.trial_process import _FileReads

WRITES = os.O_WRONLY | os.O_CREAT


@pytest.mark.parametrize(
    ("mode", "flags", "is_read"),
    [
        ("r", os.O_RDONLY, True),
        ("rb+", os.O_RDWR, True),
        ("w", WRITES | os.O_TRUNC, False),
        ("a", WRITES | os.O_APPEND, False),
        (None, os.O_RDONLY, True),  # `os.open`
        (None, WRITES, False),
    ],
)
def test_a_missing_file_is_named_if_it_is_read(
    tmp_path: Path, mode: str | None, flags: int, is_read: bool
) -> None:
    """A file of the project that an agent opens to read it is named; one that it opens to write it is not."""
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    project.mkdir()
    elsewhere.mkdir()
    (project / "notes.txt").touch()
    reads = _FileReads()
    with project_at(project), chdir(elsewhere):
        reads.note("open", ("unknown.txt", mode, flags))
        assert reads.first_missing == ""
        reads.note("open", ("notes.txt", mode, flags))
    assert ("'notes.txt'" in reads.first_missing) is is_read
