"""Content of spans: that of one exchange, as the JSON texts that telemetry products read, limited in size.

Only sessions that opted in have any. What does not fit is cut, and the amount is reported: long texts lose their
middle, and messages are dropped from the earliest on, because each request repeats them all. Secrets have been redacted
before.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from agentobs.provider.dialect import Block, Dialect, Message, Turn
from agentobs.provider.registry import dialect_of_body, turns
from agentobs.records.backend import Said

PART_CHARACTERS = 16 * 1024
"""The maximum length of one text of a message. Our choice."""
WHOLE_CHARACTERS = 64 * 1024
"""The maximum length of one attribute. Our choice: four of them fit into a gRPC message, which may have 4 MiB."""


@dataclass(slots=True)
class Content:
    """The texts of one exchange."""

    texts: dict[str, str] = field(default_factory=dict)
    """JSON by part: `input`, `output`, `system`, `tools`."""
    cut_characters: int = 0
    """How much of them was left out."""
    cut_messages: int = 0
    """How many messages were left out, the earliest ones."""
    is_unreadable: bool = False
    """Whether a part could not be read, and is missing."""


def content_of_request(said: Said) -> Content:
    """Return the input and the output of a model call."""
    content = Content()
    asked = _parsed(said.question)
    if isinstance(asked, dict):
        dialect = dialect_of_body(asked)
        _put_messages(content, turns(asked))
        if system := dialect.system(asked):
            _put(content, "system", [_part(block, content) for block in system.blocks])
        if isinstance(tools := asked.get(dialect.head_keys.get("tools", "")), list):
            _put(content, "tools", [_tool(each, content, dialect) for each in tools])
    elif said.question:
        content.is_unreadable = True
    answered = _answer(said.answer, dialect_of_body(asked))
    if answered.raw:
        parts = [_part(block, content) for block in answered.blocks]
        reason = answered.stop_reason
        _put(
            content,
            "output",
            [{"role": "assistant", "parts": parts, "finish_reason": reason or "error"}],
        )
    elif said.answer:
        content.is_unreadable = True
    return content


def content_of_call(said: Said) -> Content:
    """Return the input and the output of a tool call."""
    content = Content()
    for part, raw in (("input", said.question), ("output", said.answer)):
        value = _parsed(raw)
        if value is None and raw.strip() != b"null":
            content.is_unreadable = True
        else:
            _put(content, part, _cut(value, content))
    return content


def _put_messages(content: Content, messages: list[Turn]) -> None:
    """Add the latest messages that fit, in their order."""
    kept: list[dict[str, Any]] = []
    room = WHOLE_CHARACTERS
    for message in reversed(messages):
        parts = [_part(block, content) for block in message.blocks]
        told = {"role": str(message.raw.get("role")), "parts": parts}
        size = len(_json(told))
        if size > room and kept:
            break
        kept.append(told)
        room -= size
    content.cut_messages = len(messages) - len(kept)
    _put(content, "input", kept[::-1])


def _put(content: Content, part: str, value: Any) -> None:
    text = _json(value)
    if len(text) > WHOLE_CHARACTERS:
        content.cut_characters += len(text) - WHOLE_CHARACTERS
        # Each character of a nested text may be escaped.
        text = _json({"cut": True, "begins": text[: WHOLE_CHARACTERS // 2]})
    content.texts[part] = text


def _part(block: Block, content: Content) -> dict[str, Any]:
    """Return a block with the names of the conventions; unknown blocks keep their type and size."""
    match block.kind:
        case "text":
            return {"type": "text", "content": _cut(block.text, content)}
        case "reasoning" if block.text:
            return {"type": "reasoning", "content": _cut(block.text, content)}
        case "call" | "provider_call":
            named = {"id": block.id, "name": block.name}
            return {"type": "tool_call", **named, "arguments": _cut(block.value, content)}
        case "result":
            response = _cut(block.value, content)
            return {"type": "tool_call_response", "id": block.id, "response": response}
        case _:
            content.cut_characters += (size := len(_json(block.raw)))
            return {"type": block.type, "characters": size}


def _tool(tool: Any, content: Content, dialect: Dialect) -> Any:
    definition = dialect.tool_definition(tool)
    if definition is None:
        return _cut(tool, content)
    name, description, schema = definition
    named = {"type": "function", "name": name, "description": description}
    return _cut({**named, "parameters": schema}, content)


def _cut(value: Any, content: Content) -> Any:
    """Return a value with long texts cut in their middle, or as a cut text if it is too long itself."""
    if isinstance(value, str) and len(value) > PART_CHARACTERS:
        return _shortened(value, content)
    if isinstance(value, dict | list) and len(text := _json(value)) > PART_CHARACTERS:
        return _shortened(text, content)
    return value


def _shortened(text: str, content: Content) -> str:
    kept = PART_CHARACTERS // 2
    left_out = len(text) - 2 * kept
    content.cut_characters += left_out
    return f"{text[:kept]} [... {left_out} characters cut ...] {text[-kept:]}"


def _answer(body: bytes, dialect: Dialect) -> Message:
    """Return the message of a body with unknown headers."""
    return dialect.message({}, body)


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


def _json(value: Any) -> str:
    """Return a value as JSON that any receiver can read: lone surrogates are escaped."""
    return (
        json.dumps(value, ensure_ascii=False, default=str)
        .encode("utf-8", "backslashreplace")
        .decode()
    )
