"""Facts: the content-free records that become rows, one class per table.

Each field is a number, a boolean, an instant in nanoseconds since 1970, an ID or a label. The column comments in the
store's migrations describe the meaning and unit of every field. docs/tables.md is generated from these comments, and a
test checks that the names are identical. A field with a default was added later; older records have the default.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from agentobs.records.effect_facts import Command, EffectLink, McpCall
from agentobs.records.labels import Label, prefixed

Outcome = Literal["completed", "failed", "interrupted"]
Relation = Literal["resume", "fork"]
"""The way in which a session continues an earlier one: the same conversation, or a new one with the same start."""
InteractionResult = Literal[
    "success",
    "error_max_turns",
    "error_max_budget_usd",
    "error_during_execution",
    "error_max_structured_output_retries",
    "cancelled",
    "interrupted",
]
"""How an interaction ended: like a run of the agent loop, stopped on purpose, or without a final response."""
_MAIN = Label("main")
_VAULT = Label("vault")
_RECORDED = Label("recorded")
_LIVE = Label("live")
SpanStatus = Literal["ok", "error", "cancelled", "orphaned"]
"""How a span ended. An `orphaned` span was never closed; exporters report it as `abandoned`, the common term."""
ErrorOrigin = Literal["raised", "returned", "refused", "stopped"]
"""How a tool call failed.

`raised`: the tool raised an exception; `returned`: its result is marked as an error; `refused`: a permission, a hook or
a check prevented the call; `stopped`: the call was stopped, or exceeded its timeout.
"""
AttemptOutcome = Literal[
    "ok", "http_error", "stream_error", "cut", "cancelled", "no_response", "crashed"
]


@dataclass(frozen=True, slots=True)
class SessionStart:
    """A session started."""

    session_id: str
    name: Label
    started_ns: int
    entry: Label | None
    agentobs_version: Label
    sdk_version: Label | None
    python_version: Label
    platform: Label
    tags: Mapping[str, str]
    arguments_content: str | None
    continues_session_id: Label | None = None
    relation: Relation | None = None
    content: Label = _VAULT
    options: str | None = None
    source: Label = _RECORDED
    live_exports: Mapping[str, str] | None = None
    forked_turn: int | None = None


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """A session ended."""

    session_id: str
    ended_ns: int
    outcome: Outcome
    reason: Label | None
    signature: Label | None
    dropped: int
    emitted: int | None = None
    written: int | None = None
    end_content: str | None = None
    result_digest: str | None = None
    result_type: Label | None = None
    error_class: Label | None = None
    error_file: Label | None = None
    error_line: int | None = None


@dataclass(frozen=True, slots=True)
class Gap:
    """Records were not written."""

    session_id: str
    at_ns: int
    kind: Label
    reason: Label
    records: int


@dataclass(frozen=True, slots=True)
class InteractionStart:
    """An interaction started with a prompt."""

    session_id: str
    interaction_id: str
    lane: Label
    started_ns: int
    query_source: Label | None = None


@dataclass(frozen=True, slots=True)
class InteractionEnd:
    """An interaction ended, with or without a final response."""

    session_id: str
    interaction_id: str
    ended_ns: int
    result: Label
    is_error: bool
    lane: Label | None = None
    query_source: Label | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One HTTP attempt of a request to the provider."""

    session_id: str
    interaction_id: str | None
    lane: Label
    turn: int | None
    llm_request_id: str
    attempt_id: str
    attempt: int
    continues_attempt_id: str | None
    span_id: str | None
    started_ns: int
    headers_ns: int | None
    first_chunk_ns: int | None
    duration_ns: int
    method: Label
    endpoint: Label
    makes_turns: bool
    streamed: bool
    model_requested: Label | None
    model: Label | None
    status: int | None
    outcome: AttemptOutcome
    error_type: Label | None
    stop_reason: Label | None
    message_id: Label | None
    request_id: Label | None
    retry_after_ms: float | None
    message_count: int | None
    tool_use_count: int
    request_bytes: int | None
    response_bytes: int | None
    chunk_count: int | None
    redactions: int | None
    request_content: str | None
    response_content: str | None
    query_source: Label = _MAIN
    chain_id: str | None = None
    depth: int | None = None
    claims_success: bool | None = None
    adopted_span: str | None = None
    origin: Label = _LIVE
    parameters: Mapping[str, Label] | None = None
    reported_lane: Label | None = None
    rate_limits: Mapping[Label, float] | None = None
    limit_hit: Label | None = None
    first_token_ns: int | None = None


@dataclass(frozen=True, slots=True)
class UsageRow:
    """Tokens of one attempt, or of one iteration of it."""

    session_id: str
    attempt_id: str
    at_ns: int
    iteration: int
    kind: Label
    billed: bool
    model: Label
    input_tokens: int
    output_tokens: int
    reasoning_tokens: int | None
    cache_read_tokens: int
    cache_write_5m_tokens: int
    cache_write_1h_tokens: int
    web_search_requests: int
    service_tier: Label | None
    inference_geo: Label | None
    speed: Label | None
    certainty: Label
    web_fetch_requests: int = 0
    code_execution_requests: int = 0
    server_requests: Mapping[str, int] | None = None
    other_counts: Mapping[str, int] | None = None
    note: Label | None = None
    batch_result_id: Label | None = None


@dataclass(frozen=True, slots=True)
class Prefix:
    """A prompt changed a part of the prompt that it continues, or the provider reported a cache miss."""

    session_id: str
    attempt_id: str
    compared_attempt_id: str | None
    changed: (
        Literal["betas", "model", "tools", "system", "parameters", "system_dynamic", "messages"]
        | None
    )
    changed_message: int | None
    miss_reason: Label | None
    missed_tokens: int | None


@dataclass(frozen=True, slots=True)
class Zones:
    """Keyed digests of the zones of a prompt that was sent, without cache breakpoints."""

    session_id: str
    attempt_id: str
    compared_attempt_id: str | None
    betas: str | None
    model: str | None
    tools: str | None
    system: str | None
    parameters: str | None
    system_dynamic: str | None
    messages: str | None
    repeated_messages: int | None
    repeated: str | None


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The model requested a tool call."""

    session_id: str
    interaction_id: str | None
    lane: Label
    turn: int | None
    attempt_id: str
    tool_use_id: Label
    name: Label
    ordinal: int
    requested_ns: int
    input_bytes: int
    input_similarity: int | None = None
    query_source: Label | None = None
    chain_id: str | None = None
    depth: int | None = None
    lines_added: int | None = None
    lines_removed: int | None = None


@dataclass(frozen=True, slots=True)
class ToolResult:
    """A tool call received its result."""

    session_id: str
    tool_use_id: Label
    started_ns: int | None
    duration_ns: int | None
    result_ns: int
    source: Literal["run", "wire"]
    outcome: Label
    is_error: bool
    result_bytes: int
    content: str | None
    attempts: int = 1
    lane: Label | None = None
    text_characters: int | None = None
    error_kind: Label | None = None
    span_id: str | None = None
    interaction_id: str | None = None
    turn: int | None = None
    query_source: Label | None = None
    chain_id: str | None = None
    depth: int | None = None
    tool: Label | None = None
    requested_bytes: int | None = None
    executed_bytes: int | None = None
    coerced: int | None = None
    attempt_id: str | None = None
    ordinal: int | None = None
    error_origin: ErrorOrigin | None = None
    error_class: Label | None = None
    error_file: Label | None = None
    error_line: int | None = None
    lines_added: int | None = None
    lines_removed: int | None = None


@dataclass(frozen=True, slots=True)
class ProviderToolUse:
    """The model called a tool that the provider runs."""

    session_id: str
    interaction_id: str | None
    lane: Label
    turn: int | None
    attempt_id: str
    tool_use_id: Label
    name: Label
    server: Label | None
    ordinal: int
    requested_ns: int
    is_timed: bool
    input_bytes: int
    use: int
    max_uses: int | None
    max_result_tokens: int | None
    caller_id: Label | None
    query_source: Label | None = None
    chain_id: str | None = None
    depth: int | None = None
    batch_result_id: Label | None = None


@dataclass(frozen=True, slots=True)
class ProviderToolResult:
    """A response contained the result of a tool that the provider ran."""

    session_id: str
    interaction_id: str | None
    lane: Label
    turn: int | None
    attempt_id: str | None
    ordinal: int | None
    result_attempt_id: str
    tool_use_id: Label
    type: Label
    result_ns: int
    duration_ns: int | None
    outcome: Label
    is_error: bool
    error_code: Label | None
    result_bytes: int
    items: int | None
    return_code: int | None
    stop_reason: Label | None
    iteration: int | None
    by_client: bool = False
    query_source: Label | None = None
    chain_id: str | None = None
    depth: int | None = None
    batch_result_id: Label | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """Something happened at an instant."""

    session_id: str
    interaction_id: str | None
    lane: Label
    turn: int | None
    at_ns: int
    kind: Label
    label: Label | None
    numbers: Mapping[str, float]
    query_source: Label = _MAIN
    chain_id: str | None = None
    depth: int | None = None
    labels: Mapping[str, Label] | None = None
    rate: float = 1.0


@dataclass(frozen=True, slots=True)
class SpanStart:
    """An interval started."""

    session_id: str
    trace_id: str
    span_id: str
    parent_span_id: str | None
    lane: Label
    name: Label
    label: Label | None
    started_ns: int
    linked_span_id: str | None = None
    remote_parent: str | None = None
    numbers: Mapping[str, float] | None = None
    labels: Mapping[str, Label] | None = None
    interaction_id: str | None = None
    turn: int | None = None
    query_source: Label | None = None
    chain_id: str | None = None
    depth: int | None = None


@dataclass(frozen=True, slots=True)
class SpanEnd:
    """An interval ended."""

    session_id: str
    span_id: str
    ended_ns: int
    status: SpanStatus
    error_type: Label | None
    last_activity_ns: int | None = None
    late: bool = False


@dataclass(frozen=True, slots=True)
class Permission:
    """A decision whether a tool call may run."""

    session_id: str
    interaction_id: str | None
    lane: Label
    turn: int | None
    tool_use_id: Label
    tool: Label
    at_ns: int
    behavior: Literal["allow", "deny"]
    reason_type: Label
    source: Label | None
    resolver: Label
    rule: Label | None
    approval_requested: bool
    approval_wait_ns: int
    query_source: Label | None = None
    chain_id: str | None = None
    depth: int | None = None


@dataclass(frozen=True, slots=True)
class WorldAnswer:
    """The world answered a question that goes to neither the model nor a tool."""

    session_id: str
    interaction_id: str | None
    lane: Label
    turn: int | None
    kind: Label
    key: Label
    started_ns: int
    duration_ns: int
    answer_bytes: int
    content: str | None
    query_source: Label | None = None
    chain_id: str | None = None
    depth: int | None = None


@dataclass(frozen=True, slots=True)
class Pruning:
    """A session, or its content, was permanently deleted."""

    session_id: str
    pruned_ns: int
    scope: Literal["content", "all"]


@dataclass(frozen=True, slots=True)
class Export:
    """A part of a session was exported to a destination after it was recorded."""

    session_id: str
    destination: Label
    profile: Label
    signal: Literal["traces", "logs", "metrics"]
    through_segment_id: str
    through_sequence: int
    items: int
    rejected: int
    complete: bool
    at_ns: int
    partial_items: int = 0


@dataclass(frozen=True, slots=True)
class SessionTitle:
    """A session got a title."""

    session_id: str
    at_ns: int
    title: Label
    source: Literal["program", "command"]


@dataclass(frozen=True, slots=True)
class GitState:
    """The state of a git repository was read."""

    session_id: str
    at_ns: int
    repository: Label | None
    branch: Label | None
    commit: str | None
    dirty: bool | None
    source: Literal["start", "program", "log"]
    lane: Label | None = None
    turn: int | None = None
    directory: Label | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """A session, a turn or a tool call got a score."""

    session_id: str
    at_ns: int
    name: Label
    value_type: Literal["number", "boolean", "label"]
    value: float | None
    label: Label | None
    comment: Label | None
    source: Literal["program", "command"]
    interaction_id: str | None = None
    lane: Label | None = None
    turn: int | None = None
    tool_use_id: Label | None = None


@dataclass(frozen=True, slots=True)
class WorkspaceState:
    """The files of a workspace were read."""

    session_id: str
    interaction_id: str | None
    lane: Label | None
    turn: int | None
    attempt_id: str | None
    at_ns: int
    duration_ns: int
    source: Literal["start", "request", "end"]
    workspace_id: str
    state: int | None
    tree: Label | None
    files: int | None
    bytes: int | None
    uncaptured: int | None
    changes: int | None
    is_stable: bool | None
    late: bool
    failure: Label | None
    repository: Label | None
    branch: Label | None
    commit: str | None
    dirty: bool | None


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file of a workspace differs between two consecutive states of a session."""

    session_id: str
    interaction_id: str | None
    lane: Label | None
    turn: int | None
    at_ns: int
    state: int
    previous_state: int
    path: Label
    previous_path: Label | None
    change: Literal["added", "modified", "deleted", "renamed"]
    previous_blob: Label | None
    blob: Label | None
    previous_mode: Label | None
    mode: Label | None
    previous_bytes: int | None
    bytes: int | None
    lines_added: int | None
    lines_removed: int | None
    tool_use_id: Label | None
    attempt_id: str | None
    ordinal: int | None
    certainty: Literal["observed", "inferred"] | None
    rule: Literal["content", "path", "only_call"] | None
    candidates: int
    late: bool


Fact = (
    SessionStart
    | SessionEnd
    | InteractionStart
    | InteractionEnd
    | Attempt
    | UsageRow
    | Prefix
    | Zones
    | ToolUse
    | ToolResult
    | ProviderToolUse
    | ProviderToolResult
    | Permission
    | WorldAnswer
    | Event
    | SpanStart
    | SpanEnd
    | Gap
    | SessionTitle
    | GitState
    | Score
    | WorkspaceState
    | FileChange
    | Command
    | McpCall
    | EffectLink
    | Pruning
    | Export
)

TABLES: dict[type, str] = {
    SessionStart: "session_starts",
    SessionEnd: "session_ends",
    InteractionStart: "interaction_starts",
    InteractionEnd: "interaction_ends",
    Attempt: "attempts",
    UsageRow: "usage",
    Prefix: "prefixes",
    Zones: "zones",
    ToolUse: "tool_uses",
    ToolResult: "tool_results",
    ProviderToolUse: "provider_tool_uses",
    ProviderToolResult: "provider_tool_results",
    Permission: "permissions",
    WorldAnswer: "world_answers",
    Event: "events",
    SpanStart: "span_starts",
    SpanEnd: "span_ends",
    Gap: "gaps",
    SessionTitle: "session_titles",
    GitState: "git_states",
    Score: "scores",
    WorkspaceState: "workspace_states",
    FileChange: "file_changes",
    Command: "command_runs",
    McpCall: "mcp_requests",
    EffectLink: "effect_links",
    Pruning: "prunings",
    Export: "exports",
}
"""The table of each kind of fact. The name of the table is also the kind of its journal lines."""


DECLARED = "declared:"
"""Prefix of the failure signature of a session that its own code declared as failed; the reason follows."""


RESULT = "result:"
"""Prefix of the failure signature of a session whose last interaction ended in an error; its result follows."""


def settled(end: SessionEnd, last: InteractionEnd | None) -> SessionEnd:
    """Return the end of a session. It becomes `failed` if the last interaction ended in an error and the session was
    not declared as failed.
    """
    if end.outcome != "completed" or last is None or not last.is_error:
        return end
    signature = prefixed(RESULT, last.result)
    return dataclasses.replace(end, outcome="failed", reason=last.result, signature=signature)


def columns(fact: Fact) -> dict[str, Any]:
    """Return the fields of a fact by column name, in the order of the table."""
    return {name: getattr(fact, name) for name in _COLUMNS[type(fact)]}


_COLUMNS = {kind: tuple(field.name for field in dataclasses.fields(kind)) for kind in TABLES}
