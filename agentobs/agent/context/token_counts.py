"""Count the tokens of a conversation.

The usage of the last response gives the exact count of everything up to that response. Only later messages are
estimated, so estimation errors do not add up over several turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentobs.agent.context.window_policy import TokenCount
from agentobs.records.canonical_json import Json

BYTES_PER_TOKEN = 3.5
"""UTF-8 bytes per token. The provider's glossary gives 3.5 characters of English text per token. In our
recordings, English prose has 4.1 to 5.8 bytes per token. The values for code and JSON are lower, and with newer models,
all values are up to a third lower. Bytes are counted instead of characters, because other scripts need about one token
per character.
"""

IMAGE_TOKENS = 1_600
"""Tokens of an image: the maximum for an image that the provider does not scale down
(https://docs.claude.com/en/docs/build-with-claude/vision).
"""

PAGE_TOKENS = 3_000
"""Tokens of a PDF page, with its text and its image; the text alone has 1,500 to 3,000
(https://docs.claude.com/en/docs/build-with-claude/pdf-support).
"""
PAGE_CHARS = 50_000
"""Number of Base64 characters that count as one page. Our choice; a page in our recordings has 25,000."""

TOOLS_TOKENS = 700
"""Tokens that the provider adds if there are any tools, in addition to the declarations: 346 with most models
(https://docs.claude.com/en/docs/agents-and-tools/tool-use/overview, pricing), about 700 in our recordings of version
4.7.
"""

_OPAQUE = ("signature", "encrypted_content", "encrypted_index")
"""Fields that the provider reads, but the model does not."""


def estimate(messages: Sequence[Json]) -> int:
    """Return the approximate tokens of messages. Messages before a compaction by the provider are not counted, because
    the model does not see them.
    """
    visible = messages[count_compacted_messages(messages) :]
    return round(sum(_tokens(message.get("content")) for message in visible)) + len(visible)


def overhead(system: Any, tools: Sequence[Json]) -> int:
    """Return the approximate tokens of the system prompt and the tool declarations."""
    return round(_tokens(system) + _tokens(list(tools))) + (TOOLS_TOKENS if tools else 0)


def text_tokens(text: str) -> int:
    """Return the approximate tokens of a text."""
    return round(_tokens(text))


def conversation_tokens(usage: Any) -> int | None:
    """Return the tokens of a conversation, including the response with this usage; None if unknown.

    If one response took several iterations, only the last iteration counts, because it read everything that stays in
    the conversation.
    """
    if not isinstance(usage, dict):
        return None
    iterations = usage.get("iterations")
    listed = iterations if isinstance(iterations, list) else []
    messages = [each for each in listed if _is_message_iteration(each)]
    if iterations and not messages:
        return None  # The response paused after a compaction, before the model read the remaining messages.
    last = messages[-1] if messages else usage
    parts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    sent = sum(_token_count(last.get(name)) for name in parts)
    return sent + _token_count(last.get("output_tokens")) if sent else None


def output_tokens(usage: Any) -> int:
    """Return the tokens of a response with this usage."""
    return _token_count(usage.get("output_tokens")) if isinstance(usage, dict) else 0


def tokens_of(messages: Sequence[Json], counted: TokenCount | None, overhead_tokens: int) -> int:
    """Return the tokens of a request with these messages.

    Args:
        messages: the conversation.
        counted: the last known count of the conversation.
        overhead_tokens: the tokens outside the messages, see `overhead`. They are added only if
            there is no valid count, because a count already includes them.
    """
    if counted is None or not is_counted(messages, counted):
        return overhead_tokens + estimate(messages)
    return counted.tokens + estimate(messages[counted.messages :])


def is_counted(messages: Sequence[Json], counted: TokenCount | None) -> bool:
    """Return whether a count is still valid for a conversation, which the provider may have compacted since."""
    if counted is None or not counted.is_valid_for(messages):
        return False
    return not any(map(_is_boundary, messages[counted.messages :]))


def tokens_after(tokens: int, estimate_before: int, estimate_after: int) -> int:
    """Return the approximate token count of a conversation after a reduction.

    Args:
        tokens: the tokens before the reduction, as counted by the provider.
        estimate_before: our estimate before the reduction.
        estimate_after: our estimate after the reduction. Only the ratio of the estimates is used, because both
            have about the same relative error.
    """
    return (
        round(tokens * estimate_after / estimate_before)
        if estimate_before > 0
        else max(tokens, estimate_after)
    )


def count_compacted_messages(messages: Sequence[Json]) -> int:
    """Return the number of messages before the last compaction by the provider; 0 if there was none."""
    places = reversed(range(len(messages)))
    return next((at for at in places if _is_boundary(messages[at])), 0)


def _is_boundary(message: Json) -> bool:
    content = message.get("content")
    if not isinstance(content, list):
        return False
    return any(isinstance(block, dict) and is_compaction(block) for block in content)


def is_compaction(block: Json) -> bool:
    """Return whether a block is a compaction by the provider, which replaces everything before it.

    A compaction block without content replaces nothing.
    """
    return block.get("type") == "compaction" and bool(
        block.get("content") or block.get("encrypted_content")
    )


def _is_message_iteration(iteration: Any) -> bool:
    return isinstance(iteration, dict) and str(iteration.get("type")).endswith("message")


def _token_count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _tokens(value: Any) -> float:
    """Return the approximate tokens of a JSON value, without recursion."""
    total, pending = 0.0, [value]
    while pending:
        each = pending.pop()
        # Not `isinstance`, for speed: a long conversation has tens of thousands of values.
        kind = type(each)
        if kind is str:
            total += _byte_count(each) / BYTES_PER_TOKEN
        elif kind is dict:
            total += _object_tokens(each, pending)
        elif kind is list or kind is tuple:
            pending += each
        elif each is not None:
            total += 1
    return total


def _object_tokens(value: Json, pending: list[Any]) -> float:
    """Return the approximate tokens of an object, except for its values, which are added to `pending`."""
    match value.get("type"), value.get("source"):
        case "image", _:
            return IMAGE_TOKENS
        case "document", dict() as source if source.get("type") != "text":
            pending.append(source.get("content"))
            data = source.get("data")
            pages = 1 + (len(data) // PAGE_CHARS if isinstance(data, str) else 0)
            return PAGE_TOKENS * pages
    names = [name for name in value if name not in _OPAQUE]
    pending += [value[name] for name in names]
    return sum(map(len, names)) / BYTES_PER_TOKEN


def _byte_count(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
