"""Trace context of the program that started this one, and of programs that this one starts.

Follows W3C Trace Context, level 1 (https://www.w3.org/TR/trace-context/, November 2021). Only an ID
is taken from outside: it configures nothing, and a malformed value is ignored.
"""

from __future__ import annotations

import re

from agentobs import world
from agentobs.records.exchanges import Place
from agentobs.runtime import process
from agentobs.tracing.places import open_spans, place

VARIABLE = "TRACEPARENT"
"""The environment variable that carries it, by OpenTelemetry's convention for environment variables."""

LENGTH_MAX = 256
"""Longer values are ignored; version 00 has 55 characters. Our choice."""

SESSIONS_MAX = 10_000
"""For how many sessions the remote parent is remembered. Our choice."""

_FORM = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-[0-9a-f]{2}(?P<more>-.*)?",
    re.ASCII,
)
_ID = re.compile(r"[0-9a-f]+", re.ASCII)


class State:
    """Where the sessions of this process were started."""

    def __init__(self) -> None:
        self.remotes: dict[str, str] = {}
        """The trace context in which a session was started, by session."""


def parsed(text: str | None) -> str | None:
    """Return a `traceparent` without additions of later versions; None if it is invalid.

    All-zero IDs, version `ff`, and trailing data in version `00` are invalid, as in the
    specification.
    """
    if text is None or len(text) > LENGTH_MAX or (found := _FORM.fullmatch(text)) is None:
        return None
    version, more = found["version"], found["more"]
    if version == "ff" or (version == "00" and more is not None):
        return None
    if not found["trace"].strip("0") or not found["span"].strip("0"):
        return None
    return f"00-{found['trace']}-{found['span']}-{text[53:55]}"


def started_by(session_id: str) -> None:
    """Read the parent trace of this process once, when a session starts; its traces are then linked to it."""
    state = process.part(State)
    found = parsed(world.environ(VARIABLE))
    if found is not None:
        state.remotes[session_id] = found
        if len(state.remotes) > SESSIONS_MAX:
            state.remotes.pop(next(iter(state.remotes)), None)


def remote_parent(session_id: str) -> str | None:
    """Return the `traceparent` in which a session was started, or None."""
    state = process.part(State)
    return state.remotes.get(session_id) if state.remotes else None


def trace_context(here: Place | None = None) -> dict[str, str]:
    """Return `{"traceparent": ...}` for the headers of a tool's request; empty outside all spans.

    `here` is the place of the request; defaults to the current place.
    """
    here = place() if here is None else here
    if here is None or here.span_id is None:
        return {}
    trace_id = trace_of(here)
    if not _is_id(trace_id, 32) or not _is_id(here.span_id, 16):
        return {}
    return {"traceparent": f"00-{trace_id}-{here.span_id}-01"}


def trace_of(here: Place) -> str:
    """Return the trace ID of the span at a place; if it has ended, that of its interaction or session."""
    opened = open_spans.get(here.span_id or "")
    return opened.trace_id if opened else here.interaction_id or here.session_id


def trace_environment(here: Place | None = None) -> dict[str, str]:
    """Return `{"TRACEPARENT": ...}` for a program's environment; empty outside all spans."""
    found = trace_context(here).get("traceparent")
    return {} if found is None else {VARIABLE: found}


def _is_id(text: str, length: int) -> bool:
    return len(text) == length and _ID.fullmatch(text) is not None and bool(text.strip("0"))
