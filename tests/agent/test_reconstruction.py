"""A conversation rebuilt from a recording equals the conversation that the loop kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic

import agentobs
from agentobs.agent import Conversation, Result, live_world, run
from agentobs.agent.sessions.reconstruction import conversation_of, without_breakpoints
from agentobs.agent.sessions.resumption import conversation_from
from agentobs.provider.anthropic.messages import conversation_error
from agentobs.records.exchanges import ModelExchange, Recording, ToolExchange, WorldExchange
from replay import Replayer, load
from tests.agent.agent_runs import options
from tests.agent.scenarios import FIXTURES, SCENARIOS


def replayed(name: str) -> tuple[Conversation, Recording, str | None]:
    """Replay a scenario; return the loop's conversation, the recording, and the last error."""
    scenario, conversations, errors = SCENARIOS[name], list[Conversation](), list[str | None]()
    tools = scenario.tools if scenario.replayed_tools is None else scenario.replayed_tools

    async def run_again() -> None:
        async with AsyncAnthropic(open_telemetry=False) as client:
            agentobs.record(client)
            with agentobs.session(name):
                world = live_world(client, tools)
                conversation = (
                    await scenario.start_conversation(world)
                    if scenario.start_conversation
                    else Conversation()
                )
                conversations.append(conversation)
                run_arguments: Any = {"tools": tools, "conversation": conversation, "world": world}
                for prompt in scenario.prompts:
                    async for event in run(
                        prompt, options=options(**scenario.options), **run_arguments
                    ):
                        errors.extend([event.error] if isinstance(event, Result) else [])

    with Replayer(load(Path(FIXTURES / name))) as opened:
        opened.run(run_again)
    kinds = (ModelExchange, ToolExchange, WorldExchange)
    exchanges = [each for each in opened.records if isinstance(each, kinds)]
    exchanges.sort(key=lambda each: each.started_ns)
    [conversation] = conversations
    recording = Recording("s", "s", None, None, "completed", None, None, 0, tuple(exchanges))
    return conversation, recording, errors[-1]


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_is_reconstructed(name: str) -> None:
    """The messages, turns and agents of every scenario are reconstructed, whether its runs ended normally or were
    stopped.

    If the last request was never answered, the loop drops the prompt, because its caller still has the prompt, but the
    recording keeps it. A recording also shows which background agents never reported.
    """
    conversation, recording, error = replayed(name)
    found = conversation_from(json.loads(json.dumps(conversation_of(recording))))
    kept = [without_breakpoints(message) for message in conversation.messages]
    asks = [each for each in recording.exchanges if isinstance(each, ModelExchange)]
    [*_, last] = [each for each in asks if each.place.lane == "main"]
    is_answered = last.answer.status == 200 and error is None
    if is_answered and not conversation.background:
        assert list(found.messages) == kept
        assert (found.turns, found.tool_turns) == (conversation.turns, conversation.tool_turns)
    else:
        assert list(found.messages)[: len(kept)] == kept
        assert {message["role"] for message in found.messages[len(kept) :]} <= {"user"}
    assert set(found.children) == {*conversation.children, *conversation.background}
    assert conversation_error(found.messages) is None
