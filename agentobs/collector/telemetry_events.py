"""Telemetry events: turns a record of telemetry into an event, which contains no text of people or models.

Numbers and booleans are kept if their attribute is in the closed sets below. Of strings, only IDs and values from
closed sets are kept. All other attributes are counted. An ID in an unknown form becomes a digest, as in the recorded
requests. Prompts, commands, e-mail addresses, accounts and file names in telemetry are therefore not stored, not even
as the names of attributes.

The names are those of Claude Code 2.1.332 (https://code.claude.com/docs/en/monitoring-usage) and of OpenTelemetry's
conventions for generative AI 1.41 (https://opentelemetry.io/docs/specs/semconv/gen-ai/).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from agentobs.collector.otlp_requests import TelemetryRecord
from agentobs.provider.registry import terms
from agentobs.records.clear_text import is_claude_model, is_id
from agentobs.records.facts import Event
from agentobs.records.labels import Label, is_label, unchecked

KIND = Label("telemetry")
NUMBERS_MAX = 64
"""The maximum number of numbers of an event. Our choice: Claude Code sends at most 20."""
AHEAD_NS = 86_400 * 10**9
"""Times that are later than the receipt by more than this are replaced by the time of receipt. Our choice: a session
with such a time would never be old enough to be pruned.
"""

SESSION_ATTRIBUTES = ("session.id", "gen_ai.conversation.id")
"""The attributes with the client's ID of a session, in the order in which they are used."""

_CLAUDE_CODE_EVENTS = (
    "api_error", "api_refusal", "api_request", "api_request_body", "api_response_body", "api_retries_exhausted",
    "assistant_response", "at_mention", "auth", "compaction", "feedback_survey", "hook_execution_complete",
    "hook_execution_start", "hook_plugin_metrics", "hook_registered", "internal_error", "managed_settings_resolved",
    "mcp_server_connection", "permission_mode_changed", "plugin_installed", "plugin_loaded", "safety_event",
    "skill_activated", "subagent_completed", "system_prompt", "tool", "tool_decision", "tool_result", "user_prompt",
)  # fmt: skip
_CLAUDE_CODE_SPANS = (
    "bash.subprocess", "compaction", "hook", "interaction", "llm_request", "mcp.rpc", "subagent.spawn", "tool",
    "tool.blocked_on_user", "tool.execution",
)  # fmt: skip
_CLAUDE_CODE_METRICS = (
    "active_time.total", "code_edit_tool.decision", "commit.count", "cost.usage", "lines_of_code.count",
    "pull_request.count", "session.count", "token.usage",
)  # fmt: skip
_GEN_AI_METRICS = (
    "gen_ai.client.operation.duration", "gen_ai.client.operation.exception", "gen_ai.client.token.usage",
    "gen_ai.client.operation.time_per_output_chunk", "gen_ai.client.operation.time_to_first_chunk",
    "gen_ai.client.inference.operation.details", "gen_ai.evaluation.result", "gen_ai.server.request.duration",
    "gen_ai.server.time_per_output_token", "gen_ai.server.time_to_first_token",
)  # fmt: skip
NAMES = frozenset(
    [f"claude_code.{name}" for name in (*_CLAUDE_CODE_EVENTS, *_CLAUDE_CODE_SPANS, *_CLAUDE_CODE_METRICS)]
    + list(_GEN_AI_METRICS)
)  # fmt: skip
"""The names of records that are kept. Other records have no name."""

TOOLS = frozenset(
    ("Agent", "AskUserQuestion", "Bash", "BashOutput", "Edit", "EnterPlanMode", "EnterWorktree", "ExitPlanMode",
     "ExitWorktree", "Glob", "Grep", "KillShell", "LSP", "Monitor", "MultiEdit", "NotebookEdit", "NotebookRead", "Read",
     "SendMessage", "Skill", "StructuredOutput", "Task", "TaskCreate", "TaskGet", "TaskList", "TaskOutput", "TaskStop",
     "TaskUpdate", "TodoWrite", "ToolSearch", "WebFetch", "WebSearch", "Write", "mcp_tool")
)  # fmt: skip
"""The tools of Claude Code. The names of other tools are not kept."""

_WORDS = frozenset(
    ("accept", "reject", "allow", "deny", "config", "hook", "user_permanent", "user_temporary", "user_abort",
     "user_reject", "policySettings", "merged", "builtin", "mcp", "custom", "true", "false", "normal", "fast",
     "standard", "low", "medium", "high", "xhigh", "max", "main", "sdk", "cli", "user", "agent", "subagent",
     "auxiliary", "interaction", "tool", "none", "fresh", "resume", "continue", "clear", "compact", "startup",
     "interactive", "non-interactive", "added", "removed", "input", "output", "cacheRead", "cacheCreation",
     "cache_read", "cache_creation", "auto", "manual", "reactive", "default", "plan", "acceptEdits",
     "bypassPermissions", "dontAsk", "stdio", "sse", "http", "ws", "connected", "failed", "disconnected", "firstParty",
     "bedrock", "vertex", "foundry", "gateway", "anthropic", "aws.bedrock", "gcp.vertex_ai", "chat", "execute_tool",
     "invoke_agent", "create_agent", "embeddings", "generate_content", "text_completion", "claude-code")
)  # fmt: skip
"""Words that the attributes below contain. A text that is one of these words may stay readable."""
_CHOICES = {
    "decision": "decision",
    "decision_type": "decision",
    "source": "source",
    "decision_source": "source",
    "query_source": "query_source",
    "query_source_safe": "query_source",
    "speed": "speed",
    "effort": "effort",
    "type": "type",
    "start_type": "start_type",
    "trigger": "trigger",
    "permission_mode": "permission_mode",
    "to_mode": "to_mode",
    "from_mode": "from_mode",
    "transport_type": "transport",
    "status": "status",
    "terminal.type": "terminal",
    "anthropic.provider": "provider",
    "gen_ai.provider.name": "provider",
    "gen_ai.system": "provider",
    "gen_ai.operation.name": "operation",
    "gen_ai.token.type": "type",
    "span.type": "span_type",
    "service.name": "service",
    "stop_reason": "stop_reason",
    "error.type": "error",
}
"""The label of each attribute with a value from a closed set, by attribute. The first attribute with a value counts."""
_IDS = {
    "request_id": "request_id",
    "gen_ai.response.id": "response_id",
    "tool_use_id": "tool_use_id",
    "gen_ai.tool.call.id": "tool_use_id",
    "prompt.id": "prompt_id",
    "message.uuid": "message_uuid",
    "agent_id": "agent_id",
    "parent_agent_id": "parent_agent_id",
}
"""The label of each attribute with an ID, by attribute."""
_MODELS = {
    "model": "model",
    "gen_ai.response.model": "model",
    "gen_ai.request.model": "requested_model",
    "final_model": "final_model",
}
_TOOLS = {"tool_name": "tool", "gen_ai.tool.name": "tool"}
_NUMBERS_IN_TEXT = frozenset(
    ("duration_ms", "prompt_length", "tool_input_size_bytes", "tool_result_size_bytes", "pre_tokens", "post_tokens",
     "num_hooks", "num_success", "num_blocking", "num_non_blocking_error", "num_cancelled", "total_duration_ms",
     "status_code", "attempt", "total_attempts", "total_retry_duration_ms", "system_prompt_length", "cost_usd",
     "input_tokens", "output_tokens", "cache_read_tokens", "cache_creation_tokens", "user_prompt_length",
     "num_outputs_persisted", "stdout_chars", "additional_context_chars", "system_message_chars",
     "initial_user_message_chars")
)  # fmt: skip
"""Attributes that some versions of Claude Code send as texts."""
NUMBERS = _NUMBERS_IN_TEXT | frozenset(
    ("agent_path_count", "anthropic.custom_base_url", "cache_creation_1h_tokens", "cache_creation_5m_tokens",
     "command_path_count", "cost_usd_micros", "event.sequence", "first_content_ms", "has_hooks", "has_mcp",
     "host_owned_mcp", "interaction.duration_ms", "interaction.sequence", "is_async", "is_built_in", "is_plugin",
     "managed_only", "model_swapped", "queued_sends", "response_length", "safe_mode", "server_fallback_hop",
     "skill_path_count", "success", "total_tokens", "total_tool_uses", "ttft_ms", "http.response.status_code",
     "server.port", "gen_ai.embeddings.dimension.count", "gen_ai.evaluation.score.value",
     "gen_ai.request.choice.count", "gen_ai.request.frequency_penalty", "gen_ai.request.max_tokens",
     "gen_ai.request.presence_penalty", "gen_ai.request.seed", "gen_ai.request.stream",
     "gen_ai.request.temperature", "gen_ai.request.top_k", "gen_ai.request.top_p",
     "gen_ai.response.time_to_first_chunk", "gen_ai.usage.cache_creation.input_tokens",
     "gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_write.input_tokens",
     "gen_ai.usage.completion_tokens", "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens",
     "gen_ai.usage.prompt_tokens", "gen_ai.usage.reasoning.output_tokens", "llm.token_count.completion",
     "llm.token_count.prompt", "llm.token_count.prompt_details.cache_read",
     "llm.token_count.prompt_details.cache_write", "llm.token_count.total")
)  # fmt: skip
"""Attributes with a number or a boolean: those of Claude Code, of the conventions, and the token counts of
OpenInference. The name of another attribute can be a text of a person, and its number a telephone number.
"""
_NUMBER = re.compile(r"-?\d{1,18}(?:\.\d{1,30})?(?:e[+-]?\d{1,2})?\Z")
"""A number as JavaScript writes it."""
_ANY_TRACE, _ANY_SPAN = re.compile(r"[0-9a-f]{32}\Z"), re.compile(r"[0-9a-f]{16}\Z")
_VERSION = re.compile(r"\d{1,6}(?:\.\d{1,6}){1,3}\Z")


def client_session(record: TelemetryRecord) -> str | None:
    """Return the client's ID of the session of a record; None if it has none in a known form."""
    for name in SESSION_ATTRIBUTES:
        value = record.attributes.get(name)
        if isinstance(value, str) and is_id(value):
            return value
    return None


def telemetry_event(record: TelemetryRecord, session_id: str, received_ns: int) -> Event:
    """Return the event of a record.

    Args:
        record: the record.
        session_id: the session of the event.
        received_ns: when the record was received, nanoseconds since 1970.
    """
    labels: dict[str, Label] = {
        Label("signal"): Label(record.signal),
        Label("id"): Label(record.record_id),
    }
    numbers: dict[str, float] = {
        Label(name): value for name, value in (record.numbers or {}).items() if math.isfinite(value)
    }
    client_id = client_session(record)
    if client_id is not None:
        labels[Label("client_session")] = Label(client_id)
    if record.series_id:
        labels[Label("series")] = Label(record.series_id)
    left_out = _add_attributes(record.attributes, labels, numbers)
    for name, value, form in (
        ("trace_id", record.trace_id, _ANY_TRACE),
        ("span_id", record.span_id, _ANY_SPAN),
        ("parent_span_id", record.parent_span_id, _ANY_SPAN),
    ):
        # The bytes of another length can be a text.
        if form.match(value):
            labels[Label(name)] = Label(value)
        elif value:
            left_out += 1
    if left_out:
        numbers[Label("left_out")] = left_out
    return Event(
        session_id,
        None,
        Label("main"),
        None,
        record.at_ns if 0 < record.at_ns <= received_ns + AHEAD_NS else received_ns,
        KIND,
        Label(record.name) if record.name in NAMES else None,
        numbers,
        labels=labels,
    )


def _add_attributes(
    attributes: Mapping[str, Any], labels: dict[str, Label], numbers: dict[str, float]
) -> int:
    """Add the attributes that may be kept to the labels and numbers; return how many others there are."""
    left_out = 0
    for key, value in attributes.items():
        if key in SESSION_ATTRIBUTES and labels.get("client_session") == value:
            continue
        if isinstance(value, str):
            known = _label(key, value)
            if known is not None:
                labels.setdefault(Label(known[0]), known[1])
            elif key in _NUMBERS_IN_TEXT and _NUMBER.match(value) and len(numbers) < NUMBERS_MAX:
                numbers.setdefault(Label(key), float(value))
            else:
                left_out += 1
        elif key in NUMBERS and math.isfinite(value) and len(numbers) < NUMBERS_MAX:
            numbers.setdefault(Label(key), float(value))
        else:
            left_out += 1
    return left_out


def _label(key: str, value: str) -> tuple[str, Label] | None:
    """Return the label of an attribute; None if its text is not kept."""
    if key in _IDS:
        # The recorder replaces an ID in an unknown form by its digest.
        return _IDS[key], Label(value) if is_id(value) else unchecked(value)
    is_known = (
        (key in _CHOICES and (value in _WORDS or value in terms()))
        or (key in _MODELS and is_claude_model(value))
        or (key in _TOOLS and value in TOOLS)
        or (key == "service.version" and _VERSION.match(value))
    )
    if not is_known or not is_label(value):
        return None
    names = {**_CHOICES, **_MODELS, **_TOOLS, "service.version": "service_version"}
    return names[key], Label(value)
