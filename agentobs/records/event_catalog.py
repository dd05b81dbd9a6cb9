"""The catalog of events: every kind, its fields, and its table.

Each fact is one row. Facts with a shape of their own have their own table (an attempt, a decision, a tool's result);
everything else that happens at an instant is a row of `events`. The view `event_log`, and `event_of` here, show all of
them as one stream with the same columns. docs/events.md is generated from this module.

Intervals are spans, not events. Usage, the zones of a prompt and the changes in its prefix are parts of an attempt.
"""

from __future__ import annotations

import hashlib
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
    """When it happens, in a sentence."""
    label: str = ""
    """The meaning of its label; empty if it has none."""
    numbers: Mapping[str, str] = field(default_factory=dict)
    """The meaning of its numbers by name, each with its unit in square brackets."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """The meaning of its other labels, by name."""
    is_whole: bool = False
    """Whether every event is needed, so that the kind cannot be sampled."""
    is_reserved: bool = False
    """Whether the name is reserved for future use and never emitted yet."""


@dataclass(frozen=True, slots=True)
class TableKind:
    """A kind of event with its own table; all names are columns of it."""

    meaning: str
    fact: type
    at: str
    """The column with its instant."""
    label: str | None
    numbers: tuple[str, ...]
    labels: tuple[str, ...]
    status: str | None = None
    """Only facts with this `status` are events of the kind; None for all."""


@dataclass(frozen=True, slots=True)
class ViewKind:
    """A kind that is derived from others, and has no row of its own."""

    meaning: str
    view: str


_WAIT = "The wait. [ns]"
_NUMBER = "The count so far, including this time."
_TOKENS = "Tokens of the conversation. [tokens]"
_THRESHOLD = "The compaction threshold. [tokens]"
_FAILED = "The attempt that failed, from 1."

ROWS: Mapping[str, RowKind] = {
    "abort": RowKind(
        "The run was stopped.",
        "The kind of point, such as `streaming` or `tools`.",
        {"count": "How often that point had been passed."},
    ),
    "background_result": RowKind(
        "The result of a background agent is added to the conversation.",
        "The outcome of its run, such as `success`.",
        {"turn": "The turn whose request holds it."},
    ),
    "budget": RowKind(
        "A budget is exhausted.",
        "Which limit, such as `interaction_usd` or `session_turns`.",
        {"continues": "1 if the run continues anyway, else 0."},
    ),
    "compaction": RowKind(
        "The conversation was compacted.",
        "The trigger: `auto`, `reactive` or `manual`.",
        {
            "tokens_before": "Size before, as counted. [tokens]",
            "tokens_after": "Size after, estimated. [tokens]",
            "threshold": _THRESHOLD,
            "messages_before": "Messages before.",
            "messages_after": "Messages after.",
            "files": "Files that were attached again.",
            "trim": "1 if old tool results were shortened.",
            "drop": "1 if the oldest message groups were dropped.",
            "memory": "1 if the session memory replaced them.",
            "summary": "1 if a summary replaced them.",
            "turns_since_last": "Turns since the one before; absent for the first.",
        },
        is_whole=True,
    ),
    "compaction_failed": RowKind(
        "A compaction failed.",
        "The trigger, as in `compaction`.",
        {
            "tokens": _TOKENS,
            "threshold": _THRESHOLD,
            "failures": "Failures in a row.",
            "cut": "1 if the summary was cut at its limit.",
        },
    ),
    "compaction_kept": RowKind(
        "The first unchanged part of a compacted conversation.",
        "Its first tool call, or `message:N` for the last N messages.",
        is_whole=True,
    ),
    "context": RowKind(
        "The size of the conversation before a request.",
        "",
        {
            "tokens": _TOKENS,
            "window": "The context window of the model. [tokens]",
            "threshold": _THRESHOLD,
            "messages": "Messages of the conversation.",
        },
    ),
    "continuation": RowKind(
        "A response was cut at its limit, and is requested again.",
        "`void`: all of it, with a higher limit; `kept`: the model continues it.",
        {"number": _NUMBER, "max_tokens": "The limit of the next response. [tokens]"},
    ),
    "degraded": RowKind(
        "A capability of the run is degraded.",
        "The capability and the reason, such as `streaming:broken_streams`.",
        {"failures": "Failures that led to it."},
    ),
    "drop": RowKind(
        "Records were dropped because the queue was full; emitted instead of them.",
        "The kind of the records.",
        {"count": "The number of records.", "exchanges": "How many of them are required."},
        is_whole=True,
    ),
    "fallback": RowKind(
        "Requests go to another model from now on.", "That model.", {"attempt": _FAILED}
    ),
    "follow_up": RowKind(
        "A follow-up message arrived when the agent would have stopped.",
        "",
        {"texts": "The number of texts."},
    ),
    "forked": RowKind(
        "The session is a fork of an earlier one.",
        "That session.",
        {
            "turns": "Inherited turns.",
            "messages": "Inherited messages.",
            "children": "Agents in its history.",
        },
        is_whole=True,
    ),
    "heartbeat": RowKind(
        "A long wait continues.",
        "",
        {"attempt": _FAILED, "waited_ns": "Elapsed time. [ns]"},
    ),
    "hook": RowKind(
        "A hook has answered, failed, or was cancelled.",
        "`success`, `blocking`, `non_blocking_error` or `cancelled`.",
        {
            "duration_ns": "Duration. [ns]",
            "blocking": "1 if it blocks.",
            "background": "1 if it runs in the background.",
            "rewrites": "1 if it changes an input or a result.",
            "overridden": "1 if another hook's change replaced its own.",
            "requests": "Requests to the model that it made.",
        },
        {
            "event": "The hook event, such as `pre_tool_use`.",
            "hook": "The hook.",
            "tool_use_id": "The tool call concerned; absent if there is none.",
        },
    ),
    "max_output_tokens": RowKind(
        "A response was cut and continued as often as allowed.",
        "",
        {"continuations": "The number of continuations."},
    ),
    "max_turns": RowKind("The turns are used up.", "", {"max_turns": "The number of turns."}),
    "nudge": RowKind(
        "The model would stop and is instructed to continue.",
        "",
        {
            "output_tokens": "Its output in this interaction. [tokens]",
            "budget": "The token budget. [tokens]",
            "nudges": _NUMBER,
        },
    ),
    "resumed": RowKind(
        "The session resumes an earlier one.",
        "That session.",
        {
            "turns": "Inherited turns.",
            "messages": "Inherited messages.",
            "children": "Agents in its history.",
        },
        is_whole=True,
    ),
    "retry": RowKind(
        "An attempt failed; the next one follows after a wait.",
        "The error, such as `overloaded_error`.",
        {"attempt": _FAILED, "wait_ns": _WAIT},
    ),
    "rewritten": RowKind(
        "Hooks changed the input of a tool, or its result for the model.",
        "`input` or `output`.",
        {
            "before_bytes": "Size before. [bytes]",
            "after_bytes": "Size after. [bytes]",
        },
        {"tool_use_id": "The call."},
        is_whole=True,
    ),
    "setting_held": RowKind(
        "A changed setting is ignored, because it would invalidate the cached prompt.",
        "Which setting.",
    ),
    "steering": RowKind(
        "A steering message was sent to the running agent.",
        "",
        {"texts": "The number of texts.", "skipped": "Calls that are skipped because of it."},
    ),
    "structured_output_retry": RowKind(
        "The model ended without the required output; the request is repeated.",
        "",
        {"number": _NUMBER},
    ),
    "sub_agent": RowKind(
        "An agent that this one started has ended.",
        "The outcome of its run, such as `success`.",
        {
            "level": "Its depth below the main agent, from 1.",
            "background": "1 if it ran in the background.",
            "turns": "Completed turns.",
            "denials": "Calls that were not permitted.",
            "duration_ns": "Wall time of its run. [ns]",
            "result_bytes": "Size of its final message. [bytes]",
        },
        {"agent": "Its name.", "tool_use_id": "The call that started it."},
    ),
    "thinking_cleared": RowKind(
        "The thinking of earlier turns was removed from the conversation.",
        "",
        {"blocks": "The number of blocks."},
    ),
    "token_budget": RowKind(
        "The model may stop, although its token budget is not used up.",
        "Why.",
        {
            "output_tokens": "Its output in this interaction. [tokens]",
            "budget": "The token budget. [tokens]",
            "nudges": "The number of instructions to continue.",
        },
    ),
    "tombstone": RowKind(
        "A response broke off; its partial content is void.",
        "",
        {"tool_calls": "Calls that had started."},
    ),
    "world_read": RowKind(
        "Code of a session used its recorded clock, IDs or random numbers for the first time.",
        is_whole=True,
    ),
    "mcp_server": RowKind(
        "A tool server was started, or failed to start.",
        "`ready`, or the class of the error.",
        {"duration_ns": "Duration. [ns]", "tool_count": "The number of its tools."},
        {"server": "Its name.", "error": "The error; absent if there is none."},
        is_reserved=True,
    ),
    "skill": RowKind(
        "A skill was loaded.",
        "Its name.",
        {"bytes": "Size of its text. [bytes]"},
        is_reserved=True,
    ),
    "memory": RowKind(
        "A memory was stored or recalled.",
        "`kept` or `recalled`.",
        {"entries": "The number of entries.", "bytes": "Their size. [bytes]"},
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

TABLED: Mapping[str, TableKind] = {
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
        ("dropped",),
        ("reason", "signature"),
    ),
    "interaction": TableKind("A prompt came.", InteractionStart, "started_ns", None, (), ()),
    "interaction_end": TableKind(
        "An interaction ended, with or without a final answer.",
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
            "attempt", "duration_ns", "headers_ns", "first_chunk_ns", "streamed", "status",
            "retry_after_ms", "message_count", "tool_use_count", "request_bytes",
            "response_bytes", "chunk_count", "redactions", "claims_success",
        ),
        (
            "llm_request_id", "attempt_id", "endpoint", "model_requested", "model", "error_type",
            "stop_reason",
        ),
    ),
    "tool_use": TableKind(
        "The model called a tool.",
        ToolUse,
        "requested_ns",
        "name",
        ("ordinal", "input_bytes"),
        ("tool_use_id", "attempt_id"),
    ),
    "tool": TableKind(
        "A tool call received its result.",
        ToolResult,
        "result_ns",
        "outcome",
        (
            "duration_ns", "is_error", "attempts", "requested_bytes", "executed_bytes", "coerced",
            "result_bytes", "text_characters",
        ),
        ("tool_use_id", "tool", "source", "error_kind"),
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
        "An input from outside, other than responses of the model and results of tools.",
        WorldAnswer,
        "started_ns",
        "kind",
        ("duration_ns", "answer_bytes"),
        ("key",),
    ),
    "gap": TableKind(
        "Records were not written.", Gap, "at_ns", "kind", ("records",), ("reason",)
    ),
    "orphan": TableKind(
        "An orphaned span was ended by agentobs.",
        SpanEnd,
        "ended_ns",
        None,
        ("last_activity_ns", "late"),
        ("span_id",),
        status="orphaned",
    ),
}  # fmt: skip
"""The kinds with their own tables, by name."""

VIEWED: Mapping[str, ViewKind] = {
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
"""Numbers that tell whether another number is above 0, by kind and name: that number, and the meaning."""

_TABLE_OF = {kind.fact: (name, kind) for name, kind in TABLED.items()}
_PLACE = ("interaction_id", "turn", "lane", "query_source", "chain_id", "depth")


@dataclass(frozen=True, slots=True)
class Logged:
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
    """The sampling rate of its kind: it represents 1/rate events."""


def event_of(fact: Fact) -> Logged | None:
    """Return a fact as an event; None for facts that are not events: spans, and the parts of an attempt."""
    if isinstance(fact, Event):
        label, labels, numbers = fact.label, fact.labels or {}, fact.numbers
        return _logged(fact, fact.at_ns, fact.kind, label, labels, numbers, fact.rate)
    if type(fact) not in _TABLE_OF:
        return None
    name, kind = _TABLE_OF[type(fact)]
    if kind.status is not None and getattr(fact, "status", None) != kind.status:
        return None
    numbers = {each: getattr(fact, each) for each in kind.numbers}
    numbers |= {n: getattr(fact, of) > 0 for n, (of, _) in DERIVED.get(name, {}).items()}
    labels = {each: getattr(fact, each) for each in kind.labels}
    label = getattr(fact, kind.label) if kind.label else None
    return _logged(fact, getattr(fact, kind.at), name, label, labels, numbers, 1.0)


def _logged(
    fact: Fact,
    at_ns: int,
    kind: str,
    label: str | None,
    labels: Mapping[str, Any],
    numbers: Mapping[str, Any],
    rate: float,
) -> Logged:
    place: dict[str, Any] = {name: getattr(fact, name, None) for name in _PLACE}
    return Logged(
        session_id=fact.session_id,
        **place,
        at_ns=at_ns,
        kind=kind,
        label=label,
        labels={name: each for name, each in labels.items() if each is not None},
        numbers={name: float(each) for name, each in numbers.items() if each is not None},
        rate=rate,
    )


def is_taken(kind: str) -> bool:
    """Return whether a kind is built in, reserved ones included."""
    return kind in ROWS or kind in TABLED or kind in VIEWED


def wrong_rate(kind: str, rate: object) -> str | None:
    """Describe why a sampling rate is not valid for a kind; None if it is valid.

    Custom kinds can be sampled if their name contains a dot, which built-in names do not.
    """
    known = ROWS.get(kind)
    if known is not None and known.is_whole:
        return f"events of the kind {kind!r} are needed whole and cannot be sampled"
    if kind in TABLED or kind in VIEWED:
        return f"{kind!r} has a table of its own and cannot be sampled"
    if known is None and "." not in kind:
        return f"there is no kind of event {kind[:80]!r}"
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= 1:
        return f"the share of {kind!r} that is kept is no number from 0 to 1"
    return None


def is_kept(session_id: str, sequence: int, rate: float) -> bool:
    """Return whether the event with this number in its session is kept by sampling.

    A hash of both alone decides, so that reading the same session again keeps the same events.
    """
    if rate >= 1:
        return True
    hashed = hashlib.blake2b(f"{session_id}:{sequence}".encode(), digest_size=8).digest()
    return int.from_bytes(hashed, "big") < rate * 2.0**64


def kind_of(fact: Fact) -> Label:
    """Return the kind of a fact, event or not, under which drops are counted."""
    if isinstance(fact, Event):
        return fact.kind
    known = _TABLE_OF.get(type(fact))
    return Label(known[0] if known else type(fact).__name__)
