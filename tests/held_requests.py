"""Holding requests back, so that a test says what comes first, and no clock does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx2
from anthropic import AsyncAnthropic

from agentobs import tracing


def hold(client: AsyncAnthropic, whose: Callable[[str], bool], until: asyncio.Event) -> None:
    """Let the requests of some lanes wait before they go out, until something has happened."""

    async def wait(request: httpx2.Request) -> None:
        here = tracing.place()
        if here is not None and whose(here.lane):
            await until.wait()

    client._client.event_hooks["request"].append(wait)
