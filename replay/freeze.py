"""Freezing: a recorded session becomes a fixture and a test that is ready to run."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from agentobs.errors import UsageError
from agentobs.records.exchanges import ModelExchange, Recording, ToolExchange, is_beside
from replay.fixture import FILE
from replay.sharing import Redacted
from replay.writing import redacted_in, write


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
    redacted: tuple[Redacted, ...] = ()
    """What secrets were taken out of it, by kind."""


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
        replace_file(fixture, data)
        kept = test.exists()
        if not kept:
            test.write_text(_test(recording), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write a fixture: {error.strerror}", where=str(folder)) from error
    models = sum(isinstance(e, ModelExchange) for e in recording.exchanges)
    tools = sum(isinstance(e, ToolExchange) for e in recording.exchanges)
    return Frozen(fixture, test, models, tools, kept, tuple(redacted_in(data)))


def failing_turn(recording: Recording) -> int:
    """Return the turn where a failed session went wrong: that of its first failed tool, else its last one."""
    for exchange in recording.exchanges:
        if not isinstance(exchange, ToolExchange) or is_beside(exchange.place.lane):
            continue  # of an agent that failed the call says so that started it
        if exchange.answer.is_error and exchange.place.turn:
            return exchange.place.turn
    turns = [
        e.place.turn or 0
        for e in recording.exchanges
        if isinstance(e, ModelExchange) and e.answer.status == 200 and e.place.lane == "main"
    ]
    return max(turns, default=1) or 1


def replace_file(path: Path, data: bytes) -> None:
    """Write a whole file or nothing."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_bytes(data)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def _test(recording: Recording) -> str:
    """Return the test; of the recording only labels enter it, so that no name in a file becomes code."""
    known = recording.entry and recording.arguments is not None
    first, alone = ("", "") if known else (f"{_HOW}, ", _HOW)
    parts = [
        f'"""The recorded session {_word(recording.name)}, replayed offline."""\n\nimport pytest\n',
        _SAME_PATH.format(how=alone),
    ]
    if recording.outcome != "completed":
        reason = _word(recording.reason or recording.outcome)
        turn = failing_turn(recording)
        parts.append(
            _MENDED.format(how=first, turn=turn, reason=reason, tools=_tools(recording, turn))
        )
    return "\n\n".join(parts)


def _word(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._:/@-]+", "-", name)[:80].strip("-") or "session"


def _tools(recording: Recording, turn: int) -> str:
    """Return how the tools of the turn are to run: those of our own loop for real, said openly."""
    ran = any(isinstance(e, ToolExchange) and e.place.turn == turn for e in recording.exchanges)
    return ', tools="live"' if ran else ""


_HOW = "..., 'its', 'arguments'"
"""Stands in the test where the recording does not know: replace the dots by the function that starts the agent."""

_SAME_PATH = '''@pytest.mark.replay("recording.jsonl")
def test_same_path(replay):
    """The agent asks what it asked, step by step, and ends as it ended."""
    replay.run({how})
'''

_MENDED = '''@pytest.mark.replay("recording.jsonl")
def test_mended(replay):
    """In turn {turn}, where the session failed ({reason}), the agent does something else.

    Fails until the agent is mended. The tools of that turn run for real: stand in for those that must not.
    Say then what the agent must do, for instance: assert not step.tool("name").is_error
    """
    step = replay.until({how}turn={turn}{tools})
    assert step.differs, step.describe()
'''
