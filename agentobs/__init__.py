"""agentobs: a flight recorder for LLM agents.

It records what an agent did, what it cost and how long each step took, and turns a failed session into a test that
runs offline. The public names are imported at first use, so `import agentobs` takes very little time.
"""

from __future__ import annotations

import importlib
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentobs.determinism.functions import record_tool as record_tool
    from agentobs.determinism.values import ToolFailed as ToolFailed
    from agentobs.determinism.values import register_type as register_type
    from agentobs.recording.custom_events import event as event
    from agentobs.recording.git.calls import record_git as record_git
    from agentobs.recording.options import Options as Options
    from agentobs.recording.recorder_health import statistics as statistics
    from agentobs.recording.session import Session as Session
    from agentobs.recording.session import child_environment as child_environment
    from agentobs.recording.session import fail as fail
    from agentobs.recording.session import flush as flush
    from agentobs.recording.session import record as record
    from agentobs.recording.session import record_all as record_all
    from agentobs.recording.session import result as result
    from agentobs.recording.session import session as session
    from agentobs.recording.session import start as start
    from agentobs.recording.session import stop_recorder as stop_recorder
    from agentobs.records.backend import receiving as receiving
    from agentobs.records.labels import Label as Label
    from agentobs.session_notes import score as score
    from agentobs.session_notes import title as title
    from agentobs.store.duckdb.connection import connect as connect
    from agentobs.store.duckdb.query_rows import QueryRows as QueryRows
    from agentobs.store.duckdb.sql_worker import Limits as Limits
    from agentobs.store.duckdb.sql_worker import query as query
    from agentobs.tracing import carried as carried
    from agentobs.tracing import open_span as open_span
    from agentobs.tracing import span as span
    from agentobs.tracing import trace_context as trace_context
    from agentobs.tracing import trace_environment as trace_environment
    from agentobs.tracing.ambient import world_here as world_here
    from agentobs.wired_agent import Agent as Agent

    __version__: str

_MODULES = {
    "agentobs.determinism.functions": ("record_tool",),
    "agentobs.determinism.values": ("ToolFailed", "register_type"),
    "agentobs.recording.custom_events": ("event",),
    "agentobs.recording.git.calls": ("record_git",),
    "agentobs.recording.options": ("Options",),
    "agentobs.recording.recorder_health": ("statistics",),
    "agentobs.recording.session": (
        "Session",
        "child_environment",
        "fail",
        "flush",
        "record",
        "record_all",
        "result",
        "session",
        "start",
        "stop_recorder",
    ),
    "agentobs.records.backend": ("receiving",),
    "agentobs.records.labels": ("Label",),
    "agentobs.session_notes": ("score", "title"),
    "agentobs.store.duckdb.connection": ("connect",),
    "agentobs.store.duckdb.query_rows": ("QueryRows",),
    "agentobs.store.duckdb.sql_worker": ("Limits", "query"),
    "agentobs.tracing": ("carried", "open_span", "span", "trace_context", "trace_environment"),
    "agentobs.tracing.ambient": ("world_here",),
    "agentobs.wired_agent": ("Agent",),
}
"""The public names by the module that defines them; the imports above repeat them for type checkers."""

_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
__all__ = list(_MODULE_OF)


_importing: dict[int, list[Any]] = {}
"""The threads that import a module in `__getattr__`, each with the events that wait for it."""


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("agentobs-kit")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'agentobs' has no attribute {name!r}")
    module, thread = sys.modules.get(_MODULE_OF[name]), threading.get_ident()
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        return getattr(module, name)
    if thread in _importing:
        return _name_during_import(name, _importing[thread])
    waiting = _importing[thread] = []
    try:
        return getattr(importlib.import_module(_MODULE_OF[name]), name)
    finally:
        del _importing[thread]
        _emit(waiting)


def _name_during_import(name: str, waiting: list[Any]) -> Any:
    """Return a public name for a signal handler that interrupts an import of this thread, which cannot continue before
    the handler returns. Events are emitted after the import.

    Raises:
        ImportError: the name is not `event`.
    """
    if name != "event":
        raise ImportError(
            f"agentobs.{name} is not available in a signal handler that interrupts its import; use agentobs.{name} "
            "once before the handler is installed"
        )

    def emit_later(kind: str, /, **metadata: Any) -> None:
        waiting.append((kind, metadata))

    return emit_later


def _emit(waiting: list[Any]) -> None:
    """Emit the events that waited for an import; an invalid one becomes a warning, because its caller has returned."""
    for kind, metadata in waiting:
        try:
            __getattr__("event")(kind, **metadata)
        except (TypeError, ValueError, ImportError) as error:
            importlib.import_module("agentobs.errors").warn_once(
                f"an event was not emitted: {error}"
            )


def __dir__() -> list[str]:
    """Return the public names, for completion."""
    return [*__all__, "__version__"]
