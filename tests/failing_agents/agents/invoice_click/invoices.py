#!/usr/bin/env python
"""invoices: prints the total of an order."""
import os
import random
import time
from decimal import Decimal

import click
from anthropic import Anthropic

import agentobs

LINES = {"B-2": [("hinge", 4, "1.15"), ("door", 1, "89.00")]}


@agentobs.record_tool(name="invoice_lines")
def invoice_lines(order: str) -> list[str]:
    time.sleep(random.uniform(0, float(os.environ.get("AGENT_JITTER", "0"))))
    return [f"{n} x {what} at {price}" for what, n, price in LINES[order]]


def total_of(text: str) -> Decimal:
    last = text.split()[-1]
    return Decimal(last)


@click.command()
@click.argument("order")
@click.option("--currency", default="EUR", show_default=True)
@agentobs.session("invoices")
def main(order, currency):
    """Print the total of ORDER."""
    client = agentobs.record(Anthropic())
    history = [{"role": "user", "content": f"What is the total of order {order} in {currency}?"}]
    tools = [{
        "name": "invoice_lines",
        "description": "the lines of an invoice",
        "input_schema": {"type": "object", "properties": {"order": {"type": "string"}}},
    }]
    r = client.messages.create(model="claude-sonnet-5", max_tokens=300, messages=history, tools=tools)
    while r.stop_reason == "tool_use":
        use = next(b for b in r.content if b.type == "tool_use")
        lines = invoice_lines(**use.input)
        history.append({"role": "assistant", "content": r.content})
        history.append({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": use.id, "content": "\n".join(lines)}]})
        r = client.messages.create(model="claude-sonnet-5", max_tokens=300, messages=history, tools=tools)
    total = total_of(r.content[0].text)
    click.echo(f"TOTAL {total:.2f} {currency}")


if __name__ == "__main__":
    main()
