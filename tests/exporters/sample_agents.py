"""Sample agents for the tests of exporters: they use tools, hooks and sub-agents, and are recorded with backends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import agentobs
from agentobs.agent import Permissions, tool
from agentobs.agent.events import Event
from agentobs.agent.hooks import Hook, table
from agentobs.agent.loop import live_world, run
from agentobs.agent.state import AgentOptions
from agentobs.agent.sub_agents.starter import sub_agents
from agentobs.agent.tools.agent_definitions import AgentDefinition
from agentobs.recording.options import Options as Recording
from agentobs.recording.session import flush, start_recorder
from agentobs.records.backend import Backend
from tests.agent.provider import MODEL, Provider, Reply, call, error, message, streamed, text

DONE = message(text("Done."))


@tool(read_only=True)
def look(where: str) -> str:
    """Look somewhere."""
    return f"nothing in {where}"


@tool(subject="what")
def write(what: str) -> str:
    """Write something."""
    return f"wrote {what}"


HOOKS = table([Hook("pre_tool_use", lambda payload: None, name="watch")])


def calls(*blocks: dict[str, Any]) -> Reply:
    return streamed(message(*blocks, stop_reason="tool_use"))


@contextlib.contextmanager
def recording(home: Path, *backends: Backend, **options: Any) -> Iterator[None]:
    """Record into a home with these backends."""
    stated = tuple(b if hasattr(b, "kinds") else agentobs.receiving(["*"], b) for b in backends)
    assert start_recorder(str(home), Recording(backends=stated, **options)) is not None
    try:
        yield
        assert flush(60)  # `stop_recorder` alone waits at most 0.25 s
    finally:
        agentobs.stop_recorder()


async def play(
    client: Any, prompt: str = "Hello", tools: Sequence[Any] = (look, write), **overrides: Any
) -> list[Event]:
    """Run the agent loop until it ends."""
    live = overrides.pop("live", {})
    usual: dict[str, Any] = {"model": MODEL, "max_tokens": 100, "max_retries": 2}
    usual["permissions"] = Permissions(mode="bypassPermissions", bypass_confirmed=True)
    world = live_world(agentobs.record(client), tools, **live)
    running = run(prompt, world=world, options=AgentOptions(**{**usual, **overrides}), tools=tools)
    return [event async for event in running]


def run_agent(session: str = "acting", content: Any = None, **overrides: Any) -> list[Event]:
    """Run two turns: a failed attempt, two concurrent tool calls with a hook, and the final answer."""
    both = call("toolu_1", "look", where="box"), call("toolu_2", "write", what="x")
    model = overrides.get("model", MODEL)
    replies = [
        error(529, "overloaded_error", retry="true"),
        streamed(message(*both, stop_reason="tool_use", model=model)),
        streamed({**DONE, "model": model}),
    ]

    async def main(provider: Provider) -> list[Event]:
        async with provider.client() as client:
            return await play(client, hooks=HOOKS, live={"hooks": HOOKS}, **overrides)

    with Provider(replies) as provider, agentobs.session(session, content=content):
        return asyncio.run(main(provider))


def run_delegation() -> list[Event]:
    """Run an agent that starts a sub-agent."""
    helper = AgentDefinition("helper", "Helps.", model=MODEL)
    started = sub_agents([helper], background=False)
    tools = (look, started)
    replies = [
        calls(call("toolu_1", started.name, agent="helper", prompt="Look into the box")),
        streamed(message(text("Nothing there."))),
        streamed(DONE),
    ]

    async def main(provider: Provider) -> list[Event]:
        async with provider.client() as client:
            return await play(client, tools=tools)

    with Provider(replies) as provider, agentobs.session("delegating"):
        return asyncio.run(main(provider))
