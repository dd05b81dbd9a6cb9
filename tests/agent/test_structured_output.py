"""Structured output: a response of a given type, or the reason why it is missing."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from agentobs.agent.events import Event, OutputRetry, ToolDispatch, ToolDone
from agentobs.agent.execution.live_answers import Inbox
from agentobs.agent.tools.tool import tool
from agentobs.errors import UsageError
from agentobs.records.exchanges import ToolExchange

from .agent_runs import events_of, of_kind, recorded, result_of
from .provider import Provider, call, cut_after, message, streamed, text


class Refund(BaseModel):
    """A refund."""

    order: str
    cents: int


@tool(read_only=True)
def look() -> str:
    """Look."""
    return "nothing"


def output_call(tool_use_id: str, **values: Any) -> dict[str, Any]:
    return call(tool_use_id, "structured_output", **values)


def test_the_output_ends_the_run() -> None:
    """The model gets an output tool; the input of its call is validated, returned as the output, and ends the run."""
    replies = [
        streamed(message(call("a", "look"))),
        streamed(message(output_call("b", order="A-1", cents=5))),
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


def test_an_invalid_output() -> None:
    """If the output is invalid, the model gets a description of the error and may send another output."""
    replies = [
        streamed(message(output_call("a", order="A-1"))),
        streamed(message(output_call("b", order="A-1", cents=5))),
    ]
    with Provider(replies) as provider:
        events = events_of(provider, output=Refund)
    assert [d.answer.outcome for d in of_kind(events, ToolDone)] == ["invalid", "executed"]
    result_text = provider.requests[1]["messages"][2]["content"][0]["content"]
    assert result_text == "The answer does not match the schema:\ncents: required, but missing"
    assert result_of(events).output == Refund(order="A-1", cents=5)


def test_a_response_without_an_output() -> None:
    """If a response contains neither a call nor an output, the model is prompted for the output."""
    replies = [
        streamed(message(text("Done."))),
        streamed(message(output_call("a", order="x", cents=1))),
    ]
    with Provider(replies) as provider:
        events = events_of(provider, output=Refund)
    assert of_kind(events, OutputRetry) == [OutputRetry(1, 1)]
    assert result_of(events).output == Refund(order="x", cents=1)


def test_retries_are_limited() -> None:
    """Responses without an output and invalid outputs count together; beyond the limit the run ends with its own result
    subtype.
    """
    replies = [
        streamed(message(text("Done."))),
        streamed(message(output_call("a", order="x"))),
        streamed(message(output_call("b", order="y"))),
    ]
    with Provider(replies) as provider:
        result = result_of(events_of(provider, output=Refund, max_output_retries=2))
    assert (result.subtype, result.terminal_reason, result.output) == (
        "error_max_structured_output_retries",
        "max_structured_output_retries",
        None,
    )
    assert len(provider.requests) == 3


def test_an_output_before_a_new_message_is_discarded() -> None:
    """If a message to the agent arrives, an output of the same response is discarded, whether its call was skipped or
    had already run.
    """
    for first in (0, 1):
        inbox, sent = Inbox(), list[bool]()

        @tool(concurrent=True)
        def write() -> str:
            """Write."""
            return "wrote"

        def on(event: Event, inbox: Inbox = inbox, sent: list[bool] = sent) -> None:
            if isinstance(event, ToolDispatch) and not sent:
                sent.append(True)
                inbox.steer("The order is y!")

        calls = [call("a", "write"), output_call("b", order="x", cents=1)]
        call_message = message(*(reversed(calls) if first else calls))
        right = message(output_call("c", order="y", cents=2))
        with Provider([streamed(call_message), streamed(right)]) as provider:
            events = events_of(
                provider, tools=[write], output=Refund, world={"inbox": inbox}, on=on
            )
        assert result_of(events).output == Refund(order="y", cents=2)


def test_an_output_in_a_broken_response_is_void() -> None:
    """An output in a broken response is void; the output of a later, complete response is returned."""
    broken = cut_after(message(output_call("a", order="void", cents=1), text("So")), 7)
    replies = [
        broken,
        streamed(message(call("b", "look"))),
        streamed(message(output_call("c", order="x", cents=2))),
    ]
    with Provider(replies) as provider:
        result = result_of(events_of(provider, tools=[look], output=Refund))
    assert (result.output, result.num_turns) == (Refund(order="x", cents=2), 2)


def test_a_tool_with_the_name_of_the_output_tool() -> None:
    """A tool with the reserved name of the output tool is rejected before any request is sent."""

    @tool(name="structured_output")
    def mine() -> str:
        """Mine."""
        return ""

    with Provider([]) as provider, pytest.raises(UsageError, match="structured_output"):
        events_of(provider, tools=[mine], output=Refund)
