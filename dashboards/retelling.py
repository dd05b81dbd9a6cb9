"""What was said in a session, request by request, put together for a page that is written once.

Texts are bounded as they are in the live application, and so is the number of requests: whoever wants all of it asks
for it in the terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentobs.records.canonical import Json
from agentobs.records.exchanges import ModelExchange, Recording
from dashboards.app.said import SHOWN, body_of, message_of
from dashboards.app.spoken import Heard, Message, heard, message

MOST_TURNS = 400
"""How many requests are told of at most. Our choice: some hundred pages."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request, and what it was answered."""

    lane: str
    number: int
    """Which request of its lane, from 1."""
    outcome: str
    """What became of it, where that is no whole answer; else empty."""
    heard: Heard
    """What it says that the one before did not."""
    answer: Message


@dataclass(frozen=True, slots=True)
class Said:
    """What was said in a session."""

    turns: Sequence[Turn]
    more: int = 0
    """How many requests are left out."""
    most: int = SHOWN
    """How many characters of a text are shown at most."""


def said(recording: Recording) -> Said:
    """Return what was said in a session, in the order in which it was sent."""
    asked = [each for each in recording.exchanges if isinstance(each, ModelExchange)]
    before: dict[str, tuple[Json, dict[str, Any]]] = {}
    counts: dict[str, int] = {}
    turns = []
    for each in asked[:MOST_TURNS]:
        lane = each.place.lane
        counts[lane] = counts.get(lane, 0) + 1
        body, answered = body_of(each.question), message_of(each.answer)
        old, was_answered = before.get(lane, (None, {}))
        told = heard(old, was_answered, body)
        before[lane] = body, answered
        turns.append(Turn(lane, counts[lane], _outcome(each), told, message(answered, "answer")))
    return Said(turns, len(asked) - len(turns))


def _outcome(exchange: ModelExchange) -> str:
    answer = exchange.answer
    if answer.status is not None and answer.status >= 400:
        return f"the provider answered with status {answer.status}"
    return "" if answer.ending == "complete" else f"the answer was not whole ({answer.ending})"
