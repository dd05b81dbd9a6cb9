"""Recalling: what is put together from a recording is what the loop itself had kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic

import agentobs
from agentobs.agent import Conversation, live_world, run
from agentobs.agent.recalling import conversation_of, unmarked
from agentobs.agent.resuming import conversation_from
from agentobs.records.exchanges import ModelExchange, Recording, ToolExchange, WorldExchange
from agentobs.records.messages import fault
from replay import Replay, load
from tests.agent.scenarios import FIXTURES, SCENARIOS
from tests.agent.scene import options

UNANSWERED = {"too-long", "stopped-before-retry"}
"""Scenarios that end with a request which was never answered. The loop forgets the prompt, for whoever runs it
still has it; a recording keeps it, for nobody else does."""


def replayed(name: str) -> tuple[Conversation, Recording]:
    """Replay a scenario; return the conversation that the loop has kept, and what was recorded."""
    scenario, talks = SCENARIOS[name], list[Conversation]()
    tools = scenario.tools if scenario.replayed_tools is None else scenario.replayed_tools

    async def again() -> None:
        async with AsyncAnthropic(open_telemetry=False) as client:
            agentobs.record(client)
            with agentobs.session(name):
                world = live_world(client, tools)
                talk = await scenario.begin(world) if scenario.begin else Conversation()
                talks.append(talk)
                given: Any = {"tools": tools, "conversation": talk, "world": world}
                for prompt in scenario.prompts:
                    async for _ in run(prompt, options=options(**scenario.options), **given):
                        pass

    with Replay(load(Path(FIXTURES / name))) as opened:
        opened.run(again)
    kinds = (ModelExchange, ToolExchange, WorldExchange)
    exchanges = [each for each in opened.records if isinstance(each, kinds)]
    exchanges.sort(key=lambda each: each.started_ns)
    [talk] = talks
    return talk, Recording("s", "s", None, None, "completed", None, None, 0, tuple(exchanges))


@pytest.mark.parametrize("name", sorted(set(SCENARIOS) - UNANSWERED))
def test_every_scenario_is_recalled(name: str) -> None:
    """Messages, turns and agents, of runs that ended and of runs that were stopped anywhere."""
    talk, recording = replayed(name)
    found = conversation_from(json.loads(json.dumps(conversation_of(recording))))
    assert list(found.messages) == [unmarked(message) for message in talk.messages]
    assert (found.turns, found.tool_turns) == (talk.turns, talk.tool_turns)
    assert set(found.children) == set(talk.children)
    assert fault(found.messages) is None


@pytest.mark.parametrize("name", sorted(UNANSWERED))
def test_a_question_that_was_never_answered_is_kept(name: str) -> None:
    """It still stands for whoever resumes the session."""
    _, recording = replayed(name)
    assert conversation_of(recording)["messages"] == [{"role": "user", "content": "Hello"}]
