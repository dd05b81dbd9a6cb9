"""Grants and denials in sub-agents, and when they affect other agents."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from agentobs.agent import (
    AgentDefinition,
    Conversation,
    Permissions,
    SubAgent,
    run,
    sub_agents,
    tool,
)
from agentobs.agent.events import ToolDone
from agentobs.agent.execution.classifier import Classifier
from agentobs.agent.permissions import Denials
from agentobs.agent.tool_calls.trust import hand_down, hand_up, trust_in
from agentobs.agent.tools.tool_runs import ToolRuns
from agentobs.records.exchanges import WorldQuestion

from .agent_runs import of_kind, options, ticking_world
from .hooks.live_runs import SMALL, run_agent
from .provider import Provider, call, message, streamed, text

DONE = message(text("Done."))
START = sub_agents([AgentDefinition("scout", "Looks around.")])


@tool(subject="what")
def put(what: str) -> str:
    """Put something."""
    return f"put {what}"


def start(name: str, **more: Any) -> dict[str, Any]:
    return call(name, "agent", agent="scout", prompt="Go.", **more)


def classifier_message(behavior: str) -> dict[str, Any]:
    return message(call("k", "answer", behavior=behavior, reason="n"), model=SMALL)


def test_denials_are_counted_over_all_agents() -> None:
    """Denials are counted over all agents, so that starting agents does not bypass the limit of three denials by the
    classifier.
    """
    replies = []
    for name in "abcd":
        denied = [message(call(f"{name}{n}", "put", what="x")) for n in range(2)]
        agent_replies = [
            denied[0],
            classifier_message("deny"),
            denied[1],
            classifier_message("deny"),
            DONE,
        ]
        replies += [message(start(name)), *agent_replies]
    conversation = Conversation()
    # After the third denial, the classifier is not called.
    kept = [r for n, r in enumerate(replies) if r["model"] != SMALL or n in (2, 4, 8)]
    with Provider([streamed(each) for each in [*kept, DONE]]) as provider:
        events = run_agent(
            provider,
            tools=[put, START],
            permissions=Permissions(),
            classifier=Classifier(SMALL),
            conversation=conversation,
        )
    assert [r["model"] for r in provider.requests].count(SMALL) == 3
    inner = [e.event for e in of_kind(events, SubAgent) if isinstance(e.event, ToolDone)]
    assert [done.answer.outcome for done in inner] == ["denied"] * 8
    assert conversation.denials == Denials(3, 3)


@pytest.mark.parametrize(
    ("at_start", "in_agent", "in_parent", "combined"),
    [
        (Denials(1, 4), Denials(3, 6), Denials(1, 4), Denials(3, 6)),
        (Denials(1, 4), Denials(3, 6), Denials(2, 5), Denials(4, 7)),
        (Denials(2, 4), Denials(0, 4), Denials(2, 5), Denials(0, 5)),
        (Denials(2, 4), Denials(1, 6), Denials(2, 4), Denials(1, 6)),
    ],
    ids=["alone", "concurrent", "allowed", "allowed then denied"],
)
def test_denials_of_an_agent_count_as_the_latest(
    at_start: Denials, in_agent: Denials, in_parent: Denials, combined: Denials
) -> None:
    """The denials of a sub-agent are added to those of its starter; after an approval in the sub-agent, only later
    denials are consecutive.
    """
    child, parent = Conversation(), Conversation(denials=at_start)
    hand_down(trust_in(parent), child)
    assert child.denials == at_start
    child.denials, parent.denials = in_agent, in_parent
    hand_up(child, at_start, ToolRuns(), parent)
    assert parent.denials == combined


def test_an_agent_starts_with_the_grants_at_its_call() -> None:
    """A sub-agent gets only the grants that existed when it was called, even if a person approves a later call
    immediately.
    """
    inputs: list[Any] = []

    async def run_to_end(provider: Provider) -> None:
        async with provider.client() as client:
            tools = (walk, START)
            world = ticking_world(client, tools)

            async def approve_immediately(question: WorldQuestion) -> Any:
                if question.kind != "consent":
                    return await world.ask(question)
                inputs.append(question.payload["about"]["input"])
                return {"behavior": "allow", "resolver": "person", "scope": "session", "reason": ""}

            fast = replace(world, ask=approve_immediately)
            run_options = options(permissions=Permissions())
            async for _ in run("Go", world=fast, options=run_options, tools=tools):
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
        asyncio.run(run_to_end(provider))
    assert inputs == [{"what": "x"}, {"what": "x"}]
