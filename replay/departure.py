"""Departures: the first place where an agent leaves the recorded path, for tests that expect it to.

A test of a fix does not fail when the agent differs from the recording; it examines what the agent does instead. From
the first answer on, a different reaction of the agent is a departure. The first request is made before any answer: if
it differs, the prompt, the tools or the options have changed. That is drift, which is noted: the recorded answers still
lead the agent's code to the failure, but only the provider can show how a model reacts to another prompt.
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
    """The turn from which any difference is a departure; before it, only a different reaction to an answer is one."""
    has_happened: bool = False
    turn: int = 0
    """How many turns of the main lane were answered before the departure."""
    expected: Ask | None = None
    """The recorded request that was due; None if no request was due, or if the departure is not a request."""
    is_stopped: bool = False
    """Whether the agent was stopped at a tool call that cannot run."""
    drift: tuple[str, ...] = ()
    """The keys in which the first request differed from the recorded one, such as `system`."""

    def is_early(self) -> bool:
        """Return whether the agent left the path before the failing turn was answered."""
        if self.expected is not None and is_refused(self.expected):
            return False
        return self.has_happened and self.turn < self.failing_turn


def is_refused(ask: Ask) -> bool:
    """Return whether the provider refused a recorded request because of its content, so that a fix must change it.

    Timeouts, conflicts and rate limits do not count: the same request may succeed later (statuses 408, 409 and 429).
    """
    status = ask.answer.status or 0
    return 400 <= status < 500 and status not in (408, 409, 429)


def is_reaction(expected: Ask, recorded: Any, came: Any) -> bool:
    """Return whether two request bodies differ only in their new messages, which are the reaction to an answer.

    Args:
        expected: the recorded request.
        recorded: its body, parsed.
        came: the body of the live request, parsed.
    """
    if not (isinstance(recorded, dict) and isinstance(came, dict)):
        return False
    messages = recorded.get("messages")
    if not isinstance(messages, list) or not isinstance(came.get("messages"), list):
        return False
    known = len(messages) - len(expected.shape.get("add", messages))
    parts = ({**body, "messages": body["messages"][:known]} for body in (recorded, came))
    return not differences(*parts)


def drift_of(recorded: Any, came: Any) -> tuple[str, ...] | None:
    """Return the keys in which two request bodies differ, apart from the agent's reactions to answers.

    The texts of tool results that are errors in both do not count: the tool fails all the same.

    Returns:
        The differing top-level keys, with `messages` for those before the first answer; None if what follows the first
        answer differs, or if the bodies are not JSON objects with messages.
    """
    if not (_has_messages(recorded) and _has_messages(came)):
        return None
    (old_prompt, old), (new_prompt, new) = (_split(body["messages"]) for body in (recorded, came))
    if canonical(old) != canonical(new):
        return None
    parts = ({**recorded, "messages": old_prompt}, {**came, "messages": new_prompt})
    return tuple(
        sorted(
            key
            for key in {*recorded, *came}
            if canonical(parts[0].get(key)) != canonical(parts[1].get(key))
        )
    )


def _has_messages(body: Any) -> bool:
    return isinstance(body, dict) and isinstance(body.get("messages"), list)


def _split(messages: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return the messages before the first answer, and those from it on without the texts of tool errors."""
    roles = [each.get("role") if isinstance(each, dict) else None for each in messages]
    first = roles.index("assistant") if "assistant" in roles else len(roles)
    return messages[:first], [_message(each) for each in messages[first:]]


def _message(message: Any) -> Any:
    if not isinstance(message, dict) or not isinstance(message.get("content"), list):
        return message
    return {**message, "content": [_block(each) for each in message["content"]]}


def _block(block: Any) -> Any:
    is_error = (
        isinstance(block, dict) and block.get("type") == "tool_result" and block.get("is_error")
    )
    return {**block, "content": ""} if is_error else block
