"""Renewal: a fixture is recorded again by running its test live, and the changes are shown before they are written.

The new recording is kept next to pytest's cache; with the option to write, the next run writes exactly this, after the
test has passed against it. A failing test writes nothing, and of two tests that record one fixture the second fails.
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
from replay.fixture.cutoff import up_to
from replay.fixture.fixture_folder import keep, replace_file
from replay.fixture.fixture_steps import steps_of
from replay.fixture.format import Fixture, load
from replay.fixture.writer import write
from replay.freeze.conversion import versions
from replay.freeze.line_stability import settled

LINES_MAX = 60
"""How many lines of a change are shown; of the rest, only the number."""


@dataclass(frozen=True, slots=True)
class Pending:
    """Where the recording of a test is kept until it is written, and by which test."""

    fixture: Path
    """The fixture's file, which need not exist yet."""
    test: str
    """The test's node id."""
    shelf: Path | None
    """The folder for pending recordings; None if pytest has no cache."""
    claims: Path
    """A folder that all processes of this run share."""

    def waiting(self) -> Path | None:
        """Return the pending recording of the fixture in its current version; None if there is none."""
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
        told = self._change(data)
        return f"{told}\nnot written: pass --replay-update=write" if told else ""

    def write_recorded(self, recording: Recording) -> str:
        """Write a new recording, and return its changes.

        Raises:
            RecordingError: it cannot become a fixture.
            UsageError: another test of this run has recorded this fixture.
        """
        return self._write(self._data(recording))

    def write_waiting(self, path: Path) -> str:
        """Write the pending recording, and return its changes.

        Raises:
            UsageError: another test of this run has recorded this fixture.
        """
        told = self._write(path.read_bytes())
        path.unlink(missing_ok=True)
        return told

    def _data(self, recording: Recording) -> bytes:
        """Return the new fixture, cut off and normalized like the existing one, without unnecessary changes."""
        if not self.fixture.is_file():
            return write(recording, versions())
        old = load(self.fixture)
        part = recording if old.until_turn is None else up_to(recording, old.until_turn)
        data = write(part, versions(), old.header.get("normalizers", ()))
        return settled(data, self.fixture.read_bytes())

    def _write(self, data: bytes) -> str:
        self._claim()
        told = self._change(data)
        if told:
            keep(self.fixture, data)
        return told

    def _change(self, data: bytes) -> str:
        old = self.fixture.read_bytes() if self.fixture.is_file() else None
        if data == old:
            return ""
        with _aside(self.claims, data) as path:
            return change(load(self.fixture) if old else None, load(path))

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
                    f"{owner} has recorded this fixture already in this run; {self.test} would replace it",
                    where=str(self.fixture.parent),
                    todo="Name another fixture in one of the two, so that each has its own",
                ) from None

    def _path(self) -> Path | None:
        if self.shelf is None:
            return None
        old = self.fixture.read_bytes() if self.fixture.is_file() else b""
        about = json.dumps([str(self.fixture), self.test, digest(old)])
        return self.shelf / f"{_short(about.encode())}.jsonl"


def change(old: Fixture | None, new: Fixture) -> str:
    """Return the differences of two versions of a fixture, by step, for people."""
    if old is None:
        return "\n".join(["a new fixture:", *_shown(steps_of(new), "+ ")])
    before, after = steps_of(old), steps_of(new)
    lines = list(difflib.unified_diff(before, after, n=1, lineterm=""))[2:]
    count = sum(line[:1] in "+-" for line in lines)
    if not count:
        return "no step differs, but the bytes of requests or answers do"
    return "\n".join([f"{count} lines of steps differ:", *_shown(lines, "")])


def _shown(lines: list[str], mark: str) -> list[str]:
    more = [f"and {len(lines) - LINES_MAX} more lines"] if len(lines) > LINES_MAX else []
    return [f"  {mark}{line}" for line in lines[:LINES_MAX]] + more


@contextlib.contextmanager
def _aside(folder: Path, data: bytes) -> Iterator[Path]:
    """Put bytes into a file as long as the context is open."""
    path = folder / f"{_short(data)}.{os.getpid()}.jsonl"
    path.write_bytes(data)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _short(data: bytes) -> str:
    return digest(data).rpartition(":")[2][:32]
