"""Trace propagation: the trace contexts of the program that started this program, and of programs that it starts.

Follows W3C Trace Context, level 1 (https://www.w3.org/TR/trace-context/, November 2021). Only IDs are accepted from
outside: they configure nothing, and a malformed value is ignored.
"""

from __future__ import annotations

import re

from agentobs import world
from agentobs.records.exchanges import Place
from agentobs.runtime import process
from agentobs.tracing.places import open_spans, place

VARIABLE = "TRACEPARENT"
"""The environment variable with the trace context, as in OpenTelemetry's convention for environment variables."""

LENGTH_MAX = 256
"""Longer values are ignored; version 00 has 55 characters. Our choice."""

SESSIONS_MAX = 10_000
"""The maximum number of sessions whose trace context at their start is remembered. Our choice."""

_FORM = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-[0-9a-f]{2}(?P<more>-.*)?",
    re.ASCII,
)
_ID = re.compile(r"[0-9a-f]+", re.ASCII)


class State:
    """The trace contexts in which the sessions of this process were started."""

    def __init__(self) -> None:
        self.parents: dict[str, str] = {}
        """The `traceparent` of each session that was started inside another trace, by session ID."""


def parsed(text: str | None) -> str | None:
    """Return a `traceparent` in the format of version 00; None if it is invalid.

    As in the specification, all-zero IDs, version `ff`, and trailing data in version `00` are invalid.
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
    """Read the trace context of this process when a session starts, so that the traces of the session link to it."""
    state = process.state(State)
    found = parsed(world.environ(VARIABLE))
    if found is not None:
        state.parents[session_id] = found
        if len(state.parents) > SESSIONS_MAX:
            state.parents.pop(next(iter(state.parents)), None)


def remote_parent(session_id: str) -> str | None:
    """Return the `traceparent` in which a session was started; None if there was none."""
    state = process.state(State)
    return state.parents.get(session_id) if state.parents else None


def trace_context(here: Place | None = None) -> dict[str, str]:
    """Return `{"traceparent": ...}` for the headers of a request that a tool sends; empty outside all spans.

    `here` is the place of the request; by default the current place.
    """
    here = place() if here is None else here
    if here is None or here.span_id is None:
        return {}
    trace_id = trace_of(here)
    if not _is_id(trace_id, 32) or not _is_id(here.span_id, 16):
        return {}
    return {"traceparent": f"00-{trace_id}-{here.span_id}-01"}


def trace_of(here: Place) -> str:
    """Return the trace ID of the span at a place; if the span has ended, that of its interaction or session."""
    opened = open_spans.get(here.span_id or "")
    return opened.trace_id if opened else here.interaction_id or here.session_id


def trace_environment(here: Place | None = None) -> dict[str, str]:
    """Return `{"TRACEPARENT": ...}` for the environment of another program; empty outside all spans."""
    found = trace_context(here).get("traceparent")
    return {} if found is None else {VARIABLE: found}


def _is_id(text: str, length: int) -> bool:
    return len(text) == length and _ID.fullmatch(text) is not None and bool(text.strip("0"))
