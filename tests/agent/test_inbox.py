"""Messages to an agent while the agent runs."""

from __future__ import annotations

from typing import Any
from unittest.mock import ANY

from agentobs.agent.events import Event, FollowUp, Steering, ToolDispatch, ToolDone
from agentobs.agent.execution.live_answers import Inbox
from agentobs.agent.tools.tool import tool
from agentobs.records.exchanges import ToolAnswer, WorldExchange
from agentobs.records.facts import Event as EventFact

from .agent_runs import events_of, of_kind, recorded, result_of
from .provider import Provider, call, message, streamed, text

DONE = message(text("Done."))


@tool
def write(what: str) -> str:
    """Write something."""
    return f"wrote {what}"


def sending(inbox: Inbox, words: str) -> Any:
    """Return an event handler that sends a message when the first tool starts."""
    sent: list[str] = []

    def on(event: Event) -> None:
        if isinstance(event, ToolDispatch) and not sent:
            sent.append(words)
            inbox.steer(words)

    return on


def answers(records: list[Any]) -> list[tuple[str, str, Any]]:
    exchanges = of_kind(records, WorldExchange)
    return [
        (e.question.kind, e.question.key, e.answer) for e in exchanges if e.question.kind != "path"
    ]


def test_steering_is_added_after_the_current_tool() -> None:
    """If a steering message arrives while a tool runs, the tool finishes, pending tools are skipped, and the message
    follows the results.
    """
    inbox = Inbox()
    call_message = message(call("a", "write", what="x"), call("b", "write", what="y"))
    with Provider([streamed(call_message), streamed(DONE)]) as provider, recorded() as records:
        events = events_of(
            provider, tools=[write], world={"inbox": inbox}, on=sending(inbox, "Not y!")
        )
    assert [d.answer.outcome for d in of_kind(events, ToolDone)] == ["executed", "skipped"]
    assert of_kind(events, Steering) == [Steering(1, ("Not y!",), ("b",))]
    first, second, words = provider.requests[1]["messages"][2]["content"]
    assert (first["content"], words) == ("wrote x", text("Not y!"))
    assert (second["is_error"], second["content"].split(":")[0]) == (True, "Skipped")
    assert answers(records) == [("steering", "1:a", ["Not y!"])]
    facts = [(e.kind, dict(e.numbers)) for e in of_kind(records, EventFact)]
    assert facts == [("context", ANY), ("steering", {"texts": 1, "skipped": 1}), ("context", ANY)]


def test_steering_after_the_last_tool() -> None:
    """If a steering message arrives during the last call, it is added after the results."""
    inbox = Inbox()
    call_message = message(call("a", "write", what="x"))
    with Provider([streamed(call_message), streamed(DONE)]) as provider:
        events = events_of(provider, tools=[write], world={"inbox": inbox}, on=sending(inbox, "Ok"))
    assert of_kind(events, Steering) == [Steering(1, ("Ok",), ())]
    assert provider.requests[1]["messages"][2]["content"][1] == text("Ok")


def test_follow_ups_are_delivered_when_the_agent_would_stop() -> None:
    """When the agent would stop, steering messages and then follow-ups are delivered, and each continues the run."""
    inbox = Inbox()
    inbox.follow_up("And then?")
    inbox.steer("Louder")
    replies = [streamed(message(text(words))) for words in ("One", "ONE", "Two")]
    with Provider(replies) as provider, recorded() as records:
        events = events_of(provider, world={"inbox": inbox})
    assert of_kind(events, Steering, FollowUp) == [
        Steering(1, ("Louder",), ()),
        FollowUp(2, ("And then?",)),
    ]
    assert (result_of(events).text, result_of(events).num_turns) == ("Two", 3)
    assert [m["content"] for m in provider.requests[2]["messages"]] == [
        "Hello",
        [text("One")],
        [text("Louder")],
        [text("ONE")],
        [text("And then?")],
    ]
    assert answers(records) == [
        ("steering", "1:end", ["Louder"]),
        ("follow_up", "2:end", ["And then?"]),
    ]


def test_follow_ups_do_not_count_as_tool_turns() -> None:
    """`max_turns` counts only turns that used tools, so follow-ups do not count."""
    inbox = Inbox()
    inbox.follow_up("Write")
    call_message = message(call("a", "write", what="x"))
    with Provider([streamed(DONE), streamed(call_message), streamed(DONE)]) as provider:
        result = result_of(events_of(provider, tools=[write], world={"inbox": inbox}, max_turns=2))
    assert (result.subtype, result.num_turns) == ("success", 3)


def test_an_empty_inbox_is_not_recorded() -> None:
    """Only received messages are recorded as exchanges, although the loop checks the inbox many times."""
    call_message = message(call("a", "write", what="x"))
    with Provider([streamed(call_message), streamed(DONE)]) as provider, recorded() as records:
        events = events_of(provider, tools=[write], world={"inbox": Inbox()})
    assert [done.answer for done in of_kind(events, ToolDone)] == [ToolAnswer("wrote x")]
    assert answers(records) == []
