"""Terms of the Messages API: single words with a defined meaning, and tools of the provider and its client.

Facts may contain these words in the fields for them, see `agentobs.records.clear_text`. A word that is missing here
becomes a digest, so the list is a matter of readability.
"""

from __future__ import annotations

_WORDS = frozenset(
    (
        "end_turn", "max_tokens", "stop_sequence", "tool_use", "pause_turn", "refusal", "compaction", "stop", "length",
        "tool_calls", "content_filtered", "guardrail_intervened", "model_context_window_exceeded", "malformed_tool_use",
        "malformed_model_output", "fallback", "message", "advisor_message", "fallback_message", "unknown", "standard",
        "priority", "batch", "flex", "default", "reserved", "standard_only", "auto", "us", "eu", "global",
        "not_available", "apac", "fast", "low", "medium", "high", "xhigh", "max", "none", "any", "tool", "enabled",
        "disabled", "adaptive", "true", "false", "null", "error", "user", "assistant", "ephemeral", "5m", "1h", "GET",
        "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "summarized", "omitted", "regular",
        "request_too_large", "unavailable", "expired", "overloaded", "satisfied", "failed",
        "interrupted", "completed", "stopped", "retrying", "exhausted", "terminal", "allow", "ask", "deny",
    )
)  # fmt: skip
"""Single words with a defined meaning in the provider's requests, responses and usage."""

_CLAUDE_CODE_TOOLS = frozenset(
    (
        "Agent", "AskUserQuestion", "Bash", "BashOutput", "Brief", "Config", "CronCreate", "CronDelete", "CronList",
        "Edit", "EnterPlanMode", "EnterWorktree", "ExitPlanMode", "ExitWorktree", "Glob", "Grep", "KillBash",
        "KillShell", "LS", "LSP", "ListMcpResources", "ListMcpResourcesTool", "Monitor", "MultiEdit", "NotebookEdit",
        "NotebookRead", "PowerShell", "PushNotification", "REPL", "Read", "ReadMcpResource", "ReadMcpResourceTool",
        "RemoteTrigger", "ScheduleWakeup", "SendMessage", "Skill", "SlashCommand", "StructuredOutput", "Task",
        "TaskCreate", "TaskGet", "TaskList", "TaskOutput", "TaskStop", "TaskUpdate", "TeamCreate", "TeamDelete",
        "TodoRead", "TodoWrite", "ToolSearch", "WebFetch", "WebSearch", "Workflow", "Write",
    )
)  # fmt: skip
"""Tools of Claude Code, whose logs do not contain the declarations of tools."""

_SERVER_TOOLS = frozenset(
    (
        "web_search", "web_fetch", "code_execution", "bash_code_execution", "text_editor_code_execution", "advisor",
        "memory", "computer", "bash", "str_replace_based_edit_tool", "str_replace_editor", "tool_search_tool_regex",
        "tool_search_tool_bm25", "edit", "glob", "grep", "read", "write",
    )
)  # fmt: skip
"""Tools that the provider defines, including those of managed agents."""

TOOLSETS = {
    "browser_toolset_": (
        "navigate", "list_tabs", "new_tab", "switch_tab", "close_tab", "read_page", "get_page_text", "read_console",
        "read_network", "find", "form_input", "file_upload", "scroll_to", "screenshot", "zoom", "left_click",
        "right_click", "middle_click", "double_click", "triple_click", "hover", "left_click_drag", "left_mouse_down",
        "left_mouse_up", "mouse_move", "scroll", "type", "key", "hold_key", "wait", "javascript_exec",
    ),
    "computer_toolset_": (
        "key", "hold_key", "type", "cursor_position", "mouse_move", "left_mouse_down", "left_mouse_up", "left_click",
        "left_click_drag", "right_click", "middle_click", "double_click", "triple_click", "scroll", "wait",
        "screenshot", "zoom",
    ),
}  # fmt: skip
"""The tools of toolsets, by the start of the toolset's type. Source: anthropic 2.12, `types/browser_member_name.py` and
`types/computer_member_name.py`. A request that declares a toolset declares these names.
"""

_ERRORS = frozenset(
    (
        "api_error", "authentication_error", "available_tools_limit_exceeded", "billing_error",
        "claude_code_key_creator_not_member", "claude_code_version_too_old", "cmek_context_unavailable",
        "cmek_key_disabled", "cmek_key_network_blocked", "cmek_key_unreachable", "compaction_block_ambiguous",
        "compaction_block_misplaced", "compaction_content_mismatch", "compaction_incomplete_turn",
        "compaction_nothing_to_summarize", "compaction_signature_invalid", "compaction_too_many_tool_references",
        "compaction_tool_changes_mismatch", "compaction_unavailable", "concurrent_membership_change",
        "conflict_error", "contract_spend_limit_reached", "enforced_spend_limit_reached", "error",
        "execution_time_exceeded", "file_expired", "file_not_downloadable", "image_dimensions_too_large",
        "invalid_request_error", "linked_organization_billing_unavailable",
        "linked_organization_spend_limit_reached", "memory_path_conflict_error", "memory_precondition_failed_error",
        "not_found_error", "organization_on_hold", "organization_type_not_supported", "overloaded_error",
        "parent_organization_required", "permission_error", "ramp_limit_exceeded", "rate_limit_error",
        "request_body_encoding_invalid", "request_body_encoding_unsupported", "request_body_timeout",
        "request_body_too_large_after_decoding", "request_too_large", "sandbox_egress_restricted",
        "storage_quota_exceeded", "thread_already_continued", "thread_continue_in_flight",
        "thread_fingerprint_mismatch", "thread_not_found", "thread_unsupported_request", "timeout_error",
        "tool_name_conflict", "tool_reference_unresolved", "unsupported_charset",
        "user_profile_billing_not_authorized", "user_profile_not_billable", "user_profile_not_found",
        "user_profile_required", "workspace_policy_violation", "internal_server_error", "server_error",
        "gateway_timeout_error", "service_unavailable_error",
    )
)  # fmt: skip
"""The types of errors. Source: anthropic 2.12, `types/shared/error_type.py` and the types of `error_details`."""

_SERVER_RESULTS = frozenset(
    (
        "advisor_tool_result", "bash_code_execution_tool_result", "code_execution_tool_result", "mcp_tool_result",
        "text_editor_code_execution_tool_result", "tool_result", "tool_search_tool_result", "web_fetch_tool_result",
        "web_search_tool_result", "agent.mcp_tool_result", "agent.tool_result", "user.custom_tool_result",
        "user.tool_result", "content_too_large", "execution_time_exceeded", "file_not_found", "invalid_tool_input",
        "max_uses_exceeded", "model_not_found", "output_file_too_large", "prompt_too_long", "query_too_long",
        "request_too_large", "too_many_requests", "unavailable", "unsupported_content_type", "url_not_accessible",
        "url_not_allowed", "url_not_in_prior_context", "url_too_long", "workspace_policy_violation",
    )
)  # fmt: skip
"""The types of results of tools that the provider runs, and their error codes. Source: anthropic 2.12,
`types/*_tool_result*.py` and the events of `types/beta/sessions`.
"""

_MANAGED_AGENTS = frozenset(
    (
        "agent.custom_tool_use", "agent.mcp_tool_use", "agent.message", "agent.thinking",
        "agent.thread_context_compacted", "agent.thread_message_received", "agent.thread_message_sent",
        "agent.tool_use", "session.deleted", "session.error", "session.status_idle", "session.status_rescheduled",
        "session.status_running", "session.status_terminated", "session.thread_created",
        "session.thread_status_idle", "session.thread_status_rescheduled", "session.thread_status_running",
        "session.thread_status_terminated", "session.updated", "session.usage", "span.model_request_end",
        "span.model_request_start", "span.outcome_evaluation_end", "span.outcome_evaluation_ongoing",
        "span.outcome_evaluation_start", "system.message", "user.define_outcome", "user.interrupt", "user.message",
        "user.tool_confirmation", "workflow_run.created", "workflow_run.error", "workflow_run.phase_ended",
        "workflow_run.phase_started", "workflow_run.status_ended", "workflow_run.status_idle",
        "workflow_run.status_running", "compaction_limit_reached_error", "credential_host_unreachable_error",
        "max_workflow_runs_error", "mcp_authentication_failed_error", "mcp_connection_failed_error",
        "model_overloaded_error", "model_rate_limited_error", "model_request_failed_error", "program_error",
        "repository_authentication_error", "repository_checkout_error", "repository_clone_error",
        "repository_forbidden_error", "repository_not_found_error", "thread_limit_error",
        "tool_use_limit_reached_error", "unknown_error", "budget_reached", "requires_action", "retries_exhausted",
        "exhausted", "retrying", "terminal", "allow", "always_allow", "always_ask", "ask", "deny",
        "outcome_evaluation", "satisfied", "needs_revision", "max_iterations_reached", "failed", "interrupted",
        "canceled", "completed",
    )
)  # fmt: skip
"""The types of events of managed agents, of their errors, and of the reasons, verdicts and decisions in them. Source:
anthropic 2.12, `types/beta/sessions`.
"""

_CACHE_MISSES = frozenset(
    (
        "messages_changed", "model_changed", "system_changed", "tools_changed", "previous_message_not_found",
        "unavailable",
    )
)  # fmt: skip
"""The reasons of cache misses. Source: anthropic 2.12, `types/cache_miss_*.py`."""

_COUNTS = frozenset(
    (
        "input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "cache_creation",
        "output_tokens_details", "server_tool_use", "ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens",
        "thinking_tokens", "web_search_requests", "web_fetch_requests", "code_execution_requests",
        "tool_search_requests", "output_tokens_details.thinking_tokens", "service_tier", "inference_geo", "speed",
        "iterations", "total_tokens",
    )
)  # fmt: skip
"""The names of counts in usage objects. Source: anthropic 2.12, `types/usage.py` and the types of its fields."""

_PARAMETER_NAMES = frozenset(
    (
        "max_tokens", "temperature", "top_p", "top_k", "stream", "service_tier", "inference_geo", "speed",
        "thinking.type", "thinking.budget_tokens", "thinking.display", "tool_choice.type", "tool_choice.name",
        "tool_choice.disable_parallel_tool_use", "output_config.effort", "output_config.format.type",
        "cache_control.type", "cache_control.ttl", "json_schema",
    )
)  # fmt: skip
"""The paths of parameters, and the format of a structured output."""

TERMS = (
    _WORDS
    | _ERRORS
    | _SERVER_RESULTS
    | _MANAGED_AGENTS
    | _CACHE_MISSES
    | _COUNTS
    | _PARAMETER_NAMES
    | _CLAUDE_CODE_TOOLS
    | _SERVER_TOOLS
)
"""All terms of the provider."""

AGENT_ENDINGS = {
    "end_turn": ("success", False),
    "retries_exhausted": ("retries_exhausted", True),
    "budget_reached": ("budget_reached", True),
}
"""How an interaction with a managed agent ended, and whether this is an error, by the reason why the agent stopped."""
