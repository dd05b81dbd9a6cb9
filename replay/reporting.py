"""Reporting: where a replay parts from its recording, put together as a divergence."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path

from agentobs.records.canonical import canonical
from agentobs.records.exchanges import MADE_BY_THE_LOOP, Question, ToolQuestion, WorldQuestion
from replay.diff import Difference, differences, safe
from replay.divergence import SHOWN, Divergence, Kind, explain, listed
from replay.fixture import Ask, RecordedAnswer, RecordedTool
from replay.lanes import Lane, Mismatch, asked_body, compared, without_boundary
from replay.pieces import value_of
from replay.state import State
from replay.tools import Missed, ask_of
from replay.world import WHY, meant


def refused(state: State, address: str) -> Divergence:
    """Describe an attempt to connect to somebody."""
    summary = f"a connection to {address} was attempted: nothing leaves a replay"
    why = "a client that agentobs.record() was not called with, or a tool that ran live"
    return report(state, "network", state.lane("main"), summary, why=why)


def mismatch(state: State, lane: Lane, question: Question, missed: Mismatch) -> Divergence:
    """Describe a request that is not the one that was due."""
    if missed.expected is None:
        summary = f"one more request than recorded: {question.method} {question.path}"
        return report(
            state, "extra", lane, summary, why="the recording of this lane ends before it"
        )
    if missed.elsewhere is not None:
        place = [ask.number for ask in lane.asks].index(missed.elsewhere.number) + 1
        summary = f"this is request {place} of the recording, asked out of order"
        return report(state, "order", lane, summary)
    old = value_of(state.fixture.body(missed.expected.number))
    came = state.renaming.read_bytes(
        state.fixture.body(missed.expected.number), asked_body(question, state.renaming)
    )
    new = value_of(came)
    if old is None or new is None:
        body = state.fixture.body(missed.expected.number)
        old = without_boundary(body, missed.expected.headers).decode("utf-8", "replace")
        new = without_boundary(came, question.headers).decode("utf-8", "replace")
    found = differences(compared(missed.expected, old), compared(question, new))
    first = found[0] if found else None
    went = functools.partial(state.calls.went, lane.name)
    why = explain(first, new, went, state.fixture.tool_use)
    return report(state, "content", lane, "the bodies differ", found, why)


def missing(state: State, lane: Lane) -> Divergence:
    """Describe a request that was recorded next and never asked."""
    due = lane.left[0]
    summary = f"{due.method} {due.path} was recorded next and never asked"
    return report(state, "missing", lane, summary, why=end_reason(state))


def end_reason(
    state: State,
) -> str:
    """Return how the session ended before something came, or an empty string."""
    end = state.session_end
    return f"the session ended before it: {end.outcome} {end.reason or ''}".rstrip() if end else ""


def tool_mismatch(
    state: State, lane: str, question: ToolQuestion, recorded: RecordedTool | None
) -> Divergence:
    """Describe a tool call that has no recorded result, or is another one than recorded."""
    if recorded is None:
        summary = f"tool {question.name} was called ({question.tool_use_id}); the recording has no result for it"
        return report(state, "tool", state.lane(lane), summary)
    outcome = recorded.answer.outcome
    if outcome in MADE_BY_THE_LOOP:
        summary = f"tool {question.name} was run ({question.tool_use_id}); it was {outcome} when it was recorded"
        why = (
            "permissions, the tools or their inputs are checked otherwise than when it was recorded"
        )
        return report(state, "tool", state.lane(lane), summary, why=why)
    old, new = ({"name": q.name, "input": q.input} for q in (recorded.question, question))
    why = f"tool call {question.tool_use_id} reached the tool with something else than recorded"
    return report(
        state, "tool", state.lane(lane), "a tool call differs", differences(old, new), why
    )


def world_mismatch(
    state: State, lane: Lane, question: WorldQuestion, recorded: RecordedAnswer | None
) -> Divergence:
    """Describe a question to the world that was not recorded, or was about something else."""
    kind, key = question.kind, safe(state.renaming.clean_text(question.key))
    if recorded is not None:
        found = differences(
            {kind: meant(recorded.question)},
            {kind: json.loads(state.renaming.clean_text(canonical(meant(question))))},
        )
        summary = f"{kind} {key} was asked about something else"
        why = f"{kind} {key} is about something else than when it was recorded"
        return report(state, "world", lane, summary, found, why, between=True)
    call = state.fixture.tool_use(question.key)
    about = f" for {safe(str(call.get('name')))}" if call else ""
    summary = f"{kind} {key} was asked{about}; the recording has no answer for it"
    near = _answers_near(state, lane)
    return report(state, "world", lane, summary, why=f"{WHY[kind]}; {near}", between=True)


def _answers_near(state: State, lane: Lane) -> str:
    """Return what was asked of the world in this part of the recording, in one line."""
    near = [a.question for a in state.fixture.world if (a.lane, a.after) == (lane.name, lane.asked)]
    if not near:
        return "nothing was asked here"
    named = [f"{question.kind} {safe(question.key)}" for question in near[:SHOWN]]
    more = f" and {len(near) - SHOWN} more" if len(near) > SHOWN else ""
    return f"asked here were {', '.join(named)}{more}"


def missed(state: State, call: Missed) -> Divergence:
    """Describe a recorded call that did not come, or came out otherwise."""
    recorded, lane = call.recorded, state.lane(call.recorded.lane)
    ask = ask_of(state.fixture, recorded)
    kind: Kind = "missing" if call.now is None else "tool"
    why = call.why if call.now is not None else end_reason(state)
    found = call.differences()
    told = report(state, kind, lane, call.summary, found, why, between=True)
    number = lane.asks.index(ask) + 1 if ask is not None else told.number
    others = state.calls.total - state.calls.matched - 1
    after = f"{_count(others, 'other tool call')} never asked" if others else ""
    return dataclasses.replace(told, number=number, turn=recorded.turn, never_asked=after)


def not_asked(state: State, answer: RecordedAnswer) -> Divergence:
    """Describe a question to the world that was recorded and never asked."""
    kind, lane = answer.question.kind, state.lane(answer.lane)
    what = "told" if kind == "abort" else "asked"
    turn = f" in turn {answer.turn}" if answer.turn else ""
    summary = f"{kind} {safe(answer.question.key)} was recorded{turn} and never {what}"
    return report(state, "missing", lane, summary, why=WHY[kind], between=True)


def report(
    state: State,
    kind: Kind,
    lane: Lane,
    summary: str,
    found: list[Difference] | None = None,
    why: str = "",
    *,
    between: bool = False,
) -> Divergence:
    """Describe a divergence at the request that is due, or `between` the last one and the next."""
    due = None if between else next(iter(lane.due()), None)
    turn = lane.turns or None if between else due.turn if due else None
    return Divergence(
        fixture=state.fixture.name,
        path=_short_path(state.fixture.path.parent),
        kind=kind,
        lane=lane.name,
        number=max(lane.asked, 1) if between else lane.asked + 1,
        of=len(lane.asks),
        turn=turn,
        summary=summary,
        differences=tuple((found or [])[:SHOWN]),
        more=max(len(found or []) - SHOWN, 0),
        why=why,
        progress=state.progress,
        never_asked=_never_asked(state, due),
    )


def _never_asked(state: State, due: Ask | None) -> str:
    """Return what of the recording is left, but for the request that is due."""
    left = sum(len(lane.left) for lane in state.lanes.values()) - (due is not None)
    tools = state.calls.total - state.calls.matched
    parts = [_count(left, "recorded request")] if left > 0 else []
    parts += [_count(tools, "tool call")] if tools > 0 else []
    others = len(state.answers.left)
    parts += [_count(others, "other question")] if others > 0 else []
    return f"{listed(parts)} never asked" if parts else ""


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _short_path(path: Path) -> str:
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
