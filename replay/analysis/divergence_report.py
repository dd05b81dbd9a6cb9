"""Divergence reports: puts together the description of where a replay diverges from its recording."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from agentobs.records.canonical_json import canonical
from agentobs.records.differences import Difference, differences, same, shortened
from agentobs.records.exchanges import MADE_BY_THE_LOOP, Question, ToolQuestion, WorldQuestion
from replay.agent_code.call_sites import Site, call_site, waiting_tasks
from replay.agent_code.entry_call import runs_recorded
from replay.analysis.causes import Asked, Traced, plain, traced, version_changes
from replay.comparison.alignment import safe
from replay.comparison.difference_kinds import Nature
from replay.comparison.rule_proposals import proposals
from replay.divergence.divergence import SHOWN, Divergence
from replay.divergence.divergence_facts import Cause, Kind, LaneProgress, Left, Suspicion, Waiting
from replay.divergence.rendering import DIFFER
from replay.fixture.body_parts import value_of
from replay.fixture.format import Ask, RecordedAnswer, RecordedTool
from replay.matching.lane import Lane, Mismatch, asked_body, compared, without_boundary
from replay.matching.tool_calls import Missed, ask_of
from replay.matching.world_answers import WHY, meant
from replay.progress.replay_state import State

TIMED = ("abort", "background", "elapsed", "limit")
"""Questions to the world whose answers depend on time or on the order of events."""
FOLLOWING = 6
"""How many of the following recorded steps are shown."""


def refused(state: State, address: str, who: Site | None) -> Divergence:
    """Describe an attempt to open a network connection."""
    by = f" by {who.text}" if who is not None else ""
    summary = f"a connection to {safe(address)} was attempted{by}: nothing leaves a replay"
    why = "a client that agentobs.record() was not called with, or a tool that ran live"
    cause = plain("other", why, who)
    return report(state, "network", state.lane("main"), summary, cause=cause, live=True)


def mismatch(state: State, lane: Lane, question: Question, missed: Mismatch) -> Divergence:
    """Describe a request that differs from the one that was due."""
    if missed.expected is None:
        return _extra(state, lane, question)
    found, came = _compared(state, question, missed.expected)
    sent = call_site()
    if missed.elsewhere is not None:
        place = lane.place_of(missed.elsewhere)
        summary = f"this is request {place} of the recording, sent out of order"
        why = f"request {lane.place_of(missed.expected)} was recorded before it and has not been sent yet"
        cause = plain("other", why, sent)
        return report(state, "order", lane, summary, found, cause=cause, live=True)
    asked = Asked(lane.name, missed.expected, came, sent)
    told = traced(state, asked, found)
    if (read := state.reads.shown_in(found)) is not None:
        cause = told.cause or Cause("other", "the agent added it", sent)
        told = dataclasses.replace(told, cause=dataclasses.replace(cause, contains=read))
    summary = DIFFER
    if state.accepting is not None and state.accepting.refused:
        summary = f"this cannot be accepted: {state.accepting.refused}"
    return report(
        state,
        "content",
        lane,
        summary,
        found,
        due=missed.expected,
        traced=told,
        live=True,
    )


def _compared(state: State, question: Question, due: Ask) -> tuple[list[Difference], object]:
    """Return where a request differs from the one that was due, and its parsed body."""
    body = state.fixture.body(due.number)
    came = state.renaming.read_bytes(body, asked_body(question, state.renaming))
    old, new = value_of(body), value_of(came)
    if old is None or new is None:
        old = without_boundary(body, due.headers).decode("utf-8", "replace")
        new = without_boundary(came, question.headers).decode("utf-8", "replace")
    found = differences(compared(due, old), compared(question, new))
    # Differences may be in places that are not searched, such as under a key that agentobs itself uses.
    return found or [Difference("$", (), "changed", old, new)], new


def _extra(state: State, lane: Lane, question: Question) -> Divergence:
    """Describe a request for which the recording has none left, and whether an identical one was answered before."""
    summary = f"one more request than recorded: {question.method} {question.path}"
    came = value_of(asked_body(question, state.renaming))
    known = (ask for ask in reversed(lane.asks) if ask.path == question.path)
    repeated = next((a for a in known if came == value_of(state.fixture.body(a.number))), None)
    if repeated is not None:
        summary += f", a repetition of request {lane.place_of(repeated)}"
    why = "the recording of this lane ends before it"
    if (call := state.calls.otherwise(lane.name)) is not None:
        # A run that was stopped during its tools may not stop there if one of them has another outcome.
        why = f"{why}; {call.summary}: {call.why}"
    return report(state, "extra", lane, summary, why=why, live=True)


def missing(state: State, lane: Lane) -> Divergence:
    """Describe a request that was recorded next and never sent."""
    due = lane.left[0]
    summary = f"{due.method} {due.path} was recorded next and never made"
    before = next((ask for ask in reversed(lane.asks) if ask not in lane.left), None)
    if before is not None and before.number in state.unread and _attempt(state, lane, due) > 1:
        place, status = lane.place_of(before), before.answer.status
        why = (
            f"the answer to request {place} was a {status}, after which the recorded agent retried; this "
            "one does not"
        )
        cause = plain("decision", why, state.unread[before.number])
        return report(state, "missing", lane, summary, cause=cause)
    return report(state, "missing", lane, summary, why=end_reason(state))


def end_reason(
    state: State,
) -> str:
    """Return how the session ended before an expected event, or an empty string."""
    end = state.session_end
    return f"the session ended before it: {end.outcome} {end.reason or ''}".rstrip() if end else ""


def tool_mismatch(
    state: State, lane: str, question: ToolQuestion, recorded: RecordedTool | None
) -> Divergence:
    """Describe a tool call that has no recorded result, or differs from the recorded one."""
    if recorded is None:
        summary = f"tool {question.name} was called ({question.tool_use_id}); the recording has no result for it"
        return report(state, "tool", state.lane(lane), summary, live=True)
    outcome = recorded.answer.outcome
    if outcome in MADE_BY_THE_LOOP:
        summary = f"tool {question.name} was run ({question.tool_use_id}); it was {outcome} when it was recorded"
        why = "permissions, the tools or the validation of their inputs differ from the recording"
        cause = plain("decision", why, call_site())
        return report(state, "tool", state.lane(lane), summary, cause=cause, live=True)
    name, given = recorded.question.name, recorded.question.input
    came = json.loads(state.renaming.clean_text(canonical(question.input)))
    found = differences({"name": name, "input": given}, {"name": question.name, "input": came})
    why = _given_otherwise(state, recorded, came)
    summary = f"the call of {name} ({question.tool_use_id}) differs"
    return report(state, "tool", state.lane(lane), summary, found, why, live=True)


def _given_otherwise(state: State, recorded: RecordedTool, came: object) -> str:
    """Return where the difference comes from: the agent now, the agent in the recording, or neither."""
    call = state.fixture.tool_use(recorded.question.tool_use_id)
    if call is None:
        return "the agent makes this call itself, with another input than recorded"
    if same(call.value, recorded.question.input):
        return "the model made this call as recorded; the agent passes another input to the tool"
    if same(call.value, came):
        return (
            "the agent passes the model's input to the tool; in the recording it passed another one"
        )
    return "the agent derives another input from the model's output than in the recording"


def world_mismatch(
    state: State, lane: Lane, question: WorldQuestion, recorded: RecordedAnswer | None
) -> Divergence:
    """Describe a question to the world that was not recorded, or had another subject."""
    kind, key = question.kind, safe(state.renaming.clean_text(question.key))
    if recorded is not None:
        found = differences(
            {kind: meant(recorded.question)},
            {kind: json.loads(state.renaming.clean_text(canonical(meant(question))))},
        )
        summary = f"{kind} {key} was called with something else"
        why = f"{kind} {key} differs from the recording"
        return report(
            state, "world", lane, summary, found, why, between=True, nature=_timed(kind), live=True
        )
    call = state.fixture.tool_use(question.key)
    about = f" for {safe(call.name)}" if call else ""
    summary = f"{kind} {key} was asked{about}; the recording has no answer for it"
    near = _answers_near(state, lane)
    why = f"{WHY[kind]}; {near}"
    return report(
        state, "world", lane, summary, why=why, between=True, nature=_timed(kind), live=True
    )


def _timed(kind: str) -> Nature:
    return "timing" if kind in TIMED else ""


def _answers_near(state: State, lane: Lane) -> str:
    """Return the recorded questions to the world in this part of the recording, in one line."""
    near = [a.question for a in state.fixture.world if (a.lane, a.after) == (lane.name, lane.asked)]
    if not near:
        return "nothing was recorded here"
    named = [f"{question.kind} {safe(question.key)}" for question in near[:SHOWN]]
    more = f" and {len(near) - SHOWN} more" if len(near) > SHOWN else ""
    return f"recorded here were {', '.join(named)}{more}"


def missed(state: State, call: Missed) -> Divergence:
    """Describe a recorded call that was not made, or had another outcome."""
    recorded, lane = call.recorded, state.lane(call.recorded.lane)
    ask = ask_of(state.fixture, recorded)
    kind: Kind = "missing" if call.now is None else "tool"
    why = call.why if call.now is not None else end_reason(state)
    found = call.differences()
    told = report(state, kind, lane, call.summary, found, why, between=True)
    number = lane.asks.index(ask) + 1 if ask is not None else told.number
    others = state.calls.total - state.calls.matched - 1
    return dataclasses.replace(
        told,
        number=number,
        turn=recorded.turn,
        request=ask.number if ask is not None else None,
        left=Left(tools=others),
    )


def not_asked(state: State, answer: RecordedAnswer) -> Divergence:
    """Describe a question to the world that was recorded and never asked."""
    kind, lane = answer.question.kind, state.lane(answer.lane)
    what = "told" if kind == "abort" else "asked"
    turn = f" in turn {answer.turn}" if answer.turn else ""
    summary = f"{kind} {safe(answer.question.key)} was recorded{turn} and never {what}"
    return report(state, "missing", lane, summary, why=WHY[kind], between=True, nature=_timed(kind))


def report(
    state: State,
    kind: Kind,
    lane: Lane,
    summary: str,
    found: list[Difference] | None = None,
    why: str = "",
    *,
    between: bool = False,
    due: Ask | None = None,
    cause: Cause | None = None,
    traced: Traced | None = None,
    nature: Nature = "",
    live: bool = False,
    waiting: tuple[Waiting, ...] | None = None,
) -> Divergence:
    """Describe a divergence.

    Args:
        state: the progress of the replay.
        kind: what differs.
        lane: where.
        summary: what happened, in one sentence.
        found: all differences.
        why: the probable cause in a sentence, if `cause` or `traced` contains none.
        between: it lies between the last request and the next, not at the one that is due.
        due: the request that was due, if there are several candidates.
        cause: the probable cause.
        traced: what is known about the origins of the differences.
        nature: what they have in common, if `traced` does not contain it.
        live: whether it is raised while the agent runs, not at the end.
        waiting: which tasks wait for what, if already known; otherwise the tasks of the running event loop.
    """
    due = None if between else due or next(iter(lane.due()), None)
    sent = call_site() if live else None
    found = found or []
    known = traced or Traced(nature, cause or plain("other", why), ())
    told = Divergence(
        fixture=state.fixture.name,
        path=_short_path(state.fixture.path.parent),
        kind=kind,
        lane=lane.name,
        number=max(lane.asked, 1) if between else lane.place_of(due) if due else lane.asked + 1,
        of=len(lane.asks),
        turn=(lane.turns or None) if between else due.turn if due else None,
        summary=summary,
        differences=tuple(map(shortened, found[:SHOWN])),
        more=max(len(found) - SHOWN, 0),
        progress=state.progress,
        left=_left(state, due),
        nature=known.nature,
        request=due.number if due else None,
        attempt=_attempt(state, lane, due) if due else 1,
        cause=known.cause,
        chain=known.chain,
        sent=sent,
        lanes=tuple(LaneProgress(n, each.asked, len(each.asks)) for n, each in state.lanes.items()),
        waiting=_waiting(sent, live=live) if waiting is None else waiting,
        suspicions=_suspicions(state, lane),
        proposals=proposals(found),
        versions=version_changes(state.fixture),
        normalized=tuple(f"{rule} ({number})" for rule, number in sorted(state.normalized.items())),
    )
    return dataclasses.replace(told, commands=_commands(state, told))


def _suspicions(state: State, lane: Lane) -> tuple[Suspicion, ...]:
    """Return what was suspicious before a divergence; first, that an earlier run has left state."""
    left = [Suspicion(lane.name, None, state.leftovers)] if state.leftovers else []
    return (*left, *state.suspicions)


def _waiting(sent: Site | None, *, live: bool) -> tuple[Waiting, ...]:
    """Return the tasks of this event loop that wait elsewhere than where the divergence is raised."""
    return tuple(Waiting(*each) for each in waiting_tasks() if live and each[1] != sent)


def _commands(state: State, found: Divergence) -> tuple[str, ...]:
    """Return the commands to continue with; none if the recording does not say how to start the agent."""
    header = state.fixture.header
    if not header.get("entry") or header.get("arguments") is None:
        return ()
    if not runs_recorded(state.started, state.fixture):
        # The command line runs the recorded call, not this one.
        test = f"pytest {shlex.quote(state.test)}"
        update = [f"{test} --replay-update"] if found.kind == "content" else []
        return (test, *update) if state.test else ()
    folder = shlex.quote(found.path)
    again = f"agentobs replay {folder}{_chosen(state)}"
    commands = [f"{again} --explain", f"{again} --json"]
    if found.proposals:
        rules = ",".join(each.rule for each in found.proposals)
        commands.append(f"{again} --normalize {rules} --apply")
    if found.progress.tools:
        other = "live" if state.options.tools == "recorded" else "recorded"
        commands.append(f"agentobs replay {folder} --tools {other}")
    if found.kind == "content" and found.request is not None:
        commands.append(f"{again} --accept-from {found.request}")
    if found.kind == "result":
        commands.append(f"{again} --accept-from {len(state.fixture.asks)}")
        commands.append(f"{again} --no-compare-result")
    turn = state.lane("main").turns
    if turn and found.kind != "network":
        commands.append(f"agentobs fork {folder} --at {turn}")
    return tuple(commands)


def _chosen(state: State) -> str:
    """Return the options of the replay that the command line also has, as they are typed."""
    tools, told = state.options.tools, ""
    if isinstance(tools, str):
        told = f" --tools {tools}" if tools != "recorded" else ""
    elif not isinstance(tools, Mapping):
        told = f" --tools {shlex.quote(','.join(sorted(tools)))}"
    faults = (shlex.quote(each) for each in state.options.faults if isinstance(each, str))
    return told + "".join(f" --fault {each}" for each in faults)


def _attempt(state: State, lane: Lane, due: Ask) -> int:
    """Return the attempt number of a request: identical failed requests before it are its earlier attempts."""
    at = lane.place_of(due) - 1
    body, attempt = state.fixture.body(due.number), 1
    for ask in reversed(lane.asks[:at]):
        failed = ask.answer.status is None or ask.answer.status >= 400 or ask.answer.failure
        if not failed or state.fixture.body(ask.number) != body:
            break
        attempt += 1
    return attempt


def _left(state: State, due: Ask | None) -> Left:
    """Return what is left of the recording, except the request that is due."""
    asks = [ask for lane in state.lanes.values() for ask in lane.left if ask is not due]
    return Left(
        requests=len(asks),
        tools=max(state.calls.total - state.calls.matched, 0),
        answers=len(state.answers.left),
        following=tuple(_following(asks)),
    )


def _following(asks: list[Ask]) -> Iterator[str]:
    """Yield the next recorded steps, one short line each."""
    for ask in sorted(asks, key=lambda each: each.number)[:FOLLOWING]:
        status = "no answer" if ask.answer.status is None else ask.answer.status
        turn = f", turn {ask.turn}" if ask.turn else ""
        yield safe(f"request {ask.number}: {ask.method} {ask.path} in {ask.lane}{turn} -> {status}")
    if len(asks) > FOLLOWING:
        yield f"and {len(asks) - FOLLOWING} more"


def _short_path(path: Path) -> str:
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
