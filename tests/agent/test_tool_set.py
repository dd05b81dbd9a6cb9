"""The tools of a turn, which are only evaluated between turns."""

from __future__ import annotations

from typing import Any

import pytest

from agentobs.agent.events import ToolDone
from agentobs.agent.tools.tool import tool
from agentobs.records.exchanges import WorldExchange

from .provider import Provider, call, message, streamed, text
from .scene import events_of, of_kind, recorded, result_of

DONE = message(text("Done."))


def offered(provider: Provider) -> list[list[str]]:
    return [[t["name"] for t in request.get("tools", ())] for request in provider.requests]


def test_a_tool_that_comes_and_goes() -> None:
    """An optional tool is offered in turns in which it is available; calling it in others is an error."""
    there = [True]

    @tool(available=lambda: there[0], optional=True)
    def search() -> str:
        """Search."""
        there[0] = False
        return "found"

    @tool(read_only=True)
    def look() -> str:
        """Look."""
        return "nothing"

    replies = [streamed(message(call(each, "search"))) for each in "ab"]
    with Provider([*replies, streamed(DONE)]) as provider, recorded() as records:
        events = events_of(provider, tools=[search, look])
    assert offered(provider) == [["search", "look"], ["look"], ["look"]]
    assert [d.answer.outcome for d in of_kind(events, ToolDone)] == ["executed", "unknown"]
    asked = [e for e in of_kind(records, WorldExchange) if e.question.kind == "tool_set"]
    assert [(e.question.key, e.answer) for e in asked] == [("1", ["search"]), ("2", []), ("3", [])]


def test_a_tool_that_has_to_be_there() -> None:
    """If it is missing, the run ends before any request, and the error names the tool."""

    @tool(available=lambda: False)
    def search() -> str:
        """Search."""
        return "found"

    with Provider([]) as provider:
        result = result_of(events_of(provider, tools=[search]))
    assert (result.subtype, result.terminal_reason) == ("error_during_execution", "tool_set_error")
    assert "search" in str(result.error_text)
    assert provider.requests == []


@pytest.mark.parametrize("error", [RuntimeError("no server"), SystemExit(3)])
def test_a_tool_that_cannot_tell_whether_it_is_there(error: BaseException) -> None:
    """It counts as missing, the user is warned, and the run continues without it."""

    def available() -> bool:
        raise error

    name = f"search_{type(error).__name__}"

    @tool(name=name, available=available, optional=True)
    def search() -> str:
        """Search."""
        return "found"

    with (
        pytest.warns(
            RuntimeWarning, match=f"{name} is available is unknown: {type(error).__name__}"
        ),
        Provider([streamed(DONE)]) as provider,
    ):
        result = result_of(events_of(provider, tools=[search]))
    assert (result.subtype, offered(provider)) == ("success", [[]])


def test_a_set_that_is_asked_for_each_turn() -> None:
    """A function returns the tools of each turn; changes apply from the next turn on."""

    @tool
    def first() -> str:
        """Do the first."""
        tools.append(second)
        return "one"

    @tool
    def second() -> str:
        """Do the second."""
        return "two"

    tools: list[Any] = [first]
    both = message(call("a", "first"), call("b", "second"))
    replies = [streamed(both), streamed(message(call("c", "second"))), streamed(DONE)]
    with Provider(replies) as provider:
        events = events_of(provider, tools=lambda: list(tools), world={"known": [first, second]})
    assert offered(provider) == [["first"], ["first", "second"], ["first", "second"]]
    assert [d.answer.outcome for d in of_kind(events, ToolDone)] == [
        "executed",
        "unknown",
        "executed",
    ]
