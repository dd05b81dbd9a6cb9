"""An agent of Haystack with streams and an agent as a tool; the generator creates its client when it is warmed up."""

from __future__ import annotations

import os
from typing import Any

from haystack.components.agents import Agent
from haystack.dataclasses import ChatMessage
from haystack.tools import tool
from haystack.utils import Secret
from haystack_integrations.components.generators.anthropic import AnthropicChatGenerator

import agentobs
from tests.third_party_agents.provider import PLACES, PROMPT

PACKAGES = ("haystack-ai", "anthropic-haystack", "anthropic")
RECORDED_WITH = "`agentobs.record(generator)`"


def run(url: str, *, prompt: str = PROMPT, rome: str = PLACES["Rome"]) -> str:
    """Plan the trip with Haystack."""
    places = {**PLACES, "Rome": rome}
    generator = AnthropicChatGenerator(
        model="claude-sonnet-5",
        api_key=Secret.from_token("sk-ant-a-made-up-key-0123456789"),
        streaming_callback=lambda chunk: None,
    )
    os.environ["ANTHROPIC_BASE_URL"] = url
    generator.warm_up()
    agentobs.record(generator)

    @tool
    def weather(city: str) -> str:
        """Return the weather in a city."""
        return places[city]

    @tool
    def research(topic: str) -> str:
        """Let another agent research a topic."""
        return ask_agent(f"Research the {topic}.", [weather])

    def ask_agent(task: str, tools: list[Any]) -> str:
        agent = Agent(chat_generator=generator, tools=tools)
        return str(agent.run(messages=[ChatMessage.from_user(task)])["last_message"].text)

    with agentobs.session("trip"):
        return ask_agent(prompt, [weather, research])
