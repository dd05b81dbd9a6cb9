"""The agent that pays, with the SDK's tool runner, which has no hooks, approvals, sub-agents and budgets."""

from collections.abc import Callable
from decimal import Decimal
from typing import Any

from anthropic import AsyncAnthropic, beta_async_tool

PRICES = Decimal(2), Decimal(10)
"""The prices of input and output, in USD per million tokens."""


async def answer(prompt: str, ask: Callable[[str], bool]) -> str:
    client, spent = AsyncAnthropic(), Decimal(0)

    @beta_async_tool
    async def pay(to: str) -> str:
        """Pay someone."""
        if to == "Mallory":
            return "Mallory is blocked"
        return f"paid {to}" if ask(to) else "denied"

    @beta_async_tool
    async def scouting(prompt: str) -> str:
        """Find people."""
        return await use([], prompt, "Be brief.")

    async def use(tools: list[Any], prompt: str, system: str) -> str:
        nonlocal spent
        runner = client.beta.messages.tool_runner(
            model="claude-sonnet-5",
            max_tokens=8192,
            system=system,
            tools=tools,
            messages=[{"role": "user", "content": prompt}],
        )
        async for message in runner:
            tokens = message.usage.input_tokens, message.usage.output_tokens
            costs = (price * count for price, count in zip(PRICES, tokens, strict=True))
            spent += sum(costs, Decimal(0)) / 1_000_000
            if spent < 1:
                await runner.generate_tool_call_response()  # the sub-agent also spends
            if spent >= 1:
                await runner.close()
        return "".join(block.text for block in message.content if block.type == "text")

    return await use([pay, scouting], prompt, "Pay.")
