"""An agent of Strands, which uses an SDK on httpx."""

from __future__ import annotations

from typing import Any

from strands import Agent, tool
from strands.models.anthropic import AnthropicModel

import agentobs
from tests.third_party_agents.provider import PLACES, PROMPT

PACKAGES = ("strands-agents", "anthropic", "httpx")
RECORDED_WITH = "`agentobs.record(model)`"


def run(url: str, *, prompt: str = PROMPT, rome: str = PLACES["Rome"]) -> str:
    """Plan the trip with Strands."""
    places = {**PLACES, "Rome": rome}
    model = agentobs.record(
        AnthropicModel(
            client_args={"api_key": "sk-ant-a-made-up-key-0123456789", "base_url": url},
            model_id="claude-sonnet-5",
            max_tokens=99,
        )
    )

    @tool
    def weather(city: str) -> str:
        """Return the weather in a city."""
        return places[city]

    @tool
    async def research(topic: str) -> str:
        """Let another agent research a topic."""
        scout = Agent(model=model, tools=[weather], callback_handler=None)
        return _text(await scout.invoke_async(f"Research the {topic}."))

    with agentobs.session("trip"):
        planner = Agent(model=model, tools=[weather, research], callback_handler=None)
        return _text(planner(prompt))


def _text(result: Any) -> str:
    return "".join(block.get("text", "") for block in result.message["content"])
