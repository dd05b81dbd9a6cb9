"""The source of agents that send signed thinking back to the model, one for each kind of client.

Tests write this text into a folder as a module.
"""

SOURCE = """
import asyncio, contextlib, json, os

import agentobs
import anthropic
import httpx2

TOOLS = [{"name": "lookup", "description": "Look up an order", "input_schema": {"type": "object"}}]
ASKED = {"model": "claude-sonnet-5", "max_tokens": 4096, "tools": TOOLS, "thinking": {"type": "adaptive"}}
SPENT = []
KNOWN = {"A-1": "refunded", "A-2": "open"}


def options():
    return {"api_key": "sk-made-up", "base_url": os.environ["SIGNING_URL"], "max_retries": 0}


def results(content):
    calls = [block for block in content if block["type"] == "tool_use"]
    return [
        {"type": "tool_result", "tool_use_id": call["id"], "content": KNOWN[call["input"]["order"]]}
        for call in calls
    ]


def stamped(prompt):
    here = agentobs.world_here()
    return f"{prompt} It is {here.now()}, and this is {here.new_id()}."


def answer(client, prompt, stamps=False):
    asking = {"sync": plain, "sync-stream": streamed, "raw": raw, "events": events}.get(client)
    with agentobs.session("refund-loop") as session:
        prompt = stamped(prompt) if stamps else prompt
        if asking is None:
            told = asyncio.run(waited(client, prompt))
        else:
            with asking() as ask:
                told = loop(ask, prompt)
        SPENT.append(session.cost())
        return told


def loop(ask, prompt):
    messages = [{"role": "user", "content": prompt}]
    while True:
        content = ask(messages)
        messages.append({"role": "assistant", "content": content})
        if not (found := results(content)):
            return content[-1]["text"]
        messages.append({"role": "user", "content": found})


@contextlib.contextmanager
def plain():
    with agentobs.record(anthropic.Anthropic(**options())) as client:
        yield lambda messages: client.messages.create(messages=messages, **ASKED).model_dump(mode="json")["content"]


@contextlib.contextmanager
def streamed():
    client = agentobs.record(anthropic.Anthropic(**options()))

    def ask(messages):
        with client.messages.stream(messages=messages, **ASKED) as stream:
            return [block.to_dict() for block in stream.get_final_message().content]

    with client:
        yield ask


@contextlib.contextmanager
def events():
    # The helper of the SDK keeps the last piece of a signature alone.
    client = agentobs.record(anthropic.Anthropic(**options()))

    def ask(messages):
        blocks = []
        for event in client.messages.create(messages=messages, stream=True, **ASKED):
            if event.type == "content_block_start":
                blocks.append(event.content_block.to_dict())
            elif event.type == "content_block_delta":
                told = event.delta.to_dict()
                name = told.pop("type").removesuffix("_delta")
                if name == "input_json":
                    blocks[-1]["input"] = json.loads(told["partial_json"])
                else:
                    blocks[-1][name] = blocks[-1].get(name, "") + told[name]
        return blocks

    with client:
        yield ask


@contextlib.contextmanager
def raw():
    client = agentobs.record(httpx2.Client(base_url=os.environ["SIGNING_URL"]))

    def ask(messages):
        body = json.dumps({"messages": messages, **ASKED}, indent=1, sort_keys=True)
        answered = client.post("/v1/messages", content=body, headers={"content-type": "application/json"})
        answered.raise_for_status()
        return answered.json()["content"]

    with client:
        yield ask


async def waited(client, prompt):
    messages = [{"role": "user", "content": prompt}]
    async with agentobs.record(anthropic.AsyncAnthropic(**options())) as made:
        while True:
            if client == "async":
                message = await made.messages.create(messages=messages, **ASKED)
            else:
                async with made.messages.stream(messages=messages, **ASKED) as stream:
                    message = await stream.get_final_message()
            content = [block.to_dict() for block in message.content]
            messages.append({"role": "assistant", "content": content})
            if not (found := results(content)):
                return content[-1]["text"]
            messages.append({"role": "user", "content": found})


async def manage(prompt):
    # Our own loop, which starts a sub-agent in its first turn.
    from agentobs.agent.permissions import Permissions
    from agentobs.agent import Adaptive, AgentDefinition, AgentOptions, Result, live_world, run, sub_agents, tool

    @tool(read_only=True)
    def lookup(order: str) -> str:
        \"\"\"Look up an order.\"\"\"
        return KNOWN[order]

    tools = (lookup, sub_agents([AgentDefinition("scout", "Looks things up.")]))
    client = agentobs.record(anthropic.AsyncAnthropic(**options()))
    anything = Permissions(mode="bypassPermissions", bypass_confirmed=True)
    chosen = AgentOptions(model="claude-sonnet-5", max_tokens=4096, thinking=Adaptive(), permissions=anything)
    with agentobs.session("manager"):
        async for event in run(prompt, world=live_world(client, tools), options=chosen, tools=tools):
            if isinstance(event, Result):
                SPENT.append(event.total_cost_usd)
                return event.text
"""
