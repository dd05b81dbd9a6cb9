import asyncio
import os
import random

from anthropic import AsyncAnthropic

from agentobs import wiring
import agentobs
from agentobs.agent import (AgentOptions, Permissions, Rule, complete, live_world, tool)

BOXES = {"2019": ["tax", "rent"], "2020": ["tax"], "2021": []}


@tool(read_only=True)
async def find_box(year: int) -> str:
    """Return the content of the box of a year.

    Args:
        year: The year.
    """
    await asyncio.sleep(random.random() * float(os.environ.get("AGENT_JITTER", "0")))
    return ", ".join(BOXES[year])


@tool()
async def label_box(year: int, label: str) -> str:
    """Put a label on a box.

    Args:
        year: The year.
        label: The label.
    """
    return f"box {year} is labeled {label}"


@agentobs.session("archivist")
async def main(prompt: str) -> str:
    client = agentobs.record(AsyncAnthropic(open_telemetry=False))
    options = AgentOptions(
        "claude-sonnet-5",
        permissions=Permissions(rules=(Rule.parse("label_box", "allow", "project"),)),
    )
    world = live_world(client, [find_box, label_box], keep=wiring.keep_result)
    done = await complete(prompt, world=world, options=options, tools=[find_box, label_box])
    if "labeled" not in done.text:
        agentobs.fail("no-label")
    return done.text


if __name__ == "__main__":
    print(asyncio.run(main("Label the box of 2019 by what is in it.")))
