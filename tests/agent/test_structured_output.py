"""Structured output: a response of a given type, or the reason why there is none."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from agentobs.agent.events import Event, OutputRetry, ToolDispatch, ToolDone
from agentobs.agent.execution.live_answers import Inbox
from agentobs.agent.tools.tool import tool
from agentobs.errors import UsageError
from agentobs.records.exchanges import ToolExchange

from .provider import Provider, call, cut_after, message, streamed, text
from .scene import events_of, of_kind, recorded, result_of


class Refund(BaseModel):
    """A refund."""

    order: str
    cents: int


@tool(read_only=True)
def look() -> str:
    """Look."""
    return "nothing"


def given(tool_use_id: str, **values: Any) -> dict[str, Any]:
    return call(tool_use_id, "structured_output", **values)


def test_the_output_ends_the_run() -> None:
    """The model gets an additional tool; its input there is validated and returned."""
    replies = [
        streamed(message(call("a", "look"))),
        streamed(message(given("b", order="A-1", cents=5))),
    ]
    with Provider(replies) as provider, recorded() as records:
        result = result_of(events_of(provider, tools=[look], output=Refund))
    assert (result.subtype, result.output) == ("success", Refund(order="A-1", cents=5))
    offered = [offer["name"] for offer in provider.requests[0]["tools"]]
    assert offered == ["look", "structured_output"]
    assert provider.requests[0]["tools"][1]["input_schema"]["required"] == ["order", "cents"]
    assert [e.question.name for e in of_kind(records, ToolExchange)] == [
        "look",
        "structured_output",
    ]


def test_an_output_that_does_not_fit() -> None:
    """The model is told what is invalid and may try again."""
    replies = [
        streamed(message(given("a", order="A-1"))),
        streamed(message(given("b", order="A-1", cents=5))),
    ]
    with Provider(replies) as provider:
        events = events_of(provider, output=Refund)
    assert [d.answer.outcome for d in of_kind(events, ToolDone)] == ["invalid", "executed"]
    told = provider.requests[1]["messages"][2]["content"][0]["content"]
    assert told == "The answer does not fit:\ncents: required, but not given"
    assert result_of(events).output == Refund(order="A-1", cents=5)


def test_an_answer_without_the_output() -> None:
    """A model that stops with text is prompted again."""
    replies = [streamed(message(text("Done."))), streamed(message(given("a", order="x", cents=1)))]
    with Provider(replies) as provider:
        events = events_of(provider, output=Refund)
    assert of_kind(events, OutputRetry) == [OutputRetry(1, 1)]
    assert result_of(events).output == Refund(order="x", cents=1)


def test_retries_are_bounded() -> None:
    """Text and invalid output count together; beyond the limit the run ends with its own subtype."""
    replies = [
        streamed(message(text("Done."))),
        streamed(message(given("a", order="x"))),
        streamed(message(given("b", order="y"))),
    ]
    with Provider(replies) as provider:
        result = result_of(events_of(provider, output=Refund, max_output_retries=2))
    assert (result.subtype, result.terminal_reason, result.output) == (
        "error_max_structured_output_retries",
        "max_structured_output_retries",
        None,
    )
    assert len(provider.requests) == 3


def test_an_output_that_was_overtaken_is_not_taken() -> None:
    """A message to the agent is handled first, whether the output was skipped or provided before it."""
    for first in (0, 1):
        inbox, said = Inbox(), list[bool]()

        @tool(concurrent=True)
        def write() -> str:
            """Write."""
            return "wrote"

        def on(event: Event, inbox: Inbox = inbox, said: list[bool] = said) -> None:
            if isinstance(event, ToolDispatch) and not said:
                said.append(True)
                inbox.steer("The order is y!")

        calls = [call("a", "write"), given("b", order="x", cents=1)]
        asking = message(*(reversed(calls) if first else calls))
        right = message(given("c", order="y", cents=2))
        with Provider([streamed(asking), streamed(right)]) as provider:
            events = events_of(
                provider, tools=[write], output=Refund, world={"inbox": inbox}, on=on
            )
        assert result_of(events).output == Refund(order="y", cents=2)


def test_an_output_of_an_answer_that_broke_off_is_void() -> None:
    """Only the complete response counts."""
    broken = cut_after(message(given("a", order="void", cents=1), text("So")), 7)
    replies = [
        broken,
        streamed(message(call("b", "look"))),
        streamed(message(given("c", order="x", cents=2))),
    ]
    with Provider(replies) as provider:
        result = result_of(events_of(provider, tools=[look], output=Refund))
    assert (result.output, result.num_turns) == (Refund(order="x", cents=2), 2)


def test_the_name_of_the_output_is_taken() -> None:
    """A tool with the same name is refused before any request."""

    @tool(name="structured_output")
    def mine() -> str:
        """Mine."""
        return ""

    with Provider([]) as provider, pytest.raises(UsageError, match="structured_output"):
        events_of(provider, tools=[mine], output=Refund)
