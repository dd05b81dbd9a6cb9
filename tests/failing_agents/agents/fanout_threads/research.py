import os
import random
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

import agentobs
from anthropic import Anthropic

client = agentobs.record(Anthropic())

SOURCES = {"rail": "1,204 million passengers", "air": "211 million passengers", "sea": "n/a"}

DELEGATE = {"name": "delegate", "description": "Have somebody research a topic",
            "input_schema": {"type": "object", "properties": {"topic": {"type": "string"}}}}
READ = {"name": "read_source", "description": "Read the source you were given",
        "input_schema": {"type": "object", "properties": {}}}


def create(tools, messages):
    return client.messages.create(model="claude-sonnet-5", max_tokens=700, tools=tools, messages=messages)


def read_source(topic):
    time.sleep(random.random() * float(os.environ.get("AGENT_JITTER", "0")))
    text = SOURCES[topic]
    return text.split()[0].replace(",", "")


def do(block):
    """Run one researcher in a thread."""
    messages = [{"role": "user", "content": "Read your source and tell the number in millions."}]
    while True:
        answer = create([READ], messages)
        messages.append({"role": "assistant", "content": answer.content})
        uses = [b for b in answer.content if b.type == "tool_use"]
        if not uses:
            return block, answer.content[0].text
        messages.append({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": u.id, "content": read_source(block.input["topic"])} for u in uses]})


@agentobs.session("fanout")
def research(question):
    messages = [{"role": "user", "content": question}]
    while True:
        answer = create([DELEGATE], messages)
        messages.append({"role": "assistant", "content": answer.content})
        blocks = [b for b in answer.content if b.type == "tool_use"]
        if not blocks:
            text = answer.content[0].text
            if "unknown" in text:
                agentobs.fail("one of the three numbers is missing in the answer")
            return text
        results = []
        with ThreadPoolExecutor(len(blocks)) as pool:
            for future in as_completed([pool.submit(do, b) for b in blocks]):
                block, text = future.result()
                results.append({"type": "tool_result", "tool_use_id": block.id, "content": text})
        messages.append({"role": "user", "content": results})


if __name__ == "__main__":
    print(research("How many passengers by rail, air and sea?"))
