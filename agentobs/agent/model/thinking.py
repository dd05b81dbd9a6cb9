"""Thinking: how it is requested, and which thinking blocks are sent back.

The thinking of a model is signed. A request must contain it byte for byte, or not at all. Source of the rules:
anthropic 2.12 (types/thinking_config_*_param.py, output_config_param.py) and provider documentation, 2026-11
(platform.claude.com/docs/en/build-with-claude/extended-thinking).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agentobs.errors import UsageError
from agentobs.provider.anthropic.messages import tool_results
from agentobs.records.canonical_json import Json

Effort = Literal["low", "medium", "high", "xhigh", "max"]
"""How much work the model should put into a response, including its thinking."""

Display = Literal["summarized", "omitted"]
"""Whether thinking is readable, or only its signature is returned."""

BUDGET_MIN = 1024
"""Minimum budget that the provider accepts, in tokens (anthropic 2.12, types/thinking_config_enabled_param.py)."""

IDLE_SECONDS = 3600
"""After this many seconds without a response, the provider's cache no longer holds the conversation (the longest cache
lifetime is an hour), so removing thinking costs nothing.
"""

THINKING = frozenset(("thinking", "redacted_thinking"))
"""The types of thinking blocks."""


@dataclass(frozen=True, slots=True)
class Adaptive:
    """The model decides whether and how much it thinks."""

    effort: Effort | None = None
    """The effort; None for the provider's default."""
    display: Display | None = None
    """Whether thinking is readable; None for the provider's default."""


@dataclass(frozen=True, slots=True)
class Budgeted:
    """Thinking with a token budget, for models that do not support `Adaptive`."""

    tokens: int
    """Maximum thinking tokens, at least 1024; they are part of `AgentOptions.max_tokens`."""
    effort: Effort | None = None
    """The effort; None for the provider's default."""
    display: Display | None = None
    """Whether thinking is readable; None for the provider's default."""


Thinking = Adaptive | Budgeted


def request_fields(thinking: Thinking | None) -> Json:
    """Return the request fields that enable thinking."""
    if thinking is None:
        return {}
    setting: Json = {"type": "adaptive"}
    if isinstance(thinking, Budgeted):
        setting = {"type": "enabled", "budget_tokens": thinking.tokens}
    if thinking.display is not None:
        setting["display"] = thinking.display
    effort = {"output_config": {"effort": thinking.effort}} if thinking.effort else {}
    return {"thinking": setting, **effort}


def check_thinking(
    thinking: Thinking | None, max_tokens: int, betas: Sequence[str], extra: Mapping[str, Any]
) -> None:
    """Check a thinking configuration.

    Raises:
        UsageError: the provider would refuse the configuration.
    """
    if thinking is None:
        return
    if "thinking" in extra:
        raise UsageError(
            "thinking is set both in `AgentOptions.thinking` and in `AgentOptions.extra`",
            todo="Set only one",
        )
    if isinstance(thinking, Budgeted):
        _check_budget(thinking.tokens, max_tokens, betas)
    choice = extra.get("tool_choice")
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    if kind not in (None, "auto", "none"):
        raise UsageError(
            f"tool calls cannot be forced if thinking is enabled, but tool_choice is {kind}",
            todo="Set tool_choice to auto or none, or disable thinking",
        )
    # A temperature of 1 is the default.
    refused = [name for name, usual in _SAMPLING if extra.get(name) not in (None, usual)]
    if refused:
        raise UsageError(
            f"not supported if thinking is enabled: {', '.join(refused)}",
            todo="Remove these settings, or disable thinking",
        )


def without_trailing_thinking(messages: Sequence[Json]) -> list[Json]:
    """Return a conversation in which no response ends with thinking, because the provider refuses that.

    A response that consists only of thinking is left out. Unchanged messages are the same objects.
    """
    trimmed = (_without_trailing_thinking(message) for message in messages)
    return [message for message in trimmed if message is not None]


def without_thinking(messages: Sequence[Json]) -> tuple[Json, ...]:
    """Return a conversation without thinking; unchanged messages are the same objects.

    A response that consists only of thinking is left out: the provider refuses a message without
    content, and treats adjacent user messages as one message.
    """
    remaining = (_without_thinking(message) for message in messages)
    return tuple(message for message in remaining if message is not None)


def without_earlier_thinking(messages: tuple[Json, ...]) -> tuple[tuple[Json, ...], int]:
    """Return a conversation without the thinking of earlier turns, and the number of removed blocks.

    Thinking after the user's last prompt stays, because the provider requires it as long as the model calls tools.
    """
    user_turns = [
        at
        for at, message in enumerate(messages)
        if message.get("role") == "user" and not tool_results(message)
    ]
    end = user_turns[-1] if user_turns else 0
    blocks = sum(_count_thinking(message) for message in messages[:end])
    if not blocks:
        return messages, 0
    return (*without_thinking(messages[:end]), *messages[end:]), blocks


def has_thinking(message: Json) -> bool:
    """Return whether a message contains thinking."""
    return _count_thinking(message) > 0


def is_thinking(block: Any) -> bool:
    """Return whether a content block is thinking."""
    return isinstance(block, dict) and block.get("type") in THINKING


_SAMPLING = (("temperature", 1), ("top_k", None))
"""Settings that the provider refuses together with thinking, each with the only value that it accepts."""


def _check_budget(tokens: int, max_tokens: int, betas: Sequence[str]) -> None:
    if tokens < BUDGET_MIN:
        raise UsageError(f"the thinking budget is {tokens} tokens, but the minimum is {BUDGET_MIN}")
    # With interleaved thinking, the budget covers all responses to a prompt and may exceed the limit
    # of one response.
    if tokens >= max_tokens and not any(b.startswith("interleaved-thinking") for b in betas):
        raise UsageError(
            f"the thinking budget is {tokens} tokens, but the response is limited to {max_tokens}",
            todo=f"Raise max_tokens above {tokens}, because thinking counts toward it",
        )


def _count_thinking(message: Json) -> int:
    content = message.get("content")
    return sum(is_thinking(block) for block in content) if isinstance(content, list) else 0


def _without_trailing_thinking(message: Json) -> Json | None:
    content = message.get("content")
    if message.get("role") != "assistant" or not isinstance(content, list):
        return message
    end = len(content)
    while end and is_thinking(content[end - 1]):
        end -= 1
    if end == len(content):
        return message
    return {**message, "content": content[:end]} if end else None


def _without_thinking(message: Json) -> Json | None:
    content = message.get("content")
    if message.get("role") != "assistant" or not isinstance(content, list):
        return message
    remaining = [block for block in content if not is_thinking(block)]
    if len(remaining) == len(content):
        return message
    return {**message, "content": remaining} if remaining else None
