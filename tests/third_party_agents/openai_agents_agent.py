"""An agent of the OpenAI Agents SDK, with streams and a tool that runs another agent; it sends through litellm."""

from __future__ import annotations

import asyncio
from typing import Any

from agents import Agent, ModelSettings, Runner, function_tool, set_tracing_disabled
from agents.extensions.models.litellm_model import LitellmModel

import agentobs
from tests.third_party_agents.provider import PLACES, PROMPT

PACKAGES = ("openai-agents", "litellm", "httpx")
RECORDED_WITH = "`with agentobs.record_all():`"
set_tracing_disabled(True)


def run(url: str, *, prompt: str = PROMPT, rome: str = PLACES["Rome"]) -> str:
    """Plan the trip with the OpenAI Agents SDK."""
    places = {**PLACES, "Rome": rome}
    model = LitellmModel(
        model="anthropic/claude-sonnet-4-5",
        base_url=url,
        api_key="sk-ant-a-made-up-key-0123456789",
    )
    settings = ModelSettings(max_tokens=99, extra_args={"num_retries": 2})

    @function_tool
    async def weather(city: str) -> str:
        """Return the weather in a city."""
        await asyncio.sleep(0)
        return places[city]

    @function_tool
    async def research(topic: str) -> str:
        """Let another agent research a topic."""
        return await final_text(f"Research the {topic}.", [weather])

    async def final_text(task: str, tools: list[Any]) -> str:
        agent = Agent(name="planner", model=model, model_settings=settings, tools=tools)
        result = Runner.run_streamed(agent, task)
        async for _ in result.stream_events():
            pass
        return str(result.final_output)

    with agentobs.record_all(), agentobs.session("trip"):
        return asyncio.run(final_text(prompt, [weather, research]))
