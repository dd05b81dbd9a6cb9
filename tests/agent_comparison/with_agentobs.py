"""The payment agent, written with agentobs."""

from collections.abc import Callable
from decimal import Decimal
from typing import Any

from anthropic import AsyncAnthropic

from agentobs import Agent
from agentobs.agent import AgentDefinition, AgentOptions, Budget, Hook, tool


@tool
def pay(to: str) -> str:
    """Pay someone."""
    return f"paid {to}"


def guard(payload: dict[str, Any]) -> dict[str, str] | None:
    blocked = payload["tool_input"].get("to") == "Mallory"
    return {"outcome": "blocking", "reason": "Mallory is blocked"} if blocked else None


async def answer(prompt: str, ask: Callable[[str], bool]) -> str:
    agent = Agent(
        AsyncAnthropic(),
        options=AgentOptions("claude-sonnet-5", budget=Budget(interaction_usd=Decimal(1))),
        tools=[pay],
        hooks=[Hook("pre_tool_use", guard, when="pay")],
        sub_agents=[AgentDefinition("scout", "Finds people.", system="Be brief.", tools=())],
        person=lambda consent: ask(consent.about["input"]["to"]),
    )
    return (await agent.run(prompt)).text
