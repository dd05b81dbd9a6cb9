"""OpenInference: attributes with the names that Phoenix and Arize read (spec/ of Arize-ai/openinference).

OpenInference defines names for model calls, tools, agents, counts, costs and messages; everything else is `agentobs.*`.
Each part of a message is a separate attribute, so a long conversation would push IDs out of a span. Therefore only the
latest messages that fit into `MESSAGE_ATTRIBUTES_MAX` become attributes. `input.value` contains the messages as
JSON text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from agentobs.ledger.money import PartName
from agentobs.records.facts import Attempt
from exporters.conventions import agentobs_attributes
from exporters.conventions.agentobs_attributes import Attributes, Value
from exporters.conventions.intervals import Interval, Tokens
from exporters.conventions.span_content import Content, content_of_call, content_of_request

VERSION = "OpenInference, specification of November 2026"
"""The version of the attribute names; the specification has no releases."""

MESSAGE_ATTRIBUTES_MAX = 64
"""The maximum number of attributes for messages and tools. Our choice: a span has at most 128 attributes."""
CALLS_MAX = 4
"""The maximum number of tool calls per message. Our choice."""
TOOLS_MAX = 12
"""The maximum number of tool definitions. Our choice."""

SYSTEM = "anthropic"
"""The value of `llm.system` and `llm.provider`."""

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
        case "llm_request" if interval.is_chat:
            found |= {"llm.system": SYSTEM, "llm.provider": SYSTEM}
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
    return found | agentobs_attributes.outcome(interval)


def content_attributes(interval: Interval) -> Attributes:
    """Return the content as attributes, truncated if it is too long; empty if the session did not opt in."""
    if interval.content is None:
        return {}
    if interval.name == "tool":
        content = content_of_call(interval.content)
        return {**dict(_values(content)), **agentobs_attributes.truncation_attributes(content)}
    if not interval.is_chat:
        return {}
    content = content_of_request(interval.content)
    flat = dict(_messages(content))
    return {**flat, **dict(_values(content)), **agentobs_attributes.truncation_attributes(content)}


def _kind(interval: Interval) -> str:
    return "LLM" if interval.is_chat else _KINDS.get(interval.name, "CHAIN")


def _of_attempt(interval: Interval, attempt: Attempt) -> Attributes:
    found: Attributes = {"agentobs.attempts": max(interval.attempts, attempt.attempt)}
    if interval.is_chat:
        requested = attempt.model_requested
        if attempt.model:
            found["llm.model_name"] = attempt.model
        if attempt.model and requested and attempt.model != requested:
            found |= {"llm.request.model_name": requested, "llm.response.model_name": attempt.model}
        if attempt.stop_reason:
            found["llm.finish_reason"] = attempt.stop_reason
        if attempt.message_id:
            found["agentobs.message.id"] = attempt.message_id
        if attempt.streamed and attempt.first_chunk_ns is not None:
            found["agentobs.time_to_first_chunk"] = agentobs_attributes.seconds(
                attempt.first_chunk_ns
            )
    return found | agentobs_attributes.http(interval, attempt)


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


def _values(content: Content) -> Iterator[tuple[str, Value]]:
    for part in ("input", "output"):
        if part in content.texts:
            yield f"{part}.value", content.texts[part]
            yield f"{part}.mime_type", "application/json"


def _messages(content: Content) -> Iterator[tuple[str, Value]]:
    """Yield an attribute for each part of the messages and for each tool."""
    output_and_tools = [
        each for n, each in enumerate(_listed(content, "output")) for each in _output(n, each)
    ]
    for number, tool in enumerate(_listed(content, "tools")[:TOOLS_MAX]):
        output_and_tools.append((f"llm.tools.{number}.tool.json_schema", _json(tool)))
    system, messages = _listed(content, "system"), _listed(content, "input")
    if system:
        messages = [{"role": "system", "parts": system}, *messages]
    kept, remaining = 0, MESSAGE_ATTRIBUTES_MAX - len(output_and_tools)
    for message in reversed(messages):
        remaining -= len(list(_message("", message)))
        if remaining < 0:
            break
        kept += 1
    content.cut_messages += len(messages) - kept
    for number, message in enumerate(messages[len(messages) - kept :]):
        yield from _message(f"llm.input_messages.{number}.message", message)
    yield from output_and_tools


def _output(number: int, message: Any) -> Iterator[tuple[str, Value]]:
    return _message(f"llm.output_messages.{number}.message", message)


def _message(prefix: str, message: Any) -> Iterator[tuple[str, Value]]:
    parts = [part for part in message.get("parts") or () if isinstance(part, dict)]
    yield f"{prefix}.role", str(message.get("role"))
    texts = [_part_text(part) for part in parts]
    if text := "\n".join(each for each in texts if each):
        yield f"{prefix}.content", text
    for part in parts:
        if part.get("type") == "tool_call_response":
            yield f"{prefix}.tool_call_id", str(part.get("id"))
            break
    calls = [part for part in parts if part.get("type") == "tool_call"]
    for number, call in enumerate(calls[:CALLS_MAX]):
        at = f"{prefix}.tool_calls.{number}.tool_call"
        yield f"{at}.id", str(call.get("id"))
        yield f"{at}.function.name", str(call.get("name"))
        yield f"{at}.function.arguments", _json(call.get("arguments"))


def _part_text(part: dict[str, Any]) -> str:
    if part.get("type") in ("text", "reasoning"):
        return str(part.get("content") or "")
    if part.get("type") == "tool_call_response":
        response = part.get("response")
        return response if isinstance(response, str) else _json(response)
    return ""


def _listed(content: Content, part: str) -> list[Any]:
    """Return the list of a part; empty if the part was too long."""
    value = json.loads(content.texts.get(part, "null"))
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
