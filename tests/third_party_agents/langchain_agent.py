"""A langchain agent that uses another agent as a tool."""

from __future__ import annotations

import asyncio
from typing import Any

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import ToolException, tool

import agentobs
from tests.third_party_agents.provider import PLACES, PROMPT

PACKAGES = ("langchain", "langchain-anthropic", "langgraph", "anthropic")
RECORDED_WITH = "`agentobs.record(model)`"


def run(url: str, *, prompt: str = PROMPT, rome: str = PLACES["Rome"]) -> str:
    """Plan the trip with langchain."""
    places = {**PLACES, "Rome": rome}
    model = agentobs.record(
        ChatAnthropic(
            model="claude-sonnet-5",
            api_key="sk-ant-a-made-up-key-0123456789",
            base_url=url,
            max_tokens=99,
        )
    )

    @tool
    async def weather(city: str) -> str:
        """Return the weather in a city."""
        await asyncio.sleep(0)
        if city not in places:
            raise ToolException(f"there is no {city}")
        return places[city]

    weather.handle_tool_error = True
    scout = create_agent(model, [weather], system_prompt="Be brief.")

    @tool
    async def research(topic: str) -> str:
        """Let another agent research a topic."""
        return await _final_text(scout, f"Research the {topic}.")

    planner = create_agent(model, [weather, research], system_prompt="Plan.")
    with agentobs.session("trip"):
        return asyncio.run(_final_text(planner, prompt))


async def _final_text(agent: Any, task: str) -> str:
    state = await agent.ainvoke({"messages": [{"role": "user", "content": task}]})
    return str(state["messages"][-1].text)
