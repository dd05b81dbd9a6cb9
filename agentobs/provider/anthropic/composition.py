"""Write responses and requests of the Messages API, for scripts, fault injection and imports."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from agentobs.provider.dialect import Block, Draft, Tokens

_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
"""Error types by status, see https://docs.anthropic.com/en/api/errors (November 2026)."""

STREAM = "text/event-stream; charset=utf-8"


_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def error_body(status: int, message: str, kind: str | None = None) -> bytes:
    """Return the JSON body of an error response with the error type `kind`; None derives the type from the status."""
    error = {"type": kind or _ERRORS.get(status, "api_error"), "message": message}
    return json.dumps({"type": "error", "error": error}).encode()


def response_body(draft: Draft) -> bytes:
    """Return the body of a response that is not streamed."""
    return _compact(_message(draft))


def events(draft: Draft, deltas: int = 1) -> list[bytes]:
    """Return the server-sent events of a response, with each text block split into `deltas` parts."""
    return [_framed(event) for event in _events(draft, deltas)]


def plain_events(message: Mapping[str, Any]) -> list[bytes]:
    """Return the events of a streamed message, as JSON without framing, up to the last one whose content is known."""
    usage = message.get("usage") or {}
    start = {**message, "content": [], "stop_reason": None}
    found: list[dict[str, Any]] = [{"type": "message_start", "message": start}]
    for index, block in enumerate(message.get("content") or []):
        found += _block_events(index, block, 1)
    if message.get("stop_reason") is not None:
        ended = {key: message.get(key) for key in ("stop_reason", "stop_sequence")}
        found += [
            {"type": "message_delta", "delta": ended, "usage": usage},
            {"type": "message_stop"},
        ]
    if "error" in message:
        found.append({"type": "error", "error": message["error"]})
    return [_compact(event) for event in found]


def message(role: str, blocks: Sequence[Block]) -> dict[str, Any]:
    """Return a message of a request. In a user message, results come first, because the provider requires it."""
    ordered = sorted(blocks, key=lambda block: block.kind != "result") if role == "user" else blocks
    return {"role": role, "content": [_block(block) for block in ordered]}


def request_body(model: str, messages: Sequence[bytes]) -> bytes:
    """Return a request body with messages that are already encoded as JSON."""
    return b'{"model":%s,"messages":[%s]}' % (_compact(model), b",".join(messages))


def _message(draft: Draft) -> dict[str, Any]:
    stop = draft.stop_reason
    if stop is None and not draft.is_logged:
        stop = "tool_use" if any(block.kind == "call" for block in draft.blocks) else "end_turn"
    return {
        "id": draft.id,
        "type": "message",
        "role": "assistant",
        "model": draft.model,
        "content": [_block(block) for block in draft.blocks],
        "stop_reason": stop,
        # A transcript does not report the stop sequence.
        **({} if draft.is_logged else {"stop_sequence": None}),
        "usage": draft.usage if draft.is_logged else _usage(draft.tokens),
    }


def _block(block: Block) -> Mapping[str, Any]:
    if block.raw:
        return block.raw
    if block.kind == "call":
        return {"type": "tool_use", "id": block.id, "name": block.name, "input": block.value}
    return {"type": "text", "text": block.text}


def _usage(tokens: Tokens) -> dict[str, Any]:
    counts: dict[str, Any] = {"input_tokens": tokens.input}
    if tokens.has_cache:
        counts |= {
            "cache_read_input_tokens": tokens.cache_read,
            "cache_creation_input_tokens": tokens.cache_write_5m + tokens.cache_write_1h,
            "cache_creation": {
                "ephemeral_5m_input_tokens": tokens.cache_write_5m,
                "ephemeral_1h_input_tokens": tokens.cache_write_1h,
            },
            "service_tier": "standard",
        }
    return {**counts, "output_tokens": tokens.output}


def _events(draft: Draft, deltas: int) -> Iterator[dict[str, Any]]:
    full = _message(draft)
    usage = full["usage"]
    start = {**full, "content": [], "stop_reason": None}
    yield {
        "type": "message_start",
        "message": {**start, "usage": {**usage, "output_tokens": min(draft.tokens.output, 1)}},
    }
    for index, block in enumerate(full["content"]):
        yield from _block_events(index, block, deltas)
    ended = {"stop_reason": full["stop_reason"], "stop_sequence": None}
    counts = usage if draft.tokens.has_cache else {"output_tokens": draft.tokens.output}
    yield {"type": "message_delta", "delta": ended, "usage": counts}
    yield {"type": "message_stop"}


def _block_events(index: int, block: Mapping[str, Any], deltas: int) -> Iterator[dict[str, Any]]:
    made: list[dict[str, Any]]
    if block["type"] == "text":
        opened = {**block, "text": ""}
        made = [{"type": "text_delta", "text": text} for text in _parts(block["text"], deltas)]
    elif "input" not in block:
        opened, made = dict(block), []
    else:
        opened = {**block, "input": {}}
        made = [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
    yield {"type": "content_block_start", "index": index, "content_block": opened}
    for delta in made:
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


def _parts(text: str, count: int) -> list[str]:
    """Split a text between words into `count` parts."""
    words = text.split(" ")
    ends = [len(words) * part // count for part in range(count + 1)]
    parts = [" ".join(words[a:b]) for a, b in pairwise(ends)]
    return [part if number == 0 else f" {part}" for number, part in enumerate(parts)]


def _framed(event: Mapping[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (event["type"].encode(), _compact(event))


def _compact(value: Any) -> bytes:
    return _encode(value).encode("utf-8", "surrogatepass")
