"""agentobs: a flight recorder for LLM agents.

What happened, what it cost, where the time went; and a failed session becomes a test that runs offline.
The names below are imported at first use, so that `import agentobs` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentobs.determinism.functions import record_tool
    from agentobs.determinism.values import ToolFailed, register_type
    from agentobs.recording.custom_events import event
    from agentobs.recording.options import Options
    from agentobs.recording.recorder_health import statistics
    from agentobs.recording.result_files import keep_result
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
    from agentobs.records.labels import Label
    from agentobs.store.analysis.conversations import load_conversation
    from agentobs.store.billing.daily_spend import meter_of, spent_today
    from agentobs.store.duckdb.connection import connect
    from agentobs.store.duckdb.sql_worker import Limits, query
    from agentobs.tracing import carried, open_span, span, trace_context, trace_environment
    from agentobs.tracing.ambient import world_here

_HOMES = {
    "statistics": "agentobs.recording.recorder_health",
    "trace_environment": "agentobs.tracing",
    "world_here": "agentobs.tracing.ambient",
    "trace_context": "agentobs.tracing",
    "span": "agentobs.tracing",
    "open_span": "agentobs.tracing",
    "carried": "agentobs.tracing",
    "Limits": "agentobs.store.duckdb.sql_worker",
    "Label": "agentobs.records.labels",
    "Options": "agentobs.recording.options",
    "Session": "agentobs.recording.session",
    "event": "agentobs.recording.custom_events",
    "fail": "agentobs.recording.session",
    "keep_result": "agentobs.recording.result_files",
    "record": "agentobs.recording.session",
    "record_all": "agentobs.recording.session",
    "record_tool": "agentobs.determinism.functions",
    "register_type": "agentobs.determinism.values",
    "result": "agentobs.recording.session",
    "ToolFailed": "agentobs.determinism.values",
    "session": "agentobs.recording.session",
    "start": "agentobs.recording.session",
    "stop_recorder": "agentobs.recording.session",
    "child_environment": "agentobs.recording.session",
    "connect": "agentobs.store.duckdb.connection",
    "query": "agentobs.store.duckdb.sql_worker",
    "load_conversation": "agentobs.store.analysis.conversations",
    "meter_of": "agentobs.store.billing.daily_spend",
    "spent_today": "agentobs.store.billing.daily_spend",
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
