"""Process scopes: the session of this process to which an observed effect belongs."""

from __future__ import annotations

from collections.abc import Sequence

from agentobs import tracing
from agentobs.effects.observation import Scope
from agentobs.records.exchanges import Place
from agentobs.tracing.places import opened_here


def scope_here(scopes: Sequence[Scope]) -> tuple[Scope, Place] | None:
    """Return the scope of the caller's session and the place of the caller; None if its session observes nothing.

    Args:
        scopes: the scopes of this process.
    """
    here = tracing.place()
    session_id = here.session_id if here is not None else None
    scope = next((each for each in scopes if session_of(each) == session_id), None)
    if here is None and len(scopes) == 1:
        [scope] = scopes  # a thread that was started without the context of the session
    place = scope.place() if scope is not None else None
    return (scope, place) if scope is not None and place is not None else None


def session_of(scope: Scope) -> str:
    """Return the ID of the session of a scope; empty if there is none."""
    place = scope.place()
    return place.session_id if place is not None else ""


def spans_here() -> tuple[str, ...]:
    """Return the IDs of the open spans around the caller, innermost first."""
    found, opened = [], opened_here()
    while opened is not None:
        found.append(opened.span_id)
        opened = opened.parent
    return tuple(found)


__all__ = ["scope_here", "session_of", "spans_here"]
