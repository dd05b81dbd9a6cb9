"""Write responses and requests of the Messages API, for scripts, fault injection and imports."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

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


# Calls of the SDK whose arguments and results another tool stored. Requests are rebuilt as the SDK sends them
# (anthropic 2.14, `resources/messages/messages.py`). Stored objects contain a null for each field that was not set,
# which the SDK neither receives nor sends.

_PATH = "/v1/messages"
_OPTIONS = frozenset(
    (
        "betas",
        "extra_body",
        "extra_headers",
        "extra_query",
        "timeout",
        "user_profile_id",
        "workspace_id",
    )
)
"""The arguments that are not a part of the body."""
_NULLS = frozenset(("stop_reason", "stop_sequence"))
"""The fields of a message that the API sends as null."""


class SdkRequest(NamedTuple):
    """The HTTP request of a call."""

    path: str
    headers: dict[str, str]
    body: bytes


def is_sdk_call(arguments: Mapping[str, Any], result: Any) -> bool:
    """Return whether a call created a message, given its arguments, and its result or the events of its stream."""
    has_arguments = isinstance(arguments.get("messages"), list) and isinstance(
        arguments.get("model"), str
    )
    if not has_arguments:
        return False
    if isinstance(result, list):
        return bool(result) and _type_of(result[0]) == "message_start"
    return _type_of(result) == "message" and isinstance(result.get("usage"), dict)


def sdk_request(arguments: Mapping[str, Any], *, is_stream: bool) -> SdkRequest:
    """Return the request of a call.

    Args:
        arguments: the keyword arguments, as JSON values.
        is_stream: whether the method is `stream`, which sets this option itself.

    Raises:
        ValueError: the arguments contain values that JSON does not have.
    """
    body = {name: value for name, value in arguments.items() if name not in _OPTIONS}
    body["messages"] = [_sent_message(each) for each in arguments["messages"]]
    if is_stream:
        body["stream"] = True
    extra = arguments.get("extra_body")
    headers = arguments.get("extra_headers")
    sent = {"content-type": "application/json"}
    betas = arguments.get("betas")
    if isinstance(betas, list) and betas:
        sent["anthropic-beta"] = ",".join(map(str, betas))
    if isinstance(headers, Mapping):
        sent |= {str(name).lower(): str(value) for name, value in headers.items()}
    full = {**body, **extra} if isinstance(extra, Mapping) else body
    return SdkRequest(_PATH, sent, _sdk_json(full))


def sdk_response(result: Mapping[str, Any]) -> bytes:
    """Return the body of the response from which the SDK created a message."""
    return _sdk_json(
        {
            name: [_without_nulls(each) for each in value]
            if name == "content" and isinstance(value, list)
            else _without_nulls(value)
            for name, value in result.items()
            if value is not None or name in _NULLS
        }
    )


def sdk_events(events: Sequence[Any]) -> bytes:
    """Return the stream from which the SDK created its events; events that only the SDK creates are left out."""
    known = [each for each in events if isinstance(each, dict) and _type_of(each) in _EVENTS]
    return b"".join(
        b"event: " + each["type"].encode() + b"\ndata: " + _sdk_json(each) + b"\n\n"
        for each in known
    )


_EVENTS = frozenset(
    (
        "message_start", "message_delta", "message_stop", "content_block_start", "content_block_delta",
        "content_block_stop", "ping", "error",
    )
)  # fmt: skip


def _sent_message(message: Any) -> Any:
    """Return a message of the history as the SDK sends it: blocks of responses without fields that were not set."""
    if not isinstance(message, dict) or not isinstance(message.get("content"), list):
        return message
    content = message["content"]
    return {
        **message,
        "content": [_without_nulls(each) for each in content]
        if message.get("role") == "assistant"
        else content,
    }


def _without_nulls(value: Any) -> Any:
    """Return an object without null fields, and without those of the objects in it, except in inputs of tools."""
    if not isinstance(value, dict):
        return [_without_nulls(each) for each in value] if isinstance(value, list) else value
    return {
        name: each if name == "input" else _without_nulls(each)
        for name, each in value.items()
        if each is not None
    }


def _type_of(value: Any) -> str | None:
    found = value.get("type") if isinstance(value, dict) else None
    return found if isinstance(found, str) else None


def _sdk_json(value: Any) -> bytes:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "surrogatepass")
