"""Policies: which tools run in a replay, which answer from the recording, and which do both."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, get_args

from agentobs.errors import UsageError

Policy = Literal["execute", "replay", "verify"]
"""What becomes of the calls of a tool: `execute`, it runs; `replay`, it never runs, and what it is asked is compared;
`verify`, it runs, and what it answers is compared."""

ToolPolicy = Literal["recorded", "live"] | Mapping[str, Policy] | Collection[str]
"""Which tools run: none, all, those of these names; or what becomes of each, by name, with `*` for all others.

A tool that is known to change something outside (`record_tool(mutating=True)`, or for a mapping one of our loop that
does not only read) runs where it is named, never by `*`; and a recorded function that does so not by `live` either.
"""

OTHERS = "*"
"""The name that stands for all tools that are not named."""


def policy_of(
    tools: ToolPolicy, name: str, *, is_mutating: bool = False, is_function: bool = False
) -> Policy:
    """Return what becomes of the calls of a tool.

    Args:
        tools: what was chosen.
        name: the tool.
        is_mutating: whether it changes something outside.
        is_function: whether it is a function of `record_tool`, which says by itself that it does so.
    """
    if isinstance(tools, str):
        return "execute" if tools == "live" and not (is_mutating and is_function) else "replay"
    if isinstance(tools, Mapping):
        return tools.get(name) or ("replay" if is_mutating else tools.get(OTHERS, "replay"))
    return "execute" if name in tools else "replay"


def check_policy(tools: ToolPolicy) -> None:
    """Check what was chosen.

    Raises:
        UsageError: there is no such policy.
    """
    if isinstance(tools, str):
        wrong = [] if tools in ("recorded", "live") else [tools]
        known = "recorded or live"
    else:
        chosen = tools.values() if isinstance(tools, Mapping) else ()
        wrong = [each for each in chosen if each not in get_args(Policy)]
        known = ", ".join(get_args(Policy))
    if wrong:
        raise UsageError(
            f"no policy for tools is called {wrong[0]!r}",
            where="tools",
            todo=f"Say {known}; or name the tools that run, as in tools=['lookup']",
        )
