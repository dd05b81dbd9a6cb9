"""Freezing: a recorded session becomes a fixture and a test that is ready to run."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from agentobs.errors import UsageError
from agentobs.records.exchanges import ModelExchange, Recording, ToolExchange, is_beside
from replay.aligning import safe
from replay.cutting import up_to
from replay.fixture import FILE, Fixture, load
from replay.normalising import Rule
from replay.sharing import Redacted
from replay.stable import settled
from replay.steps import steps_of
from replay.writing import redacted_in, write

README = "README.md"
"""Tells people what a fixture holds, in the fixture's folder."""
OURS = "<!-- Written by `agentobs freeze`, each time anew. Without this line the file is yours, and is left alone. -->"
"""The first line of a README that may be replaced."""


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
    asks: int
    tools: int
    test_kept: bool
    """Whether a test was there already, and was left as it is."""
    redacted: tuple[Redacted, ...] = ()
    """What secrets were taken out of it, by kind."""
    turn: int = 1
    """The turn to go on from: where the session failed, else its last one."""
    until: int | None = None
    """The turn up to which it was frozen; None where it was frozen whole."""


def freeze(
    recording: Recording,
    folder: Path,
    versions: dict[str, str],
    until: int | None = None,
    normalisers: Sequence[Rule] = (),
) -> Frozen:
    """Write a fixture, its test and what people read of it into `folder`.

    A test that is there already is yours and is kept. What has not changed since the folder was written stays as it
    is, byte for byte.

    Args:
        recording: the session.
        folder: where to write; its name is the name of the test.
        versions: what it was recorded with.
        until: the turn to cut it off after; None: the whole session.
        normalisers: the rules that are applied whenever it is replayed.

    Raises:
        RecordingError: the session cannot be replayed; nothing is written.
        UsageError: the folder cannot be written, or the session has no such turn.
    """
    part = recording if until is None else up_to(recording, until)
    data = write(part, versions, normalisers)
    name = re.sub(r"[^A-Za-z0-9]+", "_", folder.name).strip("_").lower() or "session"
    fixture, test, readme = folder / FILE, folder / f"test_{name}.py", folder / README
    try:
        folder.mkdir(parents=True, exist_ok=True)
        data = settled(data, fixture.read_bytes() if fixture.is_file() else None)
        replace_file(fixture, data)
        kept = test.exists()
        if not kept:
            test.write_text(_test(recording, part), encoding="utf-8")
        if _is_ours(readme):
            told = _readme(load(fixture), redacted_in(data))
            replace_file(readme, told.encode("utf-8", "replace"))
    except OSError as error:
        raise UsageError(f"cannot write a fixture: {error.strerror}", where=str(folder)) from error
    return Frozen(
        fixture,
        test,
        asks=sum(isinstance(e, ModelExchange) for e in part.exchanges),
        tools=sum(isinstance(e, ToolExchange) for e in part.exchanges),
        test_kept=kept,
        redacted=tuple(redacted_in(data)),
        turn=min(failing_turn(recording), part.until or failing_turn(recording)),
        until=part.until,
    )


def _is_ours(readme: Path) -> bool:
    if not readme.exists():
        return True
    return readme.read_text(encoding="utf-8", errors="replace").startswith(OURS)


def _readme(fixture: Fixture, redacted: Sequence[Redacted]) -> str:
    """Return what a fixture holds, for people; what was said stands indented, so that none of it is markup."""
    header, asks, tools = fixture.header, len(fixture.asks), len(fixture.tools)
    how = f"{header['outcome']} {_word(header['reason'] or '', '')}".rstrip()
    ended = f"frozen up to turn {fixture.until}" if fixture.until else f"it ended `{how}`"
    by = ", ".join(f"{_word(k)} {_word(v)}" for k, v in header.get("recorded_with", {}).items())
    started = f"Started by `{_word(header['entry'])}`. " if header["entry"] else ""
    taken = [f"Taken out: {safe(each.text())}.\n" for each in redacted]
    return "\n".join(
        [
            OURS,
            f"# {_word(fixture.name)}\n",
            f"A recorded session: {asks} requests and {tools} tool calls; {ended}.",
            f"{started}Recorded with {by or 'unknown versions'}.\n",
            *taken,
            "`recording.jsonl` holds it, and is read-only: a digest ends it. The steps:\n",
            *(f"    {line}".rstrip() for line in steps_of(fixture)),
            "",
        ]
    )


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


def _test(recording: Recording, part: Recording) -> str:
    """Return the test; of the recording only labels enter it, so that no name in a file becomes code."""
    known = recording.entry and recording.arguments is not None
    first, alone = ("", "") if known else (f"{_HOW}, ", _HOW)
    turn = failing_turn(recording)
    parts = [
        f'"""The recorded session {_word(recording.name)}, replayed offline."""\n\nimport pytest\n',
        (_SAME_PATH if part.until is None else _SAME_PART).format(how=alone, turn=part.until),
    ]
    if recording.outcome not in ("completed", "running") and turn <= (part.until or turn):
        reason = _word(recording.reason or recording.outcome)
        parts.append(
            _MENDED.format(how=first, turn=turn, reason=reason, tools=_tools(recording, turn))
        )
    return "\n\n".join(parts)


def _word(name: str, otherwise: str = "session") -> str:
    """Return a name as one that is neither code nor markup, whatever it was."""
    return re.sub(r"[^A-Za-z0-9._:/@-]+", "-", name)[:80].strip("-") or otherwise


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

_SAME_PART = '''@pytest.mark.replay("recording.jsonl")
def test_same_path(replay):
    """Up to the request after turn {turn}, where it was cut off, the agent asks what it asked, step by step."""
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
