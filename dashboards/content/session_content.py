"""The content of a session, request by request, for a static page.

Texts are limited as in the live application, and so are the number of requests and the total size: the terminal shows
the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import escape

from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import ModelExchange, Recording
from dashboards.content.message_view import Heard, Message, heard, message
from dashboards.content.visible_text import SHOWN, body_of, message_of

MOST_TURNS = 400
"""The maximum number of requests. Our choice: about a hundred pages."""
MOST_BYTES = 12_000_000
"""The maximum size of the content in a page, in bytes. Our choice: with plotly and all figures the page stays below 20
MB, without them below 15, which can be sent by mail and opened on a phone.
"""
MARKUP = 200
"""The maximum markup of a block, in bytes."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request and its response."""

    lane: str
    number: int
    """Its number within its lane, from 1."""
    outcome: str
    """Its outcome if the response is incomplete; else empty."""
    heard: Heard
    """The new part, compared with the previous one."""
    answer: Message


@dataclass(frozen=True, slots=True)
class Said:
    """The content of a session."""

    turns: Sequence[Turn]
    more: int = 0
    """How many requests are left out."""
    most: int = SHOWN
    """The maximum number of characters of a text."""


class Room:
    """How many bytes of the page are left for content."""

    def __init__(self, left: int = MOST_BYTES) -> None:
        """Have this many."""
        self.left = left

    def holds(self, *texts: str) -> bool:
        """Return whether escaped texts fit, and reserve their space; after the first that do not, none do."""
        size = sum(len(escape(text).encode("utf-8", "replace")) for text in texts) + MARKUP
        self.left = self.left - size if size <= self.left else 0
        return self.left > 0

    def fitted(self, told: Message) -> Message:
        """Return the first blocks of a message, as far as they fit, and the number left out."""
        kept = []
        for block in told.blocks:
            if not self.holds(block.title or told.role, block.text.shown):
                break
            kept.append(block)
        return replace(told, blocks=tuple(kept), more=told.more + len(told.blocks) - len(kept))


def said(recording: Recording) -> Said:
    """Return the content of a session, in the order in which it was sent, as far as it fits."""
    room = Room()
    asked = [each for each in recording.exchanges if isinstance(each, ModelExchange)]
    before: dict[str, tuple[Json, dict[str, Any]]] = {}
    counts: dict[str, int] = {}
    turns = []
    for each in asked[:MOST_TURNS]:
        if not room.left:
            break
        lane = each.place.lane
        counts[lane] = counts.get(lane, 0) + 1
        body, answered = body_of(each.question), message_of(each.answer)
        old, was_answered = before.get(lane, (None, {}))
        told = heard(old, was_answered, body)
        before[lane] = body, answered
        told = told._replace(messages=tuple(map(room.fitted, told.messages)))
        answer = room.fitted(message(answered, "answer"))
        turns.append(Turn(lane, counts[lane], _outcome(each), told, answer))
    return Said(turns, len(asked) - len(turns))


def _outcome(exchange: ModelExchange) -> str:
    answer = exchange.answer
    if answer.status is not None and answer.status >= 400:
        return f"the provider answered with status {answer.status}"
    return "" if answer.ending == "complete" else f"the answer was not whole ({answer.ending})"
