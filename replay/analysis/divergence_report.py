"""Divergence reports: build the description of a divergence from the state of the replay."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from agentobs.records.canonical_json import canonical
from agentobs.records.differences import Difference, differences, json_equal, shortened
from agentobs.records.exchanges import MADE_BY_THE_LOOP, Question, ToolQuestion, WorldQuestion
from replay.agent_code.call_sites import Site, call_site, waiting_tasks
from replay.agent_code.entry_call import runs_recorded
from replay.analysis.causes import DifferingRequest, Trace, cause_of, trace, version_changes
from replay.comparison.alignment import safe
from replay.comparison.difference_kinds import Nature
from replay.comparison.rule_proposals import proposals
from replay.divergence.divergence import SHOWN, Divergence
from replay.divergence.divergence_facts import (
    Cause,
    Kind,
    LaneProgress,
    Suspicion,
    UnusedExchanges,
    Waiting,
)
from replay.divergence.rendering import DIFFER
from replay.fixture.body_parts import value_of
from replay.fixture.format import RecordedAnswer, RecordedRequest, RecordedTool
from replay.matching.lane import Lane, Mismatch, cleaned_body, compared_form, without_boundary
from replay.matching.tool_calls import ChangedCall, issuing_request
from replay.matching.world_answers import WHY, compared_question
from replay.progress.replay_state import ReplayState

TIMED = ("abort", "background", "elapsed", "limit", "threshold")
"""Kinds of questions to the world whose answers depend on time or on the order of events."""
FOLLOWING = 6
"""The maximum number of next recorded steps that are shown."""


def network_divergence(state: ReplayState, address: str, caller: Site | None) -> Divergence:
    """Describe an attempt to open a network connection."""
    by = f" by {caller.text}" if caller is not None else ""
    summary = (
        f"a connection to {safe(address)} was attempted{by}; a replay blocks all network access"
    )
    why = (
        "a client that was not passed to agentobs.record(), or a tool that ran live, opened the "
        "connection"
    )
    cause = cause_of("other", why, caller)
    return report(state, "network", state.exchanges.main, summary, cause=cause, live=True)


def mismatch(state: ReplayState, lane: Lane, question: Question, unmatched: Mismatch) -> Divergence:
    """Describe a request that differs from the recorded request that was due."""
    if unmatched.expected is None:
        return _extra(state, lane, question)
    found, live_body = _differences(state, question, unmatched.expected)
    sent = call_site()
    if unmatched.elsewhere is not None:
        place = lane.position_of(unmatched.elsewhere)
        summary = f"this is request {place} of the recording, sent out of order"
        due = lane.position_of(unmatched.expected)
        why = f"request {due} was recorded before this request and has not been sent yet"
        cause = cause_of("other", why, sent)
        return report(state, "order", lane, summary, found, cause=cause, live=True)
    request = DifferingRequest(lane.name, unmatched.expected, live_body, sent)
    origin = trace(state, request, found)
    if (read := state.observations.reads.source_of(found)) is not None:
        cause = origin.cause or Cause("other", "the agent added this value", sent)
        origin = dataclasses.replace(origin, cause=dataclasses.replace(cause, contains=read))
    summary = DIFFER
    if state.path.acceptance is not None and state.path.acceptance.refusal:
        summary = f"this cannot be accepted: {state.path.acceptance.refusal}"
    return report(
        state,
        "content",
        lane,
        summary,
        found,
        due=unmatched.expected,
        trace=origin,
        live=True,
    )


def _differences(
    state: ReplayState, question: Question, due: RecordedRequest
) -> tuple[list[Difference], object]:
    """Return the differences between a live request and the due request, and the parsed live body."""
    body = state.setup.fixture.body(due.number)
    live = state.setup.renaming.bytes_with_recorded_names(
        body, cleaned_body(question, state.setup.renaming)
    )
    old, new = value_of(body), value_of(live)
    if old is None or new is None:
        old = without_boundary(body, due.headers).decode("utf-8", "replace")
        new = without_boundary(live, question.headers).decode("utf-8", "replace")
    found = differences(compared_form(due, old), compared_form(question, new, due))
    # The difference may be in a place that is not compared, such as under a key that agentobs itself uses.
    return found or [Difference("$", (), "changed", old, new)], new


def _extra(state: ReplayState, lane: Lane, question: Question) -> Divergence:
    """Describe a request after the last recorded request, and whether it repeats an earlier request."""
    summary = f"one more request than recorded: {question.method} {question.path}"
    live = value_of(cleaned_body(question, state.setup.renaming))
    same_path = (each for each in reversed(lane.requests) if each.path == question.path)
    repeated = next(
        (r for r in same_path if live == value_of(state.setup.fixture.body(r.number))), None
    )
    if repeated is not None:
        summary += f", a repetition of request {lane.position_of(repeated)}"
    why = "the recording of this lane ends before this request"
    if (call := state.exchanges.calls.changed_outcome(lane.name)) is not None:
        # The recorded run was stopped while its tools ran. It may continue if the outcome of a tool has changed.
        why = f"{why}; the probable cause is a changed tool call: {call.summary} ({call.cause})"
    return report(state, "extra", lane, summary, why=why, live=True)


def missing(state: ReplayState, lane: Lane) -> Divergence:
    """Describe a recorded request that was due and was not sent."""
    due = lane.unused[0]
    summary = f"the recording continues with {due.method} {due.path}, but the agent did not send this request"
    last = next((each for each in reversed(lane.requests) if each not in lane.unused), None)
    if (
        last is not None
        and last.number in state.requests.unread_errors
        and _attempt(state, lane, due) > 1
    ):
        place, status = lane.position_of(last), last.answer.status
        why = (
            f"the response to request {place} had status {status}; the recorded agent retried after it, "
            "and this agent does not"
        )
        cause = cause_of("decision", why, state.requests.unread_errors[last.number])
        return report(state, "missing", lane, summary, cause=cause)
    return report(state, "missing", lane, summary, why=end_reason(state))


def end_reason(state: ReplayState) -> str:
    """Describe how the session ended before an expected event; empty if it has not ended."""
    end = state.observations.session_end
    return f"the session ended first: {end.outcome} {end.reason or ''}".rstrip() if end else ""


def tool_mismatch(
    state: ReplayState, lane: str, question: ToolQuestion, recorded: RecordedTool | None
) -> Divergence:
    """Describe a tool call that has no recorded result, or that differs from the recorded call."""
    if recorded is None:
        summary = f"tool {question.name} was called ({question.tool_use_id}); the recording has no result for it"
        return report(state, "tool", state.exchanges.lane(lane), summary, live=True)
    outcome = recorded.answer.outcome
    if outcome in MADE_BY_THE_LOOP:
        summary = f"tool {question.name} ran ({question.tool_use_id}); in the recording, this call was {outcome}"
        why = (
            "the permissions, the tools or the validation of their inputs differ from the recording"
        )
        cause = cause_of("decision", why, call_site())
        return report(state, "tool", state.exchanges.lane(lane), summary, cause=cause, live=True)
    name, recorded_input = recorded.question.name, recorded.question.input
    live_input = json.loads(state.setup.renaming.clean_text(canonical(question.input)))
    found = differences(
        {"name": name, "input": recorded_input}, {"name": question.name, "input": live_input}
    )
    why = _input_cause(state, recorded, live_input)
    summary = f"the call of {name} ({question.tool_use_id}) differs"
    return report(state, "tool", state.exchanges.lane(lane), summary, found, why, live=True)


def _input_cause(state: ReplayState, recorded: RecordedTool, live_input: object) -> str:
    """Describe where the changed input of a call comes from: the agent, compared with the model's output."""
    call = state.setup.fixture.tool_use(recorded.question.tool_use_id)
    if call is None:
        return "the agent makes this call itself, with a different input than in the recording"
    if json_equal(call.value, recorded.question.input):
        return "the model made this call as recorded, but the agent passes a different input to the tool"
    if json_equal(call.value, live_input):
        return "the agent passes the model's input to the tool; in the recording, it passed a different input"
    return "the agent derives the tool input from the model's output, and the result differs from the recording"


def world_mismatch(
    state: ReplayState, lane: Lane, question: WorldQuestion, recorded: RecordedAnswer | None
) -> Divergence:
    """Describe a question to the world that was not recorded, or that differs from the recorded question."""
    kind, key = question.kind, safe(state.setup.renaming.clean_text(question.key))
    if recorded is not None:
        found = differences(
            {kind: compared_question(recorded.question)},
            {
                kind: json.loads(
                    state.setup.renaming.clean_text(canonical(compared_question(question)))
                )
            },
        )
        summary = f"the input of {kind} {key} differs from the recording"
        why = f"the agent sends a different {kind} question than in the recording"
        return report(
            state,
            "world",
            lane,
            summary,
            found,
            why,
            between=True,
            nature=_timing_nature(kind),
            live=True,
        )
    call = state.setup.fixture.tool_use(question.key)
    about = f" for {safe(call.name)}" if call else ""
    summary = (
        f"the agent requests {kind} {key}{about}, but the recording does not contain this exchange"
    )
    why = f"{WHY[kind]}; {_recorded_here(state, lane)}"
    return report(
        state, "world", lane, summary, why=why, between=True, nature=_timing_nature(kind), live=True
    )


def _timing_nature(kind: str) -> Nature:
    return "timing" if kind in TIMED else ""


def _recorded_here(state: ReplayState, lane: Lane) -> str:
    """Describe the recorded exchanges with the world at this point of a lane, in one line."""
    questions = [
        a.question
        for a in state.setup.fixture.world
        if (a.lane, a.after) == (lane.name, lane.used_count)
    ]
    if not questions:
        return "no exchange was recorded at this point"
    named = [f"{question.kind} {safe(question.key)}" for question in questions[:SHOWN]]
    more = f" and {len(questions) - SHOWN} more" if len(questions) > SHOWN else ""
    return f"recorded at this point: {', '.join(named)}{more}"


def changed_call(state: ReplayState, call: ChangedCall) -> Divergence:
    """Describe a recorded call that was not made, or that had a different outcome or result."""
    recorded, lane = call.recorded, state.exchanges.lane(call.recorded.lane)
    issuer = issuing_request(state.setup.fixture, recorded)
    kind: Kind = "missing" if call.now is None else "tool"
    why = call.why if call.now is not None else end_reason(state)
    found = call.differences()
    found_divergence = report(state, kind, lane, call.summary, found, why, between=True)
    number = lane.requests.index(issuer) + 1 if issuer is not None else found_divergence.number
    others = state.exchanges.calls.total - state.exchanges.calls.matched - 1
    return dataclasses.replace(
        found_divergence,
        number=number,
        turn=recorded.turn,
        request=issuer.number if issuer is not None else None,
        left=UnusedExchanges(tools=others),
    )


def unused_answer(state: ReplayState, answer: RecordedAnswer) -> Divergence:
    """Describe a recorded exchange with the world that did not occur in the replay."""
    kind, lane = answer.question.kind, state.exchanges.lane(answer.lane)
    turn = f" of turn {answer.turn}" if answer.turn else ""
    name = f"{kind} {safe(answer.question.key)}"
    summary = f"the recorded exchange {name}{turn} did not occur in the replay"
    return report(
        state, "missing", lane, summary, why=WHY[kind], between=True, nature=_timing_nature(kind)
    )


def report(
    state: ReplayState,
    kind: Kind,
    lane: Lane,
    summary: str,
    found: list[Difference] | None = None,
    why: str = "",
    *,
    between: bool = False,
    due: RecordedRequest | None = None,
    cause: Cause | None = None,
    trace: Trace | None = None,
    nature: Nature = "",
    live: bool = False,
    waiting: tuple[Waiting, ...] | None = None,
) -> Divergence:
    """Build the description of a divergence from the state of a replay.

    Args:
        state: the progress of the replay.
        kind: what differs.
        lane: the lane in which it happened.
        summary: what happened, in one sentence.
        found: all differences.
        why: the text of the probable cause, if neither `cause` nor `trace` is given.
        between: whether the divergence is between the last request and the next one, not at the due request.
        due: the request that was due; None for the first due request of the lane.
        cause: the probable cause, if `trace` is not given.
        trace: the origins of the differences.
        nature: what the differences have in common, if `trace` is not given.
        live: whether the divergence is raised while the agent runs, not at the end of the replay.
        waiting: the waiting tasks and threads, if already known; by default, the waiting tasks of the running event
            loop.
    """
    due = None if between else due or next(iter(lane.due()), None)
    sent = call_site() if live else None
    found = found or []
    known = trace or Trace(nature, cause or cause_of("other", why), ())
    divergence = Divergence(
        fixture=state.setup.fixture.name,
        path=_short_path(state.setup.fixture.path.parent),
        kind=kind,
        lane=lane.name,
        number=max(lane.used_count, 1)
        if between
        else lane.position_of(due)
        if due
        else lane.used_count + 1,
        of=len(lane.requests),
        turn=(lane.turns or None) if between else due.turn if due else None,
        summary=summary,
        differences=tuple(map(shortened, found[:SHOWN])),
        more=max(len(found) - SHOWN, 0),
        progress=state.exchanges.progress,
        left=_unused_exchanges(state, due),
        nature=known.nature,
        request=due.number if due else None,
        attempt=_attempt(state, lane, due) if due else 1,
        cause=known.cause,
        chain=known.chain,
        sent=sent,
        lanes=tuple(
            LaneProgress(n, each.used_count, len(each.requests))
            for n, each in state.exchanges.lanes.items()
        ),
        waiting=_waiting(sent, live=live) if waiting is None else waiting,
        suspicions=_suspicions(state, lane),
        proposals=proposals(found),
        versions=version_changes(state.setup.fixture),
        normalized=tuple(
            f"{rule} ({number})" for rule, number in sorted(state.setup.normalized.items())
        ),
    )
    return dataclasses.replace(divergence, commands=_commands(state, divergence))


def _suspicions(state: ReplayState, lane: Lane) -> tuple[Suspicion, ...]:
    """Return the suspicious events before a divergence; state that an earlier run has left comes first."""
    leftovers = (
        [Suspicion(lane.name, None, state.findings.leftovers)] if state.findings.leftovers else []
    )
    return (*leftovers, *state.findings.suspicions)


def _waiting(sent: Site | None, *, live: bool) -> tuple[Waiting, ...]:
    """Return the waiting tasks of this event loop, except at the place where the divergence is raised."""
    return tuple(Waiting(*each) for each in waiting_tasks() if live and each[1] != sent)


def _commands(state: ReplayState, found: Divergence) -> tuple[str, ...]:
    """Return the commands to run next; empty if the recording does not contain how to start the agent."""
    header = state.setup.fixture.header
    if not header.get("entry") or header.get("arguments") is None:
        return ()
    if not runs_recorded(state.agent.call, state.setup.fixture):
        # The command line starts the recorded call, not the call in this replay.
        test = f"pytest {shlex.quote(state.agent.test_id)}"
        update = [f"{test} --replay-update"] if found.kind == "content" else []
        return (test, *update) if state.agent.test_id else ()
    folder = shlex.quote(found.path)
    replay = f"agentobs replay {folder}{_options(state)}"
    commands = [f"{replay} --explain", f"{replay} --json"]
    if found.proposals:
        rules = ",".join(each.rule for each in found.proposals)
        commands.append(f"{replay} --normalize {rules} --apply")
    if found.progress.tools:
        other = "live" if state.setup.options.tools == "recorded" else "recorded"
        commands.append(f"agentobs replay {folder} --tools {other}")
    if found.kind == "content" and found.request is not None:
        commands.append(f"{replay} --accept-from {found.request}")
    if found.kind == "result":
        commands.append(f"{replay} --accept-from {len(state.setup.fixture.requests)}")
        commands.append(f"{replay} --no-compare-result")
    turn = state.exchanges.main.turns
    if turn and found.kind != "network":
        commands.append(f"agentobs fork {folder} --at {turn}")
    return tuple(commands)


def _options(state: ReplayState) -> str:
    """Return the options of this replay as command-line options, except options that the command line does not have."""
    tools, text = state.setup.options.tools, ""
    if isinstance(tools, str):
        text = f" --tools {tools}" if tools != "recorded" else ""
    elif not isinstance(tools, Mapping):
        text = f" --tools {shlex.quote(','.join(sorted(tools)))}"
    faults = (shlex.quote(each) for each in state.setup.options.faults if isinstance(each, str))
    return text + "".join(f" --fault {each}" for each in faults)


def _attempt(state: ReplayState, lane: Lane, due: RecordedRequest) -> int:
    """Return the attempt number of a request; identical failed requests directly before it are earlier attempts."""
    at = lane.position_of(due) - 1
    body, attempt = state.setup.fixture.body(due.number), 1
    for earlier in reversed(lane.requests[:at]):
        response = earlier.answer
        failed = response.status is None or response.status >= 400 or response.failure
        if not failed or state.setup.fixture.body(earlier.number) != body:
            break
        attempt += 1
    return attempt


def _unused_exchanges(state: ReplayState, due: RecordedRequest | None) -> UnusedExchanges:
    """Count the unused exchanges of the recording, without the request that was due."""
    requests = [
        each for lane in state.exchanges.lanes.values() for each in lane.unused if each is not due
    ]
    return UnusedExchanges(
        requests=len(requests),
        tools=max(state.exchanges.calls.total - state.exchanges.calls.matched, 0),
        answers=len(state.exchanges.answers.unused),
        following=tuple(_next_steps(requests)),
    )


def _next_steps(requests: list[RecordedRequest]) -> Iterator[str]:
    """Yield the next recorded steps, one short line each."""
    for each in sorted(requests, key=lambda request: request.number)[:FOLLOWING]:
        status = "no response" if each.answer.status is None else each.answer.status
        turn = f", turn {each.turn}" if each.turn else ""
        call = f"{each.method} {each.path} in {each.lane}{turn}"
        yield safe(f"request {each.number}: {call} -> {status}")
    if len(requests) > FOLLOWING:
        yield f"and {len(requests) - FOLLOWING} more"


def _short_path(path: Path) -> str:
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
