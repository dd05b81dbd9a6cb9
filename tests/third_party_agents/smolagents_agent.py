"""A tool-calling agent of smolagents through litellm, with streams, threads and a tool that runs another agent."""

from __future__ import annotations

from typing import Any

from smolagents import LiteLLMModel, ToolCallingAgent, tool

import agentobs
from tests.third_party_agents.provider import PLACES, PROMPT

PACKAGES = ("smolagents", "litellm", "httpx")
RECORDED_WITH = "`with agentobs.record_all():`"


def run(url: str, *, prompt: str = PROMPT, rome: str = PLACES["Rome"]) -> str:
    """Plan the trip with smolagents."""
    places = {**PLACES, "Rome": rome}
    model = LiteLLMModel(
        model_id="anthropic/claude-sonnet-4-5",
        api_base=url,
        api_key="sk-ant-a-made-up-key-0123456789",
        max_tokens=99,
        num_retries=2,
    )

    @tool
    def weather(city: str) -> str:
        """Return the weather in a city.

        Args:
            city: The name of the city.
        """
        return places[city]

    @tool
    def research(topic: str) -> str:
        """Let another agent research a topic.

        Args:
            topic: The topic to research.
        """
        return ask_agent(f"Research the {topic}.", [weather])

    def ask_agent(task: str, tools: list[Any]) -> str:
        agent = ToolCallingAgent(tools=tools, model=model, stream_outputs=True, verbosity_level=0)
        return str(agent.run(task))

    with agentobs.record_all(), agentobs.session("trip"):
        return ask_agent(prompt, [weather, research])
