"""What the loop tells the sink: interactions, spans, events and tool calls.

Everything here is silent outside a session. No context variable stays set across a `yield` of the loop's
generators: places are passed on by hand, and set only around single awaits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, assert_never

from agentobs import tracing
from agentobs.agent.events import Subtype, ToolDone
from agentobs.agent.interruption import Cause, Interrupted, Stopped, Watch
from agentobs.agent.permissions import Decision
from agentobs.records.exchanges import (
    ANSWERED_INSIDE,
    ECHOED,
    SILENT,
    AskKind,
    Place,
    QuerySource,
    ToolExchange,
    ToolQuestion,
    WorldExchange,
    WorldQuestion,
)
from agentobs.records.facts import Event, InteractionEnd, InteractionStart, Permission
from agentobs.records.labels import Label, unchecked, word
from agentobs.sink import sink
from agentobs.tracing import Span
from agentobs.world import World


@dataclass(slots=True)
class Interaction:
    """The interaction that is being told."""

    place: Place | None
    """Inside its span; None outside every session."""
    subtype: Subtype = "success"
    """How it ends where nothing is raised."""
    is_stopped: bool = False
    """Whether somebody stopped it on purpose."""


@dataclass(frozen=True, slots=True)
class Meant:
    """What a tool call meant: the fields are those of `ToolExchange`."""

    tool: str | None
    asked: Any
    ran: Any
    coerced: int
    called_id: str | None


PERSON_S = 24 * 3600.0
"""How long a person may leave a question, in seconds, before its span counts as an orphan. Our choice: a night."""


@contextlib.contextmanager
def interaction(world: World, agent: str, *, is_background: bool = False) -> Iterator[Interaction]:
    """Tell of an interaction of the current session from start to end, however it ends.

    Whoever stops it on purpose makes no error of it; a cancellation that leaves the session does. It is a trace of
    its own, linked to the span it was started in; that of an agent in the background may outlive that.
    """
    outer = tracing.place()
    if outer is None:
        yield Interaction(None)
        return
    interaction_id, lane = world.new_id(), unchecked(outer.lane)
    source = Label(outer.query_source)
    sink.emit(InteractionStart(outer.session_id, interaction_id, lane, world.now(), source))
    told, result = Interaction(None), "error_during_execution"
    try:
        here = replace(outer, interaction_id=interaction_id, turn=None)
        opened = span(
            "interaction", here, agent, trace_id=interaction_id, is_within=not is_background
        )
        with opened as told.place:
            yield told
        result = "cancelled" if told.is_stopped else told.subtype
    except Exception:
        raise  # an error of the run, which its result says already
    except BaseException:
        result = "cancelled"
        raise
    finally:
        is_error = result not in ("success", "cancelled")
        ended_ns, how = world.now(), Label(result)
        sink.emit(
            InteractionEnd(outer.session_id, interaction_id, ended_ns, how, is_error, lane, source)
        )


@contextlib.contextmanager
def sub_agent(agent: str) -> Iterator[Interaction]:
    """Tell of an agent that the tool call here started: a part of the same interaction."""
    with span("sub_agent", tracing.place(), agent) as inside:
        yield Interaction(inside)


@contextlib.contextmanager
def span(
    name: str,
    here: Place | None,
    label: str | None,
    *,
    trace_id: str | None = None,
    is_within: bool = False,
    expected_s: float | None = None,
) -> Iterator[Place | None]:
    """Open a span at `here` and close it: ok, error, or cancelled when the run was stopped.

    Args:
        name: what it is.
        here: where it lies; outside every session there is none.
        label: what it is about.
        trace_id: the id of a trace of its own, linked to the span at `here`; else it lies in that.
        is_within: whether that trace ends before the span at `here` does.
        expected_s: how long it may be silent, in seconds, beside what any span may.
    """
    if here is None:
        yield None
        return
    opened = tracing.begin(
        name,
        here,
        label=maybe_label(label),
        trace_id=trace_id,
        is_within=is_within,
        expected_s=expected_s or 0.0,
    )
    try:
        yield opened.place
    except BaseException as error:
        close(opened, error)
        raise
    close(opened)


def open_span(name: str, here: Place | None, label: str) -> Span | None:
    """Open a span at `here`, to be closed with `close`."""
    return None if here is None else tracing.begin(name, here, label=maybe_label(label))


def close(
    opened: Span | None, error: BaseException | None = None, *, cancelled: bool = False
) -> None:
    """Close a span: ok, error, or cancelled when the run was stopped. Where there is none nothing happens."""
    if opened is not None:
        stopped = isinstance(error, Stopped) or not isinstance(error, Exception | None)
        opened.close(error, cancelled=cancelled or stopped)


def at(here: Place | None) -> contextlib.AbstractContextManager[object]:
    """Be at `here` around one await, or stay where the caller is."""
    return contextlib.nullcontext() if here is None else tracing.at(here)


def in_turn(world: World, here: Place | None, turn: int) -> Place | None:
    """Return the same place in a turn, where a chain of requests begins."""
    return None if here is None else replace(here, turn=turn, chain_id=world.new_id(), depth=0)


def asking(
    here: Place | None, source: QuerySource, *, depth: int, lane: str | None = None
) -> Place | None:
    """Return the same place for a request to the model.

    Args:
        here: the place in the turn.
        source: who asks.
        depth: the place of the request in its chain, from 1.
        lane: the lane of the request; default that of `here`.
    """
    if here is None:
        return None
    return replace(here, query_source=source, depth=depth, lane=lane or here.lane)


def event(
    world: World,
    here: Place | None,
    kind: str,
    label: str | None,
    numbers: Mapping[str, float],
    labels: Mapping[str, str | None] | None = None,
) -> None:
    """Tell that something happened now; `agentobs.records.event_catalog` says what each kind tells."""
    if here is None:
        return
    sink.emit(
        Event(
            session_id=here.session_id,
            interaction_id=here.interaction_id,
            lane=unchecked(here.lane),
            turn=here.turn,
            at_ns=world.now(),
            kind=word(kind),
            label=maybe_label(label),
            numbers={word(name): number for name, number in numbers.items()},
            query_source=word(here.query_source),
            chain_id=here.chain_id,
            depth=here.depth,
            labels=_labels(labels) if labels else None,
        )
    )


def _labels(given: Mapping[str, str | None]) -> dict[str, Label]:
    """Return names as labels that the recorder has yet to see, without those that are missing."""
    return {word(name): unchecked(each) for name, each in given.items() if each is not None}


ASK_SECONDS = 60.0
"""How long the world may take to answer, people and hooks apart. Our choice: it looks at files, tools, the store."""


async def ask(world: World, here: Place | None, kind: AskKind, key: str, asked: Any = None) -> Any:
    """Ask the world something, tell the sink what it answered, and return that.

    An abort, or an answer that takes too long, is answered with the least that can be said: no consent, a
    complaint, no path, no tool, nothing. Nothing, as the answer to one of the `SILENT` questions, is not told.

    Args:
        world: whom to ask.
        here: where it is asked.
        kind: what is asked, as in `AskKind`.
        key: what tells it from others of its kind.
        asked: the question itself.
    """
    question, started_ns = WorldQuestion(kind, key, asked), world.now()
    async with Watch(world.abort, None if kind in ANSWERED_INSIDE else ASK_SECONDS) as watch:
        try:
            with at(here):
                answer = await watch.guard(world.ask(question))
        except Interrupted as error:
            answer = _least(kind, error.cause)
    if answer or kind not in SILENT:
        # Of a question that holds its own answer the answer is enough.
        recorded = replace(question, asked=None) if kind in ECHOED else question
        told(world, here, recorded, started_ns, answer)
    return answer


def _least(kind: AskKind, cause: Cause) -> Any:
    why = "the run was stopped" if cause == "abort" else f"no answer in {ASK_SECONDS:g} seconds"
    match kind:
        case "consent":
            return {"behaviour": "deny", "by": "nobody", "reason": why}
        case "check":
            return f"it could not be checked: {why}"
        case "path" | "tool_set" | "steering" | "follow_up":
            return []
        case "hook":
            return {"outcome": "cancelled", "reason": why}
        case "spent_today" | "abort" | "refresh" | "conversation" | "section" | "memory":
            return None
        case "limit" | "background" | "elapsed" | "compacted" | "keep":
            return None
    assert_never(kind)


def told(
    world: World, here: Place | None, question: WorldQuestion, started_ns: int, answer: Any
) -> None:
    """Tell the sink what the world answered."""
    if here is not None:
        duration_ns = max(world.now() - started_ns, 0)
        sink.emit(WorldExchange(here, started_ns, duration_ns, question, answer))


def permission(
    world: World,
    here: Place | None,
    question: ToolQuestion,
    name: str,
    decision: Decision,
    waited_ns: int,
) -> None:
    """Tell how it was decided whether a call may run."""
    if here is None:
        return
    rule = str(decision.rule) if decision.rule is not None else None
    sink.emit(
        Permission(
            session_id=here.session_id,
            interaction_id=here.interaction_id,
            lane=unchecked(here.lane),
            turn=here.turn,
            tool_use_id=unchecked(question.tool_use_id),
            tool=unchecked(name),
            at_ns=world.now(),
            behaviour="allow" if decision.behaviour == "allow" else "deny",
            reason_type=Label(decision.reason_type),
            source=unchecked(decision.source) if decision.source else None,
            resolver=Label(decision.resolver),
            rule=unchecked(rule) if rule is not None else None,
            asked=decision.resolver in ("person", "classifier", "nobody"),
            waited_ns=waited_ns,
            query_source=Label(here.query_source),
            chain_id=here.chain_id,
            depth=here.depth,
        )
    )


def tool(
    here: Place | None,
    started_ns: int,
    done: ToolDone,
    meant: Meant,
    followed_by: tuple[str, ...] = (),
) -> None:
    """Tell of a tool call that has its answer, what it meant, and of the hooks that will look at it."""
    if here is None:
        return
    sink.emit(
        ToolExchange(
            place=here,
            started_ns=started_ns,
            duration_ns=done.duration_ns,
            question=done.question,
            answer=done.answer,
            followed_by=followed_by,
            tool=meant.tool,
            asked=meant.asked,
            ran=meant.ran,
            coerced=meant.coerced,
            called_id=meant.called_id,
        )
    )


def maybe_label(text: str | None) -> Label | None:
    """Return a name as a label that the recorder has yet to see, for whoever chose it, or None where there is none."""
    return unchecked(text) if text is not None else None
