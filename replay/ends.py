"""How the interactions of a replay ended, and where one ended otherwise than when it was recorded."""

from __future__ import annotations

from collections.abc import Iterable

from agentobs.records.facts import InteractionEnd, InteractionStart
from agentobs.sink import Record
from replay.fixture import Fixture

LEFT = (None, "cancelled")
"""Results of interactions that were left from outside, or stopped: where they end is not the agent's to say."""

Results = dict[str, list[str | None]]
"""Results of interactions by lane, in the order in which they began; None for one without an end."""


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


Shown = dict[str, str | None]
"""Results by the number of the interaction in its lane."""


def ended_otherwise(recorded: Results, now: Results) -> tuple[str, Shown, Shown] | None:
    """Return the first lane whose interactions ended otherwise, with both its results; None where none did.

    One that was left when it was recorded may end in any way, for what left it may not come again. Those
    that ran beside each other may have begun in any order.
    """
    for lane in dict.fromkeys((*recorded, *now)):
        old, new = recorded.get(lane, []), now.get(lane, [])
        expected = [*old]
        for place, result in enumerate(new[: len(old)]):
            if old[place] in LEFT:
                expected[place] = result
        if sorted(map(str, expected)) != sorted(map(str, new)):
            return lane, _numbered(expected), _numbered(new)
    return None


def _numbered(results: list[str | None]) -> Shown:
    return {f"interaction_{number}": result for number, result in enumerate(results, 1)}


def was_left(fixture: Fixture, lane: str) -> bool:
    """Return whether a run of a lane was left from outside, by a cancellation or by whoever listened to it."""
    if fixture.results is None:
        signature = fixture.header["signature"] or ""
        return fixture.header["outcome"] != "completed" and not signature.startswith("result:")
    aborts = [a for a in fixture.world if (a.lane, a.question.kind) == (lane, "abort")]
    left = [result for result in fixture.results.get(lane, []) if result in LEFT]
    return len(left) > len(aborts)
