"""Token limits of a response: how they are raised or lowered, and how a cut response is continued.

A response is *cut* if it ended at its token limit. The first time in a turn, the cut response is void
and the request is repeated with a higher limit. After that, a cut response is kept, and the model is
prompted to continue it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentobs.agent.model.error_classes import RESPONSE_TOKENS_MIN
from agentobs.agent.model.retry import UNSTREAMED_TOKENS_MAX, Failure
from agentobs.provider.anthropic.messages import tool_uses
from agentobs.provider.dialect import text_of
from agentobs.records.canonical_json import Json

CONTINUATIONS_MAX = 3
"""Maximum number of times that the model may continue a cut response. From the specification of the agent loop."""

PAUSES = ("pause_turn", "compaction")
"""Stop reasons of a response that is not complete: the provider paused it while its own tools ran, or
after it had compacted the conversation (`pause_after_compaction`).
"""

PAUSES_MAX = 20
"""Maximum number of consecutive pauses of a response. Our choice: the provider pauses after ten calls of its own tools.
"""

CONTINUE_PROMPT = (
    "Your response was cut off at its token limit. Continue exactly where it stopped, without an apology and without "
    "repeating anything. A tool call that was cut off did not arrive: make it again, in smaller parts."
)
"""The prompt after a cut response."""


def is_cut(message: Json) -> bool:
    """Return whether a response was cut at its limit and contains no complete tool call."""
    return message.get("stop_reason") == "max_tokens" and has_no_calls(message)


def has_no_calls(message: Json) -> bool:
    """Return whether a response contains no complete tool call."""
    return all("partial_json" in block for block in tool_uses(message))


def is_paused(message: Json) -> bool:
    """Return whether the provider paused a long response, which it continues in response to the next request."""
    return message.get("stop_reason") in PAUSES and has_no_calls(message)


def is_unfinished(message: Json) -> bool:
    """Return whether a response was cut or paused, so that the model should continue it."""
    return is_cut(message) or is_paused(message)


def raised_limit(
    arguments: Mapping[str, Any], limit: int | None, reported: int | None = None
) -> int | None:
    """Return the limit for repeating the request of a cut response; None if it would not be higher.

    Args:
        arguments: the arguments of the request.
        limit: the raised limit in the options.
        reported: the maximum of the model, if the provider has reported it.
    """
    if limit is None:
        return None
    # Without streaming, the SDK refuses a higher limit.
    raised = limit if arguments.get("stream") else min(limit, UNSTREAMED_TOKENS_MAX)
    raised = capped(raised, reported)
    return raised if raised > max_tokens_of(arguments) else None


def capped(tokens: int, reported: int | None) -> int:
    """Return a limit, capped at the maximum that the provider reported, if any."""
    return tokens if reported is None else min(tokens, reported)


def useful_limit(
    failure: Failure, arguments: Mapping[str, Any], exceeded_limit: int = 0
) -> int | None:
    """Return the `max_tokens` that fits, if it is lower than requested and large enough for a response.

    `exceeded_limit` is the limit at which an earlier response to the request was cut: only a higher
    limit is useful then.
    """
    available = failure.max_tokens_available
    too_low = max(thinking_budget_of(arguments), exceeded_limit)
    if failure.kind == "overflow":
        too_low = max(too_low, RESPONSE_TOKENS_MIN - 1)
    if available is None or not too_low < available < max_tokens_of(arguments):
        return None
    return available


def thinking_budget_of(arguments: Mapping[str, Any]) -> int:
    """Return how many tokens of a response may be thinking; `max_tokens` must be higher."""
    thinking = field_of(arguments, "thinking")
    tokens = thinking.get("budget_tokens") if isinstance(thinking, Mapping) else None
    return tokens if isinstance(tokens, int) else 0


def max_tokens_of(arguments: Mapping[str, Any]) -> int:
    """Return the `max_tokens` of a request."""
    limit = field_of(arguments, "max_tokens")
    return limit if isinstance(limit, int) else 0


def with_max_tokens(
    arguments: Mapping[str, Any], tokens: int, timeout: Any = None
) -> dict[str, Any]:
    """Return the arguments with another `max_tokens`.

    `timeout` is the timeout of the client. If a request passes its timeout explicitly, the SDK
    accepts a limit with which the response could take longer than 10 minutes.
    """
    changed = with_field(arguments, "max_tokens", tokens)
    return changed if timeout is None or changed.get("stream") else {**changed, "timeout": timeout}


def may_unstream(arguments: Mapping[str, Any]) -> bool:
    """Return whether a request is streamed and could also be sent without streaming."""
    return bool(arguments.get("stream")) and max_tokens_of(arguments) <= UNSTREAMED_TOKENS_MAX


def unstreamed(arguments: Mapping[str, Any], timeout: Any) -> dict[str, Any]:
    """Return the arguments of the same request without streaming."""
    changed = {name: value for name, value in arguments.items() if name != "stream"}
    return {**changed, "timeout": timeout}


def field_of(arguments: Mapping[str, Any], name: str) -> Any:
    """Return a field of the request body; the fields in `extra_body` override the others."""
    extra = arguments.get("extra_body") or {}
    return extra.get(name, arguments.get(name))


def with_field(arguments: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    """Return the arguments with another value for a field of the request body, also in `extra_body`."""
    changed = {**arguments, name: value}
    if name in (arguments.get("extra_body") or {}):
        changed["extra_body"] = {**changed["extra_body"], name: value}
    return changed


def without_field(arguments: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the arguments without a field of the request body, also in `extra_body`."""
    changed = {key: value for key, value in arguments.items() if key != name}
    if name in (changed.get("extra_body") or {}):
        extra = changed["extra_body"]
        changed["extra_body"] = {key: value for key, value in extra.items() if key != name}
    return changed


def text_so_far(before: str, message: Json, *, is_paused: bool) -> str:
    """Return the text of the parts of a response up to this message.

    `before` is the text of the earlier parts. The text of the next part is appended without a
    separator.
    """
    text = before + text_of(message.get("content"))
    return f"{text}\n" if is_paused and text else text
