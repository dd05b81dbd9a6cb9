"""agentobs: a flight recorder for LLM agents.

What happened, what it cost, where the time went; and a failed session becomes a test that runs offline.
The names below are imported at first use, so that `import agentobs` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentobs.recording.functions import record_tool
    from agentobs.recording.health import statistics
    from agentobs.recording.kept import keep_result
    from agentobs.recording.noting import event
    from agentobs.recording.options import Options
    from agentobs.recording.session import (
        Session,
        child_environment,
        fail,
        record,
        record_all,
        result,
        session,
        start,
        stop_recorder,
    )
    from agentobs.recording.values import ToolFailed, register_type
    from agentobs.records.labels import Label
    from agentobs.store.conversations import load_conversation
    from agentobs.store.database import connect
    from agentobs.store.spending import meter_of, spent_today
    from agentobs.store.worker import Limits, query
    from agentobs.tracing import carried, open_span, span, trace_context, trace_environment
    from agentobs.tracing.ambient import world_here

_HOMES = {
    "statistics": "agentobs.recording.health",
    "trace_environment": "agentobs.tracing",
    "world_here": "agentobs.tracing.ambient",
    "trace_context": "agentobs.tracing",
    "span": "agentobs.tracing",
    "open_span": "agentobs.tracing",
    "carried": "agentobs.tracing",
    "Limits": "agentobs.store.worker",
    "Label": "agentobs.records.labels",
    "Options": "agentobs.recording.options",
    "Session": "agentobs.recording.session",
    "event": "agentobs.recording.noting",
    "fail": "agentobs.recording.session",
    "keep_result": "agentobs.recording.kept",
    "record": "agentobs.recording.session",
    "record_all": "agentobs.recording.session",
    "record_tool": "agentobs.recording.functions",
    "register_type": "agentobs.recording.values",
    "result": "agentobs.recording.session",
    "ToolFailed": "agentobs.recording.values",
    "session": "agentobs.recording.session",
    "start": "agentobs.recording.session",
    "stop_recorder": "agentobs.recording.session",
    "child_environment": "agentobs.recording.session",
    "connect": "agentobs.store.database",
    "query": "agentobs.store.worker",
    "load_conversation": "agentobs.store.conversations",
    "meter_of": "agentobs.store.spending",
    "spent_today": "agentobs.store.spending",
}

__all__ = [
    "Label",
    "Limits",
    "Options",
    "Session",
    "ToolFailed",
    "carried",
    "child_environment",
    "connect",
    "event",
    "fail",
    "keep_result",
    "load_conversation",
    "meter_of",
    "open_span",
    "query",
    "record",
    "record_all",
    "record_tool",
    "register_type",
    "result",
    "session",
    "span",
    "spent_today",
    "start",
    "statistics",
    "stop_recorder",
    "trace_context",
    "trace_environment",
    "world_here",
]


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'agentobs' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
