"""Read the permission rules of one source from a mapping or a JSON file.

The format is `{"allow": ["shell(git *)"], "ask": [...], "deny": [...]}`. Nothing is ignored silently, because a rule
with a typo would forbid nothing.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentobs.agent.permissions.rules import BEHAVIORS, Rule, Source
from agentobs.errors import UsageError

BYTES_MAX = 1_000_000
"""Larger files are refused, in bytes. Our choice."""

_FORM = 'Write {"allow": ["shell(git *)"], "ask": [], "deny": []}, each list of rules as strings'


def from_settings(
    settings: Mapping[str, Any] | Path, source: Source, *, where: str = ""
) -> tuple[Rule, ...]:
    """Return the rules of one source.

    Args:
        settings: the mapping, or the path of a JSON file that contains it.
        source: where the rules come from.
        where: how errors name the settings; defaults to the file's path, or the source.

    Raises:
        UsageError: a rule, a list or the file is malformed; the message says which and what is
            expected.
    """
    if isinstance(settings, Path):
        where = where or str(settings)
        settings = read_json(settings, where, _FORM)
    where = where or f"settings of the source {source}"
    if not isinstance(settings, Mapping):
        raise UsageError("this is not an object", where=where, todo=_FORM)
    for name in settings:
        if name not in BEHAVIORS:
            raise UsageError(f"{name!r} is unknown", where=where, todo=_meant(name))
    return tuple(
        rule
        for behavior in BEHAVIORS
        for rule in _rules(settings.get(behavior, []), behavior, source, where)
    )


def _rules(listed: Any, behavior: Any, source: Source, where: str) -> list[Rule]:
    if not isinstance(listed, list | tuple):
        raise UsageError(f"{behavior!r} is not a list", where=where, todo=_FORM)
    rules = []
    for at, text in enumerate(listed):
        try:
            rules.append(Rule.parse(text, behavior, source))
        except UsageError as error:
            place = f"{where}, {behavior}[{at}]"
            raise UsageError(error.found, where=place, todo=error.todo) from None
    return rules


def read_json(path: Path, where: str, form: str) -> Any:
    """Return the value in a JSON settings file; `form` describes the expected format in error
    messages.

    Raises:
        UsageError: the file is unreadable, too large or invalid JSON, or contains a duplicate key.
    """
    try:
        with path.open("rb") as file:
            text = file.read(BYTES_MAX + 1)
    except OSError as error:
        found = f"the file cannot be read ({error.strerror})"
        raise UsageError(found, where=where, todo="Correct it, or remove the source") from None
    if len(text) > BYTES_MAX:
        found = f"the file is longer than {BYTES_MAX:,} bytes"
        raise UsageError(found, where=where, todo=form)
    try:
        return json.loads(text.decode("utf-8-sig"), object_pairs_hook=_once)
    except RecursionError:
        raise UsageError("the file is nested too deep", where=where, todo=form) from None
    except ValueError as error:
        raise UsageError(f"the file is not JSON ({error})", where=where, todo=form) from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse duplicate keys, because only one of their lists would have an effect."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} stands twice")
    return found


def _meant(name: Any) -> str:
    close = difflib.get_close_matches(str(name).lower(), BEHAVIORS, n=1)
    return f"Did you mean {close[0]!r}?" if close else _FORM
