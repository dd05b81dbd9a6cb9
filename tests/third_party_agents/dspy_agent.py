"""A ReAct agent of dspy with native tool calls and a tool that runs another agent.

dspy sends requests with its own HTTP client on sockets (`engine="lm15"`, its default), or through litellm.
"""

from __future__ import annotations

import asyncio
from typing import Any

import dspy

import agentobs
from tests.third_party_agents.provider import PLACES, PROMPT

PACKAGES = ("dspy",)
RECORDED_WITH = "`with agentobs.record_all():`"
IS_RECORDED = False


def run(
    url: str,
    *,
    prompt: str = PROMPT,
    rome: str = PLACES["Rome"],
    engine: str = "auto",
    path: str = "/v1",
) -> str:
    """Plan the trip with dspy.

    Args:
        url: the address of the provider.
        prompt: the task.
        rome: the weather in Rome.
        engine: how dspy sends requests.
        path: the part of the base URL after the address, which depends on the engine.
    """
    places = {**PLACES, "Rome": rome}
    lm = dspy.LM(
        "anthropic/claude-sonnet-4-5",
        api_base=f"{url}{path}",
        api_key="sk-ant-a-made-up-key-0123456789",
        max_tokens=99,
        cache=False,
        engine=engine,
    )

    async def weather(city: str) -> str:
        """Return the weather in a city."""
        await asyncio.sleep(0)
        return places[city]

    async def research(topic: str) -> str:
        """Let another agent research a topic."""
        return await answer(f"Research the {topic}.", [weather])

    async def answer(task: str, tools: list[Any]) -> str:
        return str((await dspy.ReActV2("task -> answer", tools=tools).acall(task=task)).answer)

    adapter = dspy.ChatAdapter(use_native_function_calling=True)
    with agentobs.record_all(), agentobs.session("trip"), dspy.context(lm=lm, adapter=adapter):
        return asyncio.run(answer(prompt, [weather, research]))
