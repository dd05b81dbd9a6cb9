"""Recorder health: the statistics of everything that this process records, in one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentobs import sink, tracing
from agentobs.recording import session
from agentobs.recording.recorder import RecorderStatistics


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of everything that this process records."""

    sink: sink.Statistics
    """Statistics of the sink."""
    recorder: RecorderStatistics | None
    """Statistics of the recorder; None if this process does not record."""
    spans: tracing.SpanStatistics
    """Statistics of spans; orphaned spans show that something was not closed."""
    backends: tuple[Any, ...]
    """Statistics of each backend that has a `statistics()` method, in order."""


def statistics() -> Statistics:
    """Return the statistics of everything that this process has recorded so far. This is cheap."""
    recorder = session.current_recorder()
    backends = recorder.options.backends if recorder is not None else ()
    return Statistics(
        sink=sink.sink.statistics(),
        recorder=recorder.statistics() if recorder is not None else None,
        spans=tracing.statistics(),
        backends=tuple(each.statistics() for each in backends if hasattr(each, "statistics")),
    )
