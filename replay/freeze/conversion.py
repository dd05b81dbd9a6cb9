"""Conversion: a recorded session becomes a fixture and a test that is ready to run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from agentobs.errors import AgentobsError, UsageError
from agentobs.records.exchanges import Recording
from replay.comparison.normalizers import Rule, told_of
from replay.fixture.cutoff import up_to
from replay.fixture.failing_turn import Failure, failed_call, failure_of, tool_call_count
from replay.fixture.fixture_folder import README, keep
from replay.fixture.fixture_redaction import Redacted
from replay.fixture.format import FILE, Fixture, load, parse
from replay.fixture.writer import redacted_in, write
from replay.freeze.line_stability import settled
from replay.freeze.pytest_template import test_of


def versions() -> dict[str, str]:
    """Return the versions of the packages for a fixture."""
    return {name: version(name) for name in ("agentobs-kit", "anthropic")}


@dataclass(frozen=True, slots=True)
class Frozen:
    """What was written."""

    fixture: Path
    """The fixture's file."""
    test: Path
    """The test next to it."""
    files: tuple[tuple[Path, bool], ...]
    """The files, each with whether it was written: an edited test, a custom README, and unchanged files
    are not written.
    """
    asks: int
    """How many requests it holds, retries included."""
    tools: int
    """How many tool calls the session made."""
    redacted: tuple[Redacted, ...] = ()
    """The redacted secrets in it, by kind."""
    turn: int = 1
    """The turn to continue from: where the session failed, otherwise its last one."""
    failure: Failure | None = None
    """Where the session failed; None if it did not."""
    until: int | None = None
    """The turn up to which it was frozen; None if it was frozen completely."""
    normalizers: tuple[str, ...] = ()
    """The names of the rules that are applied in each replay."""


def freeze(
    recording: Recording,
    folder: Path,
    versions: dict[str, str],
    until: int | None = None,
    normalizers: Sequence[Rule] | None = None,
    failing_turn: int | None = None,
) -> Frozen:
    """Write a fixture, its test and its README into `folder`.

    An edited test is kept. Parts that have not changed since the folder was written stay byte for byte the same.

    Args:
        recording: the session.
        folder: where to write; its name is the name of the test.
        versions: the versions of the packages.
        until: the turn to cut it off after; None: the whole session.
        normalizers: the rules that are applied in each replay; None: those of the existing fixture.
        failing_turn: the turn where the session failed, also for one that completed with a wrong answer; None: the turn
            that the recording points to (see `replay.fixture.failing_turn`).

    Raises:
        RecordingError: the session cannot be replayed; nothing is written.
        UsageError: the folder cannot be written, or the session has no such turn.
    """
    part = recording if until is None else up_to(recording, until)
    rules = told_of(_rules_of(folder) if normalizers is None else normalizers)
    name = re.sub(r"[^A-Za-z0-9]+", "_", folder.name).strip("_").lower() or "session"
    file, test = folder / FILE, folder / f"test_{name}.py"
    if (
        failing_turn is None
        and part.until_turn is not None
        and recording.outcome not in _ENDED_WELL
    ):
        found = failed_call(parse(file, write(part, versions, rules)))
        failing_turn = found.turn if found else None
    data = write(part, versions, rules, failing_turn)
    failure = failure_of(parse(file, data))
    before = _before(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        data = settled(data, file.read_bytes() if file.is_file() else None)
        fixture = parse(file, data)
        changed = {*keep(file, data)}
        if _is_generated(test, before):
            text = test_of(fixture)
            if not test.exists() or test.read_text(encoding="utf-8") != text:
                test.write_text(text, encoding="utf-8")
                changed.add(test)
    except OSError as error:
        raise UsageError(f"cannot write a fixture: {error.strerror}", where=str(folder)) from error
    return Frozen(
        file,
        test,
        files=tuple((each, each in changed) for each in (file, test, folder / README)),
        asks=len(fixture.asks),
        tools=tool_call_count(fixture),
        redacted=tuple(redacted_in(data)),
        turn=failure.turn if failure else last_turn(fixture),
        failure=failure,
        until=part.until_turn,
        normalizers=tuple(each if isinstance(each, str) else each["name"] for each in rules),
    )


_ENDED_WELL = ("completed", "running")
"""Outcomes of sessions that have not failed."""


def last_turn(fixture: Fixture) -> int:
    """Return the last answered turn of the main lane; 1 if none was answered."""
    turns = [a.turn or 0 for a in fixture.asks if a.lane == "main" and a.answer.status == 200]
    return max([1, *turns])


def _before(folder: Path) -> Fixture | None:
    """Return the existing fixture; None if there is none that can be read."""
    try:
        return load(folder)
    except AgentobsError:
        return None


def _rules_of(folder: Path) -> Sequence[Rule]:
    """Return the normalizers of the existing fixture; none if it cannot be read and is to be replaced."""
    before = _before(folder)
    rules: Sequence[Rule] = before.header.get("normalizers", ()) if before is not None else ()
    return rules


def _is_generated(test: Path, before: Fixture | None) -> bool:
    """Return whether a test may be written: it does not exist, or was generated from the earlier fixture."""
    if not test.exists():
        return True
    return before is not None and test.read_text(encoding="utf-8", errors="replace") == test_of(
        before
    )
