"""Read the permission rules of one source from a mapping or a JSON file.

The format is `{"allow": ["shell(git *)"], "ask": [...], "deny": [...]}`. Every error is reported, because a rule with a
typo would forbid nothing.
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
"""Maximum size of a settings file, in bytes. Our choice."""

_FORMAT_HINT = (
    'Write {"allow": ["shell(git *)"], "ask": [], "deny": []}, each list of rules as strings'
)


def from_settings(
    settings: Mapping[str, Any] | Path, source: Source, *, where: str = ""
) -> tuple[Rule, ...]:
    """Return the rules of one source.

    Args:
        settings: the mapping, or the path of a JSON file that contains it.
        source: the author of the rules.
        where: the name of the settings in error messages; defaults to the file's path, or the source.

    Raises:
        UsageError: a rule, a list or the file is malformed; the message names it and the expected
            format.
    """
    if isinstance(settings, Path):
        where = where or str(settings)
        settings = read_json(settings, where, _FORMAT_HINT)
    where = where or f"settings of the source {source}"
    if not isinstance(settings, Mapping):
        raise UsageError("expected an object", where=where, todo=_FORMAT_HINT)
    for name in settings:
        if name not in BEHAVIORS:
            raise UsageError(f"unknown key {name!r}", where=where, todo=_suggestion(name))
    return tuple(
        rule
        for behavior in BEHAVIORS
        for rule in _rules(settings.get(behavior, []), behavior, source, where)
    )


def _rules(entries: Any, behavior: Any, source: Source, where: str) -> list[Rule]:
    if not isinstance(entries, list | tuple):
        raise UsageError(f"{behavior!r} is not a list", where=where, todo=_FORMAT_HINT)
    rules = []
    for index, text in enumerate(entries):
        try:
            rules.append(Rule.parse(text, behavior, source))
        except UsageError as error:
            place = f"{where}, {behavior}[{index}]"
            raise UsageError(error.found, where=place, todo=error.todo) from None
    return rules


def read_json(path: Path, where: str, form: str) -> Any:
    """Return the value in a JSON settings file. `form` is the text about the expected format in error messages.

    Raises:
        UsageError: the file is unreadable, too large or not valid JSON, or contains a duplicate key.
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
        return json.loads(text.decode("utf-8-sig"), object_pairs_hook=_unique_keys)
    except RecursionError:
        raise UsageError("the file is nested too deep", where=where, todo=form) from None
    except ValueError as error:
        raise UsageError(f"the file is not JSON ({error})", where=where, todo=form) from None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse duplicate keys, because only the last list of a duplicate key would have an effect."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        duplicate = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {duplicate!r} appears twice")
    return found


def _suggestion(name: Any) -> str:
    close = difflib.get_close_matches(str(name).lower(), BEHAVIORS, n=1)
    return f"Did you mean {close[0]!r}?" if close else _FORMAT_HINT
