"""Counting: how many tokens a conversation has.

The usage of the last answer is exact for all that was sent and said; only what came after it is estimated, so
that no estimate is older than one turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentobs.agent.context.window_policy import Counted
from agentobs.records.canonical_json import Json

BYTES_PER_TOKEN = 3.5
"""UTF-8 bytes per token. The provider's glossary says 3.5 characters of English; recorded English prose has
4.1 to 5.8, code and JSON less, newer models up to a third less again. Bytes and not characters, because other
scripts need about a token for each character."""

IMAGE_TOKENS = 1_600
"""An image: as many as the largest has that is not scaled down
(https://docs.claude.com/en/docs/build-with-claude/vision)."""

PAGE_TOKENS = 3_000
"""A page of a PDF: text and image, 1,500 to 3,000 of text alone
(https://docs.claude.com/en/docs/build-with-claude/pdf-support)."""
PAGE_CHARS = 50_000
"""Base64 characters that count as one page. Our choice; a recorded page has 25,000."""

TOOLS_TOKENS = 700
"""What declaring any tool costs beside the declarations: 346 with most models
(https://docs.claude.com/en/docs/agents-and-tools/tool-use/overview, pricing), some 700 in recordings of 4.7."""

_OPAQUE = ("signature", "encrypted_content", "encrypted_index")
"""Fields that the provider reads, and the model does not."""


def estimate(messages: Sequence[Json]) -> int:
    """Return about how many tokens messages have. Before a compaction of the provider's the model sees nothing."""
    seen = messages[covered(messages) :]
    return round(sum(_tokens(message.get("content")) for message in seen)) + len(seen)


def declared(system: Any, tools: Sequence[Json]) -> int:
    """Return about how many tokens the system prompt and the declarations of tools have."""
    return round(_tokens(system) + _tokens(list(tools))) + (TOOLS_TOKENS if tools else 0)


def text_tokens(text: str) -> int:
    """Return about how many tokens a text has."""
    return round(_tokens(text))


def held(usage: Any) -> int | None:
    """Return how many tokens a conversation has with an answer of this usage; None where it does not tell.

    Where the provider went round several times for one answer, the last time read all of what stays.
    """
    if not isinstance(usage, dict):
        return None
    rounds = usage.get("iterations")
    said = [each for each in rounds if _is_answer(each)] if isinstance(rounds, list) else []
    if rounds and not said:
        return None  # it paused after a compaction: what stays was not read yet
    last = said[-1] if said else usage
    parts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    sent = sum(_count(last.get(name)) for name in parts)
    return sent + _count(last.get("output_tokens")) if sent else None


def output_tokens(usage: Any) -> int:
    """Return how many tokens an answer of this usage has."""
    return _count(usage.get("output_tokens")) if isinstance(usage, dict) else 0


def tokens_of(messages: Sequence[Json], counted: Counted | None, around: int) -> int:
    """Return how many tokens a conversation has.

    Args:
        messages: the conversation.
        counted: how long it was when it was last counted.
        around: what stands around it, see `declared`; a count holds that already.
    """
    if counted is None or not is_counted(messages, counted):
        return around + estimate(messages)
    return counted.tokens + estimate(messages[counted.messages :])


def is_counted(messages: Sequence[Json], counted: Counted | None) -> bool:
    """Return whether a count holds for a conversation: not where the provider itself has made it shorter since."""
    if counted is None or not counted.holds(messages):
        return False
    return not any(map(_is_boundary, messages[counted.messages :]))


def after(tokens: int, before: int, now: int) -> int:
    """Return how many tokens stay of a conversation that had `tokens`, from estimates before and now.

    The estimates give the share that stays: where they are wrong, they are wrong of both in much the same way.
    """
    return round(tokens * now / before) if before > 0 else max(tokens, now)


def covered(messages: Sequence[Json]) -> int:
    """Return how many messages lie before the last compaction that the provider made itself."""
    places = reversed(range(len(messages)))
    return next((at for at in places if _is_boundary(messages[at])), 0)


def _is_boundary(message: Json) -> bool:
    content = message.get("content")
    if not isinstance(content, list):
        return False
    return any(isinstance(block, dict) and is_compaction(block) for block in content)


def is_compaction(block: Json) -> bool:
    """Return whether a block stands for all that was said before it; one without content stands for nothing."""
    return block.get("type") == "compaction" and bool(
        block.get("content") or block.get("encrypted_content")
    )


def _is_answer(round_: Any) -> bool:
    return isinstance(round_, dict) and str(round_.get("type")).endswith("message")


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _tokens(value: Any) -> float:
    """Return about how many tokens a JSON value has, however deep it is nested."""
    total, waiting = 0.0, [value]
    while waiting:
        each = waiting.pop()
        kind = type(each)  # asked for directly: a long conversation has tens of thousands of values
        if kind is str:
            total += _bytes(each) / BYTES_PER_TOKEN
        elif kind is dict:
            total += _of_object(each, waiting)
        elif kind is list or kind is tuple:
            waiting += each
        elif each is not None:
            total += 1
    return total


def _of_object(value: Json, waiting: list[Any]) -> float:
    """Return about how many tokens an object has beside what is left `waiting`."""
    match value.get("type"), value.get("source"):
        case "image", _:
            return IMAGE_TOKENS
        case "document", dict() as source if source.get("type") != "text":
            waiting.append(source.get("content"))
            data = source.get("data")
            pages = 1 + (len(data) // PAGE_CHARS if isinstance(data, str) else 0)
            return PAGE_TOKENS * pages
    names = [name for name in value if name not in _OPAQUE]
    waiting += [value[name] for name in names]
    return sum(map(len, names)) / BYTES_PER_TOKEN


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
