"""Grants and denials of sub-agents, and when other agents see them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from agentobs.agent import Agent, Conversation, Permissions, SubAgent, run, sub_agents, tool
from agentobs.agent.events import ToolDone
from agentobs.agent.execution.classifier import Classifier
from agentobs.agent.permissions import Denials
from agentobs.agent.tool_calls.trust import hand_down, hand_up, trust_in
from agentobs.records.exchanges import WorldQuestion

from .hooks.playing import SMALL, played
from .provider import Provider, call, message, streamed, text
from .scene import of_kind, options, ticking_world

DONE = message(text("Done."))
START = sub_agents([Agent("scout", "Looks around.")])


@tool(subject="what")
def put(what: str) -> str:
    """Put something."""
    return f"put {what}"


def start(name: str, **more: Any) -> dict[str, Any]:
    return call(name, "agent", agent="scout", prompt="Go.", **more)


def said(behavior: str) -> dict[str, Any]:
    return message(call("k", "answer", behavior=behavior, reason="n"), model=SMALL)


def test_denials_are_counted_over_all_agents() -> None:
    """Starting agents does not bypass the classifier's limit: after three denials it is not called."""
    replies = []
    for name in "abcd":
        denied = [message(call(f"{name}{n}", "put", what="x")) for n in range(2)]
        asked = [denied[0], said("deny"), denied[1], said("deny"), DONE]
        replies += [message(start(name)), *asked]
    talk = Conversation()
    # From the third denial on the classifier is not called.
    kept = [r for n, r in enumerate(replies) if r["model"] != SMALL or n in (2, 4, 8)]
    with Provider([streamed(each) for each in [*kept, DONE]]) as provider:
        events = played(
            provider,
            tools=[put, START],
            permissions=Permissions(),
            classifier=Classifier(SMALL),
            talk=talk,
        )
    assert [r["model"] for r in provider.requests].count(SMALL) == 3
    inner = [e.event for e in of_kind(events, SubAgent) if isinstance(e.event, ToolDone)]
    assert [done.answer.outcome for done in inner] == ["denied"] * 8
    assert talk.denials == Denials(3, 3)


@pytest.mark.parametrize(
    ("began", "agent", "meanwhile", "then"),
    [
        (Denials(1, 4), Denials(3, 6), Denials(1, 4), Denials(3, 6)),
        (Denials(1, 4), Denials(3, 6), Denials(2, 5), Denials(4, 7)),
        (Denials(2, 4), Denials(0, 4), Denials(2, 5), Denials(0, 5)),
        (Denials(2, 4), Denials(1, 6), Denials(2, 4), Denials(1, 6)),
    ],
    ids=["alone", "beside", "allowed", "allowed then denied"],
)
def test_what_an_agent_was_denied_counts_as_if_it_came_last(
    began: Denials, agent: Denials, meanwhile: Denials, then: Denials
) -> None:
    """Denials add up; after an approval in the agent, only later denials are consecutive."""
    child, parent = Conversation(), Conversation(denials=began)
    hand_down(trust_in(parent), child)
    assert child.denials == began
    child.denials, parent.denials = agent, meanwhile
    hand_up(child, began, parent)
    assert parent.denials == then


def test_an_agent_begins_with_what_held_when_its_call_began() -> None:
    """A grant for a call after its own does not apply to it, however fast the person was."""
    asked: list[Any] = []

    async def go(provider: Provider) -> None:
        async with provider.client() as client:
            tools = (walk, START)
            world = ticking_world(client, tools)

            async def at_once(question: WorldQuestion) -> Any:
                if question.kind != "consent":
                    return await world.ask(question)
                asked.append(question.asked["about"]["input"])
                return {"behavior": "allow", "resolver": "person", "scope": "session", "reason": ""}

            fast = replace(world, ask=at_once)
            careful = options(permissions=Permissions())
            async for _ in run("Go", world=fast, options=careful, tools=tools):
                pass

    @tool(concurrent=True, subject="what", name="put")
    def walk(what: str) -> str:
        """Put something."""
        return f"put {what}"

    replies = [
        message(start("a"), call("b", "put", what="x")),
        message(call("c", "put", what="x")),
        *(DONE, DONE),
    ]
    with Provider([streamed(each) for each in replies]) as provider:
        asyncio.run(go(provider))
    assert asked == [{"what": "x"}, {"what": "x"}]
