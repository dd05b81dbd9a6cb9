"""Conversion of a recorded session to a fixture and a test that is ready to run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from agentobs.errors import AgentobsError, UsageError
from agentobs.records.exchanges import Recording
from replay.comparison.normalizers import Rule, stored_rules
from replay.fixture.cutoff import cut_after
from replay.fixture.failing_turn import Failure, failed_call, failure_of, tool_call_count
from replay.fixture.fixture_folder import README, write_fixture
from replay.fixture.fixture_redaction import Redacted
from replay.fixture.format import FILE, Fixture, load, parse
from replay.fixture.writer import redacted_in, with_key, write
from replay.freeze.line_stability import stabilized
from replay.freeze.pytest_template import generated_test
from replay.workspace.base_commit import find_base
from replay.workspace.recorded_workspace import BUNDLE, KEY, RecordedWorkspace
from replay.workspace.tree_bundle import BYTES_MAX, write_bundle


def versions() -> dict[str, str]:
    """Return the versions of the packages that are written into a fixture."""
    return {name: version(name) for name in ("agentobs-kit", "anthropic")}


@dataclass(frozen=True, slots=True)
class Frozen:
    """The result of freezing a session."""

    fixture: Path
    """The path of the fixture's file."""
    test: Path
    """The path of the test next to it."""
    files: tuple[tuple[Path, bool], ...]
    """All files, each with a flag that is true if the file was written. An edited test, a custom README and unchanged
    files are not written.
    """
    requests: int
    """The number of requests in the fixture, including retries."""
    tools: int
    """The number of tool calls of the session."""
    redacted: tuple[Redacted, ...] = ()
    """The redacted secrets in the fixture, by kind."""
    turn: int = 1
    """The turn to continue from: the failing turn if the session failed, otherwise the last turn."""
    failure: Failure | None = None
    """Where the session failed; None if it did not."""
    until: int | None = None
    """The turn up to which the session was frozen; None if it was frozen completely."""
    normalizers: tuple[str, ...] = ()
    """The names of the rules that are applied in each replay."""
    stored_files: str | None = None
    """Which of the recorded files are stored, as a text; None for a fixture without files."""


@dataclass(frozen=True, slots=True)
class FrozenWorkspace:
    """The recorded files to store with a fixture."""

    recorded: RecordedWorkspace
    left_out: tuple[str, ...] = ()
    """Patterns of files to leave out."""
    bytes_max: int = BYTES_MAX
    """The maximum size of the stored files, in bytes."""
    is_standalone: bool = False
    """Whether to store also the files that the commit of the session contains."""

    def written(self, bundle: Path, until: int | None) -> tuple[RecordedWorkspace, str]:
        """Write the files into a bundle: all of them, or only those up to a turn.

        The files of the commit that was checked out at the start are left out if a branch or tag of the repository that
        contains the bundle has this commit.

        Returns:
            The files as the bundle has them, and a text that states which files it contains.

        Raises:
            RecordingError: they contain a possible secret.
            UsageError: they are too large, or cannot be written.
        """
        recorded = self.recorded
        if until is not None:
            turns = {turn: tree for turn, tree in recorded.turns.items() if turn <= until}
            recorded = replace(recorded, end=None, turns=turns)
        if self.is_standalone or recorded.commit is None:
            return write_bundle(recorded, bundle, self.left_out, self.bytes_max), "all"
        base = find_base(recorded.commit, bundle.parent.absolute())
        if isinstance(base, str):
            written = write_bundle(recorded, bundle, self.left_out, self.bytes_max)
            return written, f"all, because {base}"
        written = write_bundle(recorded, bundle, self.left_out, self.bytes_max, base)
        if written.base is None:
            why = "has none of them, or this clone lacks some of its files"
            return written, f"all, because the commit {base.commit} {why}"
        local = ", which only local branches contain" if base.is_local else ""
        return written, f"those that differ from the git commit {base.commit}{local}"


def freeze(
    recording: Recording,
    folder: Path,
    versions: dict[str, str],
    until: int | None = None,
    normalizers: Sequence[Rule] | None = None,
    failing_turn: int | None = None,
    workspace: FrozenWorkspace | None = None,
) -> Frozen:
    """Write a fixture, its test and its README into `folder`.

    An edited test is kept. Unchanged parts of existing files stay identical, byte for byte.

    Args:
        recording: the session.
        folder: the folder to write into; the test is named after it.
        versions: the versions of the packages.
        until: the turn after which the session is cut off; None for the complete session.
        normalizers: the rules that are applied in each replay; None for the rules of the existing fixture.
        failing_turn: the turn in which the session failed; also allowed if the session completed, but with a wrong
            answer. None to determine the turn from the recording (see `replay.fixture.failing_turn`).
        workspace: the recorded files to store with the fixture; None for a fixture without files.

    Raises:
        RecordingError: the session cannot be replayed, or its files contain a possible secret; nothing is written.
        UsageError: the folder cannot be written, the session has no such turn, or its files are too large.
    """
    part = recording if until is None else cut_after(recording, until)
    rules = stored_rules(_rules_of(folder) if normalizers is None else normalizers)
    name = re.sub(r"[^A-Za-z0-9]+", "_", folder.name).strip("_").lower() or "session"
    file, test = folder / FILE, folder / f"test_{name}.py"
    if (
        failing_turn is None
        and part.until_turn is not None
        and recording.outcome not in _NOT_FAILED
    ):
        found = failed_call(parse(file, write(part, versions, rules)))
        failing_turn = found.turn if found else None
    data = write(part, versions, rules, failing_turn)
    bundle, stored = folder / BUNDLE, None
    if workspace is not None:
        written, stored = workspace.written(bundle, part.until_turn)
        data = with_key(data, KEY, written.to_header())
    failure = failure_of(parse(file, data))
    existing = _existing(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        data = stabilized(data, file.read_bytes() if file.is_file() else None)
        fixture = parse(file, data)
        changed = {*write_fixture(file, data)}
        if _is_generated(test, existing):
            text = generated_test(fixture)
            if not test.exists() or test.read_text(encoding="utf-8") != text:
                test.write_text(text, encoding="utf-8")
                changed.add(test)
        if workspace is not None:
            changed.add(bundle)
        elif existing is not None and KEY in existing.header:
            bundle.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot write the fixture: {error.strerror}", where=str(folder)
        ) from error
    files = (file, test, folder / README, *([bundle] if workspace is not None else []))
    return Frozen(
        file,
        test,
        files=tuple((each, each in changed) for each in files),
        requests=len(fixture.requests),
        tools=tool_call_count(fixture),
        redacted=tuple(redacted_in(data)),
        turn=failure.turn if failure else last_turn(fixture),
        failure=failure,
        until=part.until_turn,
        normalizers=tuple(each if isinstance(each, str) else each["name"] for each in rules),
        stored_files=stored,
    )


_NOT_FAILED = ("completed", "running")
"""The outcomes of sessions that have not failed."""


def last_turn(fixture: Fixture) -> int:
    """Return the last turn of the main lane that has a response; 1 if there is none."""
    turns = [r.turn or 0 for r in fixture.requests if r.lane == "main" and r.answer.status == 200]
    return max([1, *turns])


def _existing(folder: Path) -> Fixture | None:
    """Return the existing fixture; None if there is none, or if it cannot be read."""
    try:
        return load(folder)
    except AgentobsError:
        return None


def _rules_of(folder: Path) -> Sequence[Rule]:
    """Return the normalizers of the existing fixture; empty if there is none, or if it cannot be read."""
    existing = _existing(folder)
    rules: Sequence[Rule] = existing.header.get("normalizers", ()) if existing is not None else ()
    return rules


def _is_generated(test: Path, existing: Fixture | None) -> bool:
    """Return whether a test may be overwritten: it does not exist, or was generated from the existing fixture."""
    if not test.exists():
        return True
    return existing is not None and test.read_text(
        encoding="utf-8", errors="replace"
    ) == generated_test(existing)
