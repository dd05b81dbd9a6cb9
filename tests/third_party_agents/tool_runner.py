"""An agent of the SDK's tool runner, async and sync, with a tool that starts other agents."""

from __future__ import annotations

import asyncio
from typing import Any

from anthropic import Anthropic, AsyncAnthropic, beta_async_tool, beta_tool

import agentobs
from tests.third_party_agents.provider import PLACES, PROMPT

PACKAGES = ("anthropic",)
KEY = "sk-ant-a-made-up-key-0123456789"
MODEL = "claude-sonnet-5"
RECORDED_WITH = "`agentobs.record(client)`"


def run(url: str, *, prompt: str = PROMPT, rome: str = PLACES["Rome"], thread: Any = False) -> str:
    """Plan the trip with the tool runner; `thread` is passed to the runner unless it is None."""
    return asyncio.run(_run(url, prompt, {**PLACES, "Rome": rome}, thread))


async def _run(url: str, prompt: str, places: dict[str, str], thread: Any) -> str:
    client = agentobs.record(AsyncAnthropic(api_key=KEY, base_url=url))
    thread_option: dict[str, Any] = {} if thread is None else {"thread": thread}

    @beta_async_tool
    async def weather(city: str) -> str:
        """Return the weather in a city.

        Args:
            city: The name of the city.
        """
        await asyncio.sleep(0)
        return places[city]

    @beta_async_tool
    async def research(topic: str) -> str:
        """Let another agent research a topic.

        Args:
            topic: The topic to research.
        """
        return await ask_agent(f"Research the {topic}.", [weather])

    async def ask_agent(task: str, tools: list[Any]) -> str:
        runner = client.beta.messages.tool_runner(
            model=MODEL,
            max_tokens=99,
            tools=tools,
            messages=[{"role": "user", "content": task}],
            **thread_option,
        )
        message = await runner.until_done()
        return "".join(block.text for block in message.content if block.type == "text")

    with agentobs.session("trip"):
        return await ask_agent(prompt, [weather, research])


def run_sync(
    url: str, *, prompt: str = PROMPT, rome: str = PLACES["Rome"], thread: Any = False
) -> str:
    """Plan the trip with the sync client and streams."""
    client = agentobs.record(Anthropic(api_key=KEY, base_url=url))
    places = {**PLACES, "Rome": rome}
    thread_option: dict[str, Any] = {} if thread is None else {"thread": thread}

    @beta_tool
    def weather(city: str) -> str:
        """Return the weather in a city.

        Args:
            city: The name of the city.
        """
        return places[city]

    @beta_tool
    def research(topic: str) -> str:
        """Let another agent research a topic.

        Args:
            topic: The topic to research.
        """
        return ask_agent(f"Research the {topic}.", [weather])

    def ask_agent(task: str, tools: list[Any]) -> str:
        runner = client.beta.messages.tool_runner(
            model=MODEL,
            max_tokens=99,
            tools=tools,
            messages=[{"role": "user", "content": task}],
            stream=True,
            **thread_option,
        )
        last: Any = None
        for stream in runner:
            last = stream.get_final_message()
        return "".join(block.text for block in last.content if block.type == "text")

    with agentobs.session("trip"):
        return ask_agent(prompt, [weather, research])
