"""The ends of interactions in a replay, compared with the recording."""

from __future__ import annotations

from collections.abc import Iterable

from agentobs.records.exchanges import has_parent_lane
from agentobs.records.facts import RESULT, InteractionEnd, InteractionStart
from agentobs.sink import Record
from replay.fixture.format import Fixture

ABANDONED = (None, "cancelled")
"""Results of interactions that were abandoned or stopped from outside, so the agent did not decide when they ended."""

Results = dict[str, list[str | None]]
"""Results of interactions by lane, in the order in which they started; None for an interaction without an end."""


def results_of(records: Iterable[Record]) -> Results:
    """Return the results of the interactions in some records."""
    lanes: dict[str, str] = {}
    ended: dict[str, str] = {}
    for record in records:
        if isinstance(record, InteractionStart):
            lanes[record.interaction_id] = record.lane
        elif isinstance(record, InteractionEnd):
            ended[record.interaction_id] = record.result
    results: Results = {}
    for interaction_id, lane in lanes.items():
        results.setdefault(lane, []).append(ended.get(interaction_id))
    return results


def last_own_end(records: Iterable[Record]) -> InteractionEnd | None:
    """Return the end of the last interaction of the main agent, which determines the outcome of the session."""
    nested: set[str] = set()
    last = None
    for record in records:
        if isinstance(record, InteractionStart) and has_parent_lane(record.lane):
            nested.add(record.interaction_id)
        elif isinstance(record, InteractionEnd) and record.interaction_id not in nested:
            last = record
    return last


NumberedResults = dict[str, str | None]
"""Results by the number of the interaction in its lane: `interaction_1`, and so on."""


def different_end(
    recorded: Results, now: Results
) -> tuple[str, NumberedResults, NumberedResults] | None:
    """Return the first lane whose interactions ended differently, with its old and new results; None if there is none.

    An interaction that was abandoned in the recording may end in any way, or not start at all, because the reason for
    abandoning it may not recur. Concurrent interactions may start in any order.
    """
    for lane in dict.fromkeys((*recorded, *now)):
        old, new = recorded.get(lane, []), now.get(lane, [])
        expected = [*old]
        for place, result in enumerate(new[: len(old)]):
            if old[place] in ABANDONED:
                expected[place] = result
        expected = [
            result
            for place, result in enumerate(expected)
            if place < len(new) or result not in ABANDONED
        ]
        if sorted(map(str, expected)) != sorted(map(str, new)):
            return lane, _numbered(expected), _numbered(new)
    return None


def is_of_abandoned_agent(fixture: Fixture, lane: str) -> bool:
    """Return whether a lane belongs to a sub-agent that was abandoned, so that its last recorded step was random."""
    return has_parent_lane(lane) and was_abandoned(fixture, lane)


def _numbered(results: list[str | None]) -> NumberedResults:
    return {f"interaction_{number}": result for number, result in enumerate(results, 1)}


def was_abandoned(fixture: Fixture, lane: str) -> bool:
    """Return whether a run of a lane was abandoned from outside: it was cancelled, or its consumer stopped."""
    lane = _owner_of(fixture, lane)
    if fixture.interaction_results is None:
        signature = fixture.header["signature"] or ""
        return fixture.header["outcome"] != "completed" and not signature.startswith(RESULT)
    aborts = [a for a in fixture.world if (a.lane, a.question.kind) == (lane, "abort")]
    results = fixture.interaction_results.get(lane, [])
    return sum(result in ABANDONED for result in results) > len(aborts)


def _owner_of(fixture: Fixture, lane: str) -> str:
    """Return the lane whose interactions include a lane: the lane itself, or the lane of an agent that started it."""
    results = fixture.interaction_results or {}
    while lane not in results and has_parent_lane(lane):
        lane = lane.rpartition("/")[0]
    return lane
