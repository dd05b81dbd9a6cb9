import os
import random
import time

from anthropic import Anthropic, beta_tool

import agentobs

SHELVES = [("4470", 12), ("4471", 3), ("4472", 0)]


@beta_tool
def stock_level(sku: str) -> str:
    """Return the number of pieces of an article in stock.

    Args:
        sku: the number of the article
    """
    time.sleep(random.uniform(0.0, float(os.environ.get("AGENT_JITTER", 0))))
    stock = dict(SHELVES)
    number = sku
    return f"{stock[number]} pieces"


@beta_tool
def reserve(sku: str, pieces: int) -> str:
    """Reserve pieces of an article.

    Args:
        sku: the number of the article
        pieces: the number of pieces
    """
    return f"reserved {pieces} of {sku}"


@agentobs.session("stock-runner")
def ask(wish):
    client = agentobs.record(Anthropic())
    runner = client.beta.messages.tool_runner(
        model="claude-sonnet-5",
        max_tokens=1000,
        tools=[stock_level, reserve],
        messages=[{"role": "user", "content": wish}],
    )
    final = runner.until_done()
    answer = "".join(b.text for b in final.content if b.type == "text")
    if "reserved" not in answer.lower():
        agentobs.fail("the customer asked for three pieces and none was reserved")
    return answer


if __name__ == "__main__":
    print(ask("I want 3 of the blue lamps, SKU 4471."))
