"""Tracing: the current place in a session, and the spans that are opened there.

`places` tracks the current place, `spans` opens and closes spans, and `propagation` links to traces of other programs.
`ambient` provides the clock, IDs and random numbers of a session.
"""

from agentobs.tracing.places import (
    Frame,
    at,
    carried,
    enter,
    is_opener,
    leave,
    place,
    session_closed,
    session_opened,
)
from agentobs.tracing.propagation import (
    remote_parent,
    started_by,
    trace_context,
    trace_environment,
    trace_of,
)
from agentobs.tracing.spans import (
    Span,
    SpanBlock,
    SpanStatistics,
    begin,
    is_any_open,
    open_span,
    span,
    statistics,
    sweep,
    touch,
)

__all__ = [
    "Frame",
    "Span",
    "SpanBlock",
    "SpanStatistics",
    "at",
    "begin",
    "carried",
    "enter",
    "is_any_open",
    "is_opener",
    "leave",
    "open_span",
    "place",
    "remote_parent",
    "session_closed",
    "session_opened",
    "span",
    "started_by",
    "statistics",
    "sweep",
    "touch",
    "trace_context",
    "trace_environment",
    "trace_of",
]
