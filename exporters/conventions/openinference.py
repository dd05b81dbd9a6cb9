"""OpenInference: attributes with the names that Phoenix and Arize read (spec/ of Arize-ai/openinference).

OpenInference defines names for model calls, tools, agents, counts, costs and messages; everything else is `agentobs.*`.
The attributes of content are in `exporters.conventions.openinference_content`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agentobs.ledger.money import PartName
from agentobs.records.facts import Attempt
from exporters.conventions import agentobs_attributes
from exporters.conventions.agentobs_attributes import Attributes
from exporters.conventions.interval import Interval, Tokens
from exporters.conventions.openinference_content import (
    attributes_of_agent,
    attributes_of_call,
    attributes_of_request,
)

VERSION = "OpenInference, specification of November 2026"
"""The version of the attribute names; the specification has no releases."""

SYSTEM = "anthropic"
"""The value of `llm.system`, and of `llm.provider` if no cloud platform provides the model."""
_PLATFORMS = {"bedrock": "aws", "vertex": "google"}
"""The values of `llm.provider` for cloud platforms."""

_KINDS = {
    "interaction": "AGENT",
    "sub_agent": "AGENT",
    "tool": "TOOL",
    "hook": "GUARDRAIL",
    "blocked_on_user": "GUARDRAIL",
}
"""Span kinds by agentobs span name. All others are a `CHAIN`, including spans inside a tool call."""

_PROMPT: tuple[PartName, ...] = ("input", "cache_read", "cache_write_5m", "cache_write_1h")


def span_name(interval: Interval) -> str:
    """Return the name of a span; the specification has no rules for names."""
    match interval.name:
        case "llm_request" if not interval.is_chat and interval.attempt is not None:
            return f"{interval.attempt.method} {interval.attempt.endpoint}"
        case "llm_request":
            return agentobs_attributes.model_of(interval)
        case "interaction" | "tool":
            return interval.label or interval.name
        case _:
            return agentobs_attributes.span_name(interval)


def ids(session_id: str, conversation_id: str) -> Attributes:
    """Return the IDs of a session. OpenInference groups by `session.id`, so this is the ID of the conversation."""
    return {"session.id": conversation_id, "agentobs.session.id": session_id}


def start_attributes(interval: Interval) -> Attributes:
    """Return the attributes that are known at the start of a span, IDs first."""
    found = ids(
        interval.session_id, interval.conversation_id
    ) | agentobs_attributes.location_attributes(interval)
    found["openinference.span.kind"] = _kind(interval)
    match interval.name:
        case "llm_request" if _names_model(interval):
            found |= {"llm.system": SYSTEM, "llm.provider": _provider(interval)}
            found["llm.model_name"] = agentobs_attributes.model_of(interval)
        case "interaction" | "sub_agent":
            found |= {"agent.name": interval.label} if interval.label else {}
        case "tool":
            found |= {"tool.name": interval.label} if interval.label else {}
        case _ if interval.label:
            found[f"agentobs.{interval.name}.name"] = interval.label
        case _:
            pass
    return found | agentobs_attributes.metadata_attributes(interval)


def end_attributes(interval: Interval) -> Attributes:
    """Return the attributes that are known only at the end of a span."""
    found: Attributes = {}
    if interval.attempt is not None:
        found |= _of_attempt(interval, interval.attempt)
    if interval.tokens is not None:
        found |= _of_tokens(interval.tokens)
    found |= {**_of_cost(interval), **agentobs_attributes.cost(interval)}
    if interval.tool is not None:
        found |= {"tool.id": interval.tool.tool_use_id, **agentobs_attributes.tool(interval.tool)}
    if interval.provider_tool is not None:
        found["tool.id"] = interval.provider_tool[0].tool_use_id
    return (
        found | agentobs_attributes.provider_tool(interval) | agentobs_attributes.outcome(interval)
    )


def content_attributes(interval: Interval) -> Attributes:
    """Return the content as attributes, truncated if it is too long; empty if the session did not opt in."""
    if interval.content is None:
        return {}
    if interval.name == "tool":
        return attributes_of_call(interval.content)
    if interval.name in ("interaction", "sub_agent"):
        return attributes_of_agent(interval.content)
    if interval.name == "llm_request":
        return attributes_of_request(interval.content)
    return {}


def _kind(interval: Interval) -> str:
    return "LLM" if _names_model(interval) else _KINDS.get(interval.name, "CHAIN")


def _provider(interval: Interval) -> str:
    return _PLATFORMS.get(agentobs_attributes.platform_of(interval) or "", SYSTEM)


def _names_model(interval: Interval) -> bool:
    """Return whether a request names a model: each request to a model, and each request that counts its tokens."""
    if interval.name != "llm_request":
        return False
    return interval.is_chat or (
        interval.attempt is not None and interval.attempt.model_requested is not None
    )


def _of_attempt(interval: Interval, attempt: Attempt) -> Attributes:
    found: Attributes = {}
    if _names_model(interval):
        if (provider := _provider(interval)) != SYSTEM:
            # When the span started, its attempt may not have been known yet.
            found["llm.provider"] = provider
        if attempt.model_requested:
            found["llm.request.model_name"] = attempt.model_requested
        if attempt.model:
            found |= {"llm.model_name": attempt.model, "llm.response.model_name": attempt.model}
        if parameters := agentobs_attributes.parameters(attempt):
            found["llm.invocation_parameters"] = json.dumps(_nested(parameters))
        if attempt.stop_reason:
            found["llm.finish_reason"] = attempt.stop_reason
        if attempt.message_id:
            found["agentobs.message.id"] = attempt.message_id
        if attempt.streamed and attempt.first_chunk_ns is not None:
            found["agentobs.time_to_first_chunk"] = agentobs_attributes.seconds(
                attempt.first_chunk_ns
            )
    return found | agentobs_attributes.http(interval, attempt)


def _nested(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters as the JSON object of the request: `thinking.type` becomes `{"thinking": {"type": ...}}`."""
    found: dict[str, Any] = {}
    for path, value in parameters.items():
        *outer, name = path.split(".")
        inner = found
        for key in outer:
            inner = inner.setdefault(key, {})
        inner[name] = value
    return found


def _of_tokens(tokens: Tokens) -> Attributes:
    """Return the token counts; `prompt` is all input, as the specification requires for this provider."""
    found: Attributes = {
        "llm.token_count.prompt": tokens.prompt,
        "llm.token_count.completion": tokens.output,
        "llm.token_count.total": tokens.prompt + tokens.output,
        "llm.token_count.prompt_details.cache_read": tokens.cache_read,
        "llm.token_count.prompt_details.cache_write": tokens.cache_write,
        agentobs_attributes.WRITTEN_5M: tokens.cache_write_5m,
        agentobs_attributes.WRITTEN_1H: tokens.cache_write_1h,
    }
    if tokens.reasoning is not None:
        found["llm.token_count.completion_details.reasoning"] = tokens.reasoning
    return found


def _of_cost(interval: Interval) -> Attributes:
    """Return the cost of a call, by part; the total includes the provider's tools, which have no part."""
    spent = interval.spent
    if spent is None or spent.usd is None:
        return {}
    parts = spent.usd_by_part
    return {
        "llm.cost.prompt": float(sum(parts[name] for name in _PROMPT)),
        "llm.cost.completion": float(parts["output"]),
        "llm.cost.total": float(spent.usd),
        "llm.cost.prompt_details.input": float(parts["input"]),
        "llm.cost.prompt_details.cache_read": float(parts["cache_read"]),
        "llm.cost.prompt_details.cache_write": float(
            parts["cache_write_5m"] + parts["cache_write_1h"]
        ),
    }
