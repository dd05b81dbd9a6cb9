"""A pydantic-ai agent that uses another agent as a tool; the framework's provider creates the client."""

from __future__ import annotations

import asyncio

from pydantic_ai import Agent, ModelRetry
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider

import agentobs
from tests.third_party_agents.provider import PLACES, PROMPT

PACKAGES = ("pydantic-ai-slim", "anthropic")
RECORDED_WITH = "`agentobs.record(agent)`"


def run(url: str, *, prompt: str = PROMPT, rome: str = PLACES["Rome"]) -> str:
    """Plan the trip with pydantic-ai."""
    places = {**PLACES, "Rome": rome}
    provider = AnthropicProvider(api_key="sk-ant-a-made-up-key-0123456789", base_url=url)
    model = AnthropicModel("claude-sonnet-5", provider=provider)
    scout = Agent(model, instructions="Be brief.")
    planner = agentobs.record(Agent(model, instructions="Plan."))

    @scout.tool_plain
    @planner.tool_plain
    async def weather(city: str) -> str:
        """Return the weather in a city."""
        await asyncio.sleep(0)
        if city not in places:
            raise ModelRetry(f"there is no {city}")
        return places[city]

    @planner.tool_plain
    async def research(topic: str) -> str:
        """Let another agent research a topic."""
        return (await scout.run(f"Research the {topic}.")).output

    with agentobs.session("trip"):
        return asyncio.run(_output(planner, prompt))


async def _output(planner: Agent[None, str], prompt: str) -> str:
    return (await planner.run(prompt)).output
