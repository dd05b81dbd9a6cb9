"""Command records: converts reports about commands into records of a session."""

from __future__ import annotations

import re
import signal
from typing import Any

from agentobs.effects.commands.shim_reports import CommandReport, EndReport, StartReport, Stream
from agentobs.records.effect_facts import Command, CommandOutcome
from agentobs.records.exchanges import ObservedEffect, Place
from agentobs.records.labels import Label

_LAST_WORD = re.compile(r"\S{1,4096}\Z")
_FIRST_WORD = re.compile(r"\A\S{1,4096}")


def command_record(place: Place, report: CommandReport, *, keeps_content: bool) -> ObservedEffect:
    """Return the record of a command that a shim has reported.

    Args:
        place: where it belongs.
        report: the report.
        keeps_content: whether arguments and streams are recorded.
    """
    start, end = report.start, report.end
    arguments = start.arguments[1:]
    outcome: CommandOutcome = "running" if report.is_running else "lost"
    if end is not None:
        outcome = "signaled" if end.signal else "exited"
    stdin, stdout, stderr = start.streams
    fact = Command(
        session_id=place.session_id,
        interaction_id=None,
        lane=None,
        turn=None,
        command_id=report.command_id,
        parent_command_id=report.parent_id,
        span_id=None,
        program=Label(start.name),
        source="shim",
        started_ns=start.started_ns,
        ended_ns=end.ended_ns if end else None,
        duration_ns=end.duration_ns if end else None,
        outcome=outcome,
        exit_code=end.exit_code if end and not end.signal else None,
        signal=signal_label(end.signal) if end and end.signal else None,
        argument_count=len(arguments),
        argument_bytes=sum(len(each.encode("utf-8", "surrogateescape")) for each in arguments),
        stdin=stdin,  # type: ignore[arg-type]
        stdout=stdout,  # type: ignore[arg-type]
        stderr=stderr,  # type: ignore[arg-type]
        is_merged=end.is_merged if end else False,
        stdout_bytes=_total(stdout, end.stdout) if end else None,
        stderr_bytes=_total(stderr, end.stderr) if end and not end.is_merged else None,
    )
    content = _content(start, end) if keeps_content else None
    return ObservedEffect(fact, start.arguments, content=content)


def signal_label(number: int) -> Label:
    """Return the name of a signal, such as `SIGTERM`."""
    try:
        return Label(signal.Signals(number).name)
    except ValueError:  # a real-time signal
        return Label(f"SIG{number}")


def _total(kind: str, stream: Stream) -> int | None:
    return stream.total if kind in ("pipe", "socket", "file") else None


def _content(start: StartReport, end: EndReport | None) -> dict[str, Any]:
    return {
        "argv": [clean_text(each) for each in start.arguments],
        "program": clean_text(start.program),
        "directory": clean_text(start.directory),
        **(
            {"stdout": stream_content(end.stdout), "stderr": stream_content(end.stderr)}
            if end
            else {}
        ),
    }


def clean_text(text: str) -> str:
    """Return a text of the operating system with bytes that are not UTF-8 replaced."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def stream_content(stream: Stream) -> dict[str, Any]:
    """Return the part of a stream that is kept: its start and its end.

    At a cut, a word is left out completely, because half a secret would not be recognized.
    """
    cut = stream.total - len(stream.head) - len(stream.tail)
    head = stream.head.decode("utf-8", "replace")
    tail = stream.tail.decode("utf-8", "replace")
    if cut <= 0:
        return {
            "bytes": stream.total,
            "text": (stream.head + stream.tail).decode("utf-8", "replace"),
        }
    head, tail = _LAST_WORD.sub("", head), _FIRST_WORD.sub("", tail)
    return {"bytes": stream.total, "start": head, "end": tail}


__all__ = ["clean_text", "command_record", "signal_label", "stream_content"]
