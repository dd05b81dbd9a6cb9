"""The gate: what a tool call is to the rules of permission, read off its tool and its arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentobs.agent.permissions import Call, ResolvedPath
from agentobs.agent.tools import Tool
from agentobs.records.exchanges import ToolQuestion


def is_concurrent(tool: Tool, arguments: Mapping[str, Any]) -> bool:
    """Return whether a call may run beside others; whatever is not plainly yes is no."""
    if not callable(tool.concurrent):
        return tool.concurrent
    try:
        return tool.concurrent(dict(arguments)) is True
    except BaseException:  # whatever a tool's own code raises, a SystemExit too, is a doubt
        return False


def raw_paths(tool: Tool, arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the paths in a call's arguments, as they were given."""
    return _texts(tool.paths, arguments)


def resolved_paths(asked: Sequence[str], answer: Any) -> tuple[ResolvedPath, ...]:
    """Return where paths lead, as the world answered; what it did not say plainly lies outside."""
    told = answer if isinstance(answer, list) and len(answer) == len(asked) else [None] * len(asked)
    found = []
    for path, each in zip(asked, told, strict=True):
        match each:
            case {"path": str(leads_to), "inside": bool(inside)}:
                found.append(ResolvedPath(leads_to, inside))
            case _:
                found.append(ResolvedPath(path, inside=False))
    return tuple(found)


def call_of(
    tool: Tool,
    question: ToolQuestion,
    arguments: Mapping[str, Any],
    paths: tuple[ResolvedPath, ...],
) -> Call:
    """Return what the rules look at: a call with its validated arguments, and where its paths lead."""
    return Call(
        tool_use_id=question.tool_use_id,
        tool=tool.name,
        aliases=tool.aliases,
        tool_class=tool.tool_class,
        subject=_subject(tool, arguments),
        paths=paths,
        hosts=_texts(tool.hosts, arguments),
        needs_permission=tool.needs_permission,
        destructive=tool.destructive,
        input=question.input,
    )


def _subject(tool: Tool, arguments: Mapping[str, Any]) -> str | None:
    """Return what patterns of rules match: text as it is, anything else as JSON, nothing where it cannot be told."""
    if tool.subject is None:
        return None
    try:
        value = tool.subject(dict(arguments)) if callable(tool.subject) else arguments[tool.subject]
        return value if isinstance(value, str) else json.dumps(value, default=str)
    except BaseException:
        return None


def _texts(names: Sequence[str], arguments: Mapping[str, Any]) -> tuple[str, ...]:
    found: list[str] = []
    for name in names:
        value = arguments.get(name)
        found += (
            map(str, value)
            if isinstance(value, list | tuple | set)
            else [str(value)] * (value is not None)
        )
    return tuple(found)
