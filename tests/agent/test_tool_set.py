"""The set of available tools, which can change only between turns."""

from __future__ import annotations

from typing import Any

import pytest

from agentobs.agent.events import ToolDone
from agentobs.agent.tools.tool import tool
from agentobs.records.exchanges import WorldExchange

from .agent_runs import events_of, of_kind, recorded, result_of
from .provider import Provider, call, message, streamed, text

DONE = message(text("Done."))


def offered(provider: Provider) -> list[list[str]]:
    return [[t["name"] for t in request.get("tools", ())] for request in provider.requests]


def test_an_optional_tool() -> None:
    """An optional tool is offered only in turns in which it is available; a call in another turn is an error."""
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
    exchanges = [e for e in of_kind(records, WorldExchange) if e.question.kind == "tool_set"]
    assert [(e.question.key, e.answer) for e in exchanges] == [
        ("1", ["search"]),
        ("2", []),
        ("3", []),
    ]


def test_a_required_tool_that_is_not_available() -> None:
    """If a required tool is not available, the run ends before any request, and the error names the tool."""

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
def test_a_failing_availability_check(error: BaseException) -> None:
    """If the availability check of a tool fails, the user is warned, and the run continues without the tool."""

    def available() -> bool:
        raise error

    name = f"search_{type(error).__name__}"

    @tool(name=name, available=available, optional=True)
    def search() -> str:
        """Search."""
        return "found"

    with (
        pytest.warns(
            RuntimeWarning,
            match=f"cannot determine whether the tool {name} is available: {type(error).__name__}",
        ),
        Provider([streamed(DONE)]) as provider,
    ):
        result = result_of(events_of(provider, tools=[search]))
    assert (result.subtype, offered(provider)) == ("success", [[]])


def test_a_tool_set_that_changes_between_turns() -> None:
    """If a function returns the tools, a change of the tools applies from the next turn on."""

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
