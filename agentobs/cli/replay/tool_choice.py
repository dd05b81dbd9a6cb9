"""The choice of how each tool is answered in a replay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentobs.errors import UsageError

if TYPE_CHECKING:
    from replay.fixture.format import Fixture


def policy(tools: str, fixture: Fixture) -> Any:
    """Return which tools run, as a replay wants to know it.

    Raises:
        UsageError: a named tool is not in the fixture.
    """
    if tools in ("recorded", "live"):
        return tools
    told = dict(each.partition("=")[::2] for each in tools.split(","))
    known = {tool.question.name for tool in fixture.tools}
    if unknown := sorted(told.keys() - known - ({"*"} if "=" in tools else set())):
        raise UsageError(
            f"no tool {', '.join(unknown)} in the recording",
            where="--tools",
            todo=f"It has {', '.join(sorted(known)) or 'none'}; or say recorded or live",
        )
    if "=" not in tools:
        return frozenset(told)
    return {name: word or "execute" for name, word in told.items()}
