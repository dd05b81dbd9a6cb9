"""An agent of pydantic-ai, with another agent as a tool; its provider makes the client."""

from __future__ import annotations

import asyncio

from pydantic_ai import Agent, ModelRetry
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider

import agentobs
from tests.agents_elsewhere.provider import PLACES, PROMPT

PACKAGES = ("pydantic-ai-slim", "anthropic")
HANDED_IN = "`agentobs.record(agent)`"


def run(url: str, *, prompt: str = PROMPT, rome: str = PLACES["Rome"]) -> str:
    """Let pydantic-ai plan the trip."""
    places = {**PLACES, "Rome": rome}
    provider = AnthropicProvider(api_key="sk-ant-a-made-up-key-0123456789", base_url=url)
    model = AnthropicModel("claude-sonnet-5", provider=provider)
    scout = Agent(model, instructions="Be brief.")
    planner = agentobs.record(Agent(model, instructions="Plan."))

    @scout.tool_plain
    @planner.tool_plain
    async def weather(city: str) -> str:
        """Look at the sky."""
        await asyncio.sleep(0)
        if city not in places:
            raise ModelRetry(f"there is no {city}")
        return places[city]

    @planner.tool_plain
    async def research(topic: str) -> str:
        """Have somebody look something up."""
        return (await scout.run(f"Research the {topic}.")).output

    with agentobs.session("trip"):
        return asyncio.run(_planned(planner, prompt))


async def _planned(planner: Agent[None, str], prompt: str) -> str:
    return (await planner.run(prompt)).output
