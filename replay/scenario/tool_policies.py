"""Tool policies: which tools run in a replay, which tools answer from the recording, and which tools do both."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, get_args

from agentobs.errors import UsageError

Policy = Literal["execute", "replay", "verify"]
"""The handling of a tool's calls. `execute`: the tool runs. `replay`: it never runs, and its input is compared with the
recording. `verify`: it runs, and its result is compared.
"""

ToolPolicy = Literal["recorded", "live"] | Mapping[str, Policy] | Collection[str]
"""Which tools run: none (`recorded`), all (`live`), or the named ones; or a policy for each name, with `*` for all
others.

A mutating tool (`record_tool(mutating=True)`, or in a mapping a tool of the agent loop that is not read-only) runs only
if it is named, never by `*`; a mutating recorded function does not run with `live` either.
"""

OTHERS = "*"
"""The name that represents all other tools."""


def policy_of(
    tools: ToolPolicy, name: str, *, is_mutating: bool = False, is_function: bool = False
) -> Policy:
    """Return the handling of a tool's calls.

    Args:
        tools: the policy.
        name: the tool.
        is_mutating: whether the tool has side effects.
        is_function: whether it is a function of `record_tool`, which declares whether it is mutating.
    """
    if isinstance(tools, str):
        return "execute" if tools == "live" and not (is_mutating and is_function) else "replay"
    if isinstance(tools, Mapping):
        return tools.get(name) or ("replay" if is_mutating else tools.get(OTHERS, "replay"))
    return "execute" if name in tools else "replay"


def check_policy(tools: ToolPolicy) -> None:
    """Check a policy.

    Raises:
        UsageError: the policy is invalid.
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
            f"unknown policy for tools: {wrong[0]!r}",
            where="tools",
            todo=f"Use {known}; or name the tools that run, as in tools=['lookup']",
        )
