"""Batches: the tools that the provider ran in the results of a batch, and the limits that its requests set.

Format: anthropic 2.12, `types/messages/batch_create_params.py` and `message_batch_individual_response.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from agentobs.provider.anthropic.messages import blocks, call_limits
from agentobs.provider.anthropic.server_tools import provider_calls, provider_results
from agentobs.provider.dialect import BatchResult, CallLimits

_MARK = b"_tool_"
"""A result without this text contains no call and no result of a tool of the provider, and is not parsed."""


def batch_tools(batch_id: str, body: bytes) -> Iterator[BatchResult]:
    """Yield the results of a batch that contain calls or results of tools that the provider ran.

    Args:
        batch_id: the provider's ID of the batch.
        body: the results as JSON lines; an incomplete last line is skipped.
    """
    for line in body.splitlines():
        if _MARK not in line:
            continue
        value = _object(_parsed(line))
        message = _object(_object(value.get("result")).get("message"))
        content = blocks(message)
        calls = provider_calls(content, {}, ())
        results = provider_results(content, message.get("usage"), ())
        if calls or results:
            yield BatchResult(f"{batch_id}/{value.get('custom_id')}", calls, results)


def batch_messages(body: bytes) -> Iterator[Mapping[str, Any]]:
    """Yield the messages in the results of a batch, which are JSON lines."""
    for line in body.splitlines():
        message = _object(_object(_parsed(line)).get("result")).get("message")
        if isinstance(message, dict):
            yield message


def batch_requests(body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the parameters of the requests in a body that creates a batch."""
    return (params for _, params in _requests(body))


def batch_limits(body: Mapping[str, Any], answer: bytes) -> dict[str, Mapping[str, CallLimits]]:
    """Return the limits for tools of the provider that the requests of a batch set, by the ID of the result.

    Args:
        body: the body that creates the batch.
        answer: the response, which contains the ID of the batch.
    """
    batch_id = _object(_parsed(answer)).get("id")
    if not isinstance(batch_id, str):
        return {}
    found = ((custom_id, call_limits(params)) for custom_id, params in _requests(body))
    return {f"{batch_id}/{custom_id}": limits for custom_id, limits in found if limits}


def _requests(body: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    listed = body.get("requests")
    for each in listed if isinstance(listed, list) else ():
        if isinstance(each, dict) and isinstance(each.get("params"), dict):
            yield str(each.get("custom_id")), each["params"]


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
