"""The semantic conventions by name; the only module that contains `gen_ai.*` names.

`both`, the default, is `genai-latest` plus the older names of tokens written to the cache, because most products read
only those. `genai-1.41` has the names of the last release in which they were part of the general conventions, and no
newer ones. `openinference` has its own module. IDs come first and content last, because some collectors drop the last
attributes if there are too many. Nothing here reads a clock or sends anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from agentobs.errors import UsageError
from agentobs.records.event_catalog import Logged
from agentobs.records.facts import Attempt, UsageRow
from exporters.conventions import agentobs_attributes, openinference
from exporters.conventions.agentobs_attributes import Attributes
from exporters.conventions.intervals import Interval, Tokens
from exporters.conventions.profile import Measure, Metrics, Profile, beta
from exporters.conventions.span_content import content_of_call, content_of_request

LATEST = "semantic-conventions-genai, Development, November 2026"
"""The conventions that `genai-latest` follows; they have no release of their own yet, and their names still change. The
renamings in their unreleased notes beyond the cache (metrics of tokens in two, durations of invocations) are not
applied.
"""
RELEASED = "semantic-conventions 1.41.0"
"""Those of `genai-1.41`."""

PROVIDER = "anthropic"
"""The value of `gen_ai.provider.name`."""


@dataclass(frozen=True, slots=True)
class CacheNames:
    """The names of tokens written to the cache: each count has each of its names."""

    written: tuple[str, ...]
    """Both lifetimes together."""
    written_5m: str
    written_1h: str


_WRITE, _CREATION = (
    "gen_ai.usage.cache_write.input_tokens",
    "gen_ai.usage.cache_creation.input_tokens",
)
_BY_LIFETIME = tuple(
    f"anthropic.usage.cache_creation.ephemeral_{n}_input_tokens" for n in ("5m", "1h")
)
"""docs/gen-ai/anthropic.md of the conventions."""
_CACHE_LATEST = CacheNames((_WRITE,), *_BY_LIFETIME)
_CACHE_RELEASED = CacheNames(
    (_CREATION,), agentobs_attributes.WRITTEN_5M, agentobs_attributes.WRITTEN_1H
)
_CACHE_BOTH = CacheNames((_WRITE, _CREATION), *_BY_LIFETIME)


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
COST = Measure("agentobs.cost", "USD", "Cost of model calls; calls without a price add nothing.")


def span_name(interval: Interval) -> str:
    """Return the name of a span."""
    match interval.name:
        case "interaction":
            return f"invoke_agent {interval.label}" if interval.label else "invoke_agent"
        case "llm_request" if interval.is_chat:
            return f"chat {agentobs_attributes.model_of(interval)}"
        case "llm_request":
            attempt = interval.attempt
            return f"{attempt.method} {attempt.endpoint}" if attempt else "llm_request"
        case "tool":
            return f"execute_tool {interval.label}" if interval.label else "execute_tool"
        case _:
            return agentobs_attributes.span_name(interval)


def ids(session_id: str, conversation_id: str) -> Attributes:
    """Return the attributes known at the start of a span, IDs first."""
    return {"gen_ai.conversation.id": conversation_id, "session.id": session_id}


def starting(interval: Interval) -> Attributes:
    """Return the attributes known at the end of a span."""
    found = ids(interval.session_id, interval.conversation_id) | agentobs_attributes.place(interval)
    match interval.name:
        case "interaction" | "sub_agent":
            found |= {"gen_ai.operation.name": "invoke_agent", "gen_ai.provider.name": PROVIDER}
            found |= {"gen_ai.agent.name": interval.label} if interval.label else {}
        case "llm_request" if interval.is_chat:
            found |= {"gen_ai.operation.name": "chat", "gen_ai.provider.name": PROVIDER}
            found["gen_ai.request.model"] = agentobs_attributes.model_of(interval)
        case "tool":
            found |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.type": "function"}
            found |= {"gen_ai.tool.name": interval.label} if interval.label else {}
        case _ if interval.label:
            found[f"agentobs.{interval.name}.name"] = interval.label
        case _:
            pass
    return found | agentobs_attributes.given(interval)


def ending(cache: CacheNames, interval: Interval) -> Attributes:
    """Return what is known of a span when it ends."""
    found: Attributes = {}
    if interval.attempt is not None:
        found |= _of_attempt(interval, interval.attempt)
    if interval.tokens is not None:
        found |= _of_tokens(interval.tokens, cache)
    found |= agentobs_attributes.cost(interval)
    if interval.tool is not None:
        found |= {
            "gen_ai.tool.call.id": interval.tool.tool_use_id,
            **agentobs_attributes.tool(interval.tool),
        }
    return found | agentobs_attributes.outcome(interval)


def said(interval: Interval) -> Attributes:
    """Return the content, truncated with a mark; nothing if the session did not opt in."""
    if interval.said is None:
        return {}
    if interval.name == "tool":
        content = content_of_call(interval.said)
        names = {"input": "tool.call.arguments", "output": "tool.call.result"}
    elif interval.is_chat:
        content = content_of_request(interval.said)
        names = {"input": "input.messages", "output": "output.messages"}
        names |= {"system": "system_instructions", "tools": "tool.definitions"}
    else:
        return {}
    found: Attributes = {f"gen_ai.{names[part]}": text for part, text in content.texts.items()}
    return found | agentobs_attributes.cuts(content)


def on_call(interval: Interval) -> Attributes:
    """Return the attributes of the metrics of a model call."""
    found: Attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": agentobs_attributes.model_of(interval),
    }
    if interval.attempt is not None and interval.attempt.model is not None:
        found["gen_ai.response.model"] = interval.attempt.model
    return found


def on_usage(row: UsageRow, requested: str | None) -> Attributes:
    """Return the attributes of the metrics of tokens and of cost; the model is the billed one."""
    found = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": PROVIDER}
    found |= {"gen_ai.request.model": requested} if requested else {}
    return {**found, "gen_ai.response.model": row.model}


def on_tokens(tokens: Tokens) -> Iterator[tuple[Attributes, int]]:
    """Yield the counts of the metric of tokens, each with its distinguishing attributes."""
    yield {"gen_ai.token.type": "input"}, tokens.prompt
    yield {"gen_ai.token.type": "output"}, tokens.output


def on_tool(interval: Interval) -> Attributes:
    """Return the attributes of the metric of a tool call."""
    found: Attributes = {"gen_ai.operation.name": "execute_tool"}
    return found | ({"gen_ai.tool.name": interval.label} if interval.label else {})


def on_agent(interval: Interval) -> Attributes:
    """Return the attributes of the metric of an interaction."""
    found: Attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.provider.name": PROVIDER}
    return found | ({"gen_ai.agent.name": interval.label} if interval.label else {})


def on_event(profile: Profile, event: Logged, conversation_id: str) -> Attributes:
    """Return the attributes of a log record: IDs first, then those of the event."""
    return profile.ids(event.session_id, conversation_id) | agentobs_attributes.event(event)


def profile_named(name: str, *, is_beta: bool = False) -> Profile:
    """Return a profile by its name, or its beta.

    Raises:
        UsageError: there is none with that name.
    """
    if name not in PROFILES:
        raise UsageError(
            f"unknown profile: {name[:40]!r}",
            where="profile",
            todo=f"Say {', '.join(PROFILES)}",
        )
    return beta(PROFILES[name]) if is_beta else PROFILES[name]


def _of_attempt(interval: Interval, attempt: Attempt) -> Attributes:
    found: Attributes = {"agentobs.attempts": max(interval.attempts, attempt.attempt)}
    if interval.is_chat:
        found["gen_ai.request.stream"] = attempt.streamed
        found |= {"gen_ai.response.id": attempt.message_id} if attempt.message_id else {}
        found |= {"gen_ai.response.model": attempt.model} if attempt.model else {}
        if attempt.stop_reason:
            found["gen_ai.response.finish_reasons"] = (attempt.stop_reason,)
        if attempt.streamed and attempt.first_chunk_ns is not None:
            found["gen_ai.response.time_to_first_chunk"] = agentobs_attributes.seconds(
                attempt.first_chunk_ns
            )
    return found | agentobs_attributes.http(interval, attempt)


def _of_tokens(tokens: Tokens, cache: CacheNames) -> Attributes:
    """Return the counts: all input, as the conventions require, and its parts."""
    found: Attributes = {
        "gen_ai.usage.input_tokens": tokens.prompt,
        "gen_ai.usage.output_tokens": tokens.output,
        "gen_ai.usage.cache_read.input_tokens": tokens.cache_read,
        **dict.fromkeys(cache.written, tokens.cache_write),
        cache.written_5m: tokens.cache_write_5m,
        cache.written_1h: tokens.cache_write_1h,
    }
    if tokens.reasoning is not None:
        found["gen_ai.usage.reasoning.output_tokens"] = tokens.reasoning
    return found


_METRICS = Metrics(
    TOKEN_USAGE,
    OPERATION_DURATION,
    FIRST_CHUNK,
    TOOL_DURATION,
    AGENT_DURATION,
    COST,
    on_call,
    on_usage,
    on_tokens,
    on_tool,
    on_agent,
)
_METRICS_RELEASED = replace(
    _METRICS,
    tool_duration=replace(TOOL_DURATION, name="agentobs.tool.duration"),
    agent_duration=replace(AGENT_DURATION, name="agentobs.agent.duration"),
)
"""That release has no metrics of tools and agents yet: here they have names of our own."""

_BOTH = Profile(
    "both", LATEST, span_name, ids, starting, partial(ending, _CACHE_BOTH), said, _METRICS
)
PROFILES: Mapping[str, Profile] = {
    "both": replace(_BOTH, version=f"{LATEST}; cache_creation from {RELEASED}"),
    "genai-latest": replace(_BOTH, name="genai-latest", ending=partial(ending, _CACHE_LATEST)),
    "genai-1.41": replace(
        _BOTH,
        name="genai-1.41",
        version=RELEASED,
        ending=partial(ending, _CACHE_RELEASED),
        metrics=_METRICS_RELEASED,
    ),
    "openinference": Profile(
        "openinference",
        f"{openinference.VERSION}; metrics from {LATEST}",
        openinference.span_name,
        openinference.ids,
        openinference.starting,
        openinference.ending,
        openinference.said,
        _METRICS,
    ),
}
"""The profiles by name, the default one first."""

GENAI = PROFILES["both"]
"""The default one."""
GENAI_BETA = beta(GENAI)
"""The same with more attributes, and the spans of hooks."""

__all__ = ["GENAI", "GENAI_BETA", "PROFILES", "Measure", "Profile", "profile_named"]
