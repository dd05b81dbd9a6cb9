"""Departures: the first place where an agent leaves the recorded path, for tests that expect it to.

A test of a fix does not fail when the agent does something else than recorded; it looks at what the agent does there.
Until the first answer, requests must be the recorded ones: they are made of the prompt, the tools and the options
alone. From then on the agent may react differently, which is a departure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentobs.records.canonical import canonical
from agentobs.records.differing import differences
from replay.fixture import Ask


@dataclass(slots=True)
class Departure:
    """Where a replay leaves the recorded path, once it has."""

    failing_turn: int
    """The turn from which on any difference is a departure; before it only the reaction to an answer may differ."""
    has_happened: bool = False
    turn: int = 0
    """How many turns of the main lane were answered before the departure."""
    expected: Ask | None = None
    """The recorded request that was due; None if none was, or if the departure was not a request."""
    is_stopped: bool = False
    """Whether the agent was stopped at a tool call that cannot run."""

    def is_early(self) -> bool:
        """Return whether the agent left the path before the failing turn was answered."""
        if self.expected is not None and is_refused(self.expected):
            return False
        return self.has_happened and self.turn < self.failing_turn


def is_refused(ask: Ask) -> bool:
    """Return whether the provider refused a recorded request for what it contains, so that a fix must change it.

    Timeouts, conflicts and rate limits do not count: the same request may succeed later (statuses 408, 409 and 429).
    """
    status = ask.answer.status or 0
    return 400 <= status < 500 and status not in (408, 409, 429)


def is_reaction(expected: Ask, recorded: Any, came: Any) -> bool:
    """Return whether two request bodies differ only in what an agent makes of an answer: in their new messages.

    Args:
        expected: the recorded request.
        recorded: its body, parsed.
        came: the body of the request that was made, parsed.
    """
    if not (isinstance(recorded, dict) and isinstance(came, dict)):
        return False
    messages = recorded.get("messages")
    if not isinstance(messages, list) or not isinstance(came.get("messages"), list):
        return False
    known = len(messages) - len(expected.shape.get("add", messages))
    parts = ({**body, "messages": body["messages"][:known]} for body in (recorded, came))
    return not differences(*parts)


def is_same_but_errors(recorded: Any, came: Any) -> bool:
    """Return whether two request bodies differ only in the texts of tool results that are errors in both."""
    if recorded is None or came is None:
        return False
    return canonical(_without_error_texts(recorded)) == canonical(_without_error_texts(came))


def _without_error_texts(body: Any) -> Any:
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
        return body
    return {**body, "messages": [_message(each) for each in body["messages"]]}


def _message(message: Any) -> Any:
    if not isinstance(message, dict) or not isinstance(message.get("content"), list):
        return message
    return {**message, "content": [_block(each) for each in message["content"]]}


def _block(block: Any) -> Any:
    is_error = (
        isinstance(block, dict) and block.get("type") == "tool_result" and block.get("is_error")
    )
    return {**block, "content": ""} if is_error else block
