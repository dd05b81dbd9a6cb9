"""How the interactions of a replay ended, and which of them ended differently from the recording."""

from __future__ import annotations

from collections.abc import Iterable

from agentobs.records.exchanges import is_beside
from agentobs.records.facts import InteractionEnd, InteractionStart
from agentobs.sink import Record
from replay.fixture.format import Fixture

LEFT = (None, "cancelled")
"""Results of interactions that were abandoned from outside, or stopped: the agent does not decide where they end."""

Results = dict[str, list[str | None]]
"""Results of interactions by lane, in the order in which they started; None for one without an end."""


def results_of(records: Iterable[Record]) -> Results:
    """Return how the interactions in these records ended."""
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


def last_of(records: Iterable[Record]) -> InteractionEnd | None:
    """Return the end of the agent's own last interaction, which determines how its session ends."""
    beside: set[str] = set()
    last = None
    for record in records:
        if isinstance(record, InteractionStart) and is_beside(record.lane):
            beside.add(record.interaction_id)
        elif isinstance(record, InteractionEnd) and record.interaction_id not in beside:
            last = record
    return last


Shown = dict[str, str | None]
"""Results by the number of the interaction in its lane."""


def ended_otherwise(recorded: Results, now: Results) -> tuple[str, Shown, Shown] | None:
    """Return the first lane whose interactions ended differently, with both results; None if there is none.

    An interaction that was abandoned in the recording may end in any way, because the reason may not recur, and it need
    not start. Concurrent interactions may have started in any order.
    """
    for lane in dict.fromkeys((*recorded, *now)):
        old, new = recorded.get(lane, []), now.get(lane, [])
        expected = [*old]
        for place, result in enumerate(new[: len(old)]):
            if old[place] in LEFT:
                expected[place] = result
        expected = [
            result
            for place, result in enumerate(expected)
            if place < len(new) or result not in LEFT
        ]
        if sorted(map(str, expected)) != sorted(map(str, new)):
            return lane, _numbered(expected), _numbered(new)
    return None


def went_beside(fixture: Fixture, lane: str) -> bool:
    """Return whether a lane is, or runs next to, an agent that was abandoned: how far it came was chance."""
    return is_beside(lane) and was_left(fixture, lane)


def _numbered(results: list[str | None]) -> Shown:
    return {f"interaction_{number}": result for number, result in enumerate(results, 1)}


def was_left(fixture: Fixture, lane: str) -> bool:
    """Return whether a run of a lane was abandoned from outside, by a cancellation or by its consumer."""
    lane = _held_by(fixture, lane)
    if fixture.interaction_results is None:
        signature = fixture.header["signature"] or ""
        return fixture.header["outcome"] != "completed" and not signature.startswith("result:")
    aborts = [a for a in fixture.world if (a.lane, a.question.kind) == (lane, "abort")]
    left = [result for result in fixture.interaction_results.get(lane, []) if result in LEFT]
    return len(left) > len(aborts)


def _held_by(fixture: Fixture, lane: str) -> str:
    """Return the lane whose interaction a lane belongs to: its own, or that of the agent which started it."""
    own = fixture.interaction_results or {}
    while lane not in own and is_beside(lane):
        lane = lane.rpartition("/")[0]
    return lane
