"""Trim and drop messages to shorten a conversation without a model.

Unchanged messages stay the same objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentobs.agent.context.message_groups import Group, flat, joined, parts
from agentobs.agent.context.token_counts import covered, estimate, text_tokens
from agentobs.provider.anthropic.messages import blocks, tool_results
from agentobs.records.canonical_json import Json

TRIMMED = "[An old result stood here"
"""Start of the note that replaces a trimmed result."""

DROPPED = "[Older messages that stood here were taken out to save room.]"
"""Replaces dropped groups, in the message before them."""

_NOTE_TOKENS = text_tokens(DROPPED) + 20
"""Tokens of the note, including the message around it."""

TRIM_TOKENS_MIN = 100
"""Smaller results are not trimmed, because the note would use half of the saving. Our choice."""

DROP_SHARE = 1 / 3
"""Maximum share of the groups' tokens that is dropped; if more must go, it is summarized. Our choice.
"""


def trim(messages: Sequence[Json], kept_results: int, *, spares_new: bool = True) -> Group:
    """Return a conversation whose old tool results are replaced by notes.

    Args:
        messages: the conversation.
        kept_results: how many of the last results stay.
        spares_new: whether to keep results that the model has not seen yet.
    """
    first = covered(messages)
    places = [
        (at, number)
        for at, message in enumerate(messages)
        if at >= first and not (spares_new and at == len(messages) - 1)
        for number, block in enumerate(_listed(message))
        if _is_trimmable(block)
    ]
    newer = len(tool_results(messages[-1])) if spares_new and messages else 0
    spared = max(kept_results - newer, 0)
    numbers: dict[int, set[int]] = {}
    for at, number in places[: max(len(places) - spared, 0)]:
        numbers.setdefault(at, set()).add(number)
    return tuple(
        _trimmed(message, numbers[at]) if at in numbers else message
        for at, message in enumerate(messages)
    )


def drop(messages: Sequence[Json], tokens: int) -> Group | None:
    """Return a conversation without its oldest groups, about `tokens` tokens shorter.

    None if that requires more than `DROP_SHARE` of the groups, or the last group. The first prompt
    stays.
    """
    if tokens <= 0:
        return tuple(messages)
    whole = parts(messages)
    sizes = [estimate(group) for group in whole.groups]
    room, freed, count = DROP_SHARE * sum(sizes), -_NOTE_TOKENS, 0
    while freed < tokens:
        if count >= len(sizes) - 1 or sum(sizes[: count + 1]) > room:
            return None
        freed += sizes[count]
        count += 1
    return without_oldest(messages, count)


def without_oldest(messages: Sequence[Json], count: int) -> Group:
    """Return a conversation without its oldest groups, with a note in their place."""
    whole = parts(messages)
    note = {"role": "user", "content": [{"type": "text", "text": DROPPED}]}
    noted = any(block.get("text") == DROPPED for message in whole.head for block in blocks(message))
    return joined((*whole.head, *(() if noted else (note,)), *flat(whole.groups[count:])))


def is_trimmed(content: Any) -> bool:
    """Return whether the content of a tool result is the note of a trimmed result."""
    return isinstance(content, str) and content.startswith(TRIMMED)


def _listed(message: Json) -> list[Any]:
    content = message.get("content")
    return content if isinstance(content, list) else []


def _is_trimmable(block: Any) -> bool:
    """Return whether a block is a result that may be trimmed; a result that loads tools may not."""
    if not isinstance(block, dict) or block.get("type") != "tool_result":
        return False
    content = block.get("content")
    loads = isinstance(content, list) and any(
        isinstance(each, dict) and each.get("type") == "tool_reference" for each in content
    )
    return not loads and _size(content) >= TRIM_TOKENS_MIN


def _trimmed(message: Json, numbers: set[int]) -> Json:
    content = [
        {**block, "content": _note(block)} if number in numbers else block
        for number, block in enumerate(_listed(message))
    ]
    return {**message, "content": content}


def _note(block: Json) -> str:
    size = _size(block.get("content"))
    return f"{TRIMMED}; it had about {size:,} tokens. Call the tool again if you need it.]"


def _size(content: Any) -> int:
    return estimate([{"content": content}])
