"""A plain async loop that works with any version of the SDK; SDKs before 1.0 use httpx."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from anthropic import AsyncAnthropic

import agentobs
from tests.third_party_agents.provider import PLACES, PROMPT

PACKAGES = ("anthropic", "httpx")
RECORDED_WITH = "`agentobs.record(client)`"


def run(url: str, *, prompt: str = PROMPT, rome: str = PLACES["Rome"]) -> str:
    """Let a loop plan the trip, with parallel tools."""
    client = agentobs.record(
        AsyncAnthropic(api_key="sk-ant-a-made-up-key-0123456789", base_url=url)
    )
    with agentobs.session("trip"):
        return asyncio.run(plan(client.messages.create, prompt, {**PLACES, "Rome": rome}))


async def plan(create: Callable[..., Any], task: str, places: dict[str, str]) -> str:
    """Run the loop until a message has no tool calls, and return the text of that message.

    Args:
        create: sends a request to the Messages API, and returns the message.
        task: the task of the agent.
        places: the results of the tool `weather`.
    """

    async def result_of(block: Any) -> dict[str, Any]:
        result = {"type": "tool_result", "tool_use_id": block.id}
        if block.name == "research":
            text = await plan(create, f"Research the {block.input['topic']}.", places)
            return {**result, "content": text}
        city = block.input["city"]
        if city not in places:
            return {**result, "content": f"there is no {city}", "is_error": True}
        return {**result, "content": places[city]}

    messages: list[Any] = [{"role": "user", "content": task}]
    while True:
        found = await create(model="claude-sonnet-5", max_tokens=99, messages=messages, tools=TOOLS)
        calls = [block for block in found.content if block.type == "tool_use"]
        if not calls:
            return "".join(block.text for block in found.content if block.type == "text")
        results = await asyncio.gather(*map(result_of, calls))
        messages += [
            {"role": "assistant", "content": [block.model_dump() for block in found.content]},
            {"role": "user", "content": list(results)},
        ]


TOOLS: list[Any] = [
    {
        "name": name,
        "description": name,
        "input_schema": {"type": "object", "properties": {key: {"type": "string"}}},
    }
    for name, key in (("weather", "city"), ("research", "topic"))
]
