"""Freezing: a recorded session becomes a fixture and a test that is ready to run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from agentobs.errors import AgentobsError, UsageError
from agentobs.records.exchanges import ModelExchange, Recording, ToolExchange, is_beside
from replay.cutting import up_to
from replay.fixture import FILE, load
from replay.keeping import README, keep, word
from replay.normalising import Rule, told_of
from replay.sharing import Redacted
from replay.stable import settled
from replay.writing import redacted_in, write


def versions() -> dict[str, str]:
    """Return what a fixture is recorded with."""
    return {name: version(name) for name in ("agentobs-kit", "anthropic")}


@dataclass(frozen=True, slots=True)
class Frozen:
    """What was written."""

    fixture: Path
    """The fixture's file."""
    test: Path
    """The test beside it."""
    files: tuple[tuple[Path, bool], ...]
    """Both and what people read of it, each with whether it was written: a test that is there already and a README of
    your own are left as they are, and so is what has not changed."""
    asks: int
    tools: int
    redacted: tuple[Redacted, ...] = ()
    """What secrets were taken out of it, by kind."""
    turn: int = 1
    """The turn to go on from: where the session failed, else its last one."""
    until: int | None = None
    """The turn up to which it was frozen; None where it was frozen whole."""
    normalisers: tuple[str, ...] = ()
    """The names of the rules that are applied whenever it is replayed."""


def freeze(
    recording: Recording,
    folder: Path,
    versions: dict[str, str],
    until: int | None = None,
    normalisers: Sequence[Rule] | None = None,
) -> Frozen:
    """Write a fixture, its test and what people read of it into `folder`.

    A test that is there already is yours and is kept. What has not changed since the folder was written stays as it
    is, byte for byte.

    Args:
        recording: the session.
        folder: where to write; its name is the name of the test.
        versions: what it was recorded with.
        until: the turn to cut it off after; None: the whole session.
        normalisers: the rules that are applied whenever it is replayed; None: those of the fixture that is there.

    Raises:
        RecordingError: the session cannot be replayed; nothing is written.
        UsageError: the folder cannot be written, or the session has no such turn.
    """
    part = recording if until is None else up_to(recording, until)
    rules = told_of(_rules_of(folder) if normalisers is None else normalisers)
    data = write(part, versions, rules)
    name = re.sub(r"[^A-Za-z0-9]+", "_", folder.name).strip("_").lower() or "session"
    fixture, test = folder / FILE, folder / f"test_{name}.py"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        data = settled(data, fixture.read_bytes() if fixture.is_file() else None)
        changed = {*keep(fixture, data)}
        if not test.exists():
            test.write_text(_test(recording, part), encoding="utf-8")
            changed.add(test)
    except OSError as error:
        raise UsageError(f"cannot write a fixture: {error.strerror}", where=str(folder)) from error
    return Frozen(
        fixture,
        test,
        files=tuple((each, each in changed) for each in (fixture, test, folder / README)),
        asks=sum(isinstance(e, ModelExchange) for e in part.exchanges),
        tools=sum(isinstance(e, ToolExchange) for e in part.exchanges),
        redacted=tuple(redacted_in(data)),
        turn=min(failing_turn(recording), part.until or failing_turn(recording)),
        until=part.until,
        normalisers=tuple(each if isinstance(each, str) else each["name"] for each in rules),
    )


def _rules_of(folder: Path) -> Sequence[Rule]:
    """Return the normalisers of the fixture that is there; none where it does not read and is to be written anew."""
    try:
        rules: Sequence[Rule] = load(folder).header.get("normalisers", ())
    except AgentobsError:
        return ()
    return rules


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


def _test(recording: Recording, part: Recording) -> str:
    """Return the test; of the recording only labels enter it, so that no name in a file becomes code."""
    known = recording.entry and recording.arguments is not None
    first, alone = ("", "") if known else (f"{_HOW}, ", _HOW)
    turn = failing_turn(recording)
    parts = [
        f'"""The recorded session {word(recording.name)}, replayed offline."""\n\nimport pytest\n',
        (_SAME_PATH if part.until is None else _SAME_PART).format(how=alone, turn=part.until),
    ]
    if recording.outcome not in ("completed", "running") and turn <= (part.until or turn):
        reason = word(recording.reason or recording.outcome)
        parts.append(
            _MENDED.format(
                how=first,
                turn=turn,
                reason=reason,
                tools=(tools := _tools(recording, turn)),
                why=_NAMED if "[" in tools else "",
            )
        )
    return "\n\n".join(parts)


def _tools(recording: Recording, turn: int) -> str:
    """Return how the tools of the turn are to run: for real, said openly.

    Functions are named: one that changes something outside runs only so, and nobody recorded which do.
    """
    ran = [e for e in recording.exchanges if isinstance(e, ToolExchange) and e.place.turn == turn]
    names = dict.fromkeys(e.question.name for e in ran)
    if not any(e.is_function for e in ran) or not all(map(_NAME.fullmatch, names)):
        return ', tools="live"' if ran else ""
    return f", tools=[{', '.join(f'{chr(34)}{name}{chr(34)}' for name in names)}]"


_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
"""Names of tools as the provider takes them; none of them is code."""


_HOW = "..., 'its', 'arguments'"
"""Stands in the test where the recording does not know: replace the dots by the function that starts the agent."""

_SAME_PATH = '''@pytest.mark.replay("recording.jsonl")
def test_same_path(replay):
    """The agent asks what it asked, step by step, and ends as it ended."""
    replay.run({how})
'''

_SAME_PART = '''@pytest.mark.replay("recording.jsonl")
def test_same_path(replay):
    """Up to the request after turn {turn}, where it was cut off, the agent asks what it asked, step by step."""
    replay.run({how})
'''

_NAMED = """    # By name, for what changes something outside runs only where it is named: stand in for it here.
"""

_MENDED = '''@pytest.mark.replay("recording.jsonl")
def test_mended(replay):
    """In turn {turn}, where the session failed ({reason}), the agent does something else.

    Fails until the agent is mended. The tools of that turn run for real: stand in for those that must not.
    Say then what the agent must do, for instance: assert not step.tool("name").is_error
    """
{why}    step = replay.until({how}turn={turn}{tools})
    assert step.differs, step.describe()
'''
