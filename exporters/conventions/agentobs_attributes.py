"""What is ours: names for what no convention has a word for, and what every language of telemetry says alike.

Waiting, hooks, compaction, what became of a call: these stand as `agentobs.*` beside whatever names a profile has.
"""

from __future__ import annotations

from collections.abc import Iterator

from agentobs.records.event_catalog import Logged
from agentobs.records.facts import Attempt, ToolResult
from agentobs.records.metadata import is_long
from exporters.conventions.intervals import Interval, identity
from exporters.conventions.span_content import Content

Value = str | bool | int | float | tuple[str, ...]
Attributes = dict[str, Value]

_TOOL_SPANS = ("queued", "blocked_on_user", "execution")
"""What lies in a tool call. Their names follow Claude Code's (`claude_code.tool.blocked_on_user`), which has the only
established ones; so do those of hooks, compaction and sub-agents."""
_SPANS = {
    **{name: f"agentobs.tool.{name}" for name in _TOOL_SPANS},
    "hook": "agentobs.hook",
    "compaction": "agentobs.compaction",
    "sub_agent": "agentobs.subagent.spawn",
    "retry_wait": "agentobs.llm_request.retry_wait",
}

WRITTEN_5M, WRITTEN_1H = (f"agentobs.usage.cache_write_{n}_input_tokens" for n in ("5m", "1h"))
"""What is written to the cache by its lifetime, where a convention does not tell them apart."""

BETA_SPANS = frozenset({"hook"})
"""Spans that only a beta profile has."""


def span_name(interval: Interval) -> str:
    """Return the name of a span that no convention names."""
    return _SPANS.get(interval.name, interval.name)


def place(interval: Interval) -> Attributes:
    """Return where a span belongs: ids, then what it is."""
    found: Attributes = {}
    if interval.interaction_id is not None:
        found["agentobs.interaction.id"] = identity(interval.interaction_id, 32)
    return {**found, "agentobs.lane": interval.lane, "agentobs.span": interval.name}


def given(interval: Interval) -> Attributes:
    """Return what whoever opened a span said of it, and what started it."""
    found: Attributes = {f"agentobs.metadata.{n}": _told(v) for n, v in interval.metadata.items()}
    if interval.linked_span_id is not None:
        found["agentobs.linked_span_id"] = interval.linked_span_id
    return found


def http(interval: Interval, attempt: Attempt) -> Attributes:
    """Return what the request was over the wire; of one that no model answers, its method and path, too."""
    found: Attributes = {}
    if not interval.is_chat:
        found |= {"http.request.method": attempt.method, "url.template": attempt.endpoint}
    if attempt.status is not None:
        found["http.response.status_code"] = attempt.status
    if attempt.request_id:
        found["anthropic.request.id"] = attempt.request_id
    if is_replayed(interval):
        found["agentobs.request.origin"] = attempt.origin
    return found


def is_replayed(interval: Interval) -> bool:
    """Return whether a call to the model was answered from a recording, by a fork: it took no time and no money."""
    return interval.attempt is not None and interval.attempt.origin == "replayed"


def cost(interval: Interval) -> Attributes:
    """Return what a call cost, and how sure that is; without a price there is no amount."""
    spent = interval.spent
    if spent is None:
        return {}
    known: Attributes = {"agentobs.cost.usd": float(spent.usd)} if spent.usd is not None else {}
    return {**known, "agentobs.cost.status": spent.status}


def tool(result: ToolResult) -> Attributes:
    """Return what became of a tool call."""
    return {
        "agentobs.tool.outcome": result.outcome,
        "agentobs.tool.source": result.source,
        "agentobs.tool.result_bytes": result.result_bytes,
    }


def outcome(interval: Interval) -> Attributes:
    """Return how a span ended."""
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


def closer(interval: Interval) -> Attributes:
    """Return what is only of use to look at closely: what the beta profiles have beyond the others."""
    return {f"agentobs.{name}": value for name, value in _closer(interval) if value is not None}


def error_of(interval: Interval) -> str | None:
    """Return the class of the error that a span ended with, or None: labels alone, never a text."""
    if interval.status == "orphaned":
        return interval.error_type or "orphaned"
    if interval.status != "error":
        return None
    attempt = interval.attempt
    told = attempt.error_type if attempt is not None and attempt.outcome != "ok" else None
    if told is None and attempt is not None and (attempt.status or 0) >= 400:
        told = str(attempt.status)  # type: ignore[assignment]  # digits are a label
    return told or interval.error_type or "_OTHER"


def model_of(interval: Interval) -> str:
    """Return the model that was asked."""
    attempt = interval.attempt
    requested = attempt.model_requested if attempt is not None else None
    return requested or interval.label or "unknown"


def cuts(content: Content) -> Attributes:
    """Return how much was left out of what was said."""
    found: Attributes = {}
    if content.cut_characters:
        found["agentobs.content.cut_characters"] = content.cut_characters
    if content.cut_messages:
        found["agentobs.content.cut_messages"] = content.cut_messages
    if content.is_unreadable:
        found["agentobs.content.unreadable"] = True
    return found


def event_name(kind: str) -> str:
    """Return the name of an event of ours as a log record."""
    return f"agentobs.{kind}"


def event(logged: Logged) -> Attributes:
    """Return what an event says: where it happened, its label, its words and numbers."""
    told: dict[str, Value | None] = {
        "agentobs.turn": logged.turn,
        "agentobs.lane": logged.lane,
        "agentobs.query_source": logged.query_source,
        "agentobs.chain_id": logged.chain_id,
        "agentobs.depth": logged.depth,
        "agentobs.rate": logged.rate,
        "agentobs.label": logged.label,
    }
    for name, word in logged.labels.items():
        told[f"agentobs.{name}"] = word
    for name, number in logged.numbers.items():
        told[f"agentobs.{name}"] = _told(number)
    return {name: value for name, value in told.items() if value is not None}


def is_error(logged: Logged) -> bool:
    """Return whether an event tells of a failure."""
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


def _told(value: float | str) -> Value:
    """Return a number as it is told: whole ones as integers where 64 bits hold them, live as from the store."""
    if isinstance(value, str) or not float(value).is_integer():
        return value
    return int(value) if is_long(int(value)) else float(value)


def _closer(interval: Interval) -> Iterator[tuple[str, Value | None]]:
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
        yield "tool.tries", result.tries
        yield "tool.text_characters", result.text_characters
        yield "tool.error_kind", result.error_kind
