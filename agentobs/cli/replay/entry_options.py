"""Command-line options that set the entry of a session, its arguments, and rules."""

from __future__ import annotations

import json
import re
from typing import Any

from agentobs.errors import UsageError


def entry_fields(recorded: str | None, entry: str | None, arguments: str | None) -> dict[str, Any]:
    """Return the fields of a recording that the options `--entry` and `--args` change.

    Raises:
        UsageError: the entry is not `module:name`, the arguments are not JSON, or no entry is known.
    """
    if entry is None and arguments is None:
        return {}
    name = entry or recorded
    if name is None or not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", name):
        raise UsageError(
            f"{name!r} does not name a function" if name else "the recording names no function",
            where="--entry",
            todo="Pass module:name, such as my_agent:main or my_agent:Agent.answer",
        )
    try:
        parsed = json.loads(arguments or "{}")
    except ValueError as error:
        raise UsageError(f"expected JSON: {error}", where="--args", todo=_ARGS) from None
    if not isinstance(parsed, dict | list):
        raise UsageError(
            f"expected an object or a list, got {arguments}", where="--args", todo=_ARGS
        )
    values = parsed if isinstance(parsed, dict) else {"*": parsed}
    return {"entry": name, "arguments": values, "entry_obstacle": None}


def rule_names(listed: str) -> list[str]:
    """Return the names in a comma-separated list."""
    return [name.strip() for name in listed.split(",") if name.strip()]


_ARGS = """Pass an object by name, such as '{"city": "Oslo"}', or a list by position, such as '["Oslo"]'"""
