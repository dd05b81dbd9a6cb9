"""Read the hooks of one source from a mapping or a JSON file.

The format is `{"pre_tool_use": [{"when": "shell(git push *)", "command": ["./check"]}]}`: a list of
hooks per event. Every error is reported, because a hook with a typo would have no effect. Hooks run programs, so read a
project's hooks only if the user trusts the project.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from agentobs.agent.hooks.declarations import EVENTS, AgentHook, Command, Hook, Http, PromptHook
from agentobs.agent.hooks.declarations import Run as HookRun
from agentobs.agent.permissions.rule_settings import read_json
from agentobs.errors import UsageError

_COMMON_FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "when": str,
    "name": str,
    "once": bool,
    "background": bool,
    "timeout_s": (int, float),
}
"""The fields that every hook may have, with their types."""

_FIELDS_BY_KIND: Mapping[str, Mapping[str, type | tuple[type, ...]]] = {
    "command": {"command": (str, list), "keep": list},
    "http": {"http": str, "headers": dict, "proxy": str},
    "prompt": {"prompt": str, "model": str},
    "agent": {"agent": str, "model": str, "tools": list, "max_turns": int},
}
"""The additional fields of each kind of hook. The field with the name of the kind contains the program, URL or
prompt.
"""

_FORMAT_HINT = 'Write {"pre_tool_use": [{"when": "shell(git push *)", "command": ["./check"]}]}'


def hooks_from_settings(
    settings: Mapping[str, Any] | Path, *, source: str = "settings", where: str = ""
) -> tuple[Hook, ...]:
    """Return the hooks of one source, for `table`.

    Args:
        settings: the mapping, or the path of a JSON file that contains it.
        source: the source recorded for the hooks, a label.
        where: the name of the settings in error messages; defaults to the file's path, or the source.

    Raises:
        UsageError: a hook, a list or the file is malformed; the message names it and the expected
            format.
    """
    if isinstance(settings, Path):
        where = where or str(settings)
        settings = read_json(settings, where, _FORMAT_HINT)
    where = where or f"hooks of the source {source}"
    if not isinstance(settings, Mapping):
        raise UsageError("expected an object", where=where, todo=_FORMAT_HINT)
    hooks = []
    for event, entries in settings.items():
        if event not in EVENTS:
            raise UsageError(
                f"{event!r} is not a hook event", where=where, todo=_suggestion(event, EVENTS)
            )
        if not isinstance(entries, list | tuple):
            raise UsageError(f"{event!r} is not a list", where=where, todo=_FORMAT_HINT)
        for index, entry in enumerate(entries):
            hooks.append(_hook(event, entry, source, f"{where}, {event}[{index}]"))
    return tuple(hooks)


def _hook(event: Any, entry: Any, source: str, where: str) -> Hook:
    if not isinstance(entry, Mapping):
        raise UsageError("expected an object", where=where, todo=_FORMAT_HINT)
    kinds = [kind for kind in _FIELDS_BY_KIND if kind in entry]
    if len(kinds) != 1:
        found = f"it has {' and '.join(kinds)}" if kinds else "it specifies nothing to run"
        raise UsageError(found, where=where, todo=f"Pass one of {', '.join(_FIELDS_BY_KIND)}")
    known = {**_COMMON_FIELDS, **_FIELDS_BY_KIND[kinds[0]]}
    for name, value in entry.items():
        if name not in known:
            raise UsageError(f"unknown key {name!r}", where=where, todo=_suggestion(name, known))
        if not isinstance(value, known[name]) or (
            isinstance(value, bool) and known[name] is not bool
        ):
            found = f"{name!r} has the type {type(value).__name__}"  # the value may be a credential
            raise UsageError(found, where=where, todo=_FORMAT_HINT)
    options = {name: entry[name] for name in _COMMON_FIELDS if name in entry}
    try:
        return Hook(event, _run(kinds[0], entry, where), source=source, **options)
    except UsageError as error:
        raise UsageError(error.found, where=where, todo=error.todo) from None


def _run(kind: str, entry: Mapping[str, Any], where: str) -> HookRun:
    options = {
        name: entry[name] for name in _FIELDS_BY_KIND[kind] if name in entry and name != kind
    }
    for name in ("keep", "tools"):
        if name in options:
            options[name] = _strings(options[name], name, where)
    match kind:
        case "command":
            command = entry["command"]
            return Command(
                command if isinstance(command, str) else _strings(command, kind, where), **options
            )
        case "http":
            return Http(entry["http"], **options)
        case "prompt":
            return PromptHook(entry["prompt"], **options)
        case _:
            return AgentHook(entry["agent"], **options)


def _strings(entries: list[Any], name: str, where: str) -> tuple[str, ...]:
    if not all(isinstance(each, str) for each in entries):
        raise UsageError(f"{name!r} is not a list of strings", where=where, todo=_FORMAT_HINT)
    return tuple(entries)


def _suggestion(name: Any, known: Iterable[str]) -> str:
    entries = list(known)
    close = difflib.get_close_matches(str(name).lower(), entries, n=1)
    return f"Did you mean {close[0]!r}?" if close else f"Use {', '.join(entries)}"
