"""Two agents count two halves of the warehouse concurrently."""
import asyncio
import os
import random
import re

from anthropic import AsyncAnthropic

import agentobs

HALVES = {
    "north": [("crate", 40), ("drum", 7), ("crate", 2)],
    "south": [("crate", 31), ("damaged crate", 5), ("drum", 20)],
}
EXPECTED = {"crates": 73, "drums": 27}

COUNT_TOOL = {
    "name": "count",
    "description": "Count the things of a kind on your side",
    "input_schema": {"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"]},
}


class Counter:
    def __init__(self, client, half):
        self.client = client
        self.half = half

    async def count(self, kind):
        await asyncio.sleep(random.random() * float(os.environ.get("AGENT_JITTER", "0")))
        total = 0
        for what, n in HALVES[self.half]:
            if kind in what:
                total += n
        return str(total)

    async def work(self):
        messages = [{"role": "user", "content": "Count the crates and the drums on your side."}]
        while True:
            msg = await self.client.messages.create(
                model="claude-haiku-4-5", max_tokens=300, tools=[COUNT_TOOL], messages=messages
            )
            messages.append({"role": "assistant", "content": msg.content})
            if msg.stop_reason != "tool_use":
                return msg.content[0].text
            results = []
            for b in msg.content:
                if b.type == "tool_use":
                    results.append({"type": "tool_result", "tool_use_id": b.id, "content": await self.count(**b.input)})
            messages.append({"role": "user", "content": results})


@agentobs.session("twin-counters")
async def stocktaking():
    client = agentobs.record(AsyncAnthropic())
    async with asyncio.TaskGroup() as group:
        jobs = [group.create_task(Counter(client, half).work()) for half in HALVES]
    found = {"crates": 0, "drums": 0}
    for job in jobs:
        for n, kind in re.findall(r"(\d+) (crates|drums)", job.result()):
            found[kind] += int(n)
    if found != EXPECTED:
        agentobs.fail(f"counted {found['crates']} crates, the books say {EXPECTED['crates']}")
    return found


if __name__ == "__main__":
    print(asyncio.run(stocktaking()))
