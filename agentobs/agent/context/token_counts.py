"""Count the tokens of a conversation.

The usage of the last response is exact for everything up to it. Only later messages are estimated, so no estimate is
older than one turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentobs.agent.context.window_policy import Counted
from agentobs.records.canonical_json import Json

BYTES_PER_TOKEN = 3.5
"""UTF-8 bytes per token. The provider's glossary says 3.5 characters of English; recorded English
prose has 4.1 to 5.8, code and JSON less, newer models up to a third less. Bytes instead of
characters, because other scripts need about one token per character.
"""

IMAGE_TOKENS = 1_600
"""Tokens of an image: the maximum for an image that is not scaled down
(https://docs.claude.com/en/docs/build-with-claude/vision).
"""

PAGE_TOKENS = 3_000
"""Tokens of a PDF page: text and image; the text alone has 1,500 to 3,000
(https://docs.claude.com/en/docs/build-with-claude/pdf-support).
"""
PAGE_CHARS = 50_000
"""Base64 characters that count as one page. Our choice; a recorded page has 25,000."""

TOOLS_TOKENS = 700
"""Tokens for declaring any tools, in addition to the declarations: 346 with most models
(https://docs.claude.com/en/docs/agents-and-tools/tool-use/overview, pricing), about 700 in recordings of 4.7.
"""

_OPAQUE = ("signature", "encrypted_content", "encrypted_index")
"""Fields that only the provider reads, not the model."""


def estimate(messages: Sequence[Json]) -> int:
    """Return the approximate tokens of messages. The model does not see anything before a provider's compaction."""
    seen = messages[covered(messages) :]
    return round(sum(_tokens(message.get("content")) for message in seen)) + len(seen)


def declared(system: Any, tools: Sequence[Json]) -> int:
    """Return the approximate tokens of the system prompt and the tool declarations."""
    return round(_tokens(system) + _tokens(list(tools))) + (TOOLS_TOKENS if tools else 0)


def text_tokens(text: str) -> int:
    """Return the approximate tokens of a text."""
    return round(_tokens(text))


def held(usage: Any) -> int | None:
    """Return the tokens of a conversation including a response with this usage; None if the usage
    does not say.

    If the provider made several iterations for one response, the last one read everything that stays.
    """
    if not isinstance(usage, dict):
        return None
    rounds = usage.get("iterations")
    answers = [each for each in rounds if _is_answer(each)] if isinstance(rounds, list) else []
    if rounds and not answers:
        return None  # it paused after a compaction: the remaining messages were not read yet
    last = answers[-1] if answers else usage
    parts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    sent = sum(_count(last.get(name)) for name in parts)
    return sent + _count(last.get("output_tokens")) if sent else None


def output_tokens(usage: Any) -> int:
    """Return the tokens of a response with this usage."""
    return _count(usage.get("output_tokens")) if isinstance(usage, dict) else 0


def tokens_of(messages: Sequence[Json], counted: Counted | None, around: int) -> int:
    """Return the tokens of a conversation.

    Args:
        messages: the conversation.
        counted: its last known count.
        around: tokens outside the messages, see `declared`; a count already includes them.
    """
    if counted is None or not is_counted(messages, counted):
        return around + estimate(messages)
    return counted.tokens + estimate(messages[counted.messages :])


def is_counted(messages: Sequence[Json], counted: Counted | None) -> bool:
    """Return whether a count is valid for a conversation: not if the provider has compacted it since."""
    if counted is None or not counted.holds(messages):
        return False
    return not any(map(_is_boundary, messages[counted.messages :]))


def after(tokens: int, before: int, now: int) -> int:
    """Return the remaining tokens of a conversation that had `tokens`, from estimates before and now.

    Only the ratio of the estimates is used, because both have about the same error.
    """
    return round(tokens * now / before) if before > 0 else max(tokens, now)


def covered(messages: Sequence[Json]) -> int:
    """Return the number of messages before the last compaction by the provider."""
    places = reversed(range(len(messages)))
    return next((at for at in places if _is_boundary(messages[at])), 0)


def _is_boundary(message: Json) -> bool:
    content = message.get("content")
    if not isinstance(content, list):
        return False
    return any(isinstance(block, dict) and is_compaction(block) for block in content)


def is_compaction(block: Json) -> bool:
    """Return whether a block replaces everything before it; a block without content replaces nothing."""
    return block.get("type") == "compaction" and bool(
        block.get("content") or block.get("encrypted_content")
    )


def _is_answer(round_: Any) -> bool:
    return isinstance(round_, dict) and str(round_.get("type")).endswith("message")


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _tokens(value: Any) -> float:
    """Return the approximate tokens of a JSON value, without recursion."""
    total, waiting = 0.0, [value]
    while waiting:
        each = waiting.pop()
        kind = type(
            each
        )  # not isinstance, for speed: a long conversation has tens of thousands of values
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
    """Return the approximate tokens of an object, except the values added to `waiting`."""
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
