import os
import random
import time

import anthropic

import agentobs
from converter.units import miles_to_km

TOOLS = [{
    "name": "miles_to_km",
    "description": "Convert miles to kilometres",
    "input_schema": {"type": "object", "properties": {"miles": {"type": "number"}}, "required": ["miles"]},
}]


@agentobs.session("converter")
def convert(question: str) -> dict:
    client = agentobs.record(anthropic.Anthropic())
    thread = [{"role": "user", "content": question}]
    response = client.messages.create(model="claude-haiku-4-5", max_tokens=256, tools=TOOLS, messages=thread)
    while response.stop_reason == "tool_use":
        thread.append({"role": "assistant", "content": response.content})
        thread.append({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": b.id, "content": str(miles_to_km(**b.input))}
            for b in response.content if b.type == "tool_use"
        ]})
        time.sleep(random.random() * float(os.environ.get("AGENT_JITTER", "0")))
        response = client.messages.create(model="claude-haiku-4-5", max_tokens=256, tools=TOOLS, messages=thread)
    answer = response.content[0].text
    return {"question": question, "km": float(answer.split()[2])}
