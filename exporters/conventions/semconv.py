"""Profiles of semantic conventions; this is the only module that contains `gen_ai.*` names.

`both`, the default, is `genai-latest` plus the older names of tokens written to the cache, because most products read
only these names. `genai-1.41` has only the names of the last release in which the `gen_ai.*` names were part of the
general conventions. `openinference` has its own module. IDs come first and content last, because some collectors drop
the last attributes if there are too many. Nothing here reads a clock or sends anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from agentobs.errors import UsageError
from agentobs.records.event_catalog import LogEvent
from agentobs.records.facts import Attempt, UsageRow
from exporters.conventions import agentobs_attributes, openinference
from exporters.conventions.agentobs_attributes import Attributes, Value
from exporters.conventions.interval import Interval, Tokens
from exporters.conventions.profile import Measure, Metrics, Profile, beta
from exporters.conventions.span_content import content_of_call, content_of_request

LATEST = "semantic-conventions-genai, Development, November 2026"
"""The conventions that `genai-latest` follows. They have no separate release yet, and their names still change. Their
notes list unreleased renamings. Those of cache attributes are applied here; those of metrics (two token metrics,
durations of invocations) are not.
"""
RELEASED = "semantic-conventions 1.41.0"
"""The conventions that `genai-1.41` follows."""

PROVIDER = "anthropic"
"""The value of `gen_ai.provider.name` if no cloud platform provides the model."""
_PLATFORMS = {"bedrock": "aws.bedrock", "vertex": "gcp.vertex_ai"}
"""The values of `gen_ai.provider.name` for cloud platforms."""


@dataclass(frozen=True, slots=True)
class CacheNames:
    """The attribute names of tokens written to the cache; if a count has several names, all of them are set."""

    written: tuple[str, ...]
    """The names of the sum of both lifetimes."""
    written_5m: str
    written_1h: str


_REQUEST_PARAMETERS = (
    "gen_ai.request.max_tokens",
    "gen_ai.request.temperature",
    "gen_ai.request.top_k",
    "gen_ai.request.top_p",
)
_WRITE, _CREATION = (
    "gen_ai.usage.cache_write.input_tokens",
    "gen_ai.usage.cache_creation.input_tokens",
)
_BY_LIFETIME = tuple(
    f"anthropic.usage.cache_creation.ephemeral_{n}_input_tokens" for n in ("5m", "1h")
)
"""From docs/gen-ai/anthropic.md of the conventions."""
_CACHE_LATEST = CacheNames((_WRITE,), *_BY_LIFETIME)
_CACHE_RELEASED = CacheNames(
    (_CREATION,), agentobs_attributes.WRITTEN_5M, agentobs_attributes.WRITTEN_1H
)
_CACHE_BOTH = CacheNames((_WRITE, _CREATION), *_BY_LIFETIME)


def _doubling(first: float, count: int, factor: float = 2) -> tuple[float, ...]:
    return tuple(round(first * factor**power, 6) for power in range(count))


# Names, units and buckets from docs/gen-ai/gen-ai-metrics.md of the conventions, except the cost.
TOKEN_USAGE = Measure(
    "gen_ai.client.token.usage",
    "{token}",
    "Tokens of one model call, by type.",
    _doubling(1, 14, 4),
)
OPERATION_DURATION = Measure(
    "gen_ai.client.operation.duration", "s", "Duration of a model call.", _doubling(0.01, 14)
)
FIRST_CHUNK = Measure(
    "gen_ai.client.operation.time_to_first_chunk",
    "s",
    "Time to the first chunk of a response.",
    _doubling(0.01, 14),
)
TOOL_DURATION = Measure(
    "gen_ai.execute_tool.duration", "s", "Duration of a tool call.", _doubling(0.01, 14)
)
AGENT_DURATION = Measure(
    "gen_ai.invoke_agent.duration", "s", "Duration of an interaction.", _doubling(0.1, 13)
)
COST = Measure("agentobs.cost", "USD", "Cost of model calls; calls without a price add nothing.")

RATE_LIMIT = Measure(
    "agentobs.rate_limit.headroom", "1", "Remaining share of a rate limit after the last response."
)


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
    """Return the IDs of a session and its conversation as attributes."""
    return {"gen_ai.conversation.id": conversation_id, "session.id": session_id}


def start_attributes(interval: Interval) -> Attributes:
    """Return the attributes that are known at the start of a span, IDs first."""
    found = ids(
        interval.session_id, interval.conversation_id
    ) | agentobs_attributes.location_attributes(interval)
    match interval.name:
        case "interaction" | "sub_agent":
            found |= {"gen_ai.operation.name": "invoke_agent", "gen_ai.provider.name": PROVIDER}
            found |= {"gen_ai.agent.name": interval.label} if interval.label else {}
        case "llm_request" if interval.is_chat:
            found |= {"gen_ai.operation.name": "chat", "gen_ai.provider.name": _provider(interval)}
            found["gen_ai.request.model"] = agentobs_attributes.model_of(interval)
        case "tool":
            kind = "function" if interval.provider_tool is None else "extension"
            found |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.type": kind}
            found |= {"gen_ai.tool.name": interval.label} if interval.label else {}
        case _ if interval.label:
            found[f"agentobs.{interval.name}.name"] = interval.label
        case _:
            pass
    return found | agentobs_attributes.metadata_attributes(interval)


def end_attributes(cache: CacheNames, interval: Interval) -> Attributes:
    """Return the attributes that are known only at the end of a span."""
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
    if interval.provider_tool is not None:
        found["gen_ai.tool.call.id"] = interval.provider_tool[0].tool_use_id
    return (
        found | agentobs_attributes.provider_tool(interval) | agentobs_attributes.outcome(interval)
    )


def content_attributes(interval: Interval) -> Attributes:
    """Return the content as attributes, truncated if it is too long; empty if the session did not opt in."""
    if interval.content is None:
        return {}
    if interval.name == "tool":
        content = content_of_call(interval.content)
        names = {"input": "tool.call.arguments", "output": "tool.call.result"}
    elif interval.is_chat or interval.name in ("interaction", "sub_agent"):
        content = content_of_request(interval.content)
        names = {"input": "input.messages", "output": "output.messages"}
        names |= {"system": "system_instructions", "tools": "tool.definitions"}
    else:
        return {}
    found: Attributes = {f"gen_ai.{names[part]}": text for part, text in content.texts.items()}
    return found | agentobs_attributes.truncation_attributes(content)


def call_attributes(interval: Interval) -> Attributes:
    """Return the attributes of the metrics of a model call."""
    found: Attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": _provider(interval),
        "gen_ai.request.model": agentobs_attributes.model_of(interval),
    }
    if interval.attempt is not None and interval.attempt.model is not None:
        found["gen_ai.response.model"] = interval.attempt.model
    return found


def usage_attributes(row: UsageRow, requested: str | None) -> Attributes:
    """Return the attributes of the metrics of tokens and cost, with the requested and the billed model."""
    found = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": PROVIDER}
    found |= {"gen_ai.request.model": requested} if requested else {}
    return {**found, "gen_ai.response.model": row.model}


def limit_attributes(attempt: Attempt, name: str) -> Attributes:
    """Return the attributes of the metric of rate limits, with the requested model and the name of the limit."""
    found: Attributes = {
        "gen_ai.provider.name": PROVIDER,
        "agentobs.rate_limit.name": name,
    }
    model = attempt.model_requested or attempt.model
    return {**found, "gen_ai.request.model": model} if model is not None else found


def token_counts(tokens: Tokens) -> Iterator[tuple[Attributes, int]]:
    """Yield the counts of the metric of tokens, each with its distinguishing attributes."""
    yield {"gen_ai.token.type": "input"}, tokens.prompt
    yield {"gen_ai.token.type": "output"}, tokens.output


def tool_attributes(interval: Interval) -> Attributes:
    """Return the attributes of the metric of a tool call."""
    found: Attributes = {"gen_ai.operation.name": "execute_tool"}
    return found | ({"gen_ai.tool.name": interval.label} if interval.label else {})


def agent_attributes(interval: Interval) -> Attributes:
    """Return the attributes of the metric of an interaction."""
    found: Attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.provider.name": PROVIDER}
    return found | ({"gen_ai.agent.name": interval.label} if interval.label else {})


def event_attributes(profile: Profile, event: LogEvent, conversation_id: str) -> Attributes:
    """Return the attributes of a log record: IDs first, then the attributes of the event."""
    attributes = profile.ids(event.session_id, conversation_id) | agentobs_attributes.event(event)
    return attributes | _evaluation(event) if event.kind == "score" else attributes


def event_name(kind: str) -> str:
    """Return the name of the log record for an event; among the events, the conventions define only scores."""
    return "gen_ai.evaluation.result" if kind == "score" else agentobs_attributes.event_name(kind)


def _evaluation(score: LogEvent) -> Attributes:
    """Return the attributes of a score. Its comment is content, so there is no explanation."""
    number = score.numbers.get("value")
    is_boolean = score.labels.get("value_type") == "boolean"
    label = ("true" if number else "false") if is_boolean else score.labels.get("label")
    found: dict[str, Value | None] = {
        "gen_ai.evaluation.name": score.label,
        "gen_ai.evaluation.score.value": None if number is None else float(number),
        "gen_ai.evaluation.score.label": label,
        "gen_ai.tool.call.id": score.labels.get("tool_use_id"),
    }
    return {name: value for name, value in found.items() if value is not None}


def profile_named(name: str, *, is_beta: bool = False) -> Profile:
    """Return the profile with a name, or its beta version.

    Raises:
        UsageError: no profile has this name.
    """
    if name not in PROFILES:
        raise UsageError(
            f"unknown profile: {name[:40]!r}",
            where="profile",
            todo=f"Use one of {', '.join(PROFILES)}",
        )
    return beta(PROFILES[name]) if is_beta else PROFILES[name]


def _of_attempt(interval: Interval, attempt: Attempt) -> Attributes:
    found: Attributes = {}
    if interval.is_chat:
        found = _of_parameters(attempt)
        if (provider := _provider(interval)) != PROVIDER:
            # When the span started, its attempt may not have been known yet.
            found["gen_ai.provider.name"] = provider
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


def _provider(interval: Interval) -> str:
    return _PLATFORMS.get(agentobs_attributes.platform_of(interval) or "", PROVIDER)


def _of_parameters(attempt: Attempt) -> Attributes:
    """Return the parameters of a request; those that the conventions do not define are `agentobs.request.*`."""
    found: Attributes = {}
    for name, value in agentobs_attributes.parameters(attempt).items():
        known = f"gen_ai.request.{name}"
        if known in _REQUEST_PARAMETERS:
            is_float = known != "gen_ai.request.max_tokens" and isinstance(value, int)
            found[known] = float(value) if is_float else value
        elif known != "gen_ai.request.stream":
            found[f"agentobs.request.{name}"] = value
    return found


def _of_tokens(tokens: Tokens, cache: CacheNames) -> Attributes:
    """Return the token counts. As the conventions require, `input_tokens` is all input; its parts follow."""
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
    RATE_LIMIT,
    call_attributes,
    usage_attributes,
    token_counts,
    limit_attributes,
    tool_attributes,
    agent_attributes,
)
_METRICS_RELEASED = replace(
    _METRICS,
    tool_duration=replace(TOOL_DURATION, name="agentobs.tool.duration"),
    agent_duration=replace(AGENT_DURATION, name="agentobs.agent.duration"),
)
"""Version 1.41 does not define metrics of tools and agents, so their names start with `agentobs`."""

_BOTH = Profile(
    "both",
    LATEST,
    span_name,
    ids,
    start_attributes,
    partial(end_attributes, _CACHE_BOTH),
    content_attributes,
    _METRICS,
)
PROFILES: Mapping[str, Profile] = {
    "both": replace(_BOTH, version=f"{LATEST}; cache_creation from {RELEASED}"),
    "genai-latest": replace(
        _BOTH, name="genai-latest", end_attributes=partial(end_attributes, _CACHE_LATEST)
    ),
    "genai-1.41": replace(
        _BOTH,
        name="genai-1.41",
        version=RELEASED,
        end_attributes=partial(end_attributes, _CACHE_RELEASED),
        metrics=_METRICS_RELEASED,
    ),
    "openinference": Profile(
        "openinference",
        f"{openinference.VERSION}; metrics from {LATEST}",
        openinference.span_name,
        openinference.ids,
        openinference.start_attributes,
        openinference.end_attributes,
        openinference.content_attributes,
        _METRICS,
    ),
}
"""The profiles by name, the default profile first."""

GENAI = PROFILES["both"]
"""The default profile."""
GENAI_BETA = beta(GENAI)
"""The default profile with additional attributes and hook spans."""

__all__ = ["GENAI", "GENAI_BETA", "PROFILES", "Measure", "Profile", "profile_named"]
