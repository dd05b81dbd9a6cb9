"""Emit the loop's facts to the sink: interactions, spans, events and tool calls.

Nothing is emitted outside a session. No context variable stays set across a `yield` of the loop's
generators: places are passed explicitly and set only around single awaits.
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
    """The interaction that is being recorded."""

    place: Place | None
    """The place inside its span; None outside a session."""
    subtype: Subtype = "success"
    """How it ends if nothing is raised."""
    is_stopped: bool = False
    """Whether it was stopped on purpose."""


@dataclass(frozen=True, slots=True)
class Meant:
    """The processed form of a tool call; the fields are those of `ToolExchange`."""

    tool: str | None
    asked: Any
    ran: Any
    coerced: int
    called_id: str | None


PERSON_S = 24 * 3600.0
"""How long an approval may take, in seconds, before its span counts as an orphan. Our choice: one
night.
"""


@contextlib.contextmanager
def interaction(world: World, agent: str, *, is_background: bool = False) -> Iterator[Interaction]:
    """Record an interaction of the current session from start to end, however it ends.

    An intentional stop is not an error; a cancellation that leaves the session is. The interaction is a trace of its
    own, linked to the span in which it was started. A background agent's interaction may outlive that span.
    """
    outer = tracing.place()
    if outer is None:
        yield Interaction(None)
        return
    interaction_id, lane = world.new_id(), unchecked(outer.lane)
    source = Label(outer.query_source)
    sink.emit(InteractionStart(outer.session_id, interaction_id, lane, world.now(), source))
    recorded, result = Interaction(None), "error_during_execution"
    try:
        here = replace(outer, interaction_id=interaction_id, turn=None)
        opened = span(
            "interaction", here, agent, trace_id=interaction_id, is_within=not is_background
        )
        with opened as recorded.place:
            yield recorded
        result = "cancelled" if recorded.is_stopped else recorded.subtype
    except Exception:
        raise  # an error of the run, which its result already reports
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
    """Record a sub-agent that the current tool call started, as part of the same interaction."""
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
    """Open a span at `here` and close it: ok, error, or cancelled if the run was stopped.

    Args:
        name: the span's name.
        here: its place; None outside a session.
        label: its label.
        trace_id: the ID of a separate trace, linked to the span at `here`; by default the span
            belongs to that trace.
        is_within: whether the separate trace ends before the span at `here` does.
        expected_s: how much longer it may be silent than other spans, in seconds.
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
    """Open a span at `here`; close it with `close`."""
    return None if here is None else tracing.begin(name, here, label=maybe_label(label))


def close(
    opened: Span | None, error: BaseException | None = None, *, cancelled: bool = False
) -> None:
    """Close a span: ok, error, or cancelled if the run was stopped. Does nothing if there is no span."""
    if opened is not None:
        stopped = isinstance(error, Stopped) or not isinstance(error, Exception | None)
        opened.close(error, cancelled=cancelled or stopped)


def at(here: Place | None) -> contextlib.AbstractContextManager[object]:
    """Set the place to `here` around one await; None keeps the caller's place."""
    return contextlib.nullcontext() if here is None else tracing.at(here)


def in_turn(world: World, here: Place | None, turn: int) -> Place | None:
    """Return the same place in a turn, at the start of a new chain of requests."""
    return None if here is None else replace(here, turn=turn, chain_id=world.new_id(), depth=0)


def asking(
    here: Place | None, source: QuerySource, *, depth: int, lane: str | None = None
) -> Place | None:
    """Return the same place for an LLM request.

    Args:
        here: the place in the turn.
        source: the source of the request.
        depth: the position of the request in its chain, from 1.
        lane: the lane of the request; defaults to that of `here`.
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
    """Emit an event that happened now; `agentobs.records.event_catalog` describes the fields of each kind."""
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


def _labels(names: Mapping[str, str | None]) -> dict[str, Label]:
    """Return names as labels that the recorder still has to check, without missing ones."""
    return {word(name): unchecked(each) for name, each in names.items() if each is not None}


ASK_SECONDS = 60.0
"""Timeout for answers of the world, except people and hooks. Our choice: it reads files, tools and
the store.
"""


async def ask(world: World, here: Place | None, kind: AskKind, key: str, asked: Any = None) -> Any:
    """Send a question to the world, emit its answer to the sink, and return the answer.

    After an abort or a timeout, the answer is the minimal one: no approval, a complaint, no path, no tool, or nothing.
    If the answer to one of the `SILENT` questions is nothing, it is not emitted.

    Args:
        world: answers the question.
        here: the place of the question.
        kind: the kind of question, as in `AskKind`.
        key: distinguishes it from others of its kind.
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
        # If a question contains its own answer, the answer is enough.
        recorded = replace(question, asked=None) if kind in ECHOED else question
        emit_answer(world, here, recorded, started_ns, answer)
    return answer


def _least(kind: AskKind, cause: Cause) -> Any:
    why = "the run was stopped" if cause == "abort" else f"no answer in {ASK_SECONDS:g} seconds"
    match kind:
        case "consent":
            return {"behavior": "deny", "resolver": "unattended", "reason": why}
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


def emit_answer(
    world: World, here: Place | None, question: WorldQuestion, started_ns: int, answer: Any
) -> None:
    """Emit an exchange of the agent loop to the sink."""
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
    """Emit the decision whether a call may run."""
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
            behavior="allow" if decision.behavior == "allow" else "deny",
            reason_type=Label(decision.reason_type),
            source=unchecked(decision.source) if decision.source else None,
            resolver=Label(decision.resolver),
            rule=unchecked(rule) if rule is not None else None,
            approval_requested=decision.resolver in ("person", "classifier", "unattended"),
            approval_wait_ns=waited_ns,
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
    """Emit a completed tool call, its processed form, and the hooks that will run on it."""
    if here is None:
        return
    sink.emit(
        ToolExchange(
            place=here,
            started_ns=started_ns,
            duration_ns=done.duration_ns,
            question=done.question,
            answer=done.answer,
            inspected_by=followed_by,
            tool=meant.tool,
            requested_input=meant.asked,
            executed_input=meant.ran,
            coerced=meant.coerced,
            called_id=meant.called_id,
        )
    )


def maybe_label(text: str | None) -> Label | None:
    """Return a name as a label that the recorder still has to check, or None."""
    return unchecked(text) if text is not None else None
