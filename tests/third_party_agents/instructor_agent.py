"""An agent on instructor: a loop that sends requests with instructor's client."""

from __future__ import annotations

import asyncio
import functools

import instructor
from anthropic import AsyncAnthropic

import agentobs
from tests.third_party_agents.provider import PLACES, PROMPT
from tests.third_party_agents.raw_sdk_agent import plan

PACKAGES = ("instructor", "anthropic", "httpx")
RECORDED_WITH = "`agentobs.record(client)`"


def run(url: str, *, prompt: str = PROMPT, rome: str = PLACES["Rome"]) -> str:
    """Plan the trip with the client of instructor, without a response model, so that it returns messages."""
    client = instructor.from_anthropic(
        AsyncAnthropic(api_key="sk-ant-a-made-up-key-0123456789", base_url=url)
    )
    agentobs.record(client)
    create = functools.partial(client.chat.completions.create, response_model=None)
    with agentobs.session("trip"):
        return asyncio.run(plan(create, prompt, {**PLACES, "Rome": rome}))
