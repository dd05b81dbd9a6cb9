"""Query a fast and a good model, and use the first answer."""
import asyncio
import contextlib
import os
import random

from anthropic import AsyncAnthropic

import agentobs

UNITS = {"g": 1, "kg": 1000}


def grams(amount: str) -> float:
    number, unit = amount.split()
    return float(number) * UNITS[unit]


async def ask(client: AsyncAnthropic, model: str, question: str) -> str:
    await asyncio.sleep(random.random() * float(os.environ.get("AGENT_JITTER", "0")))
    message = await client.messages.create(
        model=model, max_tokens=50, messages=[{"role": "user", "content": question}]
    )
    return message.content[0].text


async def first(client: AsyncAnthropic, question: str) -> str:
    tasks = {asyncio.create_task(ask(client, m, question), name=m) for m in ("claude-haiku-4-5", "claude-opus-5")}
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    return done.pop().result()


@agentobs.session("race")
async def shopping_list(*dishes: str, persons: int = 4) -> dict:
    async with AsyncAnthropic() as client:
        agentobs.record(client)
        weights = {}
        for dish in dishes:
            answer = await first(client, f"How much flour for {dish} for {persons}? Number and unit only.")
            weights[dish] = grams(answer)
        return weights


if __name__ == "__main__":
    print("LIST", asyncio.run(shopping_list("bread", "waffles", persons=6)))
