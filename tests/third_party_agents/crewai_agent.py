"""An agent of CrewAI, which creates the client."""

from __future__ import annotations

import os
from typing import Any

os.environ |= {
    "CREWAI_DISABLE_TELEMETRY": "true",
    "OTEL_SDK_DISABLED": "true",
    "CREWAI_TRACING_ENABLED": "false",
}

from crewai import LLM, Agent
from crewai.tools import tool

import agentobs
from tests.third_party_agents.provider import PLACES, PROMPT

PACKAGES = ("crewai", "anthropic", "httpx")
RECORDED_WITH = "`agentobs.record(llm)`"


def run(url: str, *, prompt: str = PROMPT, rome: str = PLACES["Rome"]) -> str:
    """Plan the trip with CrewAI."""
    places = {**PLACES, "Rome": rome}
    llm = LLM(
        model="anthropic/claude-sonnet-4-5",
        base_url=url,
        api_key="sk-ant-a-made-up-key-0123456789",
        max_tokens=99,
    )
    agentobs.record(llm)

    @tool
    def weather(city: str) -> str:
        """Return the weather in a city."""
        return places[city]

    @tool
    def research(topic: str) -> str:
        """Let another agent research a topic."""
        return ask_agent(f"Research the {topic}.", [weather])

    def ask_agent(task: str, tools: list[Any]) -> str:
        agent = Agent(role="Planner", goal="Plan.", backstory="None.", llm=llm, tools=tools)
        return str(agent.kickoff(task).raw)

    with agentobs.session("trip"):
        return ask_agent(prompt, [weather, research])
