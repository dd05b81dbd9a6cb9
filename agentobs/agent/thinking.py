"""Thinking: how the model is asked to think, and which of its thinking goes back to it.

What a model thought is signed, and returns byte by byte as it came, or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentobs.records.canonical import Json

THINKING = frozenset(("thinking", "redacted_thinking"))
"""The types of the blocks that hold thinking."""


def without_thinking(messages: Sequence[Json]) -> tuple[Json, ...]:
    """Return a conversation without what was thought in it; messages that held none are the same objects.

    An answer that was nothing but thinking is left out: the provider refuses one without content, and takes the
    user's messages around it as one.
    """
    kept = (_without(message) for message in messages)
    return tuple(message for message in kept if message is not None)


def is_thinking(block: Any) -> bool:
    """Return whether a content block holds thinking."""
    return isinstance(block, dict) and block.get("type") in THINKING


def _without(message: Json) -> Json | None:
    content = message.get("content")
    if message.get("role") != "assistant" or not isinstance(content, list):
        return message
    kept = [block for block in content if not is_thinking(block)]
    if len(kept) == len(content):
        return message
    return {**message, "content": kept} if kept else None
