from __future__ import annotations

import asyncio
import os
import random
from datetime import datetime

from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry

import agentobs


class Booking(BaseModel):
    train: str
    seats: int


def make_agent() -> Agent[None, str]:
    agent: Agent[None, str] = Agent(
        "anthropic:claude-sonnet-5",
        instructions="Book trains. Dates are ISO dates.",
        retries=3,
    )

    @agent.tool_plain
    async def book_train(to: str, day: str, seats: int = 1) -> Booking:
        """Book a train to a city."""
        await asyncio.sleep(random.random() * float(os.getenv("AGENT_JITTER", "0")))
        try:
            when = datetime.strptime(day, "%d.%m.%Y")
        except ValueError as error:
            raise ModelRetry(f"{day} is not a day") from error
        return Booking(train=f"ICE {600 + when.day} to {to}", seats=seats)

    return agent


@agentobs.session("travel")
async def plan(trip: str) -> str:
    agent = make_agent()
    agentobs.record(agent)
    result = await agent.run(trip)
    return result.output


def main() -> None:
    print(asyncio.run(plan("Two seats to Hamburg on 2 December 2026, please.")))
