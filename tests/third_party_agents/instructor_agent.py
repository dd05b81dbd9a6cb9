"""An agent on instructor: a loop that sends requests with instructor's client."""

from __future__ import annotations

import asyncio
from typing import Any

import instructor
from anthropic import AsyncAnthropic

import agentobs
from tests.third_party_agents.provider import PLACES, PROMPT
from tests.third_party_agents.raw_sdk_agent import TOOLS

PACKAGES = ("instructor", "anthropic", "httpx")
RECORDED_WITH = "`agentobs.record(client)`"


def run(url: str, *, prompt: str = PROMPT, rome: str = PLACES["Rome"]) -> str:
    """Plan the trip with the client of instructor, without a response model, so that it returns messages."""
    places = {**PLACES, "Rome": rome}
    client = instructor.from_anthropic(
        AsyncAnthropic(api_key="sk-ant-a-made-up-key-0123456789", base_url=url)
    )
    agentobs.record(client)

    async def result_of(block: Any) -> dict[str, Any]:
        result = {"type": "tool_result", "tool_use_id": block.id}
        if block.name == "research":
            return {**result, "content": await ask_agent(f"Research the {block.input['topic']}.")}
        city = block.input["city"]
        if city not in places:
            return {**result, "content": f"there is no {city}", "is_error": True}
        return {**result, "content": places[city]}

    async def ask_agent(task: str) -> str:
        messages: list[Any] = [{"role": "user", "content": task}]
        while True:
            found = await client.chat.completions.create(
                model="claude-sonnet-5",
                max_tokens=99,
                messages=messages,
                tools=TOOLS,
                response_model=None,
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
