"""Permission modes: the default for calls that match no rule.

`docs/permissions.md` has the complete table of modes, tool classes and rules. A test checks every cell of it.
"""

from __future__ import annotations

from typing import Literal, get_args

from agentobs.agent.permissions.rules import Behavior, Call, ToolClass

Mode = Literal["default", "acceptEdits", "plan", "dontAsk", "bypassPermissions"]
"""The modes:

- `default`: request approval before anything changes;
- `acceptEdits`: also allow edits within the roots;
- `plan`: only allow reading, to make a plan;
- `dontAsk`: deny instead of requesting approval;
- `bypassPermissions`: allow every call that no rule and no safety check denies.
"""

MODES: tuple[Mode, ...] = get_args(Mode)

PERMISSIVE: frozenset[Mode] = frozenset(("acceptEdits", "bypassPermissions"))
"""Modes in which edits run without approval. A file that was edited without approval must not be run without approval.
These modes therefore ignore allow rules that permit any program, such as `shell(python *)`.
"""

_DEFAULTS: dict[Mode, dict[ToolClass, Behavior]] = {
    "default": {"read": "allow", "edit": "ask", "write": "ask", "shell": "ask"},
    "acceptEdits": {"read": "allow", "edit": "allow", "write": "ask", "shell": "ask"},
    "plan": {"read": "allow", "edit": "deny", "write": "deny", "shell": "deny"},
    "dontAsk": {"read": "allow", "edit": "deny", "write": "deny", "shell": "deny"},
    "bypassPermissions": {"read": "allow", "edit": "allow", "write": "allow", "shell": "allow"},
}


def mode_default(call: Call, mode: Mode) -> Behavior:
    """Return the default decision of a mode for a call that matches no rule."""
    if changes_nothing(call, mode):
        return "allow"
    if mode == "acceptEdits" and call.tool_class == "edit" and not call.paths:
        return "ask"  # without paths, it is unknown whether the edit stays within the roots
    return _DEFAULTS[mode][call.tool_class]


def changes_nothing(call: Call, mode: Mode) -> bool:
    """Return whether a call counts as reading, because it only reads or its tool declares that it needs no permission.

    Plan mode accepts this declaration only from tools whose changes can be undone.
    """
    if call.tool_class == "read" or call.read_only:
        return True
    return not call.needs_permission and not (mode == "plan" and call.destructive)
