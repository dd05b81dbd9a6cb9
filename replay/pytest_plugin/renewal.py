"""Renewal: a fixture is recorded again by running its test live, and the changes are shown before they are written.

The new recording is kept in pytest's cache. A later run with `--replay-update=write` replays the test against this
recording, and writes it if the test passes. A failing test writes nothing. If two tests record the same fixture, the
second one fails.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agentobs.errors import UsageError
from agentobs.records.canonical_json import digest
from agentobs.records.exchanges import Recording
from replay.fixture.cutoff import cut_after
from replay.fixture.fixture_folder import replace_file, write_fixture
from replay.fixture.fixture_steps import steps_of
from replay.fixture.format import Fixture, load
from replay.fixture.writer import with_key, write
from replay.freeze.conversion import versions
from replay.freeze.line_stability import stabilized
from replay.workspace.recorded_workspace import KEY

LINES_MAX = 60
"""The maximum number of lines of a change that are shown; the others are only counted."""


@dataclass(frozen=True, slots=True)
class PendingRecording:
    """Where the new recording of a test is kept until it is written."""

    fixture: Path
    """The fixture's file, which need not exist yet."""
    test: str
    """The test's node ID."""
    folder: Path | None
    """The folder for pending recordings; None if pytest has no cache."""
    claims: Path
    """A folder that all processes of this run share, with a file for each recorded fixture."""

    def existing(self) -> Path | None:
        """Return the pending recording for the current version of the fixture; None if there is none."""
        path = self._path()
        return path if path is not None and path.is_file() else None

    def show(self, recording: Recording) -> str:
        """Keep a recording until it is written, and return its changes.

        Raises:
            RecordingError: it cannot become a fixture.
            UsageError: another test of this run has recorded this fixture.
        """
        self._claim()
        data, path = self._data(recording), self._path()
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, data)
        changes = self._changes(data)
        return f"{changes}\nnot written: pass --replay-update=write" if changes else ""

    def write_recorded(self, recording: Recording) -> str:
        """Write a new recording, and return its changes.

        Raises:
            RecordingError: it cannot become a fixture.
            UsageError: another test of this run has recorded this fixture.
        """
        return self._write(self._data(recording))

    def write_pending(self, path: Path) -> str:
        """Write the pending recording, and return its changes.

        Raises:
            UsageError: another test of this run has recorded this fixture.
        """
        changes = self._write(path.read_bytes())
        path.unlink(missing_ok=True)
        return changes

    def _data(self, recording: Recording) -> bytes:
        """Return the new fixture, with the cutoff and normalizers of the existing one and no unnecessary changes."""
        if not self.fixture.is_file():
            return write(recording, versions())
        old = load(self.fixture)
        part = recording if old.until_turn is None else cut_after(recording, old.until_turn)
        data = write(part, versions(), old.header.get("normalizers", ()))
        if (workspace := old.header.get(KEY)) is not None:
            # The test was not run in the recorded files, so the files at its end are not known.
            kept = {name: each for name, each in workspace.items() if name != "end"}
            data = with_key(data, KEY, kept)
        return stabilized(data, self.fixture.read_bytes())

    def _write(self, data: bytes) -> str:
        self._claim()
        changes = self._changes(data)
        if changes:
            write_fixture(self.fixture, data)
        return changes

    def _changes(self, data: bytes) -> str:
        old = self.fixture.read_bytes() if self.fixture.is_file() else None
        if data == old:
            return ""
        with _temporary_file(self.claims, data) as path:
            return step_changes(load(self.fixture) if old else None, load(path))

    def _claim(self) -> None:
        """Raise if another test of this run has recorded the same fixture."""
        path = self.claims / f"{_short(str(self.fixture).encode())}.claim"
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(self.test)
        except FileExistsError:
            owner = path.read_text(encoding="utf-8")
            if owner != self.test:
                raise UsageError(
                    f"{owner} has already recorded this fixture in this run; {self.test} would overwrite it",
                    where=str(self.fixture.parent),
                    todo="Use a different fixture in one of the two tests",
                ) from None

    def _path(self) -> Path | None:
        if self.folder is None:
            return None
        old = self.fixture.read_bytes() if self.fixture.is_file() else b""
        about = json.dumps([str(self.fixture), self.test, digest(old)])
        return self.folder / f"{_short(about.encode())}.jsonl"


def step_changes(old: Fixture | None, new: Fixture) -> str:
    """Return the differences of two versions of a fixture as text, by step."""
    if old is None:
        return "\n".join(["a new fixture:", *_limited(steps_of(new), "+ ")])
    before, after = steps_of(old), steps_of(new)
    lines = list(difflib.unified_diff(before, after, n=1, lineterm=""))[2:]
    count = sum(line[:1] in "+-" for line in lines)
    if not count:
        return "the steps are identical, but the bytes of requests or responses differ"
    return "\n".join([f"{count} lines of steps changed:", *_limited(lines, "")])


def _limited(lines: list[str], prefix: str) -> list[str]:
    more = [f"and {len(lines) - LINES_MAX} more lines"] if len(lines) > LINES_MAX else []
    return [f"  {prefix}{line}" for line in lines[:LINES_MAX]] + more


@contextlib.contextmanager
def _temporary_file(folder: Path, data: bytes) -> Iterator[Path]:
    """Write bytes to a file that exists while the context is open."""
    path = folder / f"{_short(data)}.{os.getpid()}.jsonl"
    path.write_bytes(data)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _short(data: bytes) -> str:
    return digest(data).rpartition(":")[2][:32]
