"""Delays requests, so that a test determines their order independent of timing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx2
from anthropic import AsyncAnthropic

from agentobs import tracing


def hold(client: AsyncAnthropic, is_held: Callable[[str], bool], until: asyncio.Event) -> None:
    """Make requests of the lanes for which `is_held` returns True wait until an event is set, before they are sent."""

    async def wait(request: httpx2.Request) -> None:
        here = tracing.place()
        if here is not None and is_held(here.lane):
            await until.wait()

    client._client.event_hooks["request"].append(wait)
