"""The content of a session, request by request, for a static page.

The length of texts is limited as in the live application. The number of requests and the total size are also limited;
`agentobs show --content` shows the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import escape

from agentobs.records.canonical_json import Json
from agentobs.records.exchanges import ModelExchange, Recording
from dashboards.content.message_view import Message, NewInput, message, new_input
from dashboards.content.visible_text import SHOWN, body_of, message_of

MOST_TURNS = 400
"""The maximum number of requests. Our choice: they take about a hundred printed pages."""
MOST_BYTES = 12_000_000
"""The maximum size of the content in a page, in bytes. Our choice: the page stays below 20 MB with plotly and all
figures, and below 15 MB without them. Such a file can be sent by mail and opened on a phone.
"""
MARKUP = 200
"""The maximum size of the markup of a block, in bytes."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request and its response."""

    lane: str
    number: int
    """The number of the request within its lane, from 1."""
    outcome: str
    """A description of the failure if the response is incomplete or an error; else empty."""
    new_input: NewInput
    """The part of the request that is new since the previous request of its lane."""
    response: Message


@dataclass(frozen=True, slots=True)
class SessionContent:
    """The content of a session."""

    turns: Sequence[Turn]
    more: int = 0
    """The number of requests that are left out."""
    most: int = SHOWN
    """The maximum number of characters of a text."""


class Budget:
    """The number of bytes that are left for content in a page."""

    def __init__(self, bytes_left: int = MOST_BYTES) -> None:
        """Start with `bytes_left` unused bytes."""
        self.bytes_left = bytes_left

    def reserve(self, *texts: str) -> bool:
        """Reserve space for texts, as escaped, and return whether they fit. After the first failure nothing fits."""
        size = sum(len(escape(text).encode("utf-8", "replace")) for text in texts) + MARKUP
        self.bytes_left = self.bytes_left - size if size <= self.bytes_left else 0
        return self.bytes_left > 0

    def fit(self, message: Message) -> Message:
        """Return a message with as many of its first blocks as fit, and the number of blocks that are left out."""
        kept = []
        for block in message.blocks:
            if not self.reserve(block.title or message.role, block.text.shown):
                break
            kept.append(block)
        return replace(
            message, blocks=tuple(kept), more=message.more + len(message.blocks) - len(kept)
        )


def session_content(recording: Recording) -> SessionContent:
    """Return as much content of a session as fits, in the order in which it was sent."""
    budget = Budget()
    exchanges = [each for each in recording.exchanges if isinstance(each, ModelExchange)]
    previous: dict[str, tuple[Json, dict[str, Any]]] = {}
    counts: dict[str, int] = {}
    turns = []
    for each in exchanges[:MOST_TURNS]:
        if not budget.bytes_left:
            break
        lane = each.place.lane
        counts[lane] = counts.get(lane, 0) + 1
        body, response = body_of(each.question), message_of(each.answer)
        previous_body, previous_response = previous.get(lane, (None, {}))
        new = new_input(previous_body, previous_response, body)
        previous[lane] = body, response
        new = new._replace(messages=tuple(map(budget.fit, new.messages)))
        shown_response = budget.fit(message(response, "response"))
        turns.append(Turn(lane, counts[lane], _outcome(each), new, shown_response))
    return SessionContent(turns, len(exchanges) - len(turns))


def _outcome(exchange: ModelExchange) -> str:
    answer = exchange.answer
    if answer.status is not None and answer.status >= 400:
        return f"the provider responded with status {answer.status}"
    return "" if answer.ending == "complete" else f"the response is incomplete ({answer.ending})"
