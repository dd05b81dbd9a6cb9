"""A ReAct agent of Inspect AI in an evaluation of one sample, with a tool that runs another agent."""

from __future__ import annotations

import asyncio
import tempfile

from inspect_ai import Task, eval
from inspect_ai.agent import Agent, react
from inspect_ai.agent import run as run_agent
from inspect_ai.dataset import Sample
from inspect_ai.model import get_model
from inspect_ai.tool import Tool, ToolError, tool

import agentobs
from tests.third_party_agents.provider import PLACES, PROMPT

PACKAGES = ("inspect-ai", "anthropic")
RECORDED_WITH = "`agentobs.record(model)`"


def run(url: str, *, prompt: str = PROMPT, rome: str = PLACES["Rome"]) -> str:
    """Plan the trip with Inspect AI."""
    places = {**PLACES, "Rome": rome}

    @tool
    def weather() -> Tool:
        async def execute(city: str) -> str:
            """Return the weather in a city.

            Args:
                city: The name of the city.
            """
            await asyncio.sleep(0)
            if city not in places:
                raise ToolError(f"there is no {city}")
            return places[city]

        return execute

    @tool
    def research() -> Tool:
        async def execute(topic: str) -> str:
            """Let another agent research a topic.

            Args:
                topic: The topic to research.
            """
            state = await run_agent(agent([weather()]), f"Research the {topic}.")
            return state.output.completion

        return execute

    model = agentobs.record(
        get_model(
            "anthropic/claude-sonnet-5",
            api_key="sk-ant-a-made-up-key-0123456789",
            base_url=url,
            memoize=False,
        )
    )

    def agent(tools: list[Tool]) -> Agent:
        return react(prompt=None, tools=tools, model=model, submit=False)

    task = Task([Sample(prompt)], solver=agent([weather(), research()]))
    with agentobs.session("trip"), tempfile.TemporaryDirectory() as logs:
        log = eval(task, model=model, log_dir=logs, display="none")[0]
        assert log.samples is not None, log.error
        return str(log.samples[0].output.completion)
