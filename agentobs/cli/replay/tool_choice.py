"""The choice of how each tool is answered in a replay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentobs.errors import UsageError

if TYPE_CHECKING:
    from replay.fixture.format import Fixture


def policy(tools: str, fixture: Fixture) -> Any:
    """Parse the option `--tools` into the tool policy of a replay.

    Raises:
        UsageError: the fixture has no tool with a given name.
    """
    if tools in ("recorded", "live"):
        return tools
    choices = dict(each.partition("=")[::2] for each in tools.split(","))
    known = {tool.question.name for tool in fixture.tools}
    if unknown := sorted(choices.keys() - known - ({"*"} if "=" in tools else set())):
        raise UsageError(
            f"no tool {', '.join(unknown)} in the recording",
            where="--tools",
            todo=(
                f"The recording has {', '.join(sorted(known)) or 'no tools'}; you can also pass "
                "recorded or live"
            ),
        )
    if "=" not in tools:
        return frozenset(choices)
    return {name: word or "execute" for name, word in choices.items()}
