"""What the loop tells the sink: interactions, spans, events and tool calls.

Everything here is silent outside a session. No context variable stays set across a `yield` of the loop's
generators: places are passed on by hand, and set only around single awaits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from agentobs import tracing
from agentobs.agent.events import Subtype, ToolDone
from agentobs.records.exchanges import Place, ToolExchange
from agentobs.records.facts import Event, InteractionEnd, InteractionStart
from agentobs.records.labels import Label, is_label
from agentobs.sink import sink
from agentobs.world import World


@dataclass(slots=True)
class Interaction:
    """The interaction that is being told."""

    place: Place | None
    """Inside its span; None outside every session."""
    subtype: Subtype = "success"
    """How it ends where nothing is raised."""


@contextlib.contextmanager
def interaction(world: World, agent: str) -> Iterator[Interaction]:
    """Tell of an interaction of the current session from start to end, however it ends.

    Whoever stops it on purpose makes no error of it; a cancellation that leaves the session does.
    """
    outer = tracing.place()
    if outer is None:
        yield Interaction(None)
        return
    interaction_id, lane = world.new_id(), Label(outer.lane)
    sink.emit(InteractionStart(outer.session_id, interaction_id, lane, world.now()))
    told, result = Interaction(None), "error_during_execution"
    try:
        here = replace(outer, interaction_id=interaction_id, turn=None)
        with span("interaction", here, agent) as told.place:
            yield told
        result = told.subtype
    except Exception:
        raise
    except BaseException:
        result = "cancelled"
        raise
    finally:
        is_error = result not in ("success", "cancelled")
        sink.emit(
            InteractionEnd(outer.session_id, interaction_id, world.now(), Label(result), is_error)
        )


@contextlib.contextmanager
def span(name: str, here: Place | None, label: str) -> Iterator[Place | None]:
    """Open a span at `here` and close it: ok, error, or cancelled when the run was stopped."""
    if here is None:
        yield None
        return
    inside = tracing.open_span(name, here, label=maybe_label(label))
    try:
        yield inside
    except BaseException as error:
        stopped = not isinstance(error, Exception)
        tracing.close_span(inside, error, cancelled=stopped)
        raise
    tracing.close_span(inside)


def at(here: Place | None) -> contextlib.AbstractContextManager[object]:
    """Be at `here` around one await, or stay where the caller is."""
    return contextlib.nullcontext() if here is None else tracing.at(here)


def in_turn(here: Place | None, turn: int) -> Place | None:
    """Return the same place in a turn."""
    return None if here is None else replace(here, turn=turn)


def event(
    world: World, here: Place | None, kind: str, label: str | None, numbers: Mapping[str, float]
) -> None:
    """Tell that something happened now."""
    if here is None:
        return
    sink.emit(
        Event(
            session_id=here.session_id,
            interaction_id=here.interaction_id,
            lane=Label(here.lane),
            turn=here.turn,
            at_ns=world.now(),
            kind=Label(kind),
            label=maybe_label(label),
            numbers=numbers,
        )
    )


def tool(here: Place | None, started_ns: int, done: ToolDone) -> None:
    """Tell of a tool call that has its answer."""
    if here is not None:
        sink.emit(ToolExchange(here, started_ns, done.duration_ns, done.question, done.answer))


def maybe_label(text: str | None) -> Label | None:
    """Return a name as a label, or None where it might hold content."""
    return Label(text) if text is not None and is_label(text) else None
