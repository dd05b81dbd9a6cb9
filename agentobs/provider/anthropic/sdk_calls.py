"""Calls of the SDK: the request and the response of a method call whose arguments and result another tool stored.

Such a tool stores objects of the SDK, not HTTP messages. A request is rebuilt from the arguments as the SDK sends them
(anthropic 2.14, `resources/messages/messages.py`). Stored objects contain a null for each field that was not set, which
the SDK neither receives nor sends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

_PATH, _BETA_PATH = "/v1/messages", "/v1/messages?beta=true"
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
        return bool(result) and _type(result[0]) == "message_start"
    return _type(result) == "message" and isinstance(result.get("usage"), dict)


def sdk_request(arguments: Mapping[str, Any], *, is_beta: bool, is_stream: bool) -> SdkRequest:
    """Return the request of a call.

    Args:
        arguments: the keyword arguments, as JSON values.
        is_beta: whether the method belongs to `client.beta`.
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
    return SdkRequest(_BETA_PATH if is_beta else _PATH, sent, _json(full))


def sdk_response(result: Mapping[str, Any]) -> bytes:
    """Return the body of the response from which the SDK created a message."""
    return _json(
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
    known = [each for each in events if isinstance(each, dict) and _type(each) in _EVENTS]
    return b"".join(
        b"event: " + each["type"].encode() + b"\ndata: " + _json(each) + b"\n\n" for each in known
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
    role: Literal["user", "assistant"] | Any = message.get("role")
    content = message["content"]
    return {
        **message,
        "content": [_without_nulls(each) for each in content] if role == "assistant" else content,
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


def _type(value: Any) -> Any:
    return value.get("type") if isinstance(value, dict) else None


def _json(value: Any) -> bytes:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "surrogatepass")
