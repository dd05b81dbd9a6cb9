"""The check at the end of a replay: whether all recorded exchanges were used, and the session ended as recorded."""

from __future__ import annotations

import json
from typing import Any

from anthropic import APIStatusError

from agentobs.determinism.values import is_not_kept
from agentobs.errors import UsageError
from agentobs.records.canonical_json import canonical
from agentobs.records.differences import differences
from agentobs.records.exchanges import is_inside_answer
from agentobs.records.facts import SessionEnd
from agentobs.records.labels import Label
from replay.analysis.divergence_report import changed_call, missing, report, unused_answer
from replay.comparison.difference_kinds import common_nature
from replay.divergence.divergence_facts import Cause
from replay.matching.interaction_ends import (
    Results,
    different_end,
    is_of_abandoned_agent,
    results_of,
)
from replay.progress.replay_state import ReplayState

SAME_PATH = "all requests and tool calls match the recording, but the session ended differently"
"""The cause in the report if the session ended differently after the recorded path."""
DIFFERENT_RESULT = (
    "all requests and tool calls match the recording, but the agent returned a different result. If this value changes "
    "in each run, add a normalizer for it, or set compare_result=False"
)
"""The cause in the report if the agent returned a different result after the recorded path, and what to do if the new
result is expected.
"""
DIGEST = "digest:"
"""The prefix of a label that replaces a text which is not a label itself."""


def judge_path(state: ReplayState) -> None:
    """Check that all recorded exchanges were used, and had the recorded answers and ends.

    Raises:
        DivergenceError: for the first exchange that was not used or differs.
    """
    for lane in state.exchanges.lanes.values():
        if state.exchanges.calls.is_answered(lane.name):
            continue
        if lane.unused and not is_of_abandoned_agent(state.setup.fixture, lane.name):
            raise state.findings.diverge(missing(state, lane))
    for answer in state.exchanges.answers.unused:
        if state.exchanges.calls.is_answered(answer.lane):
            continue
        if not is_of_abandoned_agent(state.setup.fixture, answer.lane):
            raise state.findings.diverge(unused_answer(state, answer))
    now = results_of(record for record, _ in state.observations.records)
    # Outside of a session, the loop emits neither its end nor the calls that it answers itself.
    if call := state.exchanges.calls.first_changed(functions_only=not now):
        raise state.findings.diverge(changed_call(state, call))
    if now and state.setup.fixture.interaction_results is not None:
        _judge_results(state, state.setup.fixture.interaction_results, now)


def judge_faults(state: ReplayState) -> None:
    """Check that each requested fault was injected.

    Raises:
        UsageError: the replay did not reach the place of a fault.
    """
    if untouched := [fault.text() for fault in state.exchanges.faults.untouched]:
        raise UsageError(
            f"not injected: {', '.join(untouched)}",
            where=str(state.setup.fixture.path),
            todo="The replay did not reach the place of the fault; name a turn, a request or a tool of the recording",
        )


def judge_refusal(state: ReplayState, error: BaseException) -> None:
    """Check that the agent did not end with a provider error after which the recorded agent retried.

    Raises:
        DivergenceError: the agent ended with such an error.
    """
    for lane in state.exchanges.lanes.values() if isinstance(error, APIStatusError) else ():
        used = [each for each in lane.requests if each not in lane.unused]
        if lane.unused and used and used[-1].number in state.requests.unread_errors:
            raise state.findings.diverge(missing(state, lane)) from error


def is_recorded_error(state: ReplayState, error: BaseException) -> bool:
    """Return whether the agent raised the same exception as the recorded session.

    If a session declared a reason for its failure, the class of its exception is recorded separately from the reason.
    """
    header = state.setup.fixture.header
    name = state.setup.renaming.clean_outcome(type(error).__name__)
    recorded = (header.get("reason"), header.get("exception"))
    return any(each is not None and state.setup.renaming.matches(each, name) for each in recorded)


def judge_outcome(state: ReplayState) -> None:
    """Check that the session ended as in the recording.

    Raises:
        DivergenceError: the session ended differently.
    """
    end, header = state.observations.session_end, state.setup.fixture.header
    if end is None or header.get("outcome") not in ("completed", "failed"):
        return
    reason = reason_now(state, end)
    old = {"outcome": header["outcome"], "reason": header["reason"]}
    new = {"outcome": end.outcome, "reason": reason}
    if old != new:
        found = differences(old, new)
        summary = "the session ended differently"
        raise state.findings.diverge(
            report(state, "outcome", state.exchanges.main, summary, found, SAME_PATH)
        )


def reason_now(state: ReplayState, end: SessionEnd) -> str | None:
    """Return the reason why the live session failed; the recorded reason if the two match."""
    recorded: str | None = state.setup.fixture.header["reason"]
    if end.reason is None or recorded is None:
        return end.reason
    if recorded.startswith(DIGEST) and type(end.reason) is not Label:
        return recorded  # the text was not recorded, so it cannot be compared
    live = state.setup.renaming.clean_outcome(end.reason)
    if state.setup.renaming.matches(recorded, live):
        return recorded
    return state.setup.renaming.with_recorded_names(recorded, live)


def judge_result(state: ReplayState) -> None:
    """Check that the session returned the recorded result.

    Nothing is compared if the recording has no result, if the result could not be stored, or if the session has not
    ended.

    Raises:
        DivergenceError: the session returned a different result.
    """
    old, new = compared_results(state)
    if canonical(old) == canonical(new):
        return
    found = differences(old, new)
    if state.path.acceptance is not None:
        state.path.acceptance.accept_result(found, new)
        return
    summary = "the session returned a different result"
    lane, cause = state.exchanges.main, Cause("decision", DIFFERENT_RESULT)
    divergence = report(
        state,
        "result",
        lane,
        summary,
        found,
        cause=cause,
        between=True,
        nature=common_nature(found),
    )
    raise state.findings.diverge(divergence)


def compared_results(state: ReplayState) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the recorded and the live result of the session, each as an object with the key `result`.

    The two are equal if the results match, up to secrets and normalized values. Both objects are empty if nothing is
    compared; the live object is empty if the session returned nothing.
    """
    recorded, now = state.setup.fixture.result, state.observations.result
    if recorded is None or is_not_kept(recorded.value) or not state.setup.options.compare_result:
        return {}, {}
    if state.observations.session_end is None:
        return {}, {}
    old = {"result": recorded.value}
    new = {"result": _comparable(recorded.value, now.value)} if now is not None else {}
    texts = canonical(old), state.setup.renaming.clean_outcome(canonical(new))
    if state.setup.renaming.matches(*texts):
        return old, old
    return old, json.loads(state.setup.renaming.with_recorded_names(*texts))


def _comparable(old: Any, new: Any) -> Any:
    """Return a live value in which the parts that could not be recorded are replaced by their recorded placeholders."""
    if is_not_kept(old):
        return old
    if isinstance(old, dict) and isinstance(new, dict):
        return {
            key: _comparable(old[key], each) if key in old else each for key, each in new.items()
        }
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [_comparable(*pair) for pair in zip(old, new, strict=True)]
    return new


def _judge_results(state: ReplayState, recorded: Results, now: Results) -> None:
    recorded = {lane: ends for lane, ends in recorded.items() if not is_inside_answer(lane)}
    found = different_end(recorded, now)
    if found is None:
        return
    lane, old, new = found
    summary = "an interaction ended differently"
    differ = differences({lane: old}, {lane: new})
    raise state.findings.diverge(
        report(
            state, "outcome", state.exchanges.lane(lane), summary, differ, SAME_PATH, between=True
        )
    )
