"""Modes: what happens to calls that no rule speaks of.

`docs/permissions.md` holds the whole table of modes, tool classes and rules; a test compares it cell by cell.
"""

from __future__ import annotations

from typing import Literal, get_args

from agentobs.agent.permissions.rules import Behaviour, Call, ToolClass

Mode = Literal["default", "acceptEdits", "plan", "dontAsk", "bypassPermissions"]
"""Ask before anything changes; let edits within the roots run; only read, to make a plan; ask nobody, and
deny what would be asked; run everything that no rule and no safety check holds back."""

MODES: tuple[Mode, ...] = get_args(Mode)

PERMISSIVE: frozenset[Mode] = frozenset(("acceptEdits", "bypassPermissions"))
"""Modes in which changes run unasked. A file that was edited unasked must not run unasked, too: allow rules
that are as wide as an interpreter do not hold here."""

_UNRULED: dict[Mode, dict[ToolClass, Behaviour]] = {
    "default": {"read": "allow", "edit": "ask", "write": "ask", "shell": "ask"},
    "acceptEdits": {"read": "allow", "edit": "allow", "write": "ask", "shell": "ask"},
    "plan": {"read": "allow", "edit": "deny", "write": "deny", "shell": "deny"},
    "dontAsk": {"read": "allow", "edit": "deny", "write": "deny", "shell": "deny"},
    "bypassPermissions": {"read": "allow", "edit": "allow", "write": "allow", "shell": "allow"},
}


def unruled(call: Call, mode: Mode) -> Behaviour:
    """Return what a mode does with a call where no rule matches."""
    if changes_nothing(call, mode):
        return "allow"
    if mode == "acceptEdits" and call.tool_class == "edit" and not call.paths:
        return "ask"  # nobody knows whether it stays within the roots
    return _UNRULED[mode][call.tool_class]


def changes_nothing(call: Call, mode: Mode) -> bool:
    """Return whether a call counts as reading: it reads, or its author says that it needs no permission.

    Planning takes the author's word only for what can be brought back.
    """
    if call.tool_class == "read":
        return True
    return not call.needs_permission and not (mode == "plan" and call.destructive)
