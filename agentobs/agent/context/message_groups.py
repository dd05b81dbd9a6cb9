"""Groups of messages that are kept or removed together.

A group is a response with the message that holds its tool results, or a user message without tool
results. This way no call loses its result, and no thinking block its call.
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
class Parts:
    """A conversation, split into head and groups."""

    head: Group
    """The first prompt; after a compaction by the provider, everything up to that compaction."""
    groups: tuple[Group, ...]
    """The remaining messages, oldest first."""


def parts(messages: Sequence[Json]) -> Parts:
    """Return a conversation's head and groups, which together are its messages."""
    groups = _grouped(messages)
    first = next((at for at, group in enumerate(groups) if _is_answer(group)), len(groups))
    held = [at for at, group in enumerate(groups) if any(map(_is_compacted, group))]
    end = max(first, held[-1] + 1) if held else first
    return Parts(flat(groups[:end]), tuple(groups[end:]))


def flat(groups: Iterable[Group]) -> Group:
    """Return the messages of some groups."""
    return tuple(message for group in groups for message in group)


def joined(messages: Iterable[Json]) -> Group:
    """Return messages with adjacent user messages merged, as the provider reads them."""
    made: list[Json] = []
    for message in messages:
        if made and made[-1].get("role") == message.get("role") == "user":
            content = [*blocks(made[-1]), *blocks(message)]
            made[-1] = {**made[-1], "content": content}
        else:
            made.append(message)
    return tuple(made)


def first_call(messages: Iterable[Json]) -> str | None:
    """Return the ID of the first tool call in some messages."""
    return next((block["id"] for message in messages for block in tool_uses(message)), None)


def outline(messages: Iterable[Json]) -> str:
    """Return a digest that identifies a conversation: roles, texts and the IDs of calls."""
    names = ("text", "id", "tool_use_id", "type")
    outlined = [
        [message.get("role"), [next(filter(None, map(block.get, names)), None) for block in own]]
        for message in messages
        if (own := [block for block in blocks(message) if not is_thinking(block)])
    ]
    return digest(canonical(outlined).encode("utf-8", "surrogatepass"))


def unanswered(messages: Sequence[Json], stored: Sequence[Json]) -> int:
    """Return how many blocks at the end of a run's conversation are missing in the stored one.

    These blocks were sent to the model, which has not responded yet. A block added to a stored
    message belongs to that message and is not counted.
    """
    known, count = {id(message) for message in stored}, 0
    for message in reversed(messages):
        if message.get("role") != "user" or id(message) in known:
            break
        if stored and _begins_with(message, stored[-1]):
            break
        count += len(blocks(message))
    return count


def without_last(messages: Group, count: int) -> Group:
    """Return messages without their last `count` blocks."""
    left = list(messages)
    while left and count > 0:
        content = blocks(left.pop())
        if len(content) > count:
            left.append({**messages[len(left)], "content": content[: len(content) - count]})
        count -= len(content)
    return tuple(left)


def _begins_with(message: Json, part: Json) -> bool:
    prefix = blocks(part)
    return message.get("role") == part.get("role") and blocks(message)[: len(prefix)] == prefix


def _grouped(messages: Sequence[Json]) -> list[Group]:
    groups: list[list[Json]] = []
    owed: set[str] = set()
    for message in messages:
        results = {block.get("tool_use_id") for block in tool_results(message)}
        before = groups[-1][-1].get("role") if groups else None
        goes_on = (
            before == "assistant" if message.get("role") == "assistant" else bool(owed or results)
        )
        if groups and goes_on:
            groups[-1].append(message)
        else:
            groups.append([message])
        owed = {*owed, *(block["id"] for block in tool_uses(message))} - results
    return [tuple(group) for group in groups]


def _is_answer(group: Group) -> bool:
    return bool(group[0].get("role") == "assistant")


def _is_compacted(message: Json) -> bool:
    return any(is_compaction(block) for block in blocks(message))
