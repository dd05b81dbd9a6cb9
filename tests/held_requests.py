"""Hold requests back, so that a test determines their order, independent of timing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx2
from anthropic import AsyncAnthropic

from agentobs import tracing


def hold(client: AsyncAnthropic, whose: Callable[[str], bool], until: asyncio.Event) -> None:
    """Make the requests of the lanes that `whose` selects wait until an event is set, before they are sent."""

    async def wait(request: httpx2.Request) -> None:
        here = tracing.place()
        if here is not None and whose(here.lane):
            await until.wait()

    client._client.event_hooks["request"].append(wait)
