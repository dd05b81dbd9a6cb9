import asyncio
import os
import random
import uuid
from datetime import datetime, timedelta

from anthropic import AsyncAnthropic

import agentobs

ROOMS = {"Aula": [("09:00", "Choir"), ("13:30", "Exam")], "Lab 2": [("8:15", "Robotics")]}


def now():
    return datetime.now() + timedelta(days=int(os.environ.get("AGENT_DAYS", "0")))


@agentobs.record_tool
async def room_plan(room: str) -> str:
    await asyncio.sleep(random.random() * float(os.environ.get("AGENT_JITTER", "0")))
    lines = []
    for start, what in ROOMS[room]:
        hour, minute = int(start[0:2]), int(start[3:5])
        lines.append(f"{hour:02}:{minute:02} {what}")
    return "\n".join(lines)


async def dispatch(block):
    try:
        content, bad = await room_plan(**block.input), False
    except (KeyError, ValueError) as exc:
        content, bad = f"{type(exc).__name__}: {exc}", True
    return {"type": "tool_result", "tool_use_id": block.id, "content": content, "is_error": bad}


@agentobs.session("daily-brief")
async def brief(room: str) -> str:
    client = agentobs.record(AsyncAnthropic())
    run_id = uuid.uuid4()
    system = f"You write the daily brief.\nToday is {now():%A, %B %d, %Y}, {now():%H:%M}.\nRun {run_id}."
    tools = [{"name": "room_plan", "description": "Plan of a room",
              "input_schema": {"type": "object", "properties": {"room": {"type": "string"}}, "required": ["room"]}}]
    messages = [{"role": "user", "content": f"What happens in {room} today?"}]
    while True:
        m = await client.messages.create(
            model="claude-sonnet-5", max_tokens=600, system=system, tools=tools, messages=messages)
        messages.append({"role": "assistant", "content": m.content})
        if m.stop_reason != "tool_use":
            break
        results = await asyncio.gather(*[dispatch(b) for b in m.content if b.type == "tool_use"])
        messages.append({"role": "user", "content": results})
    answer = m.content[0].text
    if "could not" in answer:
        agentobs.fail("brief-without-plan")
    return answer


if __name__ == "__main__":
    print(asyncio.run(brief("Lab 2")))
