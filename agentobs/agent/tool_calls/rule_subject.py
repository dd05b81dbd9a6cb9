"""The gate: what a tool call is to the rules of permission, read off its tool and its arguments."""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import AnyUrl

from agentobs.agent.permissions import Call, ResolvedPath
from agentobs.agent.tools.tool import Tool
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
    """Return the paths in a call's arguments, as they were given.

    What is no path, or no flat list or set of them, is left out here and counts as outside in `call_of`.
    """
    return tuple(text for _, text in _read(tool.paths, arguments, _path) if text is not None)


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
    unread = tuple(
        ResolvedPath(_unread(name, arguments), inside=False)
        for name, text in _read(tool.paths, arguments, _path)
        if text is None
    )
    hosts = tuple(
        _unread(name, arguments) if text is None else text
        for name, text in _read(tool.hosts, arguments, _host)
    )
    return Call(
        tool_use_id=question.tool_use_id,
        tool=tool.name,
        aliases=tool.aliases,
        tool_class=tool.tool_class,
        subject=_subject(tool, arguments),
        paths=(*paths, *unread),
        hosts=hosts,
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
    except (
        BaseException
    ):  # whatever a tool's own code raises, there is no text that a rule could allow
        return None


def _read(
    names: Sequence[str], arguments: Mapping[str, Any], read: Callable[[Any], str | None]
) -> Iterator[tuple[str, str | None]]:
    """Give the text of each value in some arguments, with the argument's name; None where it has none.

    Only what is plainly one path or host, or a flat list of such, is read: of anything else nobody can say
    what the tool will take from it.
    """
    for name in names:
        value = arguments.get(name)
        if isinstance(value, list | tuple):
            yield from ((name, read(each)) for each in value)
        elif isinstance(value, set | frozenset):
            texts = [read(each) for each in value]
            # A set has another order in another process, and a replay asks the same again.
            yield from ((name, text) for text in sorted(texts, key=lambda text: text or ""))
        elif value is not None:
            yield name, read(value)


def _path(value: Any) -> str | None:
    """Return the text of a path as the system will read it, whatever the class says of itself."""
    try:
        found = os.fspath(value)
    except BaseException:  # it is no path, or its own code fails
        return None
    return str.__str__(found) if isinstance(found, str) else None


def _host(value: Any) -> str | None:
    if isinstance(value, str):
        return str.__str__(value)
    is_address = isinstance(value, AnyUrl | ipaddress.IPv4Address | ipaddress.IPv6Address)
    return str(value) if is_address else None


def _unread(name: str, arguments: Mapping[str, Any]) -> str:
    """Say what could not be read. No host can be written so."""
    return f"<the argument {name}: {type(arguments[name]).__name__}>"
