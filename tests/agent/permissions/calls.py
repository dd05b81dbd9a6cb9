"""Shared helpers of the permission tests: calls of each tool class, and rules from their text form."""

from __future__ import annotations

from typing import Any

from agentobs.agent.permissions import Call, Permissions, ResolvedPath, Rule
from agentobs.agent.permissions.rules import Behavior, Source

OUTSIDE = (ResolvedPath("/etc/passwd", inside=False),)


def read_call(path: str = "src/a.py", **changes: Any) -> Call:
    return _call("read_file", "read", subject=path, **{"paths": _inside(path), **changes})


def edit_call(path: str = "src/a.py", **changes: Any) -> Call:
    return _call("edit_file", "edit", subject=path, **{"paths": _inside(path), **changes})


def write_call(subject: str | None = "a@example.com", **changes: Any) -> Call:
    return _call("send_mail", "write", subject=subject, **changes)


def shell_call(command: str = "git status", **changes: Any) -> Call:
    return _call("shell", "shell", subject=command, **changes)


def fetch_call(url: str, host: str | None = None, **changes: Any) -> Call:
    return _call("fetch", "read", subject=url, hosts=(url if host is None else host,), **changes)


CALLS = {"read": read_call, "edit": edit_call, "write": write_call, "shell": shell_call}
"""For each tool class, a function that returns a typical call that is not destructive."""


def _inside(path: str) -> tuple[ResolvedPath, ...]:
    return (ResolvedPath(path, inside=True),)


def _call(tool: str, tool_class: Any, **fields: Any) -> Call:
    declaration = {"destructive": False, "input": {"of": fields.get("subject")}, **fields}
    return Call(tool_use_id="toolu_1", tool=tool, tool_class=tool_class, **declaration)


def rules(behavior: Behavior, *texts: str, source: Source = "user") -> tuple[Rule, ...]:
    return tuple(Rule.parse(text, behavior, source) for text in texts)


def permissions_for(
    mode: Any = "default",
    *,
    allow: tuple[str, ...] = (),
    ask: tuple[str, ...] = (),
    deny: tuple[str, ...] = (),
    blocked: tuple[str, ...] = (),
) -> Permissions:
    """Return permissions of a mode, with the bypass confirmed if necessary."""
    listed = rules("allow", *allow) + rules("ask", *ask) + rules("deny", *deny)
    return Permissions(mode, listed, blocked, bypass_confirmed=mode == "bypassPermissions")
