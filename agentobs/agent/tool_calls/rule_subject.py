"""Derive the subject, paths and hosts of a tool call, with which permission rules are compared."""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import AnyUrl

from agentobs.agent.permissions import Call, ResolvedPath
from agentobs.agent.tool_calls.call_effects import Effects
from agentobs.agent.tools.tool import Tool
from agentobs.records.exchanges import ToolQuestion


def raw_paths(tool: Tool, arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the paths in a call's arguments, as written.

    Only paths, and paths in flat lists or sets, are returned. `call_of` adds other values of path arguments as paths
    outside of the roots.
    """
    return tuple(text for _, text in _texts_of(tool.paths, arguments, _path) if text is not None)


def resolved_paths(requested: Sequence[str], answer: Any) -> tuple[ResolvedPath, ...]:
    """Return the resolved paths from the world's answer. A path without a valid answer counts as outside."""
    answers = (
        answer
        if isinstance(answer, list) and len(answer) == len(requested)
        else [None] * len(requested)
    )
    found = []
    for path, each in zip(requested, answers, strict=True):
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
    effects: Effects,
) -> Call:
    """Return the call in the form that rules are matched against."""
    unreadable = tuple(
        ResolvedPath(_unreadable(name, arguments), inside=False)
        for name, text in _texts_of(tool.paths, arguments, _path)
        if text is None
    )
    hosts = tuple(
        _unreadable(name, arguments) if text is None else text
        for name, text in _texts_of(tool.hosts, arguments, _host)
    )
    return Call(
        tool_use_id=question.tool_use_id,
        tool=tool.name,
        aliases=tool.aliases,
        tool_class=tool.tool_class,
        subject=_subject(tool, arguments),
        paths=(*paths, *unreadable),
        hosts=hosts,
        needs_permission=tool.needs_permission,
        destructive=effects.destructive,
        read_only=effects.read_only,
        input=question.input,
    )


def _subject(tool: Tool, arguments: Mapping[str, Any]) -> str | None:
    """Return the text that rule patterns match: a string unchanged, any other value as JSON; None if it is unknown."""
    if tool.subject is None:
        return None
    try:
        value = tool.subject(dict(arguments)) if callable(tool.subject) else arguments[tool.subject]
        return value if isinstance(value, str) else json.dumps(value, default=str)
    except BaseException:  # the tool's own code failed, so there is no text that a rule could allow
        return None


def _texts_of(
    names: Sequence[str], arguments: Mapping[str, Any], read: Callable[[Any], str | None]
) -> Iterator[tuple[str, str | None]]:
    """Yield the name and the text of each value in these arguments; the text is None if the value cannot be read.

    Only single paths or hosts, and flat lists of them, are read. It is unknown how the tool would use any other value.
    """
    for name in names:
        value = arguments.get(name)
        if isinstance(value, list | tuple):
            yield from ((name, read(each)) for each in value)
        elif isinstance(value, set | frozenset):
            texts = [read(each) for each in value]
            # Sort, because the order of a set differs between processes, and a replay must ask the same question.
            yield from ((name, text) for text in sorted(texts, key=lambda text: text or ""))
        elif value is not None:
            yield name, read(value)


def _path(value: Any) -> str | None:
    """Return the text of a path as a plain string, as the operating system reads it; None if it is not a path."""
    try:
        found = os.fspath(value)
    except BaseException:  # the value is not a path, or its own code failed
        return None
    return str.__str__(found) if isinstance(found, str) else None


def _host(value: Any) -> str | None:
    if isinstance(value, str):
        return str.__str__(value)
    is_address = isinstance(value, AnyUrl | ipaddress.IPv4Address | ipaddress.IPv6Address)
    return str(value) if is_address else None


def _unreadable(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a placeholder for an argument that cannot be read. The placeholder is not a valid host."""
    return f"<the argument {name}: {type(arguments[name]).__name__}>"
