"""An agent on litellm, which sends requests to the Messages API without the SDK."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import litellm

import agentobs
from tests.third_party_agents.provider import PLACES, PROMPT

PACKAGES = ("litellm", "httpx")
RECORDED_WITH = "`with agentobs.record_all():`"
litellm.suppress_debug_info = True


def run(url: str, *, prompt: str = PROMPT, rome: str = PLACES["Rome"]) -> str:
    """Plan the trip with litellm and parallel tools."""
    places = {**PLACES, "Rome": rome}

    async def tool(name: str, arguments: dict[str, Any]) -> str:
        await asyncio.sleep(0)
        if name == "research":
            return await ask_agent(f"Research the {arguments['topic']}.")
        return places.get(arguments["city"], "there is no such city")

    async def result_of(call: Any) -> dict[str, Any]:
        content = await tool(call.function.name, json.loads(call.function.arguments))
        return {"role": "tool", "tool_call_id": call.id, "content": content}

    async def complete(messages: list[Any]) -> Any:
        """Return the next message; repeat the first request, which the provider rejects and litellm does not retry."""
        for _ in range(2):
            with contextlib.suppress(litellm.InternalServerError):
                found = await litellm.acompletion(
                    model="anthropic/claude-sonnet-4-5",
                    api_base=url,
                    api_key="sk-ant-a-made-up-key-0123456789",
                    max_tokens=99,
                    messages=messages,
                    tools=TOOLS,
                )
                return found.choices[0].message
        raise AssertionError("the provider is overloaded")

    async def ask_agent(task: str) -> str:
        messages: list[Any] = [{"role": "user", "content": task}]
        while True:
            message = await complete(messages)
            if not message.tool_calls:
                return str(message.content)
            results = await asyncio.gather(*map(result_of, message.tool_calls))
            messages += [message.model_dump(exclude_none=True), *results]

    with agentobs.record_all(), agentobs.session("trip"):
        return asyncio.run(ask_agent(prompt))


TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": name,
            "parameters": {"type": "object", "properties": {key: {"type": "string"}}},
        },
    }
    for name, key in (("weather", "city"), ("research", "topic"))
]
