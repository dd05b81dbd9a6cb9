"""The process of one run of a trial: it replays a fixture and writes the outcome to a file."""

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
"""The width of the lines that show a difference. With the 13 columns before them, they fit into 80 columns."""


def run(spec: dict[str, Any]) -> None:
    """Replay the fixture of a `RunSpec`, and write the `Outcome` to the file that the spec names."""
    reads = _FileReads()
    with project_at(Path(spec["project"])):
        sys.addaudithook(reads.note)
        outcome = _outcome(spec, reads)
    result = Path(spec["result"])
    temporary = result.with_suffix(".part")
    temporary.write_text(json.dumps(asdict(outcome)), encoding="utf-8")
    temporary.replace(result)


def _outcome(spec: dict[str, Any], reads: _FileReads) -> Outcome:
    try:
        fixture = load(spec["fixture"])
        rules = [normalizer_of(rule) for rule in spec["rules"]]
        options = ReplayOptions(normalizers=rules, deadline_seconds=spec["deadline_s"])
        return _replayed(fixture, options, reads)
    except AgentobsError as error:
        return Outcome("error", error.found, remedy=error.todo)
    except Exception as error:
        return Outcome("error", f"the check itself failed: {type(error).__name__}: {error}")


def _replayed(fixture: Fixture, options: ReplayOptions, reads: _FileReads) -> Outcome:
    replayer = Replayer(fixture, options)
    try:
        with replayer:
            replayer.run()
    except DivergenceError as error:
        return _diverged(error.divergence, reads)
    except AgentobsError as error:
        # An error about the recorded entry names the file of the fixture.
        is_entry = error.where == str(fixture.path)
        return Outcome(
            "uncallable" if is_entry else "error",
            error.found,
            remedy=error.todo,
            missing_file=reads.first_missing,
        )
    except BaseException as error:
        return _raised(replayer, error, reads)
    return Outcome("matched")


def _diverged(found: Divergence, reads: _FileReads) -> Outcome:
    """Return the outcome of a divergence, with its first difference as lines of text."""
    lines: list[str] = []
    if found.differences:
        first = found.differences[0]
        lines = [safe(first.path), *(f"  {line}" for line in aligned(first, COLUMNS))]
    lane = f" of {safe(found.lane)}" if found.lane != "main" else ""
    place = f"request {found.number} of {found.of}{lane}"
    if found.number > found.of:
        place = f"after request {found.of} of {found.of}{lane}"
    is_request = found.summary == DIFFER and bool(lines)
    return Outcome(
        "differs" if is_request else "diverged",
        place if is_request else f"{safe(found.summary)} ({place})",
        tuple(lines),
        rules=rules_for(found),
        site=found.sent.text if found.sent else "",
        why=safe(_why(found)),
        remedy=_remedy(found),
        missing_file=reads.first_missing,
    )


def rules_for(found: Divergence) -> tuple[str, ...]:
    """Return the names of the rules that a divergence proposes to hide its differences."""
    return tuple(dict.fromkeys(each.rule for each in found.proposals))


def _why(found: Divergence) -> str:
    cause = found.cause
    if cause is None:
        return ""
    return (
        f"{cause.text}; the new value contains {cause.contains}" if cause.contains else cause.text
    )


def _remedy(found: Divergence) -> str:
    """Return how to fix a divergence that no rule hides; empty if unknown."""
    if found.kind == "network":
        return "record the connection: agentobs.record(client), or agentobs.record_tool on the tool"
    if found.cause is not None and found.cause.kind == "tool_result":
        return (
            "decorate the tool with agentobs.record_tool and record the session again: "
            "the result of the tool then comes from the recording"
        )
    match found.nature:
        case "element order":
            return "sort the elements, because the order of a set differs in each process"
        case "redaction":
            return (
                "pass the redactors that were used for the recording: ReplayOptions(redactors=...)"
            )
    if found.kind == "timing":
        return "if the agent needs more time, set deadline_seconds=... in the test"
    return ""


def _raised(replayer: Replayer, error: BaseException, reads: _FileReads) -> Outcome:
    report = replayer.raised(error)
    text = f"{report.error}: {report.message}" if report.message else report.error
    site = report.frames[-1].text if report.frames else ""
    return Outcome(
        "raised", f"the agent raised {text}", site=site, missing_file=reads.first_missing
    )


class _FileReads:
    """Finds the first relative path that exists in the project directory but not in the current directory."""

    def __init__(self) -> None:
        self.first_missing = ""

    def note(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Check a path that is about to be read, as an audit hook (docs.python.org/3/library/audit_events.html)."""
        if (
            self.first_missing
            or event not in _READS
            or not arguments
            or not _is_read(event, arguments)
        ):
            return
        argument = arguments[0]
        try:
            path = (
                Path(os.fsdecode(argument))
                if isinstance(argument, str | bytes | os.PathLike)
                else None
            )
            if path is None or path.is_absolute() or path.exists():
                return
            if not (project() / path).exists():
                return
        except (OSError, ValueError):
            return
        site = call_site()
        self.first_missing = (
            f"{site.text} reads {str(path)!r}" if site else f"{str(path)!r} is read"
        )


_READS = frozenset(("open", "os.listdir", "os.scandir", "os.chdir", "sqlite3.connect"))


def _is_read(event: str, arguments: tuple[Any, ...]) -> bool:
    """Return whether an audit event reads a path. All events do, except opening a file for writing."""
    if event != "open":
        return True
    mode, flags = arguments[1], arguments[2]
    if isinstance(mode, str):
        return "r" in mode
    return isinstance(flags, int) and not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
