"""A complete run in the live world, with live hooks and a live classifier."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from agentobs.agent import Conversation, Event, Options, Permissions, Tool, live_world, run
from agentobs.agent.hooks import Hook
from tests.agent.provider import Provider
from tests.agent.scene import options

SMALL = "claude-small-1"


def played(
    provider: Provider,
    *,
    tools: Sequence[Tool],
    hooks: Sequence[Hook] = (),
    permissions: Permissions | None = None,
    talk: Conversation | None = None,
    prompts: Sequence[str] = ("Hello",),
    on: Callable[[Event], None] = lambda event: None,
    **live: Any,
) -> list[Event]:
    """Run an agent for each prompt and return its events; `live` goes to `live_world`."""
    asked: Options = options(hooks=tuple(hooks))
    if permissions is not None:
        asked = options(hooks=tuple(hooks), permissions=permissions)
    talk = talk or Conversation()

    async def play() -> list[Event]:
        events: list[Event] = []
        async with provider.client() as client:
            world = live_world(client, tools, hooks=hooks, hook_model=SMALL, **live)
            for prompt in prompts:
                running = run(prompt, world=world, options=asked, tools=tools, conversation=talk)
                async for event in running:
                    events.append(event)
                    on(event)
        return events

    return asyncio.run(play())
