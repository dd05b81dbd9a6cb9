"""Shorten a conversation without a model: trim old tool results, or drop the oldest messages.

Unchanged messages stay the same objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentobs.agent.context.message_groups import Group, flattened, merged, split_groups
from agentobs.agent.context.token_counts import count_compacted_messages, estimate, text_tokens
from agentobs.provider.anthropic.messages import blocks, tool_results
from agentobs.records.canonical_json import Json

TRIMMED = "[An old result was removed"
"""The start of the note that replaces a trimmed result."""

DROPPED = "[Older messages were removed to save space.]"
"""The note that replaces dropped groups, in the message before them."""

_NOTE_TOKENS = text_tokens(DROPPED) + 20
"""Tokens of the note, including the message around it."""

TRIM_TOKENS_MIN = 100
"""Smaller results are not trimmed, because the note would take up half of the saved tokens. Our choice."""

TRIM_NOTE_TOKENS = 40
"""An upper bound for the tokens of the note that replaces a trimmed result."""

DROP_SHARE = 1 / 3
"""Maximum share of the groups' tokens that is dropped. If more must be removed, the conversation is
summarized. Our choice.
"""


def trim(messages: Sequence[Json], kept_results: int, *, spares_new: bool = True) -> Group:
    """Return a conversation whose old tool results are replaced by notes.

    Args:
        messages: the conversation.
        kept_results: the number of most recent results that are not trimmed.
        spares_new: whether to keep results that the model has not seen yet.
    """
    first = count_compacted_messages(messages)
    trimmable = [
        (at, number)
        for at, message in enumerate(messages)
        if at >= first and not (spares_new and at == len(messages) - 1)
        for number, block in enumerate(_content_list(message))
        if _is_trimmable(block)
    ]
    new_results = len(tool_results(messages[-1])) if spares_new and messages else 0
    spared = max(kept_results - new_results, 0)
    numbers: dict[int, set[int]] = {}
    for at, number in trimmable[: max(len(trimmable) - spared, 0)]:
        numbers.setdefault(at, set()).add(number)
    return tuple(
        _trimmed(message, numbers[at]) if at in numbers else message
        for at, message in enumerate(messages)
    )


def drop(messages: Sequence[Json], tokens: int) -> Group | None:
    """Return a conversation without its oldest groups, shorter by at least `tokens` estimated tokens.

    Return None if that would drop more than `DROP_SHARE` of the tokens, or the last group. The
    first prompt stays.
    """
    if tokens <= 0:
        return tuple(messages)
    sizes = [estimate(group) for group in split_groups(messages).groups]
    droppable, freed, count = DROP_SHARE * sum(sizes), -_NOTE_TOKENS, 0
    while freed < tokens:
        if count >= len(sizes) - 1 or sum(sizes[: count + 1]) > droppable:
            return None
        freed += sizes[count]
        count += 1
    return without_oldest(messages, count)


def trim_oldest(messages: Sequence[Json], tokens: int) -> Group:
    """Return a conversation whose oldest tool results are replaced by notes, shorter by `tokens` estimated tokens.

    If all results together are smaller, all of them are replaced, even those that the model has not seen.
    """
    sizes = [
        _size(block.get("content"))
        for message in messages[count_compacted_messages(messages) :]
        for block in _content_list(message)
        if _is_trimmable(block)
    ]
    freed, count = 0, 0
    while freed < tokens and count < len(sizes):
        freed += sizes[count] - TRIM_NOTE_TOKENS
        count += 1
    return trim(messages, len(sizes) - count, spares_new=False)


def drop_oldest(messages: Sequence[Json], tokens: int) -> Group:
    """Return a conversation without its oldest groups, shorter by `tokens` estimated tokens if possible.

    Unlike `drop`, any number of groups may be dropped. The first prompt and the last group stay.
    """
    if tokens <= 0:
        return tuple(messages)
    sizes = [estimate(group) for group in split_groups(messages).groups]
    freed, count = -_NOTE_TOKENS, 0
    while freed < tokens and count < len(sizes) - 1:
        freed += sizes[count]
        count += 1
    return without_oldest(messages, count) if count else tuple(messages)


def without_oldest(messages: Sequence[Json], count: int) -> Group:
    """Return a conversation without its `count` oldest groups, with a note in their place."""
    grouped = split_groups(messages)
    note = {"role": "user", "content": [{"type": "text", "text": DROPPED}]}
    start_blocks = [block for message in grouped.start for block in blocks(message)]
    has_note = any(block.get("text") == DROPPED for block in start_blocks)
    notes = () if has_note else (note,)
    return merged((*grouped.start, *notes, *flattened(grouped.groups[count:])))


def is_trimmed(content: Any) -> bool:
    """Return whether the content of a tool result is the note of a trimmed result."""
    return isinstance(content, str) and content.startswith(TRIMMED)


def _content_list(message: Json) -> list[Any]:
    content = message.get("content")
    return content if isinstance(content, list) else []


def _is_trimmable(block: Any) -> bool:
    """Return whether a block is a tool result that may be trimmed. A result that loads tools is never trimmed."""
    if not isinstance(block, dict) or block.get("type") != "tool_result":
        return False
    content = block.get("content")
    loads_tools = isinstance(content, list) and any(
        isinstance(each, dict) and each.get("type") == "tool_reference" for each in content
    )
    return not loads_tools and _size(content) >= TRIM_TOKENS_MIN


def _trimmed(message: Json, numbers: set[int]) -> Json:
    content = [
        {**block, "content": _note(block)} if number in numbers else block
        for number, block in enumerate(_content_list(message))
    ]
    return {**message, "content": content}


def _note(block: Json) -> str:
    size = _size(block.get("content"))
    return f"{TRIMMED}; it had about {size:,} tokens. Call the tool again if you need it.]"


def _size(content: Any) -> int:
    return estimate([{"content": content}])
