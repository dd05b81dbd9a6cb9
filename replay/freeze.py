"""Freezing: a recorded session becomes a fixture and a test that is ready to run."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from agentobs.errors import UsageError
from agentobs.records.exchanges import ModelExchange, Recording, ToolExchange
from replay.fixture import FILE, write


@dataclass(frozen=True, slots=True)
class Frozen:
    """What was written."""

    fixture: Path
    """The fixture's file."""
    test: Path
    """The test beside it."""
    asks: int
    tools: int
    test_kept: bool
    """Whether a test was there already, and was left as it is."""


def freeze(recording: Recording, folder: Path, versions: dict[str, str]) -> Frozen:
    """Write a fixture and its test into `folder`; a test that is there already is yours and is kept.

    Raises:
        RecordingError: the session cannot be replayed; nothing is written.
        UsageError: the folder cannot be written.
    """
    data = write(recording, versions)
    name = re.sub(r"[^A-Za-z0-9]+", "_", folder.name).strip("_").lower() or "session"
    fixture, test = folder / FILE, folder / f"test_{name}.py"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _replace(fixture, data)
        kept = test.exists()
        if not kept:
            test.write_text(_test(recording), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write a fixture: {error.strerror}", where=str(folder)) from error
    models = sum(isinstance(e, ModelExchange) for e in recording.exchanges)
    return Frozen(fixture, test, models, len(recording.exchanges) - models, kept)


def failing_turn(recording: Recording) -> int:
    """Return the turn where a failed session went wrong: that of its first failed tool, else its last one."""
    for exchange in recording.exchanges:
        if isinstance(exchange, ToolExchange) and exchange.answer.is_error and exchange.place.turn:
            return exchange.place.turn
    turns = [
        e.place.turn or 0
        for e in recording.exchanges
        if isinstance(e, ModelExchange) and e.answer.status == 200 and e.place.lane == "main"
    ]
    return max(turns, default=1) or 1


def _replace(path: Path, data: bytes) -> None:
    """Write a whole file or nothing."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_bytes(data)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def _test(recording: Recording) -> str:
    how = "" if recording.entry and recording.arguments is not None else _HOW
    started = f"`{recording.entry}`" if recording.entry else "an agent"
    parts = [
        f'"""What {started} did in the recorded session {recording.name!r}, replayed offline."""\n\nimport pytest\n',
        _SAME_PATH.format(how=how),
    ]
    if recording.outcome != "completed":
        parts.append(
            _MENDED.format(
                how_first=_HOW_FIRST if how else "",
                turn=failing_turn(recording),
                reason=recording.reason or "crash",
            )
        )
    return "\n\n".join(parts)


_HOW = "..., 'its', 'arguments'"
_HOW_FIRST = "..., 'its', 'arguments', "
"""Stand in the test where the recording does not know: replace the dots by the function that starts the agent."""

_SAME_PATH = '''@pytest.mark.replay("recording.jsonl")
def test_same_path(replay):
    """The agent asks what it asked, step by step, and ends as it ended."""
    replay.run({how})
'''

_MENDED = '''@pytest.mark.replay("recording.jsonl")
def test_mended(replay):
    """After turn {turn}, where the session failed ({reason}), the agent does something else.

    Fails until the agent is mended. Say then what it must do, for instance:
    assert not step.tool("name").is_error
    """
    step = replay.until({how_first}turn={turn})
    assert step.differs, step.describe()
'''
