"""Messages of the Messages API: their content blocks, and the rules that the provider enforces.

Pure functions over parsed JSON. Unknown block types are kept as they came.
Format: https://docs.anthropic.com/en/api/messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from agentobs.provider.dialect import Block, BlockKind, SealedShape, Turn, text_of


def tool_uses(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the `tool_use` blocks of a message: the calls that the client has to run."""
    return [block for block in blocks(message) if block.get("type") == "tool_use"]


def tool_results(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the `tool_result` blocks of a message."""
    return [block for block in blocks(message) if block.get("type") == "tool_result"]


def fault(messages: Sequence[Any]) -> str | None:
    """Return why the provider would refuse a conversation, in its own words, or None.

    Checked is what a loop can get wrong with tool calls and empty messages. As the real provider does,
    neighboring messages of one role are taken as one, an id may recur in a later message, and a call at the
    very end is let through (all seen in recorded exchanges of 2026).
    """
    owed: list[Any] = []
    merged = _merged(messages)
    for at, (role, content) in enumerate(merged):
        results = [b.get("tool_use_id") for b in content if b.get("type") == "tool_result"]
        missing = [tool_use_id for tool_use_id in owed if tool_use_id not in results]
        unasked = [tool_use_id for tool_use_id in results if tool_use_id not in owed]
        owed = [block.get("id") for block in content if block.get("type") == "tool_use"]
        if missing:
            return (
                f"messages.{at - 1}: `tool_use` ids were found without `tool_result` blocks immediately "
                f"after: {', '.join(map(str, missing))}. Each `tool_use` block must have a corresponding "
                "`tool_result` block in the next message."
            )
        if unasked:
            return (
                f"messages.{at}: unexpected `tool_use_id` found in `tool_result` blocks: {unasked[0]}. Each "
                "`tool_result` block must have a corresponding `tool_use` block in the previous message."
            )
        if len(set(results)) < len(results):
            return f"messages.{at}: each tool_use must have a single result."
        if len(set(owed)) < len(owed):
            return f"messages.{at}: `tool_use` ids must be unique"
        if owed and role != "assistant":
            return f"messages.{at}: `tool_use` blocks can only be in `assistant` messages"
        if any(block.get("type") == "text" and block.get("text") == "" for block in content):
            return f"messages.{at}: text content blocks must be non-empty"
        if is_blank(content):
            return f"messages.{at}: text content blocks must contain non-whitespace text"
        if not content and at < len(merged) - 1:
            return f"messages.{at}: all messages must have non-empty content"
    if merged and merged[-1][0] == "assistant":
        last = merged[-1][1]
        if last and last[-1].get("type") in ("thinking", "redacted_thinking"):
            return f"messages.{len(merged) - 1}: The final block in an assistant message cannot be `thinking`."
    return None


def fault_of_request(body: Mapping[str, Any]) -> str | None:
    """Return why the provider would refuse a request, in its own words, or None: its conversation, or its thinking."""
    messages = body.get("messages") or ()
    thinking = body.get("thinking")
    is_enabled = isinstance(thinking, dict) and thinking.get("type") == "enabled"
    found = unthought(messages) if is_enabled else None
    if found is None:
        return fault(messages)
    return (
        f"messages.{found.at}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{found.type}`. "
        "When `thinking` is enabled, a final `assistant` message must start with a thinking block."
    )


class Unthought(NamedTuple):
    """An answer whose calls have results now, and which began without thinking."""

    at: int
    """Which message, neighboring ones of one role taken as one."""
    type: str
    """What it begins with."""


def unthought(messages: Sequence[Any]) -> Unthought | None:
    """Return the last answer where tools have answered it, and it did not begin with thinking; else None.

    The provider refuses a budget of thinking then (seen in recorded exchanges of 2026).
    """
    merged = _merged(messages)
    if len(merged) < 2 or merged[-1][0] != "user" or merged[-2][0] != "assistant":
        return None
    if not any(block.get("type") == "tool_result" for block in merged[-1][1]):
        return None
    first = str(merged[-2][1][0].get("type")) if merged[-2][1] else "nothing"
    is_thought = first in ("thinking", "redacted_thinking")
    return None if is_thought else Unthought(len(merged) - 2, first)


def is_blank(content: Sequence[Any]) -> bool:
    """Return whether content blocks are nothing but text without any letter; the provider refuses such a message."""
    return bool(content) and all(
        isinstance(block, dict)
        and block.get("type") == "text"
        and not str(block.get("text") or "").strip()
        for block in content
    )


def _merged(messages: Sequence[Any]) -> list[tuple[str, list[dict[str, Any]]]]:
    merged: list[tuple[str, list[dict[str, Any]]]] = []
    for message in messages:
        role = str(message.get("role"))
        if merged and merged[-1][0] == role:
            merged[-1][1].extend(blocks(message))
        else:
            merged.append((role, list(blocks(message))))
    return merged


def blocks(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the content blocks of a message; a plain string becomes one text block."""
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        return []
    return [block for block in content if isinstance(block, dict)]


def turn(message: Any) -> Turn:
    """Return a message as neutral blocks; what is not a message has none."""
    if not isinstance(message, dict):
        return Turn("other", ())
    content = message.get("content")
    if isinstance(content, str):
        return Turn(role_of(message), (_text_block(content),), message)
    listed = content if isinstance(content, list) else []
    made = (_block(each, at) for at, each in enumerate(listed) if isinstance(each, dict))
    return Turn(role_of(message), tuple(made), message)


def role_of(message: Mapping[str, Any]) -> Literal["user", "assistant", "other"]:
    """Return whose message it is."""
    role = message.get("role")
    return role if role in ("user", "assistant") else "other"


def _text_block(text: str) -> Block:
    raw = {"type": "text", "text": text}
    return Block("text", "text", text=text, raw=raw, keys=("content",))


def _block(block: dict[str, Any], at: int) -> Block:
    type_name = str(block.get("type"))
    kind, field = _kind_of(type_name), _FIELDS.get(type_name, "")
    is_cut = kind in ("call", "provider_call") and "partial_json" in block
    if kind in ("call", "provider_call"):
        field = "partial_json" if is_cut else "input"
    elif kind in ("result", "provider_result"):
        field = "content"
    own_id, value = block.get("tool_use_id") or block.get("id"), block.get(field)
    is_text = kind in ("text", "reasoning") and isinstance(value, str)
    return Block(
        kind=kind,
        type=type_name,
        id=str(own_id) if own_id is not None else None,
        text=str(value) if is_text else text_of(value) if kind == "result" else "",
        name=str(block.get("name")) if "name" in block else "",
        value=None if kind in ("text", "reasoning", "other") else value,
        is_error=bool(block.get("is_error")),
        is_cut=is_cut,
        raw=block,
        keys=_place(block, at, kind, field),
    )


_FIELDS = {"text": "text", "thinking": "thinking"}
"""The field of a block that holds its text."""


def _kind_of(type_name: str) -> BlockKind:
    match type_name:
        case "text":
            return "text"
        case "thinking" | "redacted_thinking":
            return "reasoning"
        case "tool_use":
            return "call"
        case "tool_result":
            return "result"
        case _ if type_name.endswith("tool_use"):
            return "provider_call"
        case _ if type_name.endswith("tool_result"):
            return "provider_result"
        case _:
            return "other"


def _place(block: Mapping[str, Any], at: int, kind: BlockKind, field: str) -> tuple[str | int, ...]:
    """Return where in the message stands what a block shows: a text, an input, or the block itself."""
    value = block.get(field)
    if kind == "other" or (kind in ("text", "reasoning") and not isinstance(value, str)):
        return ("content", at)
    if kind in ("result", "provider_result") and isinstance(value, list) and len(value) == 1:
        [part] = value
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            return ("content", at, field, 0, "text")
    return ("content", at, field)


def without_ids(value: Any, within: str = "") -> Any:
    """Return a request without the IDs of its blocks, and without what the provider has sealed."""
    if isinstance(value, dict):
        is_block = "type" in value and within == "content"
        return {
            key: without_ids(inner, "content" if key == "content" else "")
            for key, inner in value.items()
            if not (is_block and key in _IDS and isinstance(inner, str))
        }
    if isinstance(value, list):
        return [without_ids(each, within) for each in value]
    return value


_IDS = {"id", "tool_use_id", "signature", "data"}
"""Keys of blocks whose values differ in each run."""


def unmarked_entry(message: bytes) -> bytes:
    """Return a message without the cache breakpoints of its blocks, all as compact JSON."""
    if b'"cache_control"' not in message:
        return message
    if _is_marked_last(message):
        return message[: -len(_LAST_MARK)] + b"}]}"
    value = json.loads(message)
    for block in blocks(value) if isinstance(value, dict) else ():
        block.pop("cache_control", None)
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


_LAST_MARK = b',"cache_control":{"type":"ephemeral"}}]}'
"""How a message ends whose last block is marked, as agents mark it."""


def _is_marked_last(message: bytes) -> bool:
    """Return whether nothing of a message is marked but its last block; what is no longer sure is read."""
    return (
        message.endswith(_LAST_MARK)
        and message.startswith(b'{"role":"user","content":[{')
        and message.count(b"cache_control") == 1
        and b'],"' not in message
    )


SEALED_SHAPE = SealedShape(
    marks=(b"signature", b"encrypted_", b"redacted_thinking"),
    value=re.compile(
        rb'\\{0,7}"(signature|encrypted_[a-z_]{1,32}|data)\\{0,7}"\s{0,4}:\s{0,4}\\{0,7}"([A-Za-z0-9+/_-]{64,}+={0,2})'
    ),
    marks_near={b"data": b"redacted_thinking"},
)
"""What the provider has sealed and a client hands back as it is: base64 in which the account's own id is readable."""
