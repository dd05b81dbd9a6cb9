"""Cutting: a recorded session cut off after a turn, so that a fixture holds no more of it than a test needs.

What is left ends with the request after that turn, without its answer: so it is still told whether the agent, after
that turn, asks what it asked.
"""

from __future__ import annotations

import dataclasses

from agentobs.errors import UsageError
from agentobs.records.exchanges import Answer, Exchange, ModelExchange, Recording

UNANSWERED = Answer(None, {}, (), "cancelled")
"""Stands for the answer that was left out; nobody gets it."""


def up_to(recording: Recording, turn: int) -> Recording:
    """Return a session up to the answer of a turn of the main lane; one that ends there is returned whole.

    Raises:
        UsageError: it has no such turn.
    """
    models = [each for each in recording.exchanges if isinstance(each, ModelExchange)]
    asked = [each for each in models if each.place.lane == "main" and each.place.turn is not None]
    turns = sorted({each.place.turn for each in asked if each.place.turn})
    if turn not in turns:
        raise UsageError(
            f"session {recording.session_id} has no turn {turn}",
            where="--until-turn",
            todo=f"It has turns {turns[0]} to {turns[-1]}" if turns else "It has none at all",
        )
    later = [each for each in asked if (each.place.turn or 0) > turn]
    if not later:
        return recording
    first = min(later, key=lambda each: each.started_ns)
    return dataclasses.replace(
        recording,
        outcome="running",
        reason=None,
        signature=None,
        exchanges=tuple(_before(recording, first)),
        results={},
        until=turn,
        result=None,
        raised=None,
    )


def _before(recording: Recording, first: ModelExchange) -> list[Exchange]:
    """Return what began before a request of the main lane, and that request without its answer.

    Another lane that had begun is kept whole: it ran beside, and may be asked for to its end.
    """
    begun: dict[str, int] = {}
    for each in recording.exchanges:
        lane = each.place.lane
        begun[lane] = min(begun.get(lane, each.started_ns), each.started_ns)
    kept: list[Exchange] = []
    for each in recording.exchanges:
        start_ns = each.started_ns if each.place.lane == "main" else begun[each.place.lane]
        if each is first:
            kept.append(dataclasses.replace(first, answer=UNANSWERED))
        elif start_ns < first.started_ns:
            kept.append(each)
    return kept
