"""The outcome: whether all recorded exchanges were used at the end of a replay, and whether it ended the same way."""

from __future__ import annotations

import json
from typing import Any

from anthropic import APIStatusError

from agentobs.determinism.values import is_not_kept
from agentobs.records.canonical_json import canonical
from agentobs.records.differences import differences
from agentobs.records.exchanges import is_inside_answer
from agentobs.records.facts import SessionEnd
from agentobs.records.labels import is_label
from replay.analysis.divergence_report import missed, missing, not_asked, report
from replay.comparison.difference_kinds import nature_of
from replay.divergence.divergence_facts import Cause
from replay.matching.interaction_ends import Results, ended_otherwise, results_of, went_beside
from replay.progress.replay_state import State

SAME_PATH = "all requests and tool calls were the recorded ones; the agent judged them differently"
"""The reason for another end after the recorded path."""
OTHER_RESULT = (
    "all requests and tool calls matched, but the agent returned a different result. If this value is new in each run, "
    "name a rule that hides it, or do not compare it: compare_result=False"
)
"""The reason for another result after the recorded path, and what to do if the result is right."""
DIGEST = "digest:"
"""The prefix of the label that stands for a text which is not a label itself."""


def judge_path(state: State) -> None:
    """Raise if a recorded exchange was not used, or had another answer or end.

    Raises:
        DivergenceError: for the first of them.
    """
    for lane in state.lanes.values():
        if state.calls.is_answered(lane.name):
            continue
        if lane.left and not went_beside(state.fixture, lane.name):
            raise state.error(missing(state, lane))
    for answer in state.answers.left:
        if state.calls.is_answered(answer.lane):
            continue
        if not went_beside(state.fixture, answer.lane):
            raise state.error(not_asked(state, answer))
    now = results_of(record for record, _ in state.records)
    # Outside a session the loop emits neither its own answers nor its end.
    if call := state.calls.missed(functions_alone=not now):
        raise state.error(missed(state, call))
    if now and state.fixture.interaction_results is not None:
        _judge_results(state, state.fixture.interaction_results, now)


def judge_refusal(state: State, error: BaseException) -> None:
    """Raise if the agent ended with a provider error after which it retried in the recording.

    Raises:
        DivergenceError: it did.
    """
    for lane in state.lanes.values() if isinstance(error, APIStatusError) else ():
        asked = [ask for ask in lane.asks if ask not in lane.left]
        if lane.left and asked and asked[-1].number in state.unread:
            raise state.error(missing(state, lane)) from error


def is_recorded_error(state: State, error: BaseException) -> bool:
    """Return whether the agent raised the exception that the recorded session ended with.

    If a session declared a reason, that is not the class of its exception, which is recorded separately.
    """
    header = state.fixture.header
    came = state.renaming.clean_end(type(error).__name__)
    ended_with = (header.get("reason"), header.get("exception"))
    return any(each is not None and state.renaming.same(each, came) for each in ended_with)


def judge_outcome(state: State) -> None:
    """Raise if the session ended differently from the recording.

    Raises:
        DivergenceError: it did.
    """
    end, header = state.session_end, state.fixture.header
    if end is None or header.get("outcome") not in ("completed", "failed"):
        return
    reason = reason_now(state, end)
    old = {"outcome": header["outcome"], "reason": header["reason"]}
    new = {"outcome": end.outcome, "reason": reason}
    if old != new:
        found = differences(old, new)
        summary = "the session ended differently"
        raise state.error(report(state, "outcome", state.lane("main"), summary, found, SAME_PATH))


def reason_now(state: State, end: SessionEnd) -> str | None:
    """Return why the session ended this time, in the words of the recording if both mean the same."""
    recorded: str | None = state.fixture.header["reason"]
    if end.reason is None or recorded is None:
        return end.reason
    if recorded.startswith(DIGEST) and not is_label(end.reason):
        return recorded  # a fixture from before reasons were kept in words: it cannot be compared
    came = state.renaming.clean_end(end.reason)
    if state.renaming.same(recorded, came):
        return recorded
    return state.renaming.read(recorded, came)


def judge_result(state: State) -> None:
    """Raise if the session returned a different result than the recorded one.

    Nothing is compared if the recording has no result, if it could not be kept, or if the session has not ended here.

    Raises:
        DivergenceError: it did.
    """
    old, came = compared_results(state)
    if canonical(old) == canonical(came):
        return
    found = differences(old, came)
    if state.accepting is not None:
        state.accepting.takes_result(found, came)
        return
    summary = "the session returned a different result"
    lane, cause = state.lane("main"), Cause("decision", OTHER_RESULT)
    told = report(
        state, "result", lane, summary, found, cause=cause, between=True, nature=nature_of(found)
    )
    raise state.error(told)


def compared_results(state: State) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what the session returned when it was recorded and now, each as an object with the key `result`.

    The two are equal if they mean the same, up to secrets and normalized values. Both are empty if nothing is compared;
    the second one is empty if the session returned nothing this time.
    """
    recorded, now = state.fixture.result, state.result
    if recorded is None or is_not_kept(recorded.value) or not state.options.compare_result:
        return {}, {}
    if state.session_end is None:
        return {}, {}
    old = {"result": recorded.value}
    new = {"result": _comparable(recorded.value, now.value)} if now is not None else {}
    texts = canonical(old), state.renaming.clean_end(canonical(new))
    if state.renaming.same(*texts):
        return old, old
    return old, json.loads(state.renaming.read(*texts))


def _comparable(old: Any, new: Any) -> Any:
    """Return a value with the parts that the recording could not keep replaced by those of the recording."""
    if is_not_kept(old):
        return old
    if isinstance(old, dict) and isinstance(new, dict):
        return {
            key: _comparable(old[key], each) if key in old else each for key, each in new.items()
        }
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [_comparable(*pair) for pair in zip(old, new, strict=True)]
    return new


def _judge_results(state: State, recorded: Results, now: Results) -> None:
    recorded = {lane: ends for lane, ends in recorded.items() if not is_inside_answer(lane)}
    found = ended_otherwise(recorded, now)
    if found is None:
        return
    lane, old, new = found
    summary = "an interaction ended differently"
    differ = differences({lane: old}, {lane: new})
    raise state.error(
        report(state, "outcome", state.lane(lane), summary, differ, SAME_PATH, between=True)
    )
