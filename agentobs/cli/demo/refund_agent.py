"""A small agent as you would write it: it refunds orders. It has a bug."""

from anthropic import AsyncAnthropic

import agentobs
from agentobs.agent import AgentOptions, Permissions, Rule, complete, live_world, tool

ORDERS = {"A-17": {"status": "shipped", "carrier": "DHL", "total": "41,90", "currency": "EUR"}}


@tool(read_only=True)
def lookup_order(order_id: str) -> dict[str, str]:
    """Look up an order.

    Args:
        order_id: The order's number, such as A-17.
    """
    return ORDERS[order_id]


@tool(read_only=True)
def lookup_policy(carrier: str) -> str:
    """Look up the refund policy for a carrier.

    Args:
        carrier: The carrier's name.
    """
    return f"{carrier}: lost parcels are refunded in full within 30 days."


@tool
def issue_refund(order_id: str, amount: str) -> str:
    """Refund an amount to the customer.

    Args:
        order_id: The order's number.
        amount: The amount as the order states it.
    """
    cents = round(float(amount) * 100)
    return f"refunded {cents} cents for {order_id}"


TOOLS = [lookup_order, lookup_policy, issue_refund]


@agentobs.session("refund-loop", tags={"agent": "refunds", "version": "1.4.0"})
async def answer(prompt: str) -> str:
    """Answer one customer."""
    client = agentobs.record(AsyncAnthropic(open_telemetry=False))
    options = AgentOptions(
        model="claude-sonnet-5",
        max_tokens=1024,
        system="You refund orders. Look everything up before you act.",
        cache=None,  # the conversation is too short for the provider's cache
        permissions=Permissions(rules=(Rule.parse("issue_refund", "allow", "project"),)),
    )
    result = await complete(prompt, world=live_world(client, TOOLS), tools=TOOLS, options=options)
    if "could not" in result.text:
        agentobs.fail("refund-not-issued")
    return result.text
