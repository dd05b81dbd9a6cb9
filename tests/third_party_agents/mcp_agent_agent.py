"""An agent of mcp-agent, which creates a client for each request, with a tool that runs another agent."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from mcp_agent.agents.agent import Agent
from mcp_agent.app import MCPApp
from mcp_agent.config import AnthropicSettings, LoggerSettings, Settings
from mcp_agent.workflows.llm.augmented_llm_anthropic import AnthropicAugmentedLLM

import agentobs
from tests.third_party_agents.provider import PLACES, PROMPT

PACKAGES = ("mcp-agent", "anthropic")
RECORDED_WITH = "`with agentobs.record_all():`"


def run(url: str, *, prompt: str = PROMPT, rome: str = PLACES["Rome"]) -> str:
    """Plan the trip with mcp-agent."""
    places = {**PLACES, "Rome": rome}
    anthropic = AnthropicSettings(
        api_key="sk-ant-a-made-up-key-0123456789",
        default_model="claude-sonnet-4-5",
    )
    os.environ["ANTHROPIC_BASE_URL"] = url
    settings = Settings(anthropic=anthropic, logger=LoggerSettings(type="none"))

    async def weather(city: str) -> str:
        """Return the weather in a city."""
        await asyncio.sleep(0)
        return places[city]

    async def research(topic: str) -> str:
        """Let another agent research a topic."""
        return await final_text(f"Research the {topic}.", [weather])

    async def final_text(task: str, tools: list[Any]) -> str:
        async with Agent(name="planner", instruction="Plan.", functions=tools) as agent:
            llm = await agent.attach_llm(AnthropicAugmentedLLM)
            return (await llm.generate_str(task)).splitlines()[-1]

    async def plan() -> str:
        async with MCPApp(name="trip", settings=settings).run():
            return await final_text(prompt, [weather, research])

    with agentobs.record_all(), agentobs.session("trip"):
        return asyncio.run(plan())
