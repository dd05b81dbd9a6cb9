"""The SDK's own tool runner, async: its tools, and agents that a tool starts."""

from __future__ import annotations

import asyncio
from typing import Any

from anthropic import Anthropic, AsyncAnthropic, beta_async_tool, beta_tool

import agentobs
from tests.agents_elsewhere.provider import PLACES, PROMPT

PACKAGES = ("anthropic",)
KEY = "sk-ant-a-made-up-key-0123456789"
MODEL = "claude-sonnet-5"
HANDED_IN = "`agentobs.record(client)`"


def run(url: str, *, prompt: str = PROMPT, rome: str = PLACES["Rome"], thread: Any = False) -> str:
    """Let the runner plan the trip; `thread` is handed on to it where it is not None."""
    return asyncio.run(_run(url, prompt, {**PLACES, "Rome": rome}, thread))


async def _run(url: str, prompt: str, places: dict[str, str], thread: Any) -> str:
    client = agentobs.record(AsyncAnthropic(api_key=KEY, base_url=url))
    more: dict[str, Any] = {} if thread is None else {"thread": thread}

    @beta_async_tool
    async def weather(city: str) -> str:
        """Look at the sky.

        Args:
            city: where.
        """
        await asyncio.sleep(0)
        return places[city]

    @beta_async_tool
    async def research(topic: str) -> str:
        """Have somebody look something up.

        Args:
            topic: what.
        """
        return await work(f"Research the {topic}.", [weather])

    async def work(task: str, tools: list[Any]) -> str:
        runner = client.beta.messages.tool_runner(
            model=MODEL,
            max_tokens=99,
            tools=tools,
            messages=[{"role": "user", "content": task}],
            **more,
        )
        message = await runner.until_done()
        return "".join(block.text for block in message.content if block.type == "text")

    with agentobs.session("trip"):
        return await work(prompt, [weather, research])


def run_sync(
    url: str, *, prompt: str = PROMPT, rome: str = PLACES["Rome"], thread: Any = False
) -> str:
    """The same with the sync client, streamed."""
    client = agentobs.record(Anthropic(api_key=KEY, base_url=url))
    places = {**PLACES, "Rome": rome}
    more: dict[str, Any] = {} if thread is None else {"thread": thread}

    @beta_tool
    def weather(city: str) -> str:
        """Look at the sky.

        Args:
            city: where.
        """
        return places[city]

    @beta_tool
    def research(topic: str) -> str:
        """Have somebody look something up.

        Args:
            topic: what.
        """
        return work(f"Research the {topic}.", [weather])

    def work(task: str, tools: list[Any]) -> str:
        runner = client.beta.messages.tool_runner(
            model=MODEL,
            max_tokens=99,
            tools=tools,
            messages=[{"role": "user", "content": task}],
            stream=True,
            **more,
        )
        last: Any = None
        for stream in runner:
            last = stream.get_final_message()
        return "".join(block.text for block in last.content if block.type == "text")

    with agentobs.session("trip"):
        return work(prompt, [weather, research])
