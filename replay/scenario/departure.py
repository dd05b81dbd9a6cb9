"""Departures: the first place where an agent leaves the recorded path, for tests that expect it to.

A test of a fix does not fail when the agent does something else than recorded; it looks at what the agent does there.
From the first answer on, another reaction of the agent is a departure. The first request is made before any answer: if
it differs, the prompt, the tools or the options have changed since. That is drift, which is noted: the recorded answers
still lead the agent's code to the failure, though only the provider can tell what a model makes of another prompt. So
are other tool results before the failing turn: nobody knows what the model would have made of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentobs.records.canonical_json import canonical
from agentobs.records.differences import differences
from replay.fixture.body_parts import value_of
from replay.fixture.format import Ask

PROMPT_DRIFT = (
    "the first request differs from the recorded one ({}), whose answers are replayed: if that change is the fix, run "
    "the agent with the provider and freeze the new session"
)
RESULT_DRIFT = (
    "tool results before turn {} differ from the recorded ones, whose answers are replayed: if that change is the fix, "
    "choose its turn with agentobs freeze --turn, or freeze a new session"
)
EARLY = (
    "the agent leaves the recorded path after turn {}, before turn {} that is tested: choose that turn with agentobs "
    "freeze --turn, or freeze a new session"
)


@dataclass(slots=True)
class Departure:
    """Where a replay leaves the recorded path, once it has."""

    failing_turn: int
    """The turn from which on any difference is a departure; before it, other tool results are drift."""
    has_happened: bool = False
    turn: int = 0
    """How many turns of the main lane were answered before the departure."""
    expected: Ask | None = None
    """The recorded request that was due; None if no request was due, or if the departure is not a request."""
    is_stopped: bool = False
    """Whether the agent was stopped at a tool call that cannot run."""
    keys: tuple[str, ...] = ()
    """The keys by which the first request differed from the recorded one, such as `system`."""
    results: frozenset[str] = frozenset()
    """The ids of the tool calls before the failing turn whose results differed."""

    def remarks(self) -> list[str]:
        """Return what a reader must know to judge the agent by this replay, one sentence each without a full stop."""
        found = []
        if self.keys:
            found.append(PROMPT_DRIFT.format(", ".join(self.keys)))
        if self.results:
            found.append(RESULT_DRIFT.format(self.failing_turn))
        if self.is_early():
            found.append(EARLY.format(self.turn, self.failing_turn))
        return found

    def is_early(self) -> bool:
        """Return whether the agent left the path before the failing turn was answered."""
        # Without an answered turn the failure is the first request itself, or its retries.
        return self.has_happened and 0 < self.turn < self.failing_turn


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


@dataclass(frozen=True, slots=True)
class Drift:
    """How two request bodies differ although the agent does the same."""

    keys: tuple[str, ...]
    """The differing top-level keys; `messages` stands for those before the first answer."""
    results: frozenset[str]
    """The ids of the tool calls whose results differ. Two errors do not: the tool fails all the same."""


def drift_of(recorded: Any, came: Any) -> Drift | None:
    """Return how two request bodies differ in their prompts, options and tool results.

    Returns:
        None if they differ in anything else, or are not JSON objects with messages.
    """
    if not (_has_messages(recorded) and _has_messages(came)):
        return None
    (old_prompt, old), (new_prompt, new) = (_split(body["messages"]) for body in (recorded, came))
    if canonical(_bare(old)) != canonical(_bare(new)):
        return None
    parts = ({**recorded, "messages": old_prompt}, {**came, "messages": new_prompt})
    keys = (
        key
        for key in {*recorded, *came}
        if canonical(parts[0].get(key)) != canonical(parts[1].get(key))
    )
    pairs = zip(_results(old), _results(new), strict=True)
    results = (
        str(one.get("tool_use_id"))
        for one, other in pairs
        if canonical(one) != canonical(other)
        and not (one.get("is_error") and other.get("is_error"))
    )
    return Drift(tuple(sorted(keys)), frozenset(results))


def repeats(body: bytes) -> bool:
    """Return whether the last message of a request is the one that the agent sent a turn before, ids aside."""
    value = value_of(body)
    if not _has_messages(value):
        return False
    sent = [m for m in value["messages"] if isinstance(m, dict) and m.get("role") == "user"]
    if len(sent) < 3 or value["messages"][-1] is not sent[-1]:
        return False  # the first message is the prompt
    last, before = (_without_ids(each) for each in sent[-1:-3:-1])
    return canonical(last) == canonical(before)


def _without_ids(message: dict[str, Any]) -> Any:
    blocks = [
        {key: value for key, value in each.items() if key not in ("tool_use_id", "cache_control")}
        if isinstance(each, dict)
        else each
        for each in _blocks(message)
    ]
    return blocks or message.get("content")


def _has_messages(body: Any) -> bool:
    return isinstance(body, dict) and isinstance(body.get("messages"), list)


def _split(messages: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return the messages before the first answer, and those from it on."""
    roles = [each.get("role") if isinstance(each, dict) else None for each in messages]
    first = roles.index("assistant") if "assistant" in roles else len(roles)
    return messages[:first], messages[first:]


def _results(messages: list[Any]) -> list[dict[str, Any]]:
    """Return the tool results of messages, in order."""
    return [each for message in messages for each in _blocks(message) if _is_result(each)]


def _bare(messages: list[Any]) -> list[Any]:
    """Return messages without the contents of tool results."""
    return [
        {**message, "content": [_id(each) if _is_result(each) else each for each in content]}
        if (content := _blocks(message))
        else message
        for message in messages
    ]


def _blocks(message: Any) -> list[Any]:
    content = message.get("content") if isinstance(message, dict) else None
    return content if isinstance(content, list) else []


def _is_result(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "tool_result"


def _id(result: dict[str, Any]) -> dict[str, Any]:
    return {"tool_use_id": result.get("tool_use_id")}
