"""A plain async loop that works with any version of the SDK; SDKs before 1.0 use httpx."""

from __future__ import annotations

import asyncio
from typing import Any

from anthropic import AsyncAnthropic

import agentobs
from tests.third_party_agents.provider import PLACES, PROMPT

PACKAGES = ("anthropic", "httpx")
RECORDED_WITH = "`agentobs.record(client)`"


def run(url: str, *, prompt: str = PROMPT, rome: str = PLACES["Rome"]) -> str:
    """Plan the trip with a loop and parallel tools."""
    places = {**PLACES, "Rome": rome}
    client = agentobs.record(
        AsyncAnthropic(api_key="sk-ant-a-made-up-key-0123456789", base_url=url)
    )

    async def tool(name: str, arguments: dict[str, Any]) -> str:
        await asyncio.sleep(0)
        if name == "research":
            return await ask_agent(f"Research the {arguments['topic']}.")
        return places[arguments["city"]]

    async def result_of(block: Any) -> dict[str, Any]:
        result = {"type": "tool_result", "tool_use_id": block.id}
        try:
            return {**result, "content": await tool(block.name, block.input)}
        except KeyError as error:
            return {**result, "content": f"there is no {error}", "is_error": True}

    async def ask_agent(task: str) -> str:
        messages: list[Any] = [{"role": "user", "content": task}]
        while True:
            found = await client.messages.create(
                model="claude-sonnet-5", max_tokens=99, messages=messages, tools=TOOLS
            )
            calls = [block for block in found.content if block.type == "tool_use"]
            if not calls:
                return "".join(block.text for block in found.content if block.type == "text")
            results = await asyncio.gather(*map(result_of, calls))
            messages += [
                {"role": "assistant", "content": [block.model_dump() for block in found.content]},
                {"role": "user", "content": list(results)},
            ]

    with agentobs.session("trip"):
        return asyncio.run(ask_agent(prompt))


TOOLS: list[Any] = [
    {
        "name": name,
        "description": name,
        "input_schema": {"type": "object", "properties": {key: {"type": "string"}}},
    }
    for name, key in (("weather", "city"), ("research", "topic"))
]
