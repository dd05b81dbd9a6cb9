"""Messages of the Messages API: their content blocks, parameters and details, and the rules that the provider enforces.

All functions are pure, with parsed JSON as input. Blocks of unknown types are kept unchanged.
Format: https://docs.anthropic.com/en/api/messages.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from agentobs.provider.dialect import (
    Block,
    BlockKind,
    CallLimits,
    Message,
    SealedShape,
    Turn,
    text_of,
)


def tool_uses(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the `tool_use` blocks of a message: the calls that the client must run."""
    return [block for block in blocks(message) if block.get("type") == "tool_use"]


def tool_results(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the `tool_result` blocks of a message."""
    return [block for block in blocks(message) if block.get("type") == "tool_result"]


def conversation_error(messages: Sequence[Any]) -> str | None:
    """Return the error message with which the provider would reject a conversation; None if it would accept it.

    This checks the errors that an agent loop can make with tool calls and empty messages. Like the real provider, this
    function merges adjacent messages of one role, allows an ID to recur in a later message, and accepts a tool call at
    the end (all observed in recorded exchanges of 2026).
    """
    open_calls: list[Any] = []
    merged = _merged(messages)
    for at, (role, content) in enumerate(merged):
        results = [b.get("tool_use_id") for b in content if b.get("type") == "tool_result"]
        missing = [tool_use_id for tool_use_id in open_calls if tool_use_id not in results]
        unexpected = [tool_use_id for tool_use_id in results if tool_use_id not in open_calls]
        open_calls = [block.get("id") for block in content if block.get("type") == "tool_use"]
        if missing:
            return (
                f"messages.{at - 1}: `tool_use` ids were found without `tool_result` blocks immediately "
                f"after: {', '.join(map(str, missing))}. Each `tool_use` block must have a corresponding "
                "`tool_result` block in the next message."
            )
        if unexpected:
            return (
                f"messages.{at}: unexpected `tool_use_id` found in `tool_result` blocks: {unexpected[0]}. Each "
                "`tool_result` block must have a corresponding `tool_use` block in the previous message."
            )
        if len(set(results)) < len(results):
            return f"messages.{at}: each tool_use must have a single result."
        if len(set(open_calls)) < len(open_calls):
            return f"messages.{at}: `tool_use` ids must be unique"
        if open_calls and role != "assistant":
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


def request_error(body: Mapping[str, Any]) -> str | None:
    """Return the error message with which the provider would reject a request; None if it would accept it.

    The conversation and the use of thinking are checked.
    """
    messages = body.get("messages") or ()
    thinking = body.get("thinking")
    is_enabled = isinstance(thinking, dict) and thinking.get("type") == "enabled"
    found = response_without_thinking(messages) if is_enabled else None
    if found is None:
        return conversation_error(messages)
    return (
        f"messages.{found.at}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{found.type}`. "
        "When `thinking` is enabled, a final `assistant` message must start with a thinking block."
    )


class ResponseWithoutThinking(NamedTuple):
    """A response that does not start with thinking, and whose tool calls have results."""

    at: int
    """The index of the message, with adjacent messages of one role merged."""
    type: str
    """The type of its first block."""


def response_without_thinking(messages: Sequence[Any]) -> ResponseWithoutThinking | None:
    """Return the last response if it does not start with thinking and the conversation ends with its tool results.

    Otherwise return None. The provider rejects a thinking budget for such a conversation (observed in recorded
    exchanges of 2026).
    """
    merged = _merged(messages)
    if len(merged) < 2 or merged[-1][0] != "user" or merged[-2][0] != "assistant":
        return None
    if not any(block.get("type") == "tool_result" for block in merged[-1][1]):
        return None
    first = str(merged[-2][1][0].get("type")) if merged[-2][1] else "nothing"
    starts_with_thinking = first in ("thinking", "redacted_thinking")
    return None if starts_with_thinking else ResponseWithoutThinking(len(merged) - 2, first)


def is_blank(content: Sequence[Any]) -> bool:
    """Return whether all content blocks are texts that contain only whitespace; the provider rejects such a message."""
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
    """Return a message as provider-neutral blocks; a value that is not a message has no blocks."""
    if not isinstance(message, dict):
        return Turn("other", ())
    content = message.get("content")
    if isinstance(content, str):
        return Turn(role_of(message), (_text_block(content),), message)
    listed = content if isinstance(content, list) else []
    made = (_block(each, at) for at, each in enumerate(listed) if isinstance(each, dict))
    return Turn(role_of(message), tuple(made), message)


def role_of(message: Mapping[str, Any]) -> Literal["user", "assistant", "other"]:
    """Return the role of a message; `other` if it is not `user` or `assistant`."""
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
    block_id, value = block.get("tool_use_id") or block.get("id"), block.get(field)
    is_text = kind in ("text", "reasoning") and isinstance(value, str)
    return Block(
        kind=kind,
        type=type_name,
        id=str(block_id) if block_id is not None else None,
        text=str(value) if is_text else text_of(value) if kind == "result" else "",
        name=str(block.get("name")) if "name" in block else "",
        value=None if kind in ("text", "reasoning", "other") else value,
        is_error=bool(block.get("is_error")),
        is_cut=is_cut,
        raw=block,
        keys=_place(block, at, kind, field),
    )


_FIELDS = {"text": "text", "thinking": "thinking"}
"""The field of a block that contains its text, by block type."""


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


def is_provider_call(block: Mapping[str, Any]) -> bool:
    """Return whether a block is a call of a tool that the provider runs."""
    return _kind_of(str(block.get("type"))) == "provider_call"


def is_provider_result(block: Mapping[str, Any]) -> bool:
    """Return whether a block is the result of a tool that the provider runs."""
    return _kind_of(str(block.get("type"))) == "provider_result"


def _place(block: Mapping[str, Any], at: int, kind: BlockKind, field: str) -> tuple[str | int, ...]:
    """Return the path in the message to the content of a block: to a text, an input, or the block itself."""
    value = block.get(field)
    if kind == "other" or (kind in ("text", "reasoning") and not isinstance(value, str)):
        return ("content", at)
    if kind in ("result", "provider_result") and isinstance(value, list) and len(value) == 1:
        [part] = value
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            return ("content", at, field, 0, "text")
    return ("content", at, field)


def without_ids(value: Any, within: str = "") -> Any:
    """Return a request without the IDs of its blocks and without sealed values."""
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
"""Keys of blocks with values that differ in each run."""


def without_entry_breakpoints(message: bytes) -> bytes:
    """Return a message without the cache breakpoints of its blocks, both as compact JSON."""
    if b'"cache_control"' not in message:
        return message
    if _has_only_last_breakpoint(message):
        return message[: -len(_LAST_BREAKPOINT)] + b"}]}"
    value = json.loads(message)
    for block in blocks(value) if isinstance(value, dict) else ():
        block.pop("cache_control", None)
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


_LAST_BREAKPOINT = b',"cache_control":{"type":"ephemeral"}}]}'
"""The end of a message whose last block has a cache breakpoint, in the usual formatting of agents."""


def _has_only_last_breakpoint(message: bytes) -> bool:
    """Return whether the last block certainly has the only cache breakpoint of a message. If not, the message is
    parsed.
    """
    return (
        message.endswith(_LAST_BREAKPOINT)
        and message.startswith(b'{"role":"user","content":[{')
        and message.count(b"cache_control") == 1
        and b'],"' not in message
    )


SEALED_SHAPE = SealedShape(
    markers=(b"signature", b"encrypted_", b"redacted_thinking"),
    value=re.compile(
        rb'\\{0,7}"(signature|encrypted_[a-z_]{1,32}|data)\\{0,7}"\s{0,4}:\s{0,4}\\{0,7}"([A-Za-z0-9+/_-]{64,}+={0,2})'
    ),
    nearby_markers={b"data": b"redacted_thinking"},
)
"""The form of values that the provider has sealed and that a client sends back unchanged: base64 that contains the
account's ID in plain text.
"""


_PARAMETERS = (
    "max_tokens", "temperature", "top_p", "top_k", "stream", "service_tier", "inference_geo", "speed",
    "thinking.type", "thinking.budget_tokens", "thinking.display",
    "tool_choice.type", "tool_choice.name", "tool_choice.disable_parallel_tool_use",
    "output_config.effort", "output_config.format.type", "cache_control.type", "cache_control.ttl",
)  # fmt: skip
"""The paths of parameters whose values are numbers, booleans, names of tools or words that the API defines.

Source: anthropic 2.12, `types/message_create_params.py`, and earlier versions for the sampling parameters. Parameters
with free text (`metadata`, `stop_sequences`) and unknown parameters are content.
"""


def parameters(body: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    """Return the parameters in a request body by path. Values of another type, and numbers that are not finite or have
    more than 64 bits, are left out.

    Of the skills of a container, only the number is a parameter.
    """
    found: dict[str, bool | int | float | str] = {}
    for path in _PARAMETERS:
        value: Any = body
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        is_number = (isinstance(value, int) and abs(value) < 2**63) or (
            isinstance(value, float) and math.isfinite(value)
        )
        if is_number or isinstance(value, str):
            found[path] = value
    skills = _inner(body.get("container"), "skills")
    if isinstance(skills, list):
        found["container.skills"] = len(skills)
    return found


def response_details(history: Sequence[Turn], response: Message) -> dict[str, Any]:
    """Return the details of a response by name; names without a value are left out.

    The names are those of `openinference-instrumentation-anthropic` 3.1.0 (`_get_response_metadata`).

    Args:
        history: the conversation of the request, which also has callers and toolsets of tool calls.
        response: the response.
    """
    raw, usage = response.raw, response.usage or {}
    server = usage.get("server_tool_use")
    blocks = [block for turn in (*history, response) for block in turn.blocks]
    found = {
        "stop_details": raw.get("stop_details"),
        "cache_miss_reason": _inner(raw.get("diagnostics"), "cache_miss_reason"),
        "container_id": _inner(raw.get("container"), "id"),
        "context_management_applied_edits": _inner(raw.get("context_management"), "applied_edits"),
        "input_transformations": raw.get("input_transformations"),
        "usage_iterations": usage.get("iterations"),
        "server_tool_use": server if isinstance(server, dict) and any(server.values()) else None,
        "citations": {
            str(number): block.raw["citations"]
            for number, block in enumerate(response.blocks)
            if block.kind == "text" and block.raw.get("citations")
        },
        "mcp_server_names": {
            str(block.id): block.raw.get("server_name")
            for block in response.blocks
            if block.type == "mcp_tool_use"
        },
        "tool_callers": dict(_of_calls(blocks, "caller")),
        "toolset_names": dict(_of_calls(blocks, "toolset_name")),
    }
    return {name: value for name, value in found.items() if value}


def _of_calls(blocks: Sequence[Block], name: str) -> Iterator[tuple[str, Any]]:
    """Yield a value of tool calls and results by the ID of the call; later blocks win. Direct calls have no caller."""
    for block in blocks:
        value = block.raw.get(name)
        if value and value != {"type": "direct"} and block.type != "text":
            yield str(block.id), value


def _inner(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def call_limits(body: Mapping[str, Any]) -> dict[str, CallLimits]:
    """Return the limits that a request sets for tools of the provider, by the name of the tool."""
    tools = body.get("tools")
    return {
        name: CallLimits(
            _count(tool.get("max_uses")),
            _count(tool.get("max_tokens", tool.get("max_content_tokens"))),
        )
        for tool in (tools if isinstance(tools, list) else ())
        if isinstance(tool, Mapping)
        and isinstance(name := tool.get("name"), str)
        and "input_schema" not in tool
    }


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value <= _COUNT_MAX else None


_COUNT_MAX = 10**9
"""A larger limit is not recorded, because it cannot be a number of calls or tokens. Our choice."""
