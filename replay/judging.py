"""Judging: whether what was recorded has come by the end of a replay, and whether it ended alike."""

from __future__ import annotations

from anthropic import APIStatusError

from agentobs.records.differing import differences
from agentobs.records.exchanges import is_inside_answer
from replay.ends import Results, ended_otherwise, results_of, went_beside
from replay.reporting import missed, missing, not_asked, report
from replay.state import State

SAME_PATH = "all requests and tool calls were the recorded ones; the agent judged them differently"
"""Why something ended otherwise after the recorded path."""


def judge_path(state: State) -> None:
    """Raise what was recorded and never asked, and what was answered or ended otherwise.

    Raises:
        DivergenceError: the first of it.
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
    # Outside every session the loop tells nobody what it answers itself, and how it ends.
    if call := state.calls.missed(functions_alone=not now):
        raise state.error(missed(state, call))
    if now and state.fixture.results is not None:
        _judge_results(state, state.fixture.results, now)


def judge_refusal(state: State, error: BaseException) -> None:
    """Raise that the agent ended with an error of the provider after which it had asked again.

    Raises:
        DivergenceError: it did.
    """
    for lane in state.lanes.values() if isinstance(error, APIStatusError) else ():
        asked = [ask for ask in lane.asks if ask not in lane.left]
        if lane.left and asked and asked[-1].number in state.unread:
            raise state.error(missing(state, lane)) from error


def judge_outcome(state: State) -> None:
    """Raise that the session ended otherwise than when it was recorded.

    Raises:
        DivergenceError: it did.
    """
    end, header = state.session_end, state.fixture.header
    if end is None or header.get("outcome") not in ("completed", "failed"):
        return
    old = {"outcome": header["outcome"], "reason": header["reason"]}
    new = {"outcome": end.outcome, "reason": end.reason}
    if old != new:
        found = differences(old, new)
        summary = "the session ended differently"
        raise state.error(report(state, "outcome", state.lane("main"), summary, found, SAME_PATH))


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
