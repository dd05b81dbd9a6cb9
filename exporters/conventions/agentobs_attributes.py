"""The `agentobs.*` names and attributes, for everything that no convention defines. All profiles share them.

They cover, for example, waits, hooks, compaction and the outcomes of calls.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from agentobs.provider.registry import dialect_of
from agentobs.records.event_catalog import LogEvent
from agentobs.records.facts import Attempt, ToolResult
from agentobs.records.metadata import is_long
from exporters.conventions.identities import identity
from exporters.conventions.interval import Interval
from exporters.conventions.span_content import Content

Value = str | bool | int | float | tuple[str, ...]
Attributes = dict[str, Value]

_TOOL_SPANS = ("queued", "blocked_on_user", "execution")
"""Spans within a tool call. Their names follow Claude Code's (`claude_code.tool.blocked_on_user`), the only established
names. The names of hooks, compaction and sub-agents follow the same pattern.
"""
_SPANS = {
    **{name: f"agentobs.tool.{name}" for name in _TOOL_SPANS},
    "hook": "agentobs.hook",
    "compaction": "agentobs.compaction",
    "sub_agent": "agentobs.subagent.spawn",
    "retry_wait": "agentobs.llm_request.retry_wait",
    "attempt": "agentobs.llm_request.attempt",
}

WRITTEN_5M, WRITTEN_1H = (f"agentobs.usage.cache_write_{n}_input_tokens" for n in ("5m", "1h"))
"""Tokens written to the cache, by lifetime, for conventions that do not distinguish lifetimes."""

BETA_SPANS = frozenset({"hook"})
"""Spans that only a beta profile has."""


def span_name(interval: Interval) -> str:
    """Return the name of a span that no convention defines."""
    return _SPANS.get(interval.name, interval.name)


def location_attributes(interval: Interval) -> Attributes:
    """Return the interaction, the lane and the kind of a span as attributes."""
    found: Attributes = {}
    if interval.interaction_id is not None:
        found["agentobs.interaction.id"] = identity(interval.interaction_id, 32)
    return {**found, "agentobs.lane": interval.lane, "agentobs.span": interval.name}


def metadata_attributes(interval: Interval) -> Attributes:
    """Return the attributes that the program set on a span, and the ID of the span that started it."""
    found: Attributes = {
        f"agentobs.metadata.{n}": _attribute_value(v) for n, v in interval.metadata.items()
    }
    if interval.linked_span_id is not None:
        found["agentobs.linked_span_id"] = interval.linked_span_id
    return found


def http(interval: Interval, attempt: Attempt) -> Attributes:
    """Return the attributes of the HTTP request, with its method and path if it is not a request to a model.

    The span of an attempt has its ID and its number; the span of an LLM request has the number of its attempts.
    """
    found: Attributes = {"agentobs.attempts": max(interval.attempts, attempt.attempt)}
    if interval.name == "attempt":
        found = {
            "agentobs.attempt.id": attempt.attempt_id,
            "agentobs.attempt.number": attempt.attempt,
        }
        found |= {"http.request.resend_count": attempt.attempt - 1} if attempt.attempt > 1 else {}
    if not interval.is_chat:
        found |= {"http.request.method": attempt.method, "url.template": attempt.endpoint}
    if attempt.status is not None:
        found["http.response.status_code"] = attempt.status
    if attempt.request_id:
        found["anthropic.request.id"] = attempt.request_id
    if is_replayed(interval):
        found["agentobs.request.origin"] = attempt.origin
    return found


def parameters(attempt: Attempt) -> dict[str, bool | int | float | str]:
    """Return the parameters of a request, such as the maximum of output tokens, by path (`thinking.type`)."""
    return {name: _literal(text) for name, text in (attempt.parameters or {}).items()}


def is_replayed(interval: Interval) -> bool:
    """Return whether a fork replayed this model call from a recording. Such a call costs neither time nor money."""
    return interval.attempt is not None and interval.attempt.origin == "replayed"


def cost(interval: Interval) -> Attributes:
    """Return the cost of a call and its certainty; if the price is unknown, only the certainty."""
    spent = interval.spent
    if spent is None:
        return {}
    known: Attributes = {"agentobs.cost.usd": float(spent.usd)} if spent.usd is not None else {}
    return {**known, "agentobs.cost.status": spent.status}


def tool(result: ToolResult) -> Attributes:
    """Return the outcome of a tool call."""
    return {
        "agentobs.tool.outcome": result.outcome,
        "agentobs.tool.source": result.source,
        "agentobs.tool.result_bytes": result.result_bytes,
    }


def provider_tool(interval: Interval) -> Attributes:
    """Return the outcome of a tool that the provider ran; empty for other spans."""
    if interval.provider_tool is None:
        return {}
    use, result = interval.provider_tool
    found: dict[str, Value | None] = {
        "agentobs.tool.outcome": result.outcome,
        "agentobs.tool.source": "response",
        "agentobs.tool.result_bytes": result.result_bytes,
        "agentobs.tool.runs_on": "provider",
        "agentobs.tool.server": use.server,
        "agentobs.tool.error_code": result.error_code,
        "agentobs.tool.use": use.use,
        "agentobs.tool.max_uses": use.max_uses,
        "agentobs.tool.is_timed": interval.has_known_duration,
    }
    return {name: value for name, value in found.items() if value is not None}


def outcome(interval: Interval) -> Attributes:
    """Return the status of a span."""
    found: Attributes = {}
    if interval.end is not None:
        found["agentobs.interaction.result"] = interval.end.result
    if (error_type := error_of(interval)) is not None:
        found["error.type"] = error_type
    found["agentobs.status"] = interval.status
    if interval.status == "orphaned":
        found["abandoned"] = True
        found["agentobs.last_activity_ns"] = interval.last_activity_ns or interval.ended_ns
    return found


def detail_attributes(interval: Interval) -> Attributes:
    """Return the additional attributes of the beta profiles."""
    return {f"agentobs.{name}": value for name, value in _details(interval) if value is not None}


def error_of(interval: Interval) -> str | None:
    """Return the error class of a span as a label, or None if the span did not fail."""
    if interval.status == "orphaned":
        return interval.error_type or "orphaned"
    if interval.status != "error":
        return None
    attempt = interval.attempt
    error_type = attempt.error_type if attempt is not None and attempt.outcome != "ok" else None
    if error_type is None and attempt is not None and (attempt.status or 0) >= 400:
        error_type = str(attempt.status)  # type: ignore[assignment]  # digits are a label
    return error_type or interval.error_type or "_OTHER"


def model_of(interval: Interval) -> str:
    """Return the requested model."""
    attempt = interval.attempt
    requested = attempt.model_requested if attempt is not None else None
    return requested or interval.label or "unknown"


def platform_of(interval: Interval) -> str | None:
    """Return the cloud platform that answered a model call; None for the provider itself, or if it is not known yet."""
    attempt = interval.attempt
    return dialect_of(attempt.endpoint).platform(attempt.endpoint) if attempt is not None else None


def truncation_attributes(content: Content) -> Attributes:
    """Return the amount of content that was removed, as attributes."""
    found: Attributes = {}
    if content.cut_characters:
        found["agentobs.content.cut_characters"] = content.cut_characters
    if content.cut_messages:
        found["agentobs.content.cut_messages"] = content.cut_messages
    if content.is_unreadable:
        found["agentobs.content.unreadable"] = True
    return found


def event_name(kind: str) -> str:
    """Return the name of the log record for an agentobs event."""
    return f"agentobs.{kind}"


def event(logged: LogEvent) -> Attributes:
    """Return the attributes of an event: its place, its label, and its other labels and numbers."""
    attributes: dict[str, Value | None] = {
        "agentobs.turn": logged.turn,
        "agentobs.lane": logged.lane,
        "agentobs.query_source": logged.query_source,
        "agentobs.chain_id": logged.chain_id,
        "agentobs.depth": logged.depth,
        "agentobs.rate": logged.rate,
        "agentobs.label": logged.label,
    }
    for name, word in logged.labels.items():
        attributes[f"agentobs.{name}"] = word
    for name, number in logged.numbers.items():
        attributes[f"agentobs.{name}"] = _attribute_value(number)
    return {name: value for name, value in attributes.items() if value is not None}


def is_error(logged: LogEvent) -> bool:
    """Return whether an event reports a failure."""
    failed = logged.kind in ("session_end", "attempt") and logged.label not in (
        "completed",
        "ok",
        "interrupted",
        "cancelled",
    )
    return failed or bool(logged.numbers.get("is_error"))


def seconds(nanoseconds: int) -> float:
    """Return a duration in seconds, the unit of the conventions."""
    return max(nanoseconds, 0) / 1e9


def _literal(text: str) -> bool | int | float | str:
    """Return the number or the boolean that a label represents, otherwise the label."""
    try:
        value = json.loads(text)
    except ValueError:
        return str(text)
    return value if isinstance(value, bool | int | float) else str(text)


def _attribute_value(value: float | str) -> Value:
    """Return a number or label as an attribute value. Whole numbers become integers if they fit into 64 bits.

    Live numbers and stored numbers then have the same type.
    """
    if isinstance(value, str) or not float(value).is_integer():
        return value
    return int(value) if is_long(int(value)) else float(value)


def _details(interval: Interval) -> Iterator[tuple[str, Value | None]]:
    attempt, result = interval.attempt, interval.tool
    if attempt is not None:
        yield from (
            ("turn", attempt.turn),
            ("query_source", attempt.query_source),
            ("chain_id", attempt.chain_id),
            ("depth", attempt.depth),
            ("attempt.outcome", attempt.outcome),
            ("request.messages", attempt.message_count),
            ("request.bytes", attempt.request_bytes),
            ("response.bytes", attempt.response_bytes),
            ("response.chunks", attempt.chunk_count),
            ("response.tool_calls", attempt.tool_use_count),
            ("response.claims_success", attempt.claims_success),
            ("response.retry_after_ms", attempt.retry_after_ms),
            ("redactions", attempt.redactions),
        )
    if result is not None:
        yield "tool.attempts", result.attempts
        yield "tool.text_characters", result.text_characters
        yield "tool.error_kind", result.error_kind
        yield "tool.error_origin", result.error_origin
