"""Content for spans: what was said in one exchange, as the JSON texts that telemetry products read, bounded.

Only sessions that opted in have any. What does not fit is cut, and how much was cut is told: long texts in their
middle, and of the messages the earliest, for each request repeats them all. What comes in here has no secrets any more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentobs.provider.cloud_frames import unframed
from agentobs.provider.messages import assemble, blocks
from agentobs.records.backend import Said

PART_CHARACTERS = 16 * 1024
"""How long one text of a message may be. Our choice."""
WHOLE_CHARACTERS = 64 * 1024
"""How long one attribute may be. Our choice: four of them fit into a message of gRPC, which may have 4 MiB."""

_STREAM = {"content-type": "text/event-stream"}
_JSON = {"content-type": "application/json"}


@dataclass(slots=True)
class Content:
    """The texts of one exchange."""

    texts: dict[str, str] = field(default_factory=dict)
    """JSON by part: `input`, `output`, `system`, `tools`."""
    cut_characters: int = 0
    """How much was left out of what is there."""
    cut_messages: int = 0
    """How many messages were left out, the earliest ones."""
    is_unreadable: bool = False
    """Whether a part could not be read, and is missing."""


def content_of_request(said: Said) -> Content:
    """Return what a model was told and answered."""
    content = Content()
    asked = _parsed(said.question)
    if isinstance(asked, dict):
        messages = [each for each in asked.get("messages") or () if isinstance(each, dict)]
        _put_messages(content, messages)
        if asked.get("system"):
            _put(content, "system", _parts({"content": asked["system"]}, content))
        if isinstance(asked.get("tools"), list):
            _put(content, "tools", [_tool(each, content) for each in asked["tools"]])
    elif said.question:
        content.is_unreadable = True
    answered = _answer(said.answer)
    if answered:
        parts = _parts(answered, content)
        reason = answered.get("stop_reason")
        _put(
            content,
            "output",
            [{"role": "assistant", "parts": parts, "finish_reason": reason or "error"}],
        )
    elif said.answer:
        content.is_unreadable = True
    return content


def content_of_call(said: Said) -> Content:
    """Return what a tool was given and gave."""
    content = Content()
    for part, raw in (("input", said.question), ("output", said.answer)):
        value = _parsed(raw)
        if value is None and raw.strip() != b"null":
            content.is_unreadable = True
        else:
            _put(content, part, _cut(value, content))
    return content


def _put_messages(content: Content, messages: list[dict[str, Any]]) -> None:
    """Put the latest messages that fit, in their order."""
    kept: list[dict[str, Any]] = []
    room = WHOLE_CHARACTERS
    for message in reversed(messages):
        told = {"role": str(message.get("role")), "parts": _parts(message, content)}
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
        # A text within a text may have each of its characters escaped.
        text = _json({"cut": True, "begins": text[: WHOLE_CHARACTERS // 2]})
    content.texts[part] = text


def _parts(message: Mapping[str, Any], content: Content) -> list[dict[str, Any]]:
    return [_part(block, content) for block in blocks(dict(message))]


def _part(block: dict[str, Any], content: Content) -> dict[str, Any]:
    """Return a block as the conventions name it; what they have no name for keeps its type and its size."""
    match block.get("type"):
        case "text":
            return {"type": "text", "content": _cut(block.get("text"), content)}
        case "thinking":
            return {"type": "reasoning", "content": _cut(block.get("thinking"), content)}
        case "tool_use" | "server_tool_use" | "mcp_tool_use":
            arguments = _cut(block.get("input"), content)
            named = {"id": block.get("id"), "name": block.get("name")}
            return {"type": "tool_call", **named, "arguments": arguments}
        case "tool_result":
            response = _cut(block.get("content"), content)
            return {
                "type": "tool_call_response",
                "id": block.get("tool_use_id"),
                "response": response,
            }
        case kind:
            content.cut_characters += (size := len(_json(block)))
            return {"type": str(kind), "characters": size}


def _tool(tool: Any, content: Content) -> Any:
    if not isinstance(tool, dict) or "input_schema" not in tool:
        return _cut(tool, content)
    named = {"type": "function", "name": tool.get("name"), "description": tool.get("description")}
    return _cut({**named, "parameters": tool["input_schema"]}, content)


def _cut(value: Any, content: Content) -> Any:
    """Return a value without the middle of its long texts, or as a cut text where it is long as a whole."""
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


def _answer(body: bytes) -> dict[str, Any]:
    """Return the message of a body: one JSON object, a stream, or a stream in frames."""
    if body.lstrip()[:1] == b"{":
        return assemble(_JSON, body)
    return assemble(_STREAM, body) or assemble(_STREAM, unframed(body))


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


def _json(value: Any) -> str:
    """Return a value as JSON that any receiver can read: a lone surrogate stands as its escape."""
    return (
        json.dumps(value, ensure_ascii=False, default=str)
        .encode("utf-8", "backslashreplace")
        .decode()
    )
