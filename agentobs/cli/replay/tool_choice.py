"""The choice of which tools run in a replay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentobs.errors import UsageError

if TYPE_CHECKING:
    from replay.fixture.format import Fixture


def policy(tools: str, fixture: Fixture) -> Any:
    """Parse the option `--tools` into the tool policy of a replay.

    Raises:
        UsageError: the fixture contains no call of a tool that the option names.
    """
    if tools in ("recorded", "live"):
        return tools
    choices = dict(each.partition("=")[::2] for each in tools.split(","))
    known = {tool.question.name for tool in fixture.tools}
    if unknown := sorted(choices.keys() - known - ({"*"} if "=" in tools else set())):
        raise UsageError(
            f"the recording contains no calls of {', '.join(unknown)}",
            where="--tools",
            todo=(
                f"The recorded tools are: {', '.join(sorted(known)) or '(none)'}; you can also pass "
                "recorded or live"
            ),
        )
    if "=" not in tools:
        return frozenset(choices)
    return {name: word or "execute" for name, word in choices.items()}
