"""An agent of Google's Agent Development Kit through litellm, with streams and a tool that runs another agent."""

from __future__ import annotations

import asyncio
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types

import agentobs
from tests.third_party_agents.provider import PLACES, PROMPT

PACKAGES = ("google-adk", "litellm", "httpx")
RECORDED_WITH = "`with agentobs.record_all():`"
STREAMED = RunConfig(streaming_mode=StreamingMode.SSE)


def run(url: str, *, prompt: str = PROMPT, rome: str = PLACES["Rome"]) -> str:
    """Plan the trip with the Agent Development Kit."""
    places = {**PLACES, "Rome": rome}
    model = LiteLlm(
        model="anthropic/claude-sonnet-4-5",
        api_base=url,
        api_key="sk-ant-a-made-up-key-0123456789",
        max_tokens=99,
        num_retries=2,
    )

    async def weather(city: str) -> dict[str, str]:
        """Return the weather in a city."""
        await asyncio.sleep(0)
        if city not in places:
            return {"status": "error", "error_message": f"there is no {city}"}
        return {"status": "success", "weather": places[city]}

    async def research(topic: str) -> str:
        """Let another agent research a topic."""
        return await final_text(f"Research the {topic}.", [weather])

    async def final_text(task: str, tools: list[Any]) -> str:
        runner = InMemoryRunner(LlmAgent(name="planner", model=model, tools=tools), app_name="trip")
        session = await runner.session_service.create_session(app_name="trip", user_id="me")
        message = types.Content(role="user", parts=[types.Part(text=task)])
        last: Any = None
        async for event in runner.run_async(
            user_id="me", session_id=session.id, new_message=message, run_config=STREAMED
        ):
            last = event
        return str(last.content.parts[0].text)

    with agentobs.record_all(), agentobs.session("trip"):
        return asyncio.run(final_text(prompt, [weather, research]))
