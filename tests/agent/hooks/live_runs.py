"""A complete run in the live world, with live hooks and a live classifier."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from agentobs.agent import AgentOptions, Conversation, Event, Permissions, Tool, live_world, run
from agentobs.agent.hooks import Hook
from tests.agent.agent_runs import options
from tests.agent.provider import Provider

SMALL = "claude-small-1"


def run_agent(
    provider: Provider,
    *,
    tools: Sequence[Tool],
    hooks: Sequence[Hook] = (),
    permissions: Permissions | None = None,
    conversation: Conversation | None = None,
    prompts: Sequence[str] = ("Hello",),
    on: Callable[[Event], None] = lambda event: None,
    **live: Any,
) -> list[Event]:
    """Run an agent with each prompt in turn and return all events; `live` contains arguments of `live_world`."""
    run_options: AgentOptions = options(hooks=tuple(hooks))
    if permissions is not None:
        run_options = options(hooks=tuple(hooks), permissions=permissions)
    conversation = conversation or Conversation()

    async def play() -> list[Event]:
        events: list[Event] = []
        async with provider.client() as client:
            world = live_world(client, tools, hooks=hooks, hook_model=SMALL, **live)
            for prompt in prompts:
                running = run(
                    prompt, world=world, options=run_options, tools=tools, conversation=conversation
                )
                async for event in running:
                    events.append(event)
                    on(event)
        return events

    return asyncio.run(play())
