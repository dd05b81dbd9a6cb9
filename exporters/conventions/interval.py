"""An interval: one span of a session, with the details that are known about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from agentobs.ledger import Spent
from agentobs.provider.registry import runs_model
from agentobs.records.backend import ExchangeContent
from agentobs.records.facts import (
    Attempt,
    InteractionEnd,
    ProviderToolResult,
    ProviderToolUse,
    ToolResult,
    UsageRow,
)
from exporters.conventions.identities import digest_of


@dataclass(slots=True)
class Tokens:
    """The billed token counts of one call, in disjoint classes."""

    input: int = 0
    """Input that was neither read from nor written to the cache."""
    output: int = 0
    """Output, reasoning included."""
    reasoning: int | None = None
    """The part of output spent on thinking, if the provider reports it."""
    cache_read: int = 0
    """Input read from the cache."""
    cache_write_5m: int = 0
    """Input written to the cache for 5 minutes."""
    cache_write_1h: int = 0
    """Input written to the cache for 1 hour."""

    @property
    def prompt(self) -> int:
        """All input, cached or not."""
        return self.input + self.cache_read + self.cache_write

    @property
    def cache_write(self) -> int:
        """Input written to the cache, for any lifetime."""
        return self.cache_write_5m + self.cache_write_1h

    def add(self, row: UsageRow) -> None:
        """Add the counts of a row."""
        self.input += row.input_tokens
        self.output += row.output_tokens
        self.cache_read += row.cache_read_tokens
        self.cache_write_5m += row.cache_write_5m_tokens
        self.cache_write_1h += row.cache_write_1h_tokens
        if row.reasoning_tokens is not None:
            self.reasoning = (self.reasoning or 0) + row.reasoning_tokens


@dataclass(slots=True, eq=False)
class Interval:
    """One span of a session, with all details that are known so far."""

    session_id: str
    conversation_id: str
    """The ID of the session that this session resumes; otherwise its own ID."""
    trace_id: str
    span_id: str
    parent_span_id: str | None
    """The ID of the nearest exported ancestor."""
    lane: str
    name: str
    """The kind of the span: `interaction`, `llm_request`, `attempt`, `tool`, `queued`, `hook` ..."""
    label: str | None
    """The name of the agent, model, tool or hook."""
    started_ns: int
    links: tuple[tuple[str, str], ...] = ()
    """Trace ID and span ID of the spans in another trace, or in another program, that started this span."""
    linked_span_id: str | None = None
    """The ID of the span that started this span, if the trace of that span is no longer known."""
    interaction_id: str | None = None
    """The interaction that the span belongs to. The trace ID differs from this ID if a span encloses the interaction.
    """
    metadata: Mapping[str, float | str] = field(default_factory=dict)
    """The attributes that the program set: numbers and labels."""
    has_recorded_span: bool = True
    """Whether the program or the agent loop opened this span. If not, it was created here."""
    ended_ns: int = 0
    status: str = "ok"
    """`ok`, `error`, `cancelled` or `orphaned`."""
    error_type: str | None = None
    last_activity_ns: int | None = None
    """The time of the last activity in the session, if the span was orphaned."""
    attempts: int = 0
    """The number of HTTP attempts of the call so far."""
    attempt: Attempt | None = None
    """The last HTTP attempt of the call; for an interval of the kind `attempt`, this attempt."""
    tokens: Tokens | None = None
    """The usage of all attempts."""
    spent: Spent | None = None
    """The cost of all attempts."""
    tool: ToolResult | None = None
    """The outcome of the tool call."""
    provider_tool: tuple[ProviderToolUse, ProviderToolResult] | None = None
    """The call and the result of a tool that the provider ran."""
    called_from: tuple[str, int] | None = None
    """The ID of the span whose response contains this tool call, and the time of the call."""
    end: InteractionEnd | None = None
    """The end of the interaction, with its result."""
    content: ExchangeContent | None = None
    """At the end of the interval, if the session opted in: the content of the last attempt, of the tool call, or of the
    agent (its prompt and its last response).
    """

    @property
    def has_known_duration(self) -> bool:
        """Whether its length is the length of the operation; False if the length is zero because the time of a
        provider's tool is unknown.
        """
        return self.provider_tool is None or self.provider_tool[1].duration_ns is not None

    @property
    def is_chat(self) -> bool:
        """Whether this is a request to a model."""
        if self.name != "llm_request":
            return False
        if self.attempt is None:
            return True
        return runs_model(self.attempt.endpoint)


class Transition(NamedTuple):
    """An interval opens or closes."""

    change: Literal["opens", "closes"]
    interval: Interval


def provider_tool_interval(
    use: ProviderToolUse, result: ProviderToolResult, request: Interval, conversation_id: str
) -> Interval:
    """Return the interval of a tool that the provider ran, within the LLM request whose response has the call.

    If its time is unknown, the interval has no length.
    """
    return Interval(
        session_id=use.session_id,
        conversation_id=conversation_id,
        trace_id=request.trace_id,
        span_id=digest_of(f"{use.attempt_id} provider {use.ordinal} {use.tool_use_id}", 16),
        parent_span_id=request.span_id,
        lane=use.lane,
        name="tool",
        label=use.name,
        started_ns=use.requested_ns,
        has_recorded_span=False,
        ended_ns=use.requested_ns + (result.duration_ns or 0),
        status="error" if result.is_error else "ok",
        error_type=(result.error_code or result.outcome) if result.is_error else None,
        provider_tool=(use, result),
        interaction_id=use.interaction_id,
    )
