"""Emit the loop's facts to the sink: interactions, spans, events and tool calls.

Nothing is emitted outside a session. The generators of the loop never `yield` while they have set a
context variable: places are passed as arguments, and are set only around single awaits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, assert_never

from agentobs import tracing
from agentobs.agent.events import ToolDone
from agentobs.agent.interruption import Cause, Interrupted, Stopped, Watch
from agentobs.agent.permissions import Decision
from agentobs.agent.run_result import Subtype
from agentobs.records.clear_text import declared_label
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
from agentobs.records.labels import Label, constant_label, unchecked
from agentobs.sink import sink
from agentobs.tracing import Span
from agentobs.world import World


@dataclass(slots=True)
class Interaction:
    """An interaction while it is recorded."""

    place: Place | None
    """The place inside its span; None outside a session."""
    subtype: Subtype = "success"
    """How the interaction ends if no exception is raised."""
    is_stopped: bool = False
    """Whether the interaction was stopped on purpose."""


@dataclass(frozen=True, slots=True)
class ProcessedCall:
    """The form in which a tool call was executed. Its values are recorded in the fields of `ToolExchange`."""

    tool: str | None
    requested_input: Any
    executed_input: Any
    coerced: int
    called_id: str | None


APPROVAL_SECONDS = 24 * 3600.0
"""The time that an approval may take before its span counts as an orphan, in seconds. Our choice: a day,
so that an approval may wait overnight.
"""


@contextlib.contextmanager
def interaction(world: World, agent: str, *, is_background: bool = False) -> Iterator[Interaction]:
    """Record an interaction of the current session from start to end, whether or not it fails.

    A run that is stopped on purpose or cancelled ends as `cancelled`, which is not an error. The interaction is a
    separate trace, which is linked to the span in which it was started. The interaction of a background agent may
    outlive that span.
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
        raise  # The result of the run reports this error.
    except BaseException:
        result = "cancelled"
        raise
    finally:
        is_error = result not in ("success", "cancelled")
        ended_ns, outcome = world.now(), Label(result)
        session_id = outer.session_id
        sink.emit(
            InteractionEnd(session_id, interaction_id, ended_ns, outcome, is_error, lane, source)
        )


@contextlib.contextmanager
def sub_agent(agent: str) -> Iterator[Interaction]:
    """Record a sub-agent that the current tool call starts, as part of the same interaction."""
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
    """Open a span at `here`, and close it with the status ok, error, or cancelled if the run was stopped.

    Args:
        name: the name of the span.
        here: the place of the span; None outside a session.
        label: the label of the span.
        trace_id: the ID of a separate trace, which is linked to the span at `here`; by default the
            span belongs to the same trace as that span.
        is_within: whether the separate trace ends before the span at `here` does.
        expected_s: the additional time that the span may be without activity before it counts as
            an orphan, in seconds.
    """
    if here is None:
        yield None
        return
    opened = tracing.begin(
        name,
        here,
        label=_span_label(name, label),
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
    return None if here is None else tracing.begin(name, here, label=unchecked_label(label))


def close(
    opened: Span | None, error: BaseException | None = None, *, cancelled: bool = False
) -> None:
    """Close a span, if any, with the status ok, error, or cancelled if the run was stopped."""
    if opened is not None:
        stopped = isinstance(error, Stopped) or not isinstance(error, Exception | None)
        opened.close(error, cancelled=cancelled or stopped)


def at_place(here: Place | None) -> contextlib.AbstractContextManager[object]:
    """Set the current place to `here` around one await; None keeps the current place."""
    return contextlib.nullcontext() if here is None else tracing.at(here)


def in_turn(world: World, here: Place | None, turn: int) -> Place | None:
    """Return the place of a turn, at the start of a new chain of requests."""
    return None if here is None else replace(here, turn=turn, chain_id=world.new_id(), depth=0)


def request_place(
    here: Place | None, source: QuerySource, *, depth: int, lane: str | None = None
) -> Place | None:
    """Return the place of an LLM request.

    Args:
        here: the place of the turn.
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
    """Emit an event that happens now. `agentobs.records.event_catalog` describes the fields of each kind."""
    if here is None:
        return
    sink.emit(
        Event(
            session_id=here.session_id,
            interaction_id=here.interaction_id,
            lane=unchecked(here.lane),
            turn=here.turn,
            at_ns=world.now(),
            kind=constant_label(kind),
            label=_event_label(kind, label),
            numbers={constant_label(name): number for name, number in numbers.items()},
            query_source=constant_label(here.query_source),
            chain_id=here.chain_id,
            depth=here.depth,
            labels=_labels(labels) if labels else None,
        )
    )


_FOREIGN = frozenset(("retry", "compaction_kept", "resumed", "forked"))
"""The kinds of events whose label is an ID or the type of an error; all others are words and names of the program."""


def _event_label(kind: str, label: str | None) -> Label | None:
    return unchecked_label(label) if label is None or kind in _FOREIGN else declared_label(label)


def _labels(names: Mapping[str, str | None]) -> dict[str, Label]:
    """Return the names that are not None, as labels; the recorder still has to check the ID of a tool call."""
    return {
        constant_label(name): unchecked(each) if name == "tool_use_id" else declared_label(each)
        for name, each in names.items()
        if each is not None
    }


ASK_SECONDS = 60.0
"""Timeout for answers of the world, in seconds, except for approvals and hooks. Our choice: the world reads
files, tools and the store.
"""


async def ask(
    world: World,
    here: Place | None,
    kind: AskKind,
    key: str,
    payload: Any = None,
    *,
    unrecorded: Sequence[str] = (),
) -> Any:
    """Send a question to the world, emit the answer to the sink, and return it.

    After an abort or a timeout, the answer is a default: no approval, a failed check, no paths, no tools, or None.
    Empty answers to `SILENT` questions are not emitted.

    Args:
        world: the world that answers the question.
        here: the place of the question.
        kind: the kind of the question, see `AskKind`.
        key: distinguishes the question from other questions of its kind.
        payload: the content of the question.
        unrecorded: the keys of the payload that are not recorded.
    """
    question, started_ns = WorldQuestion(kind, key, payload), world.now()
    async with Watch(world.abort, None if kind in ANSWERED_INSIDE else ASK_SECONDS) as watch:
        try:
            with at_place(here):
                answer = await watch.guard(world.ask(question))
        except Interrupted as error:
            answer = _default_answer(kind, error.cause)
    if answer or kind not in SILENT:
        # The payload of such a question is the expected answer, so only the answer is recorded.
        recorded = replace(question, payload=None) if kind in ECHOED else question
        if unrecorded:
            kept = {name: value for name, value in payload.items() if name not in unrecorded}
            recorded = replace(question, payload=kept)
        emit_answer(world, here, recorded, started_ns, answer)
    return answer


def _default_answer(kind: AskKind, cause: Cause) -> Any:
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
        case (
            "limit"
            | "background"
            | "elapsed"
            | "threshold"
            | "compacted"
            | "stored_messages"
            | "keep"
        ):
            return None
    assert_never(kind)


def emit_answer(
    world: World, here: Place | None, question: WorldQuestion, started_ns: int, answer: Any
) -> None:
    """Emit a question to the world and its answer to the sink, as one exchange."""
    if here is not None:
        duration_ns = max(world.now() - started_ns, 0)
        sink.emit(WorldExchange(here, started_ns, duration_ns, question, answer))


def permission(
    world: World,
    here: Place | None,
    question: ToolQuestion,
    name: str,
    decision: Decision,
    waited_ns: int | None,
) -> None:
    """Emit the decision on a tool call; `waited_ns` is the approval wait, or None if no approval was requested."""
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
            source=Label(decision.source) if decision.source else None,
            resolver=Label(decision.resolver),
            rule=unchecked(rule) if rule is not None else None,
            approval_requested=waited_ns is not None,
            approval_wait_ns=waited_ns or 0,
            query_source=Label(here.query_source),
            chain_id=here.chain_id,
            depth=here.depth,
        )
    )


def tool(
    here: Place | None,
    started_ns: int,
    done: ToolDone,
    processed: ProcessedCall,
    followed_by: tuple[str, ...] = (),
) -> None:
    """Emit a completed tool call. `followed_by` holds the names of the hooks that will inspect it."""
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
            tool=processed.tool,
            requested_input=processed.requested_input,
            executed_input=processed.executed_input,
            coerced=processed.coerced,
            called_id=processed.called_id,
        )
    )


_TOOL_SPANS = frozenset(("tool", "queued", "execution", "blocked_on_user"))
"""Spans whose label is the name of a tool, which a model may have invented; all other labels are the program's."""


def _span_label(name: str, label: str | None) -> Label | None:
    return unchecked_label(label) if label is None or name in _TOOL_SPANS else declared_label(label)


def unchecked_label(text: str | None) -> Label | None:
    """Return a name as a label that the recorder still has to check; None stays None."""
    return unchecked(text) if text is not None else None
