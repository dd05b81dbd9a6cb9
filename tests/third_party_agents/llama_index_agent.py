"""A function agent of llama-index, with streams and a tool that starts another agent."""

from __future__ import annotations

import asyncio
from typing import Any

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.anthropic import Anthropic

import agentobs
from tests.third_party_agents.provider import PLACES, PROMPT

PACKAGES = ("llama-index-core", "llama-index-llms-anthropic", "anthropic")
RECORDED_WITH = "`agentobs.record(llm)`"


def run(url: str, *, prompt: str = PROMPT, rome: str = PLACES["Rome"]) -> str:
    """Plan the trip with llama-index."""
    places = {**PLACES, "Rome": rome}
    llm = agentobs.record(
        Anthropic(
            model="claude-sonnet-4-5",
            api_key="sk-ant-a-made-up-key-0123456789",
            base_url=url,
            max_tokens=99,
        )
    )

    async def weather(city: str) -> str:
        """Return the weather in a city."""
        await asyncio.sleep(0)
        return places[city]

    async def research(topic: str) -> str:
        """Let another agent research a topic."""
        return await final_text(f"Research the {topic}.", [weather])

    async def final_text(task: str, tools: list[Any]) -> str:
        return str(await FunctionAgent(tools=tools, llm=llm, system_prompt="Plan.").run(task))

    with agentobs.session("trip"):
        return asyncio.run(final_text(prompt, [weather, research]))
