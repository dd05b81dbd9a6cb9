"""What the provider says: server-sent events, and the message that they add up to.

Pure functions over bytes and parsed JSON. Unknown event, block and delta types are kept as they came.
Format: https://docs.anthropic.com/en/docs/build-with-claude/streaming and the HTML standard's
section on event streams.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One server-sent event."""

    name: str
    """The `event:` field; `message` where it is missing."""
    data: str
    """The `data:` fields, joined with newlines."""


def split_events(body: bytes) -> list[bytes]:
    """Split a stream after each blank line; the pieces join to the same bytes.

    What follows the last blank line (an event that never ended) is the last piece.
    """
    pieces: list[bytes] = []
    start = 0
    while (end := _event_end(body, start)) != -1:
        pieces.append(body[start:end])
        start = end
    if start < len(body):
        pieces.append(body[start:])
    return pieces


def server_events(body: bytes) -> Iterator[ServerEvent]:
    """Parse the whole events of a stream; an unfinished last one is left out."""
    for piece in split_events(body):
        if not piece.endswith((b"\n\n", b"\r\n\r\n", b"\r\r", b"\n\r\n")):
            return
        name, data = "message", []
        for line in _LINE_END.split(piece.decode("utf-8", "replace")):
            field, _, value = line.partition(":")
            if field == "event":
                name = value.removeprefix(" ")
            elif field == "data":
                data.append(value.removeprefix(" "))
        if data:
            yield ServerEvent(name, "\n".join(data))


_LINE_END = re.compile(r"\r\n|\n|\r")
"""What ends a line of a stream. `str.splitlines` knows more, such as U+2028, which JSON may hold as it is."""


def is_stream(headers: dict[str, str]) -> bool:
    """Return whether the response headers announce server-sent events."""
    return headers.get("content-type", "").startswith("text/event-stream")


def fold(message: dict[str, Any], event: dict[str, Any]) -> dict[str, Any]:
    """Return `message` after one stream event; the argument is changed in place and returned.

    Start with `{}`. Counts of `message_delta` replace those of `message_start`. Tool input stays as text
    under `partial_json` until its block stops; where that text is not JSON, it stays for good.
    """
    match event.get("type"):
        case "message_start":
            message.update(event["message"])
            message["content"] = list(message.get("content") or [])
        case "content_block_start":
            _put(message, event["index"], dict(event["content_block"]))
        case "content_block_delta":
            _grow(_at(message, event["index"]), event["delta"])
        case "content_block_stop":
            _close(_at(message, event["index"]))
        case "message_delta":
            message.update(event.get("delta") or {})
            if event.get("context_management") is not None:
                message["context_management"] = event["context_management"]
            counts = {k: v for k, v in (event.get("usage") or {}).items() if v is not None}
            message["usage"] = {**(message.get("usage") or {}), **counts}
        case _:
            pass
    return message


def assemble(headers: dict[str, str], body: bytes) -> dict[str, Any]:
    """Return the message (or other JSON object) of a response body, stream or not.

    An error event adds `{"error": ...}`. An empty dict means that nothing could be read.
    """
    if not is_stream(headers):
        parsed = _json_or_none(body.decode("utf-8", "replace"))
        return parsed if isinstance(parsed, dict) else {}
    message: dict[str, Any] = {}
    for server_event in server_events(body):
        event = _json_or_none(server_event.data)
        if not isinstance(event, dict):
            continue
        if server_event.name == "error" or event.get("type") == "error":
            message["error"] = event.get("error", event)
            continue
        try:
            fold(message, event)
        except (KeyError, IndexError, TypeError, AttributeError):
            continue
    return message


def tool_uses(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the `tool_use` blocks of a message: the calls that the client has to run."""
    return [block for block in blocks(message) if block.get("type") == "tool_use"]


def tool_results(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the `tool_result` blocks of a message."""
    return [block for block in blocks(message) if block.get("type") == "tool_result"]


def fault(messages: Sequence[Any]) -> str | None:
    """Return why the provider would refuse a conversation, in its own words, or None.

    Checked is what a loop can get wrong with tool calls and empty messages. As the real provider does,
    neighbouring messages of one role are taken as one, an id may recur in a later message, and a call at the
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
    """Which message, neighbouring ones of one role taken as one."""
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


def blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the content blocks of a message; a plain string becomes one text block."""
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        return []
    return [block for block in content if isinstance(block, dict)]


def text_of(content: Any) -> str:
    """Return the text of a message's or tool result's content, blocks joined by newlines."""
    if isinstance(content, str):
        return content
    parts = [block.get("text") for block in content or [] if isinstance(block, dict)]
    return "\n".join(part for part in parts if isinstance(part, str))


def _event_end(body: bytes, start: int) -> int:
    ends = [
        at + len(mark) for mark in (b"\n\n", b"\r\n\r\n") if (at := body.find(mark, start)) != -1
    ]
    return min(ends, default=-1)


def _json_or_none(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _put(message: dict[str, Any], index: int, block: dict[str, Any]) -> None:
    content = message.setdefault("content", [])
    if index != len(content):
        raise IndexError(f"content block {index} after {len(content)} blocks")
    content.append(block)


def _at(message: dict[str, Any], index: int) -> dict[str, Any]:
    block: dict[str, Any] = message["content"][index]
    return block


_TEXT_DELTAS = {"text_delta": "text", "thinking_delta": "thinking", "compaction_delta": "content"}


def _grow(block: dict[str, Any], delta: dict[str, Any]) -> None:
    kind = delta.get("type")
    if kind in _TEXT_DELTAS:
        field = _TEXT_DELTAS[kind]
        block[field] = (block.get(field) or "") + (delta.get(field) or "")
    elif kind == "signature_delta":
        block["signature"] = delta["signature"]
    elif kind == "input_json_delta":
        block["partial_json"] = block.get("partial_json", "") + delta["partial_json"]
    elif kind == "citations_delta":
        block["citations"] = [*(block.get("citations") or []), delta["citation"]]
    else:
        block.setdefault("unknown_deltas", []).append(delta)


def _close(block: dict[str, Any]) -> None:
    text = block.get("partial_json")
    if text is None:
        return
    parsed = _json_or_none(text) if text else block.get("input", {})
    if parsed is not None:
        block["input"] = parsed
        del block["partial_json"]
