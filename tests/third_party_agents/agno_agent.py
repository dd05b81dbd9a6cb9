"""An agent of Agno with streams and a tool that runs another agent; the model creates its client at first use."""

from __future__ import annotations

import asyncio
from typing import Any

from agno.agent import Agent
from agno.models.anthropic import Claude

import agentobs
from tests.third_party_agents.provider import PLACES, PROMPT

PACKAGES = ("agno", "anthropic")
RECORDED_WITH = "`with agentobs.record_all():`"


def run(url: str, *, prompt: str = PROMPT, rome: str = PLACES["Rome"]) -> str:
    """Plan the trip with Agno."""
    places = {**PLACES, "Rome": rome}
    model = Claude(
        id="claude-sonnet-5",
        api_key="sk-ant-a-made-up-key-0123456789",
        max_tokens=99,
        client_params={"base_url": url},
    )

    async def weather(city: str) -> str:
        """Return the weather in a city."""
        await asyncio.sleep(0)
        return places[city]

    async def research(topic: str) -> str:
        """Let another agent research a topic."""
        return await final_text(f"Research the {topic}.", [weather])

    async def final_text(task: str, tools: list[Any]) -> str:
        agent = Agent(model=model, tools=tools, telemetry=False)
        async for event in agent.arun(task, stream=True, yield_run_output=True):
            last = event
        return str(last.messages[-1].content)

    with agentobs.record_all(), agentobs.session("trip"):
        return asyncio.run(final_text(prompt, [weather, research]))
