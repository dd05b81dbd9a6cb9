"""The catalog of events: every kind, its fields, and its table.

Each fact is one row. Facts with a shape of their own have their own table (an attempt, a decision,
a tool's result); everything else that happens at an instant is a row of `events`. The view
`event_log`, and `event_of` here, show all of them as one stream with the same columns.
docs/events.md is generated from this module.

Intervals are spans, not events. Usage, the zones of a prompt and the changes in its prefix are
parts of an attempt.
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
_NUMBER = "How often so far, this time included."
_TOKENS = "Tokens of the conversation. [tokens]"
_THRESHOLD = "Tokens from which on it is made shorter. [tokens]"
_FAILED = "The attempt that failed, from 1."

ROWS: Mapping[str, RowKind] = {
    "abort": RowKind(
        "The run was stopped.",
        "At which kind of point, such as `streaming` or `tools`.",
        {"count": "How often that point had been passed."},
    ),
    "background_result": RowKind(
        "What an agent in the background found enters the conversation.",
        "How its run ended, such as `success`.",
        {"turn": "The turn whose request holds it."},
    ),
    "budget": RowKind(
        "As much was spent as a budget allows.",
        "Which limit, such as `interaction_usd` or `session_turns`.",
        {"goes_on": "1 where the run goes on all the same, else 0."},
    ),
    "compaction": RowKind(
        "The conversation was made shorter.",
        "Why: `auto`, `reactive` or `manual`.",
        {
            "tokens_before": "Counted before. [tokens]",
            "tokens_after": "Estimated after. [tokens]",
            "threshold": _THRESHOLD,
            "messages_before": "Messages before.",
            "messages_after": "Messages after.",
            "files": "Files that were attached again.",
            "trim": "1 where old tool results were cut.",
            "drop": "1 where the oldest groups were dropped.",
            "memory": "1 where what the session remembers took their place.",
            "summary": "1 where a summary did.",
            "turns_since_last": "Turns since the one before; absent for the first.",
        },
        is_whole=True,
    ),
    "compaction_failed": RowKind(
        "The conversation could not be made shorter.",
        "Why it was to be, as in `compaction`.",
        {
            "tokens": _TOKENS,
            "threshold": _THRESHOLD,
            "failures": "Failures in a row.",
            "cut": "1 where the summary was cut at its limit.",
        },
    ),
    "compaction_kept": RowKind(
        "From where on a conversation that was made shorter stays as it was said.",
        "The first tool call in it, or `message:N` for the last N messages.",
        is_whole=True,
    ),
    "context": RowKind(
        "The conversation was measured before a request.",
        "",
        {
            "tokens": _TOKENS,
            "window": "What the model can take. [tokens]",
            "threshold": _THRESHOLD,
            "messages": "Messages of the conversation.",
        },
    ),
    "continuation": RowKind(
        "An answer was cut at its limit, and the model is asked again.",
        "`void`: all of it with more room; `kept`: it goes on from there.",
        {"number": _NUMBER, "max_tokens": "The limit of the next answer. [tokens]"},
    ),
    "degraded": RowKind(
        "Something that the run could do it cannot do any more.",
        "What and why, such as `streaming:broken_streams`.",
        {"failures": "Failures that led there."},
    ),
    "drop": RowKind(
        "Records were lost before they were recorded, for nobody took them in time; told in their place.",
        "Of which kind.",
        {"count": "How many records.", "exchanges": "How many of them cannot be done without."},
        is_whole=True,
    ),
    "fallback": RowKind("Another model is asked from now on.", "That model.", {"attempt": _FAILED}),
    "follow_up": RowKind(
        "Something was said to the agent when it would have stopped.",
        "",
        {"texts": "How many texts."},
    ),
    "forked": RowKind(
        "The session begins like an earlier one.",
        "That session.",
        {
            "turns": "Turns taken over.",
            "messages": "Messages taken over.",
            "children": "Agents that it knows of.",
        },
        is_whole=True,
    ),
    "heartbeat": RowKind(
        "A long wait goes on.",
        "",
        {"attempt": _FAILED, "waited_ns": "So much of it is over. [ns]"},
    ),
    "hook": RowKind(
        "A hook has answered, or has not.",
        "`success`, `blocking`, `non_blocking_error` or `cancelled`.",
        {
            "duration_ns": "How long it took. [ns]",
            "blocking": "1 where it blocks.",
            "background": "1 where nobody waits for it.",
            "rewrites": "1 where it changes an input or a result.",
            "overtaken": "1 where another hook's change took the place of its own.",
            "requests": "Requests to the model that it made.",
        },
        {
            "event": "What it was asked about, such as `pre_tool_use`.",
            "hook": "The hook.",
            "tool_use_id": "The call that it was asked about; absent where there is none.",
        },
    ),
    "max_output_tokens": RowKind(
        "An answer was cut as often as it may go on.",
        "",
        {"continuations": "How often it went on."},
    ),
    "max_turns": RowKind("The turns are used up.", "", {"max_turns": "How many there were."}),
    "nudge": RowKind(
        "The model would stop, and is asked to go on.",
        "",
        {
            "output_tokens": "What it has said in this interaction. [tokens]",
            "budget": "What it is to say. [tokens]",
            "nudges": _NUMBER,
        },
    ),
    "resumed": RowKind(
        "The session goes on with an earlier one.",
        "That session.",
        {
            "turns": "Turns taken over.",
            "messages": "Messages taken over.",
            "children": "Agents that it knows of.",
        },
        is_whole=True,
    ),
    "retry": RowKind(
        "An attempt failed, and the next one follows after a wait.",
        "The error, such as `overloaded_error`.",
        {"attempt": _FAILED, "wait_ns": _WAIT},
    ),
    "rewritten": RowKind(
        "Hooks changed what a tool gets, or what the model sees of its result.",
        "`input` or `output`.",
        {
            "before_bytes": "Size before. [bytes]",
            "after_bytes": "Size after. [bytes]",
        },
        {"tool_use_id": "The call."},
        is_whole=True,
    ),
    "setting_held": RowKind(
        "A setting was changed that would make the provider read the whole prompt anew; it stays as it was.",
        "Which setting.",
    ),
    "steering": RowKind(
        "Something was said to the agent while it ran.",
        "",
        {"texts": "How many texts.", "skipped": "Calls that are not run because of it."},
    ),
    "structured_output_retry": RowKind(
        "The model ended without the output that it owes, and is asked again.",
        "",
        {"number": _NUMBER},
    ),
    "sub_agent": RowKind(
        "An agent that this one started has ended.",
        "How its run ended, such as `success`.",
        {
            "level": "How deep it lies below the agent itself, from 1.",
            "background": "1 where it worked in the background.",
            "turns": "Turns that the model answered.",
            "denials": "Calls that were not permitted.",
            "duration_ns": "Wall time of its run. [ns]",
            "result_bytes": "Size of its last words. [bytes]",
        },
        {"agent": "Its name.", "tool_use_id": "The call that started it."},
    ),
    "thinking_cleared": RowKind(
        "The thinking of earlier turns was taken out of the conversation.",
        "",
        {"blocks": "How many blocks."},
    ),
    "token_budget": RowKind(
        "The model may stop, though it has not said as much as it was to.",
        "Why.",
        {
            "output_tokens": "What it has said in this interaction. [tokens]",
            "budget": "What it was to say. [tokens]",
            "nudges": "How often it was asked to go on.",
        },
    ),
    "tombstone": RowKind(
        "An answer broke off: what came of it is void.",
        "",
        {"tool_calls": "Calls that had begun."},
    ),
    "world_read": RowKind(
        "Code of a session asked for its clock, an id or chance, the first time: a replay gives the same.",
        is_whole=True,
    ),
    "mcp_server": RowKind(
        "A server of tools was started, or could not be.",
        "`ready`, or the class of the error.",
        {"duration_ns": "How long that took. [ns]", "tool_count": "Tools that it has."},
        {"server": "Its name.", "error": "The error; absent without one."},
        is_reserved=True,
    ),
    "skill": RowKind(
        "A skill was loaded.",
        "Its name.",
        {"bytes": "Size of what it says. [bytes]"},
        is_reserved=True,
    ),
    "memory": RowKind(
        "Something was remembered, or recalled.",
        "`kept` or `recalled`.",
        {"entries": "How many entries.", "bytes": "Their size. [bytes]"},
        is_reserved=True,
    ),
    "team": RowKind(
        "Agents beside each other told each other something.",
        "What, such as `message` or `task`.",
        {"members": "How many agents."},
        {"from": "Who told it.", "to": "Whom."},
        is_reserved=True,
    ),
}
"""The kinds that are rows of `events`, by name."""

TABLED: Mapping[str, TableKind] = {
    "session": TableKind(
        "A session began: versions, platform, where its content may go, a digest of the options.",
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
        "A prompt got its final answer, or none.",
        InteractionEnd,
        "ended_ns",
        "result",
        ("is_error",),
        (),
    ),
    "attempt": TableKind(
        "One HTTP try of a request to the provider.",
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
        "The model asked for a tool.",
        ToolUse,
        "asked_ns",
        "name",
        ("ordinal", "input_bytes"),
        ("tool_use_id", "attempt_id"),
    ),
    "tool": TableKind(
        "A tool call got its result.",
        ToolResult,
        "answered_ns",
        "outcome",
        (
            "duration_ns", "is_error", "tries", "asked_bytes", "ran_bytes", "coerced",
            "result_bytes", "text_characters",
        ),
        ("tool_use_id", "tool", "source", "error_kind"),
    ),
    "permission": TableKind(
        "It was decided whether a tool call may run.",
        Permission,
        "at_ns",
        "behaviour",
        ("asked", "waited_ns"),
        ("tool_use_id", "tool", "reason_type", "source", "resolver", "rule"),
    ),
    "world_answer": TableKind(
        "The world answered something that was neither the model's nor a tool's to answer.",
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
        "A span was ended by somebody else, for nobody would.",
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
    "turn": ViewKind("A model's answer that arrived whole: an attempt that succeeded.", "turns"),
    "llm_request": ViewKind(
        "One logical call to the model, its attempts together.", "llm_requests"
    ),
}
"""The derived kinds, by name."""

DERIVED: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "attempt": {"has_tool_calls": ("tool_use_count", "1 where the answer asks for tools, else 0.")}
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
    """The sampling rate of its kind: it stands for 1/rate events."""


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
