"""The process of a trial: it replays one fixture, and writes the outcome to a file."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentobs.errors import AgentobsError
from replay.agent_code.call_sites import call_site
from replay.agent_code.project import project, project_at
from replay.comparison.alignment import aligned, safe
from replay.comparison.normalizers import normalizer_of
from replay.divergence.divergence import Divergence, DivergenceError
from replay.divergence.rendering import DIFFER
from replay.fixture.format import Fixture, load
from replay.playback.replayer import Replayer
from replay.scenario.replay_options import ReplayOptions
from replay.trial.trial_worker import Outcome

COLUMNS = 67
"""The width of lines that show a difference: with 13 columns before them, they fit into a terminal of 80 columns."""


def run(order: dict[str, Any]) -> None:
    """Replay the fixture of an order, and write the `Outcome` into the file that the order names."""
    opened = _Opened()
    with project_at(Path(order["project"])):
        sys.addaudithook(opened.note)
        outcome = _outcome(order, opened)
    result = Path(order["result"])
    aside = result.with_suffix(".part")
    aside.write_text(json.dumps(asdict(outcome)), encoding="utf-8")
    aside.replace(result)


def _outcome(order: dict[str, Any], opened: _Opened) -> Outcome:
    try:
        fixture = load(order["fixture"])
        rules = [normalizer_of(rule) for rule in order["rules"]]
        options = ReplayOptions(normalizers=rules, deadline_seconds=order["deadline_s"])
        return _replayed(fixture, options, opened)
    except AgentobsError as error:
        return Outcome("error", error.found, cure=error.todo)
    except Exception as error:
        return Outcome("error", f"the try itself failed: {type(error).__name__}: {error}")


def _replayed(fixture: Fixture, options: ReplayOptions, opened: _Opened) -> Outcome:
    replayer = Replayer(fixture, options)
    try:
        with replayer:
            replayer.run()
    except DivergenceError as error:
        return _diverged(error.divergence, opened)
    except AgentobsError as error:
        # What is wrong with the recorded entry is an error of the fixture's file.
        is_entry = error.where == str(fixture.path)
        return Outcome(
            "uncallable" if is_entry else "error",
            error.found,
            cure=error.todo,
            opened=opened.first,
        )
    except BaseException as error:
        return _raised(replayer, error, opened)
    return Outcome("matched")


def _diverged(found: Divergence, opened: _Opened) -> Outcome:
    """Return the outcome of a divergence, with its first difference as lines of text."""
    shown: list[str] = []
    if found.differences:
        first = found.differences[0]
        shown = [safe(first.path), *(f"  {line}" for line in aligned(first, COLUMNS))]
    lane = f" of {safe(found.lane)}" if found.lane != "main" else ""
    place = f"request {found.number} of {found.of}{lane}"
    if found.number > found.of:
        place = f"after request {found.of} of {found.of}{lane}"
    is_plain = found.summary == DIFFER and bool(shown)
    return Outcome(
        "differs" if is_plain else "diverged",
        place if is_plain else f"{safe(found.summary)} ({place})",
        tuple(shown),
        rules=rules_for(found),
        site=found.sent.text if found.sent else "",
        why=safe(_why(found)),
        cure=_cure(found),
        opened=opened.first,
    )


def rules_for(found: Divergence) -> tuple[str, ...]:
    """Return the names of the rules that a divergence proposes to hide its differences."""
    return tuple(dict.fromkeys(each.rule for each in found.proposals))


def _why(found: Divergence) -> str:
    cause = found.cause
    if cause is None:
        return ""
    return f"{cause.text}; it contains {cause.contains}" if cause.contains else cause.text


def _cure(found: Divergence) -> str:
    """Return how to fix a divergence that no rule hides; empty if that is not known."""
    if found.kind == "network":
        return "record the connection: agentobs.record(client), or agentobs.record_tool on the tool"
    if found.cause is not None and found.cause.kind == "tool_result":
        return (
            "decorate the tool with agentobs.record_tool and record the session again: "
            "the tool is then answered from the recording"
        )
    match found.nature:
        case "element order":
            return "sort the elements: the order of a set differs in each process"
        case "redaction":
            return "pass the redactors that it was recorded with: ReplayOptions(redactors=...)"
    if found.kind == "timing":
        return "if it needs longer, set deadline_seconds=... in the test"
    return ""


def _raised(replayer: Replayer, error: BaseException, opened: _Opened) -> Outcome:
    told = replayer.raised(error)
    text = f"{told.error}: {told.message}" if told.message else told.error
    site = told.frames[-1].text if told.frames else ""
    return Outcome("raised", f"the agent raised {text}", site=site, opened=opened.first)


class _Opened:
    """Finds the first file that the agent read from the current directory although it is in the project directory."""

    def __init__(self) -> None:
        self.first = ""

    def note(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Note a path that is about to be read; an audit hook (docs.python.org/3/library/audit_events.html)."""
        if self.first or event not in _READS or not arguments or not _is_read(event, arguments):
            return
        named = arguments[0]
        try:
            path = (
                Path(os.fsdecode(named)) if isinstance(named, str | bytes | os.PathLike) else None
            )
            if path is None or path.is_absolute() or path.exists():
                return
            if not (project() / path).exists():
                return
        except (OSError, ValueError):
            return
        site = call_site()
        self.first = f"{site.text} reads {str(path)!r}" if site else f"{str(path)!r} is read"


_READS = frozenset(("open", "os.listdir", "os.scandir", "os.chdir", "sqlite3.connect"))


def _is_read(event: str, arguments: tuple[Any, ...]) -> bool:
    """Return whether an audit event reads a path: opening a file to write does not count, any other access does."""
    if event != "open":
        return True
    mode, flags = arguments[1], arguments[2]
    if isinstance(mode, str):
        return "r" in mode
    return isinstance(flags, int) and not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
