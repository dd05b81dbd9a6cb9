"""Health: what became of everything that this process was to record, in one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentobs import sink, tracing
from agentobs.recording import session
from agentobs.recording.recorder import RecorderStatistics


@dataclass(frozen=True, slots=True)
class Statistics:
    """What became of everything that this process was to record."""

    sink: sink.Statistics
    """Of the records on their way to whoever takes them."""
    recorder: RecorderStatistics | None
    """Of those that were to be written; None where this process does not record."""
    spans: tracing.SpanStatistics
    """Of spans: orphans are a sign that something was left without an end."""
    backends: tuple[Any, ...]
    """Of each backend that says so, in their order: what its own `statistics()` returns."""


def statistics() -> Statistics:
    """Return what became of everything that this process was to record, so far; cheap."""
    recorder = session.current_recorder()
    backends = recorder.options.backends if recorder is not None else ()
    return Statistics(
        sink=sink.sink.statistics(),
        recorder=recorder.statistics() if recorder is not None else None,
        spans=tracing.statistics(),
        backends=tuple(each.statistics() for each in backends if hasattr(each, "statistics")),
    )
