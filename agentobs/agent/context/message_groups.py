"""Groups of messages that are kept or removed together.

A group is a response together with the message that holds its tool results, or a user message without
tool results. This grouping keeps each call with its result, and each thinking block with its call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agentobs.agent.context.token_counts import is_compaction
from agentobs.agent.model.thinking import is_thinking
from agentobs.provider.anthropic.messages import blocks, tool_results, tool_uses
from agentobs.records.canonical_json import Json, canonical, digest

Group = tuple[Json, ...]
"""Messages, oldest first."""


@dataclass(frozen=True, slots=True)
class GroupedMessages:
    """A conversation, split into its start and groups."""

    start: Group
    """The first prompt; after a compaction by the provider, everything up to that compaction. It is never removed."""
    groups: tuple[Group, ...]
    """The remaining messages, oldest first."""


def split_groups(messages: Sequence[Json]) -> GroupedMessages:
    """Split the messages of a conversation into its start and groups."""
    groups = _groups(messages)
    first = next(
        (at for at, group in enumerate(groups) if _starts_with_response(group)), len(groups)
    )
    compacted = [at for at, group in enumerate(groups) if any(map(_has_compaction, group))]
    end = max(first, compacted[-1] + 1) if compacted else first
    return GroupedMessages(flattened(groups[:end]), tuple(groups[end:]))


def flattened(groups: Iterable[Group]) -> Group:
    """Return the messages of some groups."""
    return tuple(message for group in groups for message in group)


def merged(messages: Iterable[Json]) -> Group:
    """Merge adjacent user messages; the provider treats them as one message anyway."""
    result: list[Json] = []
    for message in messages:
        if result and result[-1].get("role") == message.get("role") == "user":
            content = [*blocks(result[-1]), *blocks(message)]
            result[-1] = {**result[-1], "content": content}
        else:
            result.append(message)
    return tuple(result)


def first_call(messages: Iterable[Json]) -> str | None:
    """Return the ID of the first tool call in some messages; None if there is no tool call."""
    return next((block["id"] for message in messages for block in tool_uses(message)), None)


def outline(messages: Iterable[Json]) -> str:
    """Return a digest that identifies a conversation by its roles, texts and tool call IDs."""
    names = ("text", "id", "tool_use_id", "type")
    rows = [
        [message.get("role"), [next(filter(None, map(block.get, names)), None) for block in shown]]
        for message in messages
        if (shown := [block for block in blocks(message) if not is_thinking(block)])
    ]
    return digest(canonical(rows).encode("utf-8", "surrogatepass"))


def count_unanswered_blocks(messages: Sequence[Json], stored: Sequence[Json]) -> int:
    """Count the blocks at the end of a run's messages that the stored conversation does not contain.

    These are the blocks to which the model has not responded yet. A block that was appended to a
    stored message belongs to that message and is not counted.
    """
    known, count = {id(message) for message in stored}, 0
    for message in reversed(messages):
        if message.get("role") != "user" or id(message) in known:
            break
        if stored and _extends(message, stored[-1]):
            break
        count += len(blocks(message))
    return count


def without_last_blocks(messages: Group, count: int) -> Group:
    """Return messages without their last `count` blocks."""
    remaining = list(messages)
    while remaining and count > 0:
        content = blocks(remaining.pop())
        if len(content) > count:
            shortened = content[: len(content) - count]
            remaining.append({**messages[len(remaining)], "content": shortened})
        count -= len(content)
    return tuple(remaining)


def _extends(message: Json, stored: Json) -> bool:
    """Return whether a message is a stored message to which blocks may have been appended."""
    prefix = blocks(stored)
    return message.get("role") == stored.get("role") and blocks(message)[: len(prefix)] == prefix


def _groups(messages: Sequence[Json]) -> list[Group]:
    groups: list[list[Json]] = []
    open_calls: set[str] = set()
    for message in messages:
        results = {block.get("tool_use_id") for block in tool_results(message)}
        previous_role = groups[-1][-1].get("role") if groups else None
        if message.get("role") == "assistant":
            belongs_to_group = previous_role == "assistant"
        else:
            belongs_to_group = bool(open_calls or results)
        if groups and belongs_to_group:
            groups[-1].append(message)
        else:
            groups.append([message])
        open_calls = {*open_calls, *(block["id"] for block in tool_uses(message))} - results
    return [tuple(group) for group in groups]


def _starts_with_response(group: Group) -> bool:
    return bool(group[0].get("role") == "assistant")


def _has_compaction(message: Json) -> bool:
    return any(is_compaction(block) for block in blocks(message))
