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
"""Tools that the provider defines, also for managed agents."""

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

TERMS = _WORDS | _CLAUDE_CODE_TOOLS | _SERVER_TOOLS
"""All terms of the provider."""

AGENT_ENDINGS = {
    "end_turn": ("success", False),
    "retries_exhausted": ("retries_exhausted", True),
    "budget_reached": ("budget_reached", True),
}
"""How an interaction with a managed agent ended, and whether this is an error, by the reason why the agent stopped."""
