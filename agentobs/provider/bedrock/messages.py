"""Messages of the Converse API: their content blocks, and their cache points.

A content block is an object with one key, its kind. Format: the service model of bedrock-runtime (boto3 1.44).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from agentobs.provider.dialect import Block, Turn

KINDS = frozenset(
    {
        "audio", "cachePoint", "citationsContent", "document", "guardContent", "image", "reasoningContent",
        "searchResult", "text", "toolAddition", "toolRemoval", "toolResult", "toolUse", "video",
    }
)  # fmt: skip
"""The kinds of content blocks."""


def turn(message: Any) -> Turn:
    """Return a message as provider-neutral blocks; a value that is not a message has no blocks."""
    if not isinstance(message, dict):
        return Turn("other", ())
    found = message.get("role")
    role: Literal["user", "assistant", "other"] = (
        found if found in ("user", "assistant") else "other"
    )
    content = message.get("content")
    listed = content if isinstance(content, list) else []
    blocks = (_block(each, at) for at, each in enumerate(listed) if isinstance(each, dict))
    return Turn(role, tuple(blocks), message)


def is_message(message: Any) -> bool:
    """Return whether a message has the shape of this API: all of its blocks have one key, which is a kind."""
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list) or not content:
        return False
    return all(
        isinstance(block, dict) and len(block) == 1 and block.keys() <= KINDS for block in content
    )


def _block(block: dict[str, Any], at: int) -> Block:
    kind = next(iter(block), "")
    inner = block.get(kind)
    place = ("content", at, kind)
    if kind == "text":
        return Block("text", kind, text=str(inner), raw=block, keys=place)
    if not isinstance(inner, dict):
        return Block("other", kind, raw=block, keys=("content", at))
    match kind:
        case "toolUse":
            return _call(block, inner, place)
        case "toolResult":
            return _result(block, inner, place)
        case "reasoningContent":
            reasoning = inner.get("reasoningText")
            text = reasoning.get("text") if isinstance(reasoning, dict) else None
            keys = (*place, "reasoningText", "text") if isinstance(text, str) else place
            return Block("reasoning", kind, text=text or "", raw=block, keys=keys)
        case "citationsContent":
            return Block("text", kind, text=_text_of(inner.get("content")), raw=block, keys=place)
        case _:
            return Block("other", kind, raw=block, keys=("content", at))


def _call(block: Mapping[str, Any], call: Mapping[str, Any], place: tuple[str | int, ...]) -> Block:
    text = call.get("partialInput")
    is_cut = isinstance(text, str)
    return Block(
        kind="provider_call" if call.get("type") else "call",
        type="toolUse",
        id=str(call.get("toolUseId")),
        name=str(call.get("name", "")),
        value=text if is_cut else call.get("input"),
        is_cut=is_cut,
        raw=block,
        keys=(*place, "partialInput" if is_cut else "input"),
    )


def _result(
    block: Mapping[str, Any], result: Mapping[str, Any], place: tuple[str | int, ...]
) -> Block:
    content = result.get("content")
    only = content[0] if isinstance(content, list) and len(content) == 1 else None
    is_text = isinstance(only, dict) and "text" in only
    return Block(
        kind="provider_result" if result.get("type") else "result",
        type="toolResult",
        id=str(result.get("toolUseId")),
        text=_text_of(content),
        value=content,
        is_error=result.get("status") == "error",
        raw=block,
        keys=(*place, "content", 0, "text") if is_text else (*place, "content"),
    )


def _text_of(content: Any) -> str:
    """Return the texts and JSON values of a content, joined by newlines."""
    return "\n".join(_texts(content if isinstance(content, list) else []))


def _texts(parts: list[Any]) -> Iterator[str]:
    for part in parts:
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            yield part["text"]
        elif isinstance(part, dict) and "json" in part:
            yield json.dumps(part["json"], ensure_ascii=False)


def without_cache_points(value: Any) -> Any:
    """Return a JSON value without its cache points."""
    if isinstance(value, dict):
        return {key: without_cache_points(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        kept = [each for each in value if not (isinstance(each, dict) and "cachePoint" in each)]
        return type(value)(without_cache_points(each) for each in kept)
    return value


def without_ids(value: Any) -> Any:
    """Return a request body without the IDs and signatures of its blocks."""
    if isinstance(value, dict):
        kept = ((k, v) for k, v in value.items() if k not in _IDS or not isinstance(v, str))
        return {key: without_ids(inner) for key, inner in kept}
    return [without_ids(each) for each in value] if isinstance(value, list) else value


_IDS = frozenset({"toolUseId", "signature", "redactedContent"})
"""Keys with values that differ in each run."""
