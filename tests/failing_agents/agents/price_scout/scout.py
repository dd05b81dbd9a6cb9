from __future__ import annotations

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import agentobs
from anthropic import Anthropic
from anthropic.types import ToolUseBlock

RATES = {"EUR": 1.0, "USD": 0.92}
OFFERS = {
    "kiln": [("Basel Ovens", 1180, "CHF"), ("Ohio Clay", 1290, "USD")],
    "wheel": [("Ohio Clay", 640, "USD"), ("Drehscheibe Bonn", 599, "EUR")],
    "glaze": [("Drehscheibe Bonn", 31, "EUR")],
}


@agentobs.record_tool
def best_offer(article: str) -> dict[str, Any]:
    # the shop is slow
    time.sleep(0.01 + random.random() * float(os.environ.get("AGENT_JITTER", "0")))
    priced = []
    for shop, price, currency in OFFERS[article]:
        rate = RATES[currency]
        priced.append((round(price * rate, 2), shop))
    price, shop = min(priced)
    return {"shop": shop, "eur": price}


def run_tool(block: ToolUseBlock) -> dict[str, Any]:
    offer = best_offer(**block.input)
    return {"type": "tool_result", "tool_use_id": block.id, "content": f"{offer['shop']}: {offer['eur']:.2f} EUR"}


@agentobs.session("price-scout")
def scout(articles: list[str]) -> str:
    client = agentobs.record(Anthropic(timeout=60))
    schema = {"type": "object", "properties": {"article": {"type": "string"}}, "required": ["article"]}
    tools = [{"name": "best_offer", "description": "The best offer in EUR", "input_schema": schema}]
    messages: list[Any] = [{"role": "user", "content": "Find offers for " + ", ".join(articles)}]
    with ThreadPoolExecutor(max_workers=4) as pool:
        while True:
            answer = client.messages.create(model="claude-sonnet-5", max_tokens=800, tools=tools, messages=messages)
            messages += [{"role": "assistant", "content": answer.content}]
            blocks = [b for b in answer.content if isinstance(b, ToolUseBlock)]
            if not blocks:
                return "".join(b.text for b in answer.content)
            messages += [{"role": "user", "content": list(pool.map(run_tool, blocks))}]


if __name__ == "__main__":
    print(scout(["kiln", "wheel", "glaze"]))
