"""llm with llm-anthropic, which makes a client of its own for each request."""

from __future__ import annotations

import asyncio
from typing import Any

import llm

import agentobs
from tests.agents_elsewhere.provider import PLACES, PROMPT

PACKAGES = ("llm", "llm-anthropic", "anthropic")
HANDED_IN = "`with agentobs.record_all():`"


def run(url: str, *, prompt: str = PROMPT, rome: str = PLACES["Rome"]) -> str:
    """Let llm plan the trip."""
    places = {**PLACES, "Rome": rome}
    model = llm.get_async_model("claude-sonnet-4.5")
    model.base_url = url
    model.key = "sk-ant-a-made-up-key-0123456789"

    async def weather(city: str) -> str:
        """Look at the sky."""
        await asyncio.sleep(0)
        return places[city]

    async def research(topic: str) -> str:
        """Have somebody look something up."""
        return await said(f"Research the {topic}.", [weather])

    async def said(task: str, tools: list[Any]) -> str:
        answers = [each async for each in model.chain(task, tools=tools).responses()]
        return str(await answers[-1].text())

    with agentobs.record_all(), agentobs.session("trip"):
        return asyncio.run(said(prompt, [weather, research]))
