"""Thinking: how it is requested, and which thinking blocks are sent back.

A model's thinking is signed and must be returned byte for byte, or not at all. Source of the rules: anthropic 2.12
(types/thinking_config_*_param.py, output_config_param.py) and provider documentation, 2026-11
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
"""How much work the model should put into a response, thinking and text."""

Display = Literal["summarized", "omitted"]
"""Whether thinking is readable, or only its signature is returned."""

BUDGET_MIN = 1024
"""Minimum budget that the provider accepts, in tokens (anthropic 2.12, types/thinking_config_enabled_param.py)."""

IDLE_SECONDS = 3600
"""After this time without a response, no provider cache holds the conversation any more (its longest lifetime is an
hour), so removing thinking costs nothing.
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
    """The model thinks up to a number of tokens; for models that support no other way."""

    tokens: int
    """Maximum thinking tokens, at least 1024; they are part of `Options.max_tokens`."""
    effort: Effort | None = None
    """The effort; None for the provider's default."""
    display: Display | None = None
    """Whether thinking is readable; None for the provider's default."""


Thinking = Adaptive | Budgeted


def request_fields(thinking: Thinking | None) -> Json:
    """Return the request fields that enable thinking."""
    if thinking is None:
        return {}
    how: Json = {"type": "adaptive"}
    if isinstance(thinking, Budgeted):
        how = {"type": "enabled", "budget_tokens": thinking.tokens}
    if thinking.display is not None:
        how["display"] = thinking.display
    effort = {"output_config": {"effort": thinking.effort}} if thinking.effort else {}
    return {"thinking": how, **effort}


def check(
    thinking: Thinking | None, max_tokens: int, betas: Sequence[str], extra: Mapping[str, Any]
) -> None:
    """Refuse a thinking configuration that the provider would refuse.

    Raises:
        UsageError: the configuration is invalid.
    """
    if thinking is None:
        return
    if "thinking" in extra:
        raise UsageError("thinking is set twice, as an option and in `extra`", todo="Set one")
    if isinstance(thinking, Budgeted):
        _check_budget(thinking.tokens, max_tokens, betas)
    choice = extra.get("tool_choice")
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    if kind not in (None, "auto", "none"):
        raise UsageError(
            f"with thinking on, tool calls cannot be forced, but tool_choice is {kind}",
            todo="Set tool_choice to auto or none, or turn thinking off",
        )
    # A temperature of 1 is the default.
    refused = [name for name, usual in _SAMPLING if extra.get(name) not in (None, usual)]
    if refused:
        raise UsageError(
            f"not supported with thinking on: {' and no '.join(refused)}",
            todo="Remove it, or turn thinking off",
        )


def never_last(messages: Sequence[Json]) -> list[Json]:
    """Return a conversation in which no response ends with thinking, which the provider refuses at
    the end.

    A response that was only thinking is left out. Unchanged messages are the same objects.
    """
    trimmed = (_trimmed(message) for message in messages)
    return [message for message in trimmed if message is not None]


def without_thinking(messages: Sequence[Json]) -> tuple[Json, ...]:
    """Return a conversation without thinking; unchanged messages are the same objects.

    A response that was only thinking is left out: the provider refuses one without content, and
    treats the adjacent user messages as one.
    """
    remaining = (_without(message) for message in messages)
    return tuple(message for message in remaining if message is not None)


def cleared(messages: tuple[Json, ...]) -> tuple[tuple[Json, ...], int]:
    """Return a conversation without the thinking of earlier turns, and the number of removed blocks.

    Thinking after the last user message stays, because the provider requires it until the tools have answered.
    """
    user_turns = [
        at
        for at, message in enumerate(messages)
        if message.get("role") == "user" and not tool_results(message)
    ]
    end = user_turns[-1] if user_turns else 0
    blocks = sum(_thoughts(message) for message in messages[:end])
    if not blocks:
        return messages, 0
    return (*without_thinking(messages[:end]), *messages[end:]), blocks


def has_thinking(message: Json) -> bool:
    """Return whether a message contains thinking."""
    return _thoughts(message) > 0


def is_thinking(block: Any) -> bool:
    """Return whether a content block is thinking."""
    return isinstance(block, dict) and block.get("type") in THINKING


_SAMPLING = (("temperature", 1), ("top_k", None))
"""Settings that the provider refuses together with thinking, and the value that it accepts anyway."""


def _check_budget(tokens: int, max_tokens: int, betas: Sequence[str]) -> None:
    if tokens < BUDGET_MIN:
        raise UsageError(
            f"the budget for thinking is {tokens} tokens, but the minimum is {BUDGET_MIN}"
        )
    # With interleaved thinking the budget covers the whole turn and may exceed the limit of one
    # response.
    if tokens >= max_tokens and not any(b.startswith("interleaved-thinking") for b in betas):
        raise UsageError(
            f"the budget for thinking is {tokens} tokens, but the whole response is limited to {max_tokens}",
            todo=f"Raise max_tokens above {tokens}, thinking is part of the answer",
        )


def _thoughts(message: Json) -> int:
    content = message.get("content")
    return sum(is_thinking(block) for block in content) if isinstance(content, list) else 0


def _trimmed(message: Json) -> Json | None:
    content = message.get("content")
    if message.get("role") != "assistant" or not isinstance(content, list):
        return message
    end = len(content)
    while end and is_thinking(content[end - 1]):
        end -= 1
    if end == len(content):
        return message
    return {**message, "content": content[:end]} if end else None


def _without(message: Json) -> Json | None:
    content = message.get("content")
    if message.get("role") != "assistant" or not isinstance(content, list):
        return message
    remaining = [block for block in content if not is_thinking(block)]
    if len(remaining) == len(content):
        return message
    return {**message, "content": remaining} if remaining else None
