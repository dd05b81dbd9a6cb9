import asyncio
import os
import random
import re
from dataclasses import dataclass

import anthropic

import agentobs


@dataclass
class Verdict:
    ticket: str
    priority: int
    team: str


async def classify(client, text):
    await asyncio.sleep(random.random() * float(os.environ.get("AGENT_JITTER", "0")))
    reply = await client.messages.create(
        model="claude-haiku-4-5",
        max_tokens=100,
        system="Think aloud in one sentence. End with: priority N, team NAME.",
        messages=[{"role": "user", "content": text}],
    )
    return reply.content[0].text


@agentobs.session("triage")
async def triage(ticket: str) -> Verdict:
    client = agentobs.record(anthropic.AsyncAnthropic())
    urgent = await classify(client, f"How urgent is this? {ticket}")
    owner = await classify(client, f"Who owns this? {ticket} ({urgent})")
    priority = re.search(r"priority (\d)", owner)
    team = re.search(r"team (\w+)", owner)
    return Verdict(ticket, int(priority[1]), team[1])


if __name__ == "__main__":
    print(asyncio.run(triage("The checkout shows a blank page")))
