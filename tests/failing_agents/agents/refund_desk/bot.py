"""Refund desk: reads the order, refunds the customer."""
import os
import random
import sys
import time

import anthropic

import agentobs

client = agentobs.record(anthropic.Anthropic())

ORDERS = {"A-17": {"customer": "Ines Weber", "total": "41,90", "currency": "EUR"}}

TOOLS = [
    {
        "name": "lookup_order",
        "description": "Look an order up.",
        "input_schema": {
            "type": "object",
            "properties": {"order_id": {"type": "string"}},
            "required": ["order_id"],
        },
    },
    {
        "name": "issue_refund",
        "description": "Refund an order.",
        "input_schema": {
            "type": "object",
            "properties": {"order_id": {"type": "string"}, "amount": {"type": "string"}},
            "required": ["order_id", "amount"],
        },
    },
]


def lookup_order(order_id):
    order = ORDERS[order_id]
    total = order["total"]
    return f"{order['customer']}, total {total} {order['currency']}"


def issue_refund(order_id, amount):
    cents = round(float(amount) * 100)
    return f"refunded {cents} cents for {order_id}"


FUNCTIONS = {"lookup_order": lookup_order, "issue_refund": issue_refund}


def call_tool(block):
    time.sleep(random.uniform(0, float(os.environ.get("AGENT_JITTER", "0"))))
    try:
        out = FUNCTIONS[block.name](**block.input)
        return {"type": "tool_result", "tool_use_id": block.id, "content": out}
    except Exception as e:
        msg = f"{block.name} failed: {e}"
        return {"type": "tool_result", "tool_use_id": block.id, "content": msg, "is_error": True}


@agentobs.session("refund-desk")
def handle(request):
    messages = [{"role": "user", "content": request}]
    last_error = None
    while True:
        reply = client.messages.create(
            model="claude-sonnet-5",
            max_tokens=1024,
            system="You are the refund desk. Use the tools.",
            tools=TOOLS,
            messages=messages,
        )
        messages.append({"role": "assistant", "content": reply.content})
        calls = [b for b in reply.content if b.type == "tool_use"]
        if not calls:
            if last_error:
                agentobs.fail("refund-not-issued")
            return reply.content[-1].text
        results = [call_tool(c) for c in calls]
        last_error = next((r["content"] for r in results if r.get("is_error")), None)
        messages.append({"role": "user", "content": results})


if __name__ == "__main__":
    print(handle(sys.argv[1]))
