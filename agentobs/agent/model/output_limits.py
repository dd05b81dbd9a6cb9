"""Limits of an answer: how much it may say, how that is changed, and what follows where it was not enough.

An answer that was cut is void once in a turn, and asked for again with more room. Then it stands as far as it came,
and the model is asked to go on from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentobs.agent.model.error_classes import ANSWER_LEAST
from agentobs.agent.model.retry import UNSTREAMED_MAX, Failure
from agentobs.provider.messages import text_of, tool_uses
from agentobs.records.canonical_json import Json

CONTINUATIONS_MAX = 3
"""How often the model may go on from an answer that was cut. Specified."""

PAUSES = ("pause_turn", "compaction")
"""The stop reasons of an answer that is not all there yet: in the middle of the provider's own tools, and after it
has made the conversation shorter itself (`pause_after_compaction`)."""

PAUSES_MAX = 20
"""How often the model may go on from answers that it paused itself, in a row. Our choice: the provider pauses after
ten calls of its own tools."""

GO_ON = (
    "Your answer was cut off at its limit of tokens. Go on exactly where it stopped, without an apology and without "
    "repeating anything. A tool call that was cut did not arrive: make it again, in smaller pieces."
)
"""What the model is told after an answer that was cut."""


def is_cut(message: Json) -> bool:
    """Return whether an answer was cut at its limit, with no whole tool call in it that says how to go on."""
    return message.get("stop_reason") == "max_tokens" and has_no_calls(message)


def has_no_calls(message: Json) -> bool:
    """Return whether an answer has no whole tool call in it that says how to go on."""
    return all("partial_json" in block for block in tool_uses(message))


def is_paused(message: Json) -> bool:
    """Return whether the provider paused a long answer, and wants it back to go on from there."""
    return message.get("stop_reason") in PAUSES and has_no_calls(message)


def is_unfinished(message: Json) -> bool:
    """Return whether the model is to go on from an answer."""
    return is_cut(message) or is_paused(message)


def raised(arguments: Mapping[str, Any], limit: int | None, told: int | None = None) -> int | None:
    """Return the limit with which an answer that was cut is asked for again; None where there is no higher one.

    `told` is the most that the model may say, where that is known.
    """
    if limit is None:
        return None
    # The SDK refuses more where an answer comes in one piece.
    most = limit if arguments.get("stream") else min(limit, UNSTREAMED_MAX)
    most = within(most, told)
    return most if most > max_tokens_of(arguments) else None


def within(tokens: int, told: int | None) -> int:
    """Return a limit that is no higher than what the provider has told."""
    return tokens if told is None else min(tokens, told)


def of_use(failure: Failure, arguments: Mapping[str, Any], had: int = 0) -> int | None:
    """Return the `max_tokens` that fits where that is lower than what was asked for, and leaves room to answer.

    An answer that was cut has `had` so many, and is of use only with more.
    """
    room, least = failure.room, max(thinking_of(arguments), had)
    if failure.kind == "overflow":
        least = max(least, ANSWER_LEAST - 1)
    return room if room is not None and least < room < max_tokens_of(arguments) else None


def thinking_of(arguments: Mapping[str, Any]) -> int:
    """Return how many tokens of an answer may be thinking; the provider wants the limit to be higher."""
    thinking = field_of(arguments, "thinking")
    tokens = thinking.get("budget_tokens") if isinstance(thinking, Mapping) else None
    return tokens if isinstance(tokens, int) else 0


def max_tokens_of(arguments: Mapping[str, Any]) -> int:
    """Return how much the answer to a request may say, in tokens."""
    asked = field_of(arguments, "max_tokens")
    return asked if isinstance(asked, int) else 0


def with_max_tokens(
    arguments: Mapping[str, Any], tokens: int, timeout: Any = None
) -> dict[str, Any]:
    """Return a request whose answer may say so much.

    `timeout` is the client's. Where it is given, the SDK does not judge how long the answer might take.
    """
    changed = with_field(arguments, "max_tokens", tokens)
    return changed if timeout is None or changed.get("stream") else {**changed, "timeout": timeout}


def may_unstream(arguments: Mapping[str, Any]) -> bool:
    """Return whether a request is streamed, and its answer may come in one piece as well."""
    return bool(arguments.get("stream")) and max_tokens_of(arguments) <= UNSTREAMED_MAX


def unstreamed(arguments: Mapping[str, Any], timeout: Any) -> dict[str, Any]:
    """Return the same request for an answer in one piece."""
    changed = {name: value for name, value in arguments.items() if name != "stream"}
    return {**changed, "timeout": timeout}


def field_of(arguments: Mapping[str, Any], name: str) -> Any:
    """Return a field of the request's body; what the caller of the loop added wins."""
    extra = arguments.get("extra_body") or {}
    return extra.get(name, arguments.get(name))


def with_field(arguments: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    """Return a request in whose body a field has another value, wherever that stood."""
    changed = {**arguments, name: value}
    if name in (arguments.get("extra_body") or {}):
        changed["extra_body"] = {**changed["extra_body"], name: value}
    return changed


def said_so_far(before: str, message: Json, *, is_paused: bool) -> str:
    """Return the text of an answer's parts up to this one; the next part goes on right after it."""
    text = before + text_of(message.get("content"))
    return f"{text}\n" if is_paused and text else text
