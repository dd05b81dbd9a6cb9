"""Keeping: the files of a fixture's folder that are ours, the recording and what people read of it, written together.

Whoever changes the one, by freezing, recording anew or accepting, changes the other with it.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from agentobs.errors import UsageError
from agentobs.recording.values import not_kept_in
from replay.aligning import safe
from replay.failure import failure_of, tool_call_count
from replay.fixture import FILE, Fixture, load
from replay.normalising import Rule, told_of
from replay.sharing import Redacted
from replay.steps import steps_of
from replay.writing import redacted_in, with_rules

README = "README.md"
"""Tells people what a fixture holds, in the fixture's folder."""
OURS = "<!-- Written by `agentobs freeze`, each time anew. Without this line the file is yours, and is left alone. -->"
"""The first line of a README that may be replaced."""


def keep(fixture: Path, data: bytes) -> tuple[Path, ...]:
    """Write a fixture, and what people read of it unless that is theirs; return which of both files have changed.

    What is as it was is not written.

    Raises:
        UsageError: the folder cannot be written.
    """
    try:
        fixture.parent.mkdir(parents=True, exist_ok=True)
        changed = [fixture] if _replaced(fixture, data) else []
        readme = fixture.with_name(README)
        if fixture.name == FILE and _is_ours(readme):
            told = _readme(load(fixture), redacted_in(data))
            changed += [readme] if _replaced(readme, told.encode("utf-8", "replace")) else []
    except OSError as error:
        where = str(fixture.parent)
        raise UsageError(f"cannot write a fixture: {error.strerror}", where=where) from error
    return tuple(changed)


def add_rules(fixture: Fixture, rules: Sequence[Rule]) -> list[str]:
    """Add rules to a fixture; return the names of all its rules.

    Raises:
        UsageError: a rule cannot be stored in a file or does not exist, or the file cannot be written.
    """
    named = told_of([*fixture.header.get("normalisers", ()), *rules])
    every = [each for at, each in enumerate(named) if each not in named[:at]]
    try:
        data = fixture.path.read_bytes()
    except OSError as error:
        where = str(fixture.path)
        raise UsageError(f"cannot read a fixture: {error.strerror}", where=where) from error
    keep(fixture.path, with_rules(data, every))
    return [each if isinstance(each, str) else each["name"] for each in every]


def replace_file(path: Path, data: bytes) -> None:
    """Write a whole file or nothing."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_bytes(data)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def _replaced(path: Path, data: bytes) -> bool:
    """Write a file where it is not so already; return whether it was written."""
    if path.is_file() and path.read_bytes() == data:
        return False
    replace_file(path, data)
    return True


def _is_ours(readme: Path) -> bool:
    if not readme.exists():
        return True
    return readme.read_text(encoding="utf-8", errors="replace").startswith(OURS)


def _readme(fixture: Fixture, redacted: Sequence[Redacted]) -> str:
    """Return what a fixture holds, for people; what was said stands indented, so that none of it is markup."""
    header, asks, tools = fixture.header, len(fixture.asks), tool_call_count(fixture)
    reason = header["reason"] or ""
    # A reason with blanks is in the steps below, where it cannot be taken for markup.
    how = f"{header['outcome']} {reason if reason == word(reason, '') else ''}".rstrip()
    ended = f"frozen up to turn {fixture.until}" if fixture.until else f"it ended `{how}`"
    by = ", ".join(f"{word(k)} {word(v)}" for k, v in header.get("recorded_with", {}).items())
    started = f"Started by `{word(header['entry'])}`. " if header["entry"] else ""
    taken = [f"Taken out: {safe(each.text())}.\n" for each in redacted]
    taken += [f"{_result_note(fixture)}\n"] if fixture.result is not None else []
    return "\n".join(
        [
            OURS,
            f"# {word(fixture.name)}\n",
            f"A recorded session: {asks} requests and {tools} tool calls; {ended}.",
            f"{started}Recorded with {by or 'unknown versions'}.\n",
            *_story(fixture),
            *taken,
            "`recording.jsonl` holds it, and is read-only: a digest ends it. The steps:\n",
            *(f"    {line}".rstrip() for line in steps_of(fixture)),
            "",
        ]
    )


def _story(fixture: Fixture) -> list[str]:
    """Return the steps for the tests of a failed session, one per line; nothing for any other session."""
    failure = failure_of(fixture)
    if failure is None:
        return []
    folder = shlex.quote(fixture.path.parent.as_posix())
    return [
        f"1. Run `pytest {folder}`: `test_fixed` is red because the bug is there. Turn {failure.turn} failed: "
        f"{failure.reason}.",
        "2. Fix the agent. `test_reaches_the_failure` stays green: the agent still gets to that turn.",
        "3. Run it again: both tests are green. `test_fixed` is red again if the bug comes back.",
        f"4. Continue from there with the real provider: `agentobs fork {folder} --at {failure.turn}`.",
        f"5. Freeze that new session, `agentobs freeze SESSION -o {folder}-fixed`: its test covers the whole path.\n",
    ]


def _result_note(fixture: Fixture) -> str:
    """Return a sentence on whether the result of the session is compared."""
    value = fixture.result.value if fixture.result else None
    kind = not_kept_in(value)
    if kind is None:
        return "A replay compares what the session returned."
    return f"The result was not kept, and is not compared: `{word(kind)}`."


def word(name: str, otherwise: str = "session") -> str:
    """Return a name as one that is neither code nor markup, whatever it was."""
    return re.sub(r"[^A-Za-z0-9._:/@-]+", "-", name)[:80].strip("-") or otherwise
