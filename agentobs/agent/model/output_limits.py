"""Token limits of a response: how they are raised or lowered, and how a cut response is continued.

Once per turn, a cut response is void and the request is repeated with a higher limit. After that a
cut response is kept, and the model is told to continue it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentobs.agent.model.error_classes import ANSWER_LEAST
from agentobs.agent.model.retry import UNSTREAMED_MAX, Failure
from agentobs.provider.anthropic.messages import tool_uses
from agentobs.provider.dialect import text_of
from agentobs.records.canonical_json import Json

CONTINUATIONS_MAX = 3
"""How often the model may continue a cut response. Specified."""

PAUSES = ("pause_turn", "compaction")
"""Stop reasons of a response that is not complete: in the middle of the provider's own tools, and
after the provider has compacted the conversation (`pause_after_compaction`).
"""

PAUSES_MAX = 20
"""How often in a row the model may continue responses that it paused itself. Our choice: the provider pauses after ten
calls of its own tools.
"""

GO_ON = (
    "Your answer was cut off at its limit of tokens. Go on exactly where it stopped, without an apology and without "
    "repeating anything. A tool call that was cut did not arrive: make it again, in smaller pieces."
)
"""The message for the model after a cut response."""


def is_cut(message: Json) -> bool:
    """Return whether a response was cut at its limit and contains no complete tool call."""
    return message.get("stop_reason") == "max_tokens" and has_no_calls(message)


def has_no_calls(message: Json) -> bool:
    """Return whether a response contains no complete tool call."""
    return all("partial_json" in block for block in tool_uses(message))


def is_paused(message: Json) -> bool:
    """Return whether the provider paused a long response and expects it back to continue."""
    return message.get("stop_reason") in PAUSES and has_no_calls(message)


def is_unfinished(message: Json) -> bool:
    """Return whether the model should continue a response."""
    return is_cut(message) or is_paused(message)


def raised(
    arguments: Mapping[str, Any], limit: int | None, reported: int | None = None
) -> int | None:
    """Return the limit for repeating the request of a cut response; None if there is no higher one.

    `reported` is the model's known maximum.
    """
    if limit is None:
        return None
    # Without streaming, the SDK refuses a higher limit.
    most = limit if arguments.get("stream") else min(limit, UNSTREAMED_MAX)
    most = within(most, reported)
    return most if most > max_tokens_of(arguments) else None


def within(tokens: int, reported: int | None) -> int:
    """Return a limit capped at the maximum that the provider reported."""
    return tokens if reported is None else min(tokens, reported)


def of_use(failure: Failure, arguments: Mapping[str, Any], had: int = 0) -> int | None:
    """Return the `max_tokens` that fits, if it is lower than requested and still leaves room for a
    response.

    A response that was cut at a limit of `had` only benefits from a higher one.
    """
    room, least = failure.room, max(thinking_of(arguments), had)
    if failure.kind == "overflow":
        least = max(least, ANSWER_LEAST - 1)
    return room if room is not None and least < room < max_tokens_of(arguments) else None


def thinking_of(arguments: Mapping[str, Any]) -> int:
    """Return how many tokens of a response may be thinking; the provider requires a higher limit."""
    thinking = field_of(arguments, "thinking")
    tokens = thinking.get("budget_tokens") if isinstance(thinking, Mapping) else None
    return tokens if isinstance(tokens, int) else 0


def max_tokens_of(arguments: Mapping[str, Any]) -> int:
    """Return the response limit of a request, in tokens."""
    limit = field_of(arguments, "max_tokens")
    return limit if isinstance(limit, int) else 0


def with_max_tokens(
    arguments: Mapping[str, Any], tokens: int, timeout: Any = None
) -> dict[str, Any]:
    """Return a request with another response limit.

    `timeout` is the client's. If it is set, the SDK does not estimate whether the response takes
    too long.
    """
    changed = with_field(arguments, "max_tokens", tokens)
    return changed if timeout is None or changed.get("stream") else {**changed, "timeout": timeout}


def may_unstream(arguments: Mapping[str, Any]) -> bool:
    """Return whether a request is streamed and could also be sent without streaming."""
    return bool(arguments.get("stream")) and max_tokens_of(arguments) <= UNSTREAMED_MAX


def unstreamed(arguments: Mapping[str, Any], timeout: Any) -> dict[str, Any]:
    """Return the same request without streaming."""
    changed = {name: value for name, value in arguments.items() if name != "stream"}
    return {**changed, "timeout": timeout}


def field_of(arguments: Mapping[str, Any], name: str) -> Any:
    """Return a field of the request's body; fields added by the caller of the loop take precedence."""
    extra = arguments.get("extra_body") or {}
    return extra.get(name, arguments.get(name))


def with_field(arguments: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    """Return a request with another value for a body field, wherever it was set."""
    changed = {**arguments, name: value}
    if name in (arguments.get("extra_body") or {}):
        changed["extra_body"] = {**changed["extra_body"], name: value}
    return changed


def joined_text(before: str, message: Json, *, is_paused: bool) -> str:
    """Return the text of a response's parts up to this one; the next part follows it directly."""
    text = before + text_of(message.get("content"))
    return f"{text}\n" if is_paused and text else text
