"""Names: our nouns in the languages of telemetry; the only place where `gen_ai.*` stands.

A `Profile` is one such language: a frozen value with functions from an interval to a name and to attributes. Ids come
first and content last, for some collectors cut what comes last when there is too much. Nothing here reads a clock or
knows of a wire; another profile is another value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from agentobs.records.events import Logged
from agentobs.records.facts import Attempt, ToolResult, UsageRow
from agentobs.records.metadata import is_long
from exporters.content import Content, content_of_call, content_of_request
from exporters.intervals import Interval, Tokens, identity

VERSION = "semantic-conventions-genai, Development, November 2026"
"""The conventions that these names follow; they have no release of their own yet, and their names still move."""

Value = str | bool | int | float | tuple[str, ...]
Attributes = dict[str, Value]

PROVIDER = "anthropic"
"""The value of `gen_ai.provider.name`."""

_TOOL_SPANS = ("queued", "blocked_on_user", "execution")
"""What lies in a tool call. Their names follow Claude Code's (`claude_code.tool.blocked_on_user`), which has the only
established ones; so do those of hooks, compaction and sub-agents."""
_OWN_SPANS = {
    **{name: f"agentobs.tool.{name}" for name in _TOOL_SPANS},
    "hook": "agentobs.hook",
    "compaction": "agentobs.compaction",
    "sub_agent": "agentobs.subagent.spawn",
    "retry_wait": "agentobs.llm_request.retry_wait",
}

BETA_SPANS = frozenset({"hook"})
"""Spans that the standard profile leaves out."""


@dataclass(frozen=True, slots=True)
class Profile:
    """One language for intervals."""

    name: str
    """What it is called."""
    version: str
    """The conventions that it follows."""
    span_name: Callable[[Interval], str]
    """The name of a span, when it ends."""
    starting: Callable[[Interval], Attributes]
    """What is known when it starts: ids first."""
    ending: Callable[[Interval], Attributes]
    """What is known when it ends."""
    said: Callable[[Interval], Attributes]
    """What was said, where the session opted in; else nothing."""
    hidden: frozenset[str] = frozenset()
    """Names of our spans that it does not have."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One metric."""

    name: str
    unit: str
    about: str
    buckets: tuple[float, ...] = ()
    """The upper bounds of its histogram; none for a sum."""


def _doubling(first: float, count: int, factor: float = 2) -> tuple[float, ...]:
    return tuple(round(first * factor**power, 6) for power in range(count))


# Names, units and buckets from docs/gen-ai/gen-ai-metrics.md of the conventions; the cost is ours.
TOKEN_USAGE = Measure(
    "gen_ai.client.token.usage",
    "{token}",
    "Tokens of one model call, by type.",
    _doubling(1, 14, 4),
)
OPERATION_DURATION = Measure(
    "gen_ai.client.operation.duration", "s", "How long a model call took.", _doubling(0.01, 14)
)
FIRST_CHUNK = Measure(
    "gen_ai.client.operation.time_to_first_chunk",
    "s",
    "How long the first chunk of an answer took.",
    _doubling(0.01, 14),
)
TOOL_DURATION = Measure(
    "gen_ai.execute_tool.duration", "s", "How long a tool call took.", _doubling(0.01, 14)
)
AGENT_DURATION = Measure(
    "gen_ai.invoke_agent.duration", "s", "How long an interaction took.", _doubling(0.1, 13)
)
COST = Measure("agentobs.cost", "USD", "What model calls cost; calls without a price add nothing.")


def span_name(interval: Interval) -> str:
    """Return the name of a span."""
    match interval.name:
        case "interaction":
            return f"invoke_agent {interval.label}" if interval.label else "invoke_agent"
        case "llm_request" if interval.is_chat:
            return f"chat {_model(interval)}"
        case "llm_request":
            attempt = interval.attempt
            return f"{attempt.method} {attempt.endpoint}" if attempt else "llm_request"
        case "tool":
            return f"execute_tool {interval.label}" if interval.label else "execute_tool"
        case name:
            return _OWN_SPANS.get(name, name)


def starting(interval: Interval) -> Attributes:
    """Return what is known of a span when it starts, ids first."""
    found: Attributes = {
        "gen_ai.conversation.id": interval.conversation_id,
        "session.id": interval.session_id,
    }
    if interval.interaction_id is not None:
        found["agentobs.interaction.id"] = identity(interval.interaction_id, 32)
    found |= {"agentobs.lane": interval.lane, "agentobs.span": interval.name}
    match interval.name:
        case "interaction" | "sub_agent":
            found |= {"gen_ai.operation.name": "invoke_agent", "gen_ai.provider.name": PROVIDER}
            found |= {"gen_ai.agent.name": interval.label} if interval.label else {}
        case "llm_request" if interval.is_chat:
            found |= {"gen_ai.operation.name": "chat", "gen_ai.provider.name": PROVIDER}
            found["gen_ai.request.model"] = _model(interval)
        case "tool":
            found |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.type": "function"}
            found |= {"gen_ai.tool.name": interval.label} if interval.label else {}
        case _ if interval.label:
            found[f"agentobs.{interval.name}.name"] = interval.label
        case _:
            pass
    for name, value in interval.metadata.items():
        found[f"agentobs.metadata.{name}"] = value
    if interval.linked_span_id is not None:
        found["agentobs.linked_span_id"] = interval.linked_span_id
    return found


def ending(interval: Interval) -> Attributes:
    """Return what is known of a span when it ends."""
    found: Attributes = {}
    if interval.attempt is not None:
        found |= _of_attempt(interval, interval.attempt)
    if interval.tokens is not None:
        found |= _of_tokens(interval.tokens)
    if interval.spent is not None:
        found |= _of_cost(interval)
    if interval.tool is not None:
        found |= _of_tool(interval.tool)
    if interval.end is not None:
        found["agentobs.interaction.result"] = interval.end.result
    if (error_type := error_of(interval)) is not None:
        found["error.type"] = error_type
    found["agentobs.status"] = interval.status
    if interval.status == "orphaned":
        found["abandoned"] = True
        found["agentobs.last_activity_ns"] = interval.last_activity_ns or interval.ended_ns
    return found


def ending_beta(interval: Interval) -> Attributes:
    """Return what is known of a span when it ends, with what is only of use to look at closely."""
    return {**ending(interval), **dict(_beta(interval))}


def said(interval: Interval) -> Attributes:
    """Return what was said, bounded, what was cut marked; nothing where the session did not opt in."""
    if interval.said is None:
        return {}
    if interval.name == "tool":
        call = content_of_call(interval.said)
        return _content(call, {"input": "tool.call.arguments", "output": "tool.call.result"})
    if not interval.is_chat:
        return {}
    names = {"input": "input.messages", "output": "output.messages"}
    names |= {"system": "system_instructions", "tools": "tool.definitions"}
    return _content(content_of_request(interval.said), names)


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


def on_call(interval: Interval) -> Attributes:
    """Return the attributes of the metrics of a model call: of bounded variety, no ids."""
    found: Attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": _model(interval),
    }
    if interval.attempt is not None and interval.attempt.model is not None:
        found["gen_ai.response.model"] = interval.attempt.model
    return found


def on_call_that_ended(interval: Interval) -> Attributes:
    """Return the attributes of how long a model call took."""
    error_type = error_of(interval)
    return {**on_call(interval), **({"error.type": error_type} if error_type else {})}


def on_usage(row: UsageRow) -> Attributes:
    """Return the attributes of the metrics of tokens and of cost: the model is the one that is billed."""
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.response.model": row.model,
    }


def on_tokens(tokens: Tokens) -> Iterator[tuple[Attributes, int]]:
    """Yield the counts of the metric of tokens, each with what tells it from the others."""
    yield {"gen_ai.token.type": "input"}, tokens.prompt
    yield {"gen_ai.token.type": "output"}, tokens.output


def on_tool(interval: Interval) -> Attributes:
    """Return the attributes of the metric of a tool call."""
    found: Attributes = {"gen_ai.operation.name": "execute_tool"}
    found |= {"gen_ai.tool.name": interval.label} if interval.label else {}
    error_type = error_of(interval)
    return {**found, **({"error.type": error_type} if error_type else {})}


def on_agent(interval: Interval) -> Attributes:
    """Return the attributes of the metric of an interaction."""
    found: Attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.provider.name": PROVIDER}
    found |= {"gen_ai.agent.name": interval.label} if interval.label else {}
    error_type = error_of(interval)
    return {**found, **({"error.type": error_type} if error_type else {})}


def event_name(kind: str) -> str:
    """Return the name of an event of ours as a log record."""
    return f"agentobs.{kind}"


def on_event(event: Logged, conversation_id: str) -> Attributes:
    """Return the attributes of a log record: ids first, then what the event says."""
    told: dict[str, Value | None] = {
        "gen_ai.conversation.id": conversation_id,
        "session.id": event.session_id,
        "agentobs.turn": event.turn,
        "agentobs.lane": event.lane,
        "agentobs.query_source": event.query_source,
        "agentobs.chain_id": event.chain_id,
        "agentobs.depth": event.depth,
        "agentobs.rate": event.rate,
        "agentobs.label": event.label,
    }
    for name, word in event.labels.items():
        told[f"agentobs.{name}"] = word
    for name, number in event.numbers.items():
        whole = int(number) if float(number).is_integer() else None
        told[f"agentobs.{name}"] = number if whole is None or not is_long(whole) else whole
    return {name: value for name, value in told.items() if value is not None}


def is_error(event: Logged) -> bool:
    """Return whether an event tells of a failure."""
    failed = event.kind in ("session_end", "attempt") and event.label not in (
        "completed",
        "ok",
        "interrupted",
        "cancelled",
    )
    return failed or bool(event.numbers.get("is_error"))


def seconds(nanoseconds: int) -> float:
    """Return a duration in seconds, the unit of the conventions."""
    return max(nanoseconds, 0) / 1e9


def _of_attempt(interval: Interval, attempt: Attempt) -> Attributes:
    found: Attributes = {"agentobs.attempts": max(interval.attempts, attempt.attempt)}
    if interval.is_chat:
        found["gen_ai.request.stream"] = attempt.streamed
        found |= {"gen_ai.response.id": attempt.message_id} if attempt.message_id else {}
        found |= {"gen_ai.response.model": attempt.model} if attempt.model else {}
        if attempt.stop_reason:
            found["gen_ai.response.finish_reasons"] = (attempt.stop_reason,)
        if attempt.streamed and attempt.first_chunk_ns is not None:
            found["gen_ai.response.time_to_first_chunk"] = seconds(attempt.first_chunk_ns)
    else:
        found |= {"http.request.method": attempt.method, "url.template": attempt.endpoint}
    if attempt.status is not None:
        found["http.response.status_code"] = attempt.status
    if attempt.request_id:
        found["anthropic.request.id"] = attempt.request_id
    return found


def _of_tokens(tokens: Tokens) -> Attributes:
    """Return the counts: all input, as the conventions want it, and its parts.

    What is written to the cache has two names: it was renamed, and most products read the old one.
    """
    written = tokens.cache_write_5m + tokens.cache_write_1h
    found: Attributes = {
        "gen_ai.usage.input_tokens": tokens.prompt,
        "gen_ai.usage.output_tokens": tokens.output,
        "gen_ai.usage.cache_read.input_tokens": tokens.cache_read,
        "gen_ai.usage.cache_write.input_tokens": written,
        "gen_ai.usage.cache_creation.input_tokens": written,
        "anthropic.usage.cache_creation.ephemeral_5m_input_tokens": tokens.cache_write_5m,
        "anthropic.usage.cache_creation.ephemeral_1h_input_tokens": tokens.cache_write_1h,
    }
    if tokens.reasoning is not None:
        found["gen_ai.usage.reasoning.output_tokens"] = tokens.reasoning
    return found


def _of_cost(interval: Interval) -> Attributes:
    spent = interval.spent
    if spent is None:
        return {}
    known: Attributes = {"agentobs.cost.usd": float(spent.usd)} if spent.usd is not None else {}
    return {**known, "agentobs.cost.status": spent.status}


def _of_tool(tool: ToolResult) -> Attributes:
    return {
        "gen_ai.tool.call.id": tool.tool_use_id,
        "agentobs.tool.outcome": tool.outcome,
        "agentobs.tool.source": tool.source,
        "agentobs.tool.result_bytes": tool.result_bytes,
    }


def _beta(interval: Interval) -> Iterator[tuple[str, Value]]:
    attempt, tool = interval.attempt, interval.tool
    told: dict[str, Value | None] = {}
    if attempt is not None:
        told |= {
            "turn": attempt.turn,
            "query_source": attempt.query_source,
            "chain_id": attempt.chain_id,
            "depth": attempt.depth,
            "attempt.outcome": attempt.outcome,
            "request.messages": attempt.message_count,
            "request.bytes": attempt.request_bytes,
            "response.bytes": attempt.response_bytes,
            "response.chunks": attempt.chunk_count,
            "response.tool_calls": attempt.tool_use_count,
            "response.claims_success": attempt.claims_success,
            "response.retry_after_ms": attempt.retry_after_ms,
            "redactions": attempt.redactions,
        }
    if tool is not None:
        told |= {"tool.tries": tool.tries, "tool.text_characters": tool.text_characters}
        told["tool.error_kind"] = tool.error_kind
    yield from ((f"agentobs.{name}", value) for name, value in told.items() if value is not None)


def _content(content: Content, names: Mapping[str, str]) -> Attributes:
    found: Attributes = {}
    for part, text in content.texts.items():
        found[f"gen_ai.{names[part]}"] = text
    if content.cut_characters:
        found["agentobs.content.cut_characters"] = content.cut_characters
    if content.cut_messages:
        found["agentobs.content.cut_messages"] = content.cut_messages
    if content.is_unreadable:
        found["agentobs.content.unreadable"] = True
    return found


def _model(interval: Interval) -> str:
    attempt = interval.attempt
    requested = attempt.model_requested if attempt is not None else None
    return requested or interval.label or "unknown"


def tokens_of(row: UsageRow) -> Tokens:
    """Return the counts of one row."""
    tokens = Tokens()
    tokens.add(row)
    return tokens


GENAI = Profile("genai", VERSION, span_name, starting, ending, said, hidden=BETA_SPANS)
"""The standard one."""

GENAI_BETA = replace(GENAI, name="genai-beta", ending=ending_beta, hidden=frozenset())
"""The same with more attributes, and the spans of hooks."""
