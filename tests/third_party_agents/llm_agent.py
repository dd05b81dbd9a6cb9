"""An agent of llm with llm-anthropic, which creates a client for each request."""

from __future__ import annotations

import asyncio
from typing import Any

import llm

import agentobs
from tests.third_party_agents.provider import PLACES, PROMPT

PACKAGES = ("llm", "llm-anthropic", "anthropic")
RECORDED_WITH = "`with agentobs.record_all():`"


def run(url: str, *, prompt: str = PROMPT, rome: str = PLACES["Rome"]) -> str:
    """Plan the trip with llm."""
    places = {**PLACES, "Rome": rome}
    model = llm.get_async_model("claude-sonnet-4.5")
    model.base_url = url
    model.key = "sk-ant-a-made-up-key-0123456789"

    async def weather(city: str) -> str:
        """Return the weather in a city."""
        await asyncio.sleep(0)
        return places[city]

    async def research(topic: str) -> str:
        """Let another agent research a topic."""
        return await final_text(f"Research the {topic}.", [weather])

    async def final_text(task: str, tools: list[Any]) -> str:
        responses = [each async for each in model.chain(task, tools=tools).responses()]
        return str(await responses[-1].text())

    with agentobs.record_all(), agentobs.session("trip"):
        return asyncio.run(final_text(prompt, [weather, research]))
