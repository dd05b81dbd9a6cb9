"""A conversation rebuilt from a recording equals the one that the loop kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic

import agentobs
from agentobs.agent import Conversation, Result, live_world, run
from agentobs.agent.sessions.reconstruction import conversation_of, unmarked
from agentobs.agent.sessions.resumption import conversation_from
from agentobs.provider.anthropic.messages import fault
from agentobs.records.exchanges import ModelExchange, Recording, ToolExchange, WorldExchange
from replay import Replayer, load
from tests.agent.scenarios import FIXTURES, SCENARIOS
from tests.agent.scene import options


def replayed(name: str) -> tuple[Conversation, Recording, str | None]:
    """Replay a scenario; return the loop's conversation, the recording, and its last error."""
    scenario, talks, errors = SCENARIOS[name], list[Conversation](), list[str | None]()
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
                    async for event in run(prompt, options=options(**scenario.options), **given):
                        errors.extend([event.error] if isinstance(event, Result) else [])

    with Replayer(load(Path(FIXTURES / name))) as opened:
        opened.run(again)
    kinds = (ModelExchange, ToolExchange, WorldExchange)
    exchanges = [each for each in opened.records if isinstance(each, kinds)]
    exchanges.sort(key=lambda each: each.started_ns)
    [talk] = talks
    recording = Recording("s", "s", None, None, "completed", None, None, 0, tuple(exchanges))
    return talk, recording, errors[-1]


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_is_recalled(name: str) -> None:
    """Messages, turns and agents, of runs that ended and of runs that were stopped anywhere.

    If the last request was never answered, the loop drops the prompt, because its caller still has
    it; a recording keeps it. A recording also says which background agents never reported.
    """
    talk, recording, error = replayed(name)
    found = conversation_from(json.loads(json.dumps(conversation_of(recording))))
    kept = [unmarked(message) for message in talk.messages]
    asks = [each for each in recording.exchanges if isinstance(each, ModelExchange)]
    [*_, last] = [each for each in asks if each.place.lane == "main"]
    is_answered = last.answer.status == 200 and error is None
    if is_answered and not talk.background:
        assert list(found.messages) == kept
        assert (found.turns, found.tool_turns) == (talk.turns, talk.tool_turns)
    else:
        assert list(found.messages)[: len(kept)] == kept
        assert {message["role"] for message in found.messages[len(kept) :]} <= {"user"}
    assert set(found.children) == {*talk.children, *talk.background}
    assert fault(found.messages) is None
