"""The catalog of events: every kind of event, its fields, and its table.

Each fact is one row. Facts with their own fields have their own table, such as attempts, permission decisions and tool
results; all other events are rows of `events`. The view `event_log` shows all of them as one stream with the same
columns, and `event_of` does the same in Python. docs/events.md is generated from this module.

Intervals are spans, not events. Usage, the zones of a prompt and the changes in its prefix are parts of an attempt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentobs.records.facts import (
    Attempt,
    Event,
    Fact,
    Gap,
    InteractionEnd,
    InteractionStart,
    Permission,
    ProviderToolResult,
    ProviderToolUse,
    Score,
    SessionEnd,
    SessionStart,
    SpanEnd,
    ToolResult,
    ToolUse,
    WorldAnswer,
)
from agentobs.records.labels import Label


@dataclass(frozen=True, slots=True)
class RowKind:
    """A kind of event that is a row of `events`."""

    meaning: str
    """What happened, in one sentence."""
    label: str = ""
    """The meaning of the event's label; empty if it has none."""
    numbers: Mapping[str, str] = field(default_factory=dict)
    """The meaning of each number, by name, with its unit in square brackets."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """The meaning of each additional label, by name."""
    is_required: bool = False
    """Whether readers need every event of the kind. Such a kind cannot be sampled."""
    is_reserved: bool = False
    """Whether the name is reserved for future use; no such event is emitted yet."""


@dataclass(frozen=True, slots=True)
class TableKind:
    """A kind of event that has its own table; its fields are the names of columns."""

    meaning: str
    fact: type
    at: str
    """The column with the time of the event."""
    label: str | None
    numbers: tuple[str, ...]
    labels: tuple[str, ...]
    status: str | None = None
    """Only facts with this `status` are events of the kind; None if all facts are."""


@dataclass(frozen=True, slots=True)
class ViewKind:
    """A kind that a view derives from other facts, so that it has no rows of its own."""

    meaning: str
    view: str


_WAIT = "The wait before the next attempt. [ns]"
_NUMBER = "The number of times that this has happened so far, including this time."
_TOKENS = "Size of the conversation. [tokens]"
_THRESHOLD = "The compaction threshold. [tokens]"
_FAILED = "The number of the attempt that failed, from 1."

ROW_KINDS: Mapping[str, RowKind] = {
    "abort": RowKind(
        "The run was aborted.",
        "The point at which it was aborted, such as `streaming` or `tools`.",
        {"count": "The number of times that the run had passed this kind of point."},
    ),
    "background_result": RowKind(
        "The result of a background agent is added to the conversation.",
        "The outcome of the agent's run, such as `success`.",
        {"turn": "The turn whose request contains the result."},
    ),
    "budget": RowKind(
        "A budget is exhausted.",
        "The limit that is exhausted, such as `interaction_usd` or `session_turns`.",
        {"continues": "1 if the run continues anyway, else 0."},
    ),
    "budget_level": RowKind(
        "A large share of a budget is spent.",
        "The limit, such as `interaction_usd`.",
        {"percent": "The share that is reached: 80 or 95. [percent]"},
    ),
    "compaction": RowKind(
        "The conversation was compacted.",
        "The trigger: `auto`, `reactive`, `manual` or `emergency`.",
        {
            "tokens_before": "Size of the conversation before the compaction, as counted. [tokens]",
            "tokens_after": "Size of the conversation after the compaction, estimated. [tokens]",
            "threshold": _THRESHOLD,
            "messages_before": "Number of messages before the compaction.",
            "messages_after": "Number of messages after the compaction.",
            "files": "Number of files that were attached again.",
            "trim": "1 if old tool results were shortened.",
            "drop": "1 if the oldest groups of messages were dropped.",
            "memory": "1 if the session's memory replaced old messages.",
            "summary": "1 if a summary replaced old messages.",
            "turns_since_last": "Turns since the previous compaction; absent for the first compaction.",
        },
        is_required=True,
    ),
    "managed_agent": RowKind(
        "An event of an agent that the provider runs, by the provider's clock. Each event is recorded once, even if "
        "several streams and lists contain it.",
        "The provider's name of the event, such as `session.status_idle`.",
        {
            "iteration": "The number of the revision that an evaluation judged, from 0.",
            "input_tokens": "Uncached input of the agent's session so far. [tokens]",
            "output_tokens": "Output of the agent's session so far. [tokens]",
            "cache_read_input_tokens": "Input read from the cache so far. [tokens]",
            "ephemeral_5m_input_tokens": "Input written to the cache for 5 minutes so far. [tokens]",
            "ephemeral_1h_input_tokens": "Input written to the cache for 1 hour so far. [tokens]",
            "web_search_requests": "Web searches so far.",
            "web_fetch_requests": "Pages fetched so far.",
            "active_seconds": "How long the agent has run so far. [s]",
            "list_cost_cents": "The provider's list price of the usage so far. [0.01 USD]",
        },
        {
            "managed_session_id": "The provider's ID of the agent's session.",
            "managed_event_id": "The provider's ID of the event.",
            "managed_thread_id": "The thread of a sub-agent.",
            "attempt_id": "The attempt that represents the request to a model.",
            "managed_word": "Why the agent stopped, the type of an error, or a verdict.",
            "managed_retry_status": "Whether the provider retries after an error.",
            "managed_outcome_id": "The outcome that is evaluated.",
            "managed_workflow_run_id": "The run of a workflow.",
            "managed_permission": "The provider's decision about a tool call.",
        },
        is_required=True,
    ),
    "body_truncated": RowKind(
        "A body is larger than 32 MiB. The client got all of it, but the bytes after 32 MiB are not recorded, so the "
        "session is incomplete.",
        "The ID of the attempt.",
        {
            "kept_bytes": "Recorded bytes of the request and the response. [bytes]",
            "lost_bytes": "Bytes that were not recorded. [bytes]",
        },
        is_required=True,
    ),
    "compaction_failed": RowKind(
        "A compaction failed.",
        "The trigger, as in `compaction`.",
        {
            "tokens": _TOKENS,
            "threshold": _THRESHOLD,
            "failures": "Number of consecutive failures.",
            "cut": "1 if the summary was cut off at its token limit.",
        },
    ),
    "compaction_kept": RowKind(
        "The unchanged part of a compacted conversation.",
        "Where the unchanged part starts: the ID of its first tool call, or `message:N` for the last N messages.",
        is_required=True,
    ),
    "context": RowKind(
        "The size of the conversation before a request.",
        "",
        {
            "tokens": _TOKENS,
            "window": "The context window of the model. [tokens]",
            "threshold": _THRESHOLD,
            "messages": "Number of messages of the conversation.",
        },
    ),
    "context_level": RowKind(
        "The conversation takes up a large share of the context window.",
        "The reaction: `none`, `compaction`, `emergency` if compaction was given up, or `off`.",
        {
            "percent": "The share that is reached: 80 or 95. [percent]",
            "tokens": _TOKENS,
            "window": "The context window of the model. [tokens]",
        },
    ),
    "continuation": RowKind(
        "A response was cut off at its token limit, and another request follows.",
        "`void`: the response is discarded and requested again with a higher limit; `kept`: the model continues the "
        "response.",
        {"number": _NUMBER, "max_tokens": "The limit of the next response. [tokens]"},
        is_required=True,
    ),
    "degraded": RowKind(
        "A capability of the run is degraded.",
        "The capability and the reason, such as `streaming:broken_streams`.",
        {"failures": "Number of failures that led to the degradation."},
    ),
    "drop": RowKind(
        "Records were dropped because the queue was full; this event replaces them.",
        "The kind of the dropped records.",
        {
            "count": "The number of dropped records.",
            "exchanges": "The number of dropped records that a replay needs.",
        },
        is_required=True,
    ),
    "fallback": RowKind(
        "Requests go to another model from now on.", "The new model.", {"attempt": _FAILED}
    ),
    "follow_up": RowKind(
        "A follow-up message arrived when the agent was about to stop.",
        "",
        {"texts": "The number of texts in the message."},
    ),
    "forked": RowKind(
        "The session is a fork of an earlier session.",
        "The ID of the earlier session.",
        {
            "turns": "Number of turns in the inherited conversation.",
            "messages": "Number of messages in the inherited conversation.",
            "children": "Number of sub-agents in the inherited conversation.",
        },
        is_required=True,
    ),
    "heartbeat": RowKind(
        "A long wait before a retry is still in progress.",
        "",
        {"attempt": _FAILED, "waited_ns": "The wait so far. [ns]"},
    ),
    "hook": RowKind(
        "A hook answered, failed or was cancelled.",
        "The outcome: `success`, `blocking`, `non_blocking_error` or `cancelled`.",
        {
            "duration_ns": "Duration of the hook. [ns]",
            "blocking": "1 if the hook blocks the operation.",
            "background": "1 if the hook ran in the background.",
            "rewrites": "1 if the hook changes an input or a result.",
            "overridden": "1 if the change of another hook replaced the change of this hook.",
            "requests": "Number of LLM requests that the hook sent.",
        },
        {
            "event": "The hook event, such as `pre_tool_use`.",
            "hook": "The name of the hook.",
            "tool_use_id": "The ID of the tool call that the hook is about; absent if there is none.",
        },
    ),
    "max_output_tokens": RowKind(
        "A response was cut off at its token limit after the maximum number of continuations.",
        "",
        {"continuations": "The number of continuations."},
    ),
    "max_turns": RowKind("The turn limit is reached.", "", {"max_turns": "The turn limit."}),
    "nudge": RowKind(
        "The model was about to stop, and is instructed to continue.",
        "",
        {
            "output_tokens": "Output of the model in this interaction. [tokens]",
            "budget": "The token budget. [tokens]",
            "nudges": _NUMBER,
        },
    ),
    "rate_limit_low": RowKind(
        "Less than a tenth of a rate limit remains. Recorded once per session, model and limit until more remains.",
        "The limit, such as `input_tokens`.",
        {
            "limit": "The limit, in requests or tokens; absent for unified limits.",
            "remaining": "What remains of it; absent for unified limits.",
            "reset_s": "When the limit is completely available again. [s since 1970]",
            "headroom_ratio": "The remaining share of the limit, from 0 to 1.",
        },
        {"model": "The model of the request; absent if unknown."},
    ),
    "resumed": RowKind(
        "The session resumes an earlier session.",
        "The ID of the earlier session.",
        {
            "turns": "Number of turns in the inherited conversation.",
            "messages": "Number of messages in the inherited conversation.",
            "children": "Number of sub-agents in the inherited conversation.",
        },
        is_required=True,
    ),
    "retry": RowKind(
        "An attempt failed; the next attempt follows after a wait.",
        "The error type, such as `overloaded_error`.",
        {"attempt": _FAILED, "wait_ns": _WAIT},
    ),
    "rewritten": RowKind(
        "Hooks or a person changed the input of a tool, or hooks changed its result or the messages of a request.",
        "What was changed: `input`, `output` or `messages`.",
        {
            "before_bytes": "Size before the change. [bytes]",
            "after_bytes": "Size after the change. [bytes]",
        },
        {
            "tool_use_id": "The ID of the tool call; absent if messages were changed.",
            "by": "Who changed it: `hook`, or `person` if it was changed with the approval.",
        },
        is_required=True,
    ),
    "service_breaker": RowKind(
        "The circuit breaker of a service that several tools share changed its state.",
        "The state: `opened`, `half_open` (one call is let through) or `closed`.",
        {"failures": "Number of consecutive failures of the tools of the service."},
        {"service": "The name of the service."},
    ),
    "setting_held": RowKind(
        "A changed setting is ignored, because it would invalidate the cached prompt.",
        "The name of the setting.",
    ),
    "speed": RowKind(
        "Fast mode is suspended because the provider requests a long wait, or it continues.",
        "The speed of the next requests: `standard` or `fast`.",
        {"wait_ns": "How long fast mode is suspended; absent if it continues. [ns]"},
    ),
    "steering": RowKind(
        "A steering message was sent to the running agent.",
        "",
        {
            "texts": "The number of texts in the message.",
            "skipped": "Number of tool calls that are skipped because of the message.",
        },
    ),
    "structured_output_retry": RowKind(
        "The model ended without the required structured output; the request is repeated.",
        "",
        {"number": _NUMBER},
    ),
    "sub_agent": RowKind(
        "A sub-agent has ended.",
        "The outcome of the sub-agent's run, such as `success`.",
        {
            "level": "Depth of the sub-agent below the main agent, from 1.",
            "background": "1 if the sub-agent ran in the background.",
            "turns": "Number of completed turns.",
            "denials": "Number of tool calls that were denied.",
            "duration_ns": "Wall time of the sub-agent's run. [ns]",
            "result_bytes": "Size of the sub-agent's final message. [bytes]",
        },
        {
            "agent": "The name of the sub-agent.",
            "tool_use_id": "The ID of the tool call that started the sub-agent.",
        },
    ),
    "summary_failed": RowKind(
        "The model was paid for a summary of the conversation that could not be used.",
        "Why: `no_text`, `refusal`, `cut` (twice at its token limit), `too_long` (the request), `not_shorter`, or "
        "`no_response`.",
        {
            "requests": "Number of LLM requests for the summary.",
            "failures": "Number of consecutive automatic compactions with such a summary.",
            "tokens": _TOKENS,
        },
    ),
    "thinking_cleared": RowKind(
        "The thinking of earlier turns was removed from the conversation.",
        "",
        {"blocks": "The number of thinking blocks."},
    ),
    "token_budget": RowKind(
        "The model may stop, although its token budget is not used up.",
        "The reason why the model may stop.",
        {
            "output_tokens": "Output of the model in this interaction. [tokens]",
            "budget": "The token budget. [tokens]",
            "nudges": "The number of times that the model was instructed to continue.",
        },
    ),
    "telemetry": RowKind(
        "A record of another program's telemetry was received: a log record, a span, or a data point of a metric.",
        "The name of the record, if agentobs knows it.",
        {
            "span_duration_ns": "Duration of a span. [ns]",
            "value": "The value of a data point, or the sum of a distribution.",
            "count": "The number of values of a distribution.",
            "is_cumulative": "1 if later data points of a metric contain earlier ones.",
            "left_out": "The number of attributes whose text may contain content and is not stored.",
        },
        {
            "signal": "`log`, `span` or `metric`.",
            "id": "A digest of the record, which is the same if it is sent again.",
            "client_session": "The client's ID of the session.",
            "request_id": "The provider's ID of the request.",
            "tool_use_id": "The ID of the tool call.",
            "model": "The model.",
            "trace_id": "The trace of a log record or a span.",
            "span_id": "The span, or the span of a log record.",
            "parent_span_id": "The parent of a span.",
            "series": "A digest of a metric, its attributes and the start of its counting.",
        },
        is_required=True,
    ),
    "tombstone": RowKind(
        "A response broke off; its partial content is discarded.",
        "",
        {"tool_calls": "Number of tool calls of the response that had started."},
        is_required=True,
    ),
    "tool_setting": RowKind(
        "A tool's function of the input failed for a call, so that the stricter value applies.",
        "The setting: `read_only`, `destructive` or `concurrent`.",
        {},
        {
            "tool": "The name of the tool.",
            "tool_use_id": "The ID of the tool call.",
            "error": "The class of the exception, or `ContradictionError` if a call is read-only and destructive.",
        },
    ),
    "tool_withdrawn": RowKind(
        "A tool is no longer used in the conversation, because it failed too often in a row.",
        "The name of the tool.",
        {"failures": "Number of consecutive failures."},
        {"fallback": "The name of the tool that gets its calls; absent if there is none."},
    ),
    "world_read": RowKind(
        "Code of a session used its recorded clock, IDs or random numbers for the first time.",
        is_required=True,
    ),
    "mcp_server": RowKind(
        "A tool server was started, or failed to start.",
        "`ready`, or the class of the error.",
        {"duration_ns": "Time to start. [ns]", "tool_count": "The number of tools of the server."},
        {"server": "The name of the server.", "error": "The error; absent if there is none."},
        is_reserved=True,
    ),
    "skill": RowKind(
        "A skill was loaded.",
        "The name of the skill.",
        {"bytes": "Size of the skill's text. [bytes]"},
        is_reserved=True,
    ),
    "memory": RowKind(
        "A memory was stored or recalled.",
        "`kept` or `recalled`.",
        {"entries": "The number of entries.", "bytes": "Total size of the entries. [bytes]"},
        is_reserved=True,
    ),
    "team": RowKind(
        "Concurrent agents exchanged a message.",
        "The kind of message, such as `message` or `task`.",
        {"members": "The number of agents."},
        {"from": "The sender.", "to": "The recipient."},
        is_reserved=True,
    ),
}
"""The kinds that are rows of `events`, by name."""

TABLE_KINDS: Mapping[str, TableKind] = {
    "session": TableKind(
        "A session started: versions, platform, content mode, a digest of the options.",
        SessionStart,
        "started_ns",
        "name",
        (),
        (
            "entry", "agentobs_version", "sdk_version", "python_version", "platform",
            "continues_session_id", "relation", "content", "options",
        ),
    ),
    "session_end": TableKind(
        "A session ended.",
        SessionEnd,
        "ended_ns",
        "outcome",
        ("dropped", "error_line"),
        ("reason", "signature", "error_class", "error_file"),
    ),
    "interaction": TableKind(
        "An interaction started with a prompt.", InteractionStart, "started_ns", None, (), ()
    ),
    "interaction_end": TableKind(
        "An interaction ended, with or without a final response.",
        InteractionEnd,
        "ended_ns",
        "result",
        ("is_error",),
        (),
    ),
    "attempt": TableKind(
        "One HTTP attempt of a request to the provider.",
        Attempt,
        "started_ns",
        "outcome",
        (
            "attempt", "duration_ns", "headers_ns", "first_chunk_ns", "makes_turns", "streamed",
            "status", "retry_after_ms", "message_count", "tool_use_count", "request_bytes",
            "response_bytes", "chunk_count", "redactions", "claims_success", "first_token_ns",
        ),
        (
            "llm_request_id", "attempt_id", "endpoint", "model_requested", "model", "error_type",
            "stop_reason", "limit_hit",
        ),
    ),
    "tool_use": TableKind(
        "The model called a tool.",
        ToolUse,
        "requested_ns",
        "name",
        ("ordinal", "input_bytes", "lines_added", "lines_removed"),
        ("tool_use_id", "attempt_id"),
    ),
    "tool": TableKind(
        "A tool call received its result.",
        ToolResult,
        "result_ns",
        "outcome",
        (
            "duration_ns", "is_error", "attempts", "requested_bytes", "executed_bytes", "coerced",
            "result_bytes", "text_characters", "error_line", "lines_added", "lines_removed",
        ),
        (
            "tool_use_id", "tool", "source", "error_kind", "error_origin", "error_class",
            "error_file",
        ),
    ),
    "provider_tool_use": TableKind(
        "The model called a tool that the provider runs.",
        ProviderToolUse,
        "requested_ns",
        "name",
        ("ordinal", "is_timed", "input_bytes", "use", "max_uses", "max_result_tokens"),
        ("tool_use_id", "attempt_id", "server", "caller_id", "batch_result_id"),
    ),
    "provider_tool": TableKind(
        "A response contained the result of a tool that the provider ran.",
        ProviderToolResult,
        "result_ns",
        "outcome",
        ("duration_ns", "is_error", "result_bytes", "items", "return_code", "iteration"),
        (
            "tool_use_id",
            "attempt_id",
            "result_attempt_id",
            "type",
            "error_code",
            "stop_reason",
            "batch_result_id",
        ),
    ),
    "permission": TableKind(
        "A permission decision about a tool call.",
        Permission,
        "at_ns",
        "behavior",
        ("approval_requested", "approval_wait_ns"),
        ("tool_use_id", "tool", "reason_type", "source", "resolver", "rule"),
    ),
    "world_answer": TableKind(
        "An input from the world, except responses of the model and results of tools.",
        WorldAnswer,
        "started_ns",
        "kind",
        ("duration_ns", "answer_bytes"),
        ("key",),
    ),
    "score": TableKind(
        "A session, a turn or a tool call got a score.",
        Score,
        "at_ns",
        "name",
        ("value",),
        ("value_type", "label", "source", "tool_use_id"),
    ),
    "gap": TableKind(
        "Records were not written.", Gap, "at_ns", "kind", ("records",), ("reason",)
    ),
    "orphan": TableKind(
        "agentobs ended an orphaned span.",
        SpanEnd,
        "ended_ns",
        None,
        ("last_activity_ns", "late"),
        ("span_id",),
        status="orphaned",
    ),
}  # fmt: skip
"""The kinds with their own tables, by name."""

VIEW_KINDS: Mapping[str, ViewKind] = {
    "turn": ViewKind("A complete response of the model: an attempt that succeeded.", "turns"),
    "llm_request": ViewKind(
        "One logical call to the model, with all its attempts.", "llm_requests"
    ),
}
"""The derived kinds, by name."""

DERIVED: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "attempt": {
        "has_tool_calls": ("tool_use_count", "1 if the response contains tool calls, else 0.")
    }
}
"""Numbers that are 1 if another number is above 0, by kind and name; each with the other number and the meaning."""

_TABLE_OF = {kind.fact: (name, kind) for name, kind in TABLE_KINDS.items()}
_PLACE = ("interaction_id", "turn", "lane", "query_source", "chain_id", "depth")


@dataclass(frozen=True, slots=True)
class LogEvent:
    """A fact as one event of the stream, like a row of `event_log`."""

    session_id: str
    interaction_id: str | None
    turn: int | None
    lane: str | None
    query_source: str | None
    chain_id: str | None
    depth: int | None
    at_ns: int
    """When it happened, nanoseconds since 1970."""
    kind: str
    label: str | None
    labels: Mapping[str, str]
    numbers: Mapping[str, float]
    """Booleans are 1 and 0."""
    rate: float
    """The sampling rate of the kind: this event represents 1/rate events."""


def event_of(fact: Fact) -> LogEvent | None:
    """Return a fact as an event; None if it is not an event, such as a span or a part of an attempt."""
    if isinstance(fact, Event):
        label, labels, numbers = fact.label, fact.labels or {}, fact.numbers
        return _log_event(fact, fact.at_ns, fact.kind, label, labels, numbers, fact.rate)
    if type(fact) not in _TABLE_OF:
        return None
    name, kind = _TABLE_OF[type(fact)]
    if kind.status is not None and getattr(fact, "status", None) != kind.status:
        return None
    numbers = {each: getattr(fact, each) for each in kind.numbers}
    numbers |= {n: getattr(fact, counted) > 0 for n, (counted, _) in DERIVED.get(name, {}).items()}
    labels = {each: getattr(fact, each) for each in kind.labels}
    label = getattr(fact, kind.label) if kind.label else None
    return _log_event(fact, getattr(fact, kind.at), name, label, labels, numbers, 1.0)


def _log_event(
    fact: Fact,
    at_ns: int,
    kind: str,
    label: str | None,
    labels: Mapping[str, Any],
    numbers: Mapping[str, Any],
    rate: float,
) -> LogEvent:
    place: dict[str, Any] = {name: getattr(fact, name, None) for name in _PLACE}
    return LogEvent(
        session_id=fact.session_id,
        **place,
        at_ns=at_ns,
        kind=kind,
        label=label,
        labels={name: each for name, each in labels.items() if each is not None},
        numbers={name: float(each) for name, each in numbers.items() if each is not None},
        rate=rate,
    )


def is_built_in(kind: str) -> bool:
    """Return whether a kind is built in; this includes reserved kinds."""
    return kind in ROW_KINDS or kind in TABLE_KINDS or kind in VIEW_KINDS


def kind_of(fact: Fact) -> Label:
    """Return the kind of a fact for counting dropped records; if the fact is not an event, the name of its class."""
    if isinstance(fact, Event):
        return fact.kind
    known = _TABLE_OF.get(type(fact))
    return Label(known[0] if known else type(fact).__name__)
