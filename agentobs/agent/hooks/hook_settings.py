"""Read the hooks of one source from a mapping or a JSON file.

The format is `{"pre_tool_use": [{"when": "shell(git push *)", "command": ["./check"]}]}`: a list of
hooks per event. Nothing is ignored silently, because a hook with a typo would guard nothing. Hooks
run programs, so read a project's hooks only if the user trusts the project.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from agentobs.agent.hooks.declarations import EVENTS, AgentHook, Command, Hook, Http, PromptHook
from agentobs.agent.hooks.declarations import Run as What
from agentobs.agent.permissions.rule_settings import read_json
from agentobs.errors import UsageError

_OF_ALL: Mapping[str, type | tuple[type, ...]] = {
    "when": str,
    "name": str,
    "once": bool,
    "background": bool,
    "timeout_s": (int, float),
}
"""Fields of every hook."""

_OF_KIND: Mapping[str, Mapping[str, type | tuple[type, ...]]] = {
    "command": {"command": (str, list), "keep": list},
    "http": {"http": str, "headers": dict, "proxy": str},
    "prompt": {"prompt": str, "model": str},
    "agent": {"agent": str, "model": str, "tools": list, "max_turns": int},
}
"""Fields per kind of hook; the field with the kind's name holds what runs."""

_FORM = 'Write {"pre_tool_use": [{"when": "shell(git push *)", "command": ["./check"]}]}'


def hooks_from_settings(
    settings: Mapping[str, Any] | Path, *, source: str = "settings", where: str = ""
) -> tuple[Hook, ...]:
    """Return the hooks of one source, for `table`.

    Args:
        settings: the mapping, or the path of a JSON file that contains it.
        source: the source recorded for the hooks, a label.
        where: how errors name the settings; defaults to the file's path, or the source.

    Raises:
        UsageError: a hook, a list or the file is malformed; the message says which and what is
            expected.
    """
    if isinstance(settings, Path):
        where = where or str(settings)
        settings = read_json(settings, where, _FORM)
    where = where or f"hooks of the source {source}"
    if not isinstance(settings, Mapping):
        raise UsageError("this is not an object", where=where, todo=_FORM)
    hooks = []
    for event, listed in settings.items():
        if event not in EVENTS:
            raise UsageError(
                f"{event!r} is not a hook event", where=where, todo=_meant(event, EVENTS)
            )
        if not isinstance(listed, list | tuple):
            raise UsageError(f"{event!r} is not a list", where=where, todo=_FORM)
        for at, entry in enumerate(listed):
            hooks.append(_hook(event, entry, source, f"{where}, {event}[{at}]"))
    return tuple(hooks)


def _hook(event: Any, entry: Any, source: str, where: str) -> Hook:
    if not isinstance(entry, Mapping):
        raise UsageError("this is not an object", where=where, todo=_FORM)
    kinds = [kind for kind in _OF_KIND if kind in entry]
    if len(kinds) != 1:
        found = f"it has {' and '.join(kinds)}" if kinds else "it specifies nothing to run"
        raise UsageError(found, where=where, todo=f"Give one of {', '.join(_OF_KIND)}")
    known = {**_OF_ALL, **_OF_KIND[kinds[0]]}
    for name, value in entry.items():
        if name not in known:
            raise UsageError(f"{name!r} is unknown", where=where, todo=_meant(name, known))
        if not isinstance(value, known[name]) or (
            isinstance(value, bool) and known[name] is not bool
        ):
            found = (
                f"{name!r} is of the type {type(value).__name__}"  # its value may be a credential
            )
            raise UsageError(found, where=where, todo=_FORM)
    more = {name: entry[name] for name in _OF_ALL if name in entry}
    try:
        return Hook(event, _run(kinds[0], entry, where), source=source, **more)
    except UsageError as error:
        raise UsageError(error.found, where=where, todo=error.todo) from None


def _run(kind: str, entry: Mapping[str, Any], where: str) -> What:
    more = {name: entry[name] for name in _OF_KIND[kind] if name in entry and name != kind}
    for name in ("keep", "tools"):
        if name in more:
            more[name] = _texts(more[name], name, where)
    match kind:
        case "command":
            words = entry["command"]
            return Command(words if isinstance(words, str) else _texts(words, kind, where), **more)
        case "http":
            return Http(entry["http"], **more)
        case "prompt":
            return PromptHook(entry["prompt"], **more)
        case _:
            return AgentHook(entry["agent"], **more)


def _texts(listed: list[Any], name: str, where: str) -> tuple[str, ...]:
    if not all(isinstance(each, str) for each in listed):
        raise UsageError(f"{name!r} is not a list of strings", where=where, todo=_FORM)
    return tuple(listed)


def _meant(name: Any, known: Iterable[str]) -> str:
    listed = list(known)
    close = difflib.get_close_matches(str(name).lower(), listed, n=1)
    return f"Did you mean {close[0]!r}?" if close else f"Use {', '.join(listed)}"
