"""Permission modes: the default for calls that match no rule.

`docs/permissions.md` has the full table of modes, tool classes and rules; a test compares every
cell.
"""

from __future__ import annotations

from typing import Literal, get_args

from agentobs.agent.permissions.rules import Behavior, Call, ToolClass

Mode = Literal["default", "acceptEdits", "plan", "dontAsk", "bypassPermissions"]
"""In order: request approval before anything changes; allow edits within the roots; only read, to
make a plan; deny instead of requesting approval; allow everything that no rule and no safety check
denies.
"""

MODES: tuple[Mode, ...] = get_args(Mode)

PERMISSIVE: frozenset[Mode] = frozenset(("acceptEdits", "bypassPermissions"))
"""Modes in which changes run without approval. Because a file edited without approval must not then
run without approval, allow rules as wide as an interpreter are ignored in these modes.
"""

_UNRULED: dict[Mode, dict[ToolClass, Behavior]] = {
    "default": {"read": "allow", "edit": "ask", "write": "ask", "shell": "ask"},
    "acceptEdits": {"read": "allow", "edit": "allow", "write": "ask", "shell": "ask"},
    "plan": {"read": "allow", "edit": "deny", "write": "deny", "shell": "deny"},
    "dontAsk": {"read": "allow", "edit": "deny", "write": "deny", "shell": "deny"},
    "bypassPermissions": {"read": "allow", "edit": "allow", "write": "allow", "shell": "allow"},
}


def unruled(call: Call, mode: Mode) -> Behavior:
    """Return a mode's default for a call that matches no rule."""
    if changes_nothing(call, mode):
        return "allow"
    if mode == "acceptEdits" and call.tool_class == "edit" and not call.paths:
        return "ask"  # it is unknown whether the edit stays within the roots
    return _UNRULED[mode][call.tool_class]


def changes_nothing(call: Call, mode: Mode) -> bool:
    """Return whether a call counts as reading: it only reads, or its tool declares that it needs no
    permission.

    Plan mode accepts that declaration only for changes that can be undone.
    """
    if call.tool_class == "read":
        return True
    return not call.needs_permission and not (mode == "plan" and call.destructive)
