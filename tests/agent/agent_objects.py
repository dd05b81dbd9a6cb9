"""Run an `agentobs.Agent` against the scripted provider, record it, freeze the recording and replay it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from anthropic import AsyncAnthropic

import agentobs
from agentobs.agent import AgentOptions, Event
from agentobs.recording.journal.home import open_home
from agentobs.recording.journal.segments import segment_ids
from agentobs.recording.vault.vault import read_session
from replay import Replayer, load
from replay.fixture.writer import write

from .agent_runs import ALLOW_ALL
from .provider import MODEL, Provider
from .scenarios import in_order

Ask = Callable[[AsyncAnthropic], Awaitable[list[Event]]]
"""Runs an agent with a client, and returns its events."""


def agent(client: AsyncAnthropic, *, parts: dict[str, Any] | None = None, **options: Any) -> Any:
    """Return an agent with these options, in which every tool may run; `parts` are its other arguments."""
    usual = {"model": MODEL, "max_tokens": 100, "permissions": ALLOW_ALL, "cache": None}
    return agentobs.Agent(client, options=AgentOptions(**{**usual, **options}), **(parts or {}))


def asking(*prompts: str, parts: dict[str, Any] | None = None, **options: Any) -> Ask:
    """Return a function that sends prompts to an agent, one after another."""

    async def ask(client: AsyncAnthropic) -> list[Event]:
        asked = agent(client, parts=parts, **options)
        return [event for prompt in prompts or ("Go",) async for event in asked.stream(prompt)]

    return ask


def play(provider: Provider, ask: Ask) -> list[Event]:
    """Run an agent with the provider; return its events."""

    async def go() -> list[Event]:
        async with provider.client() as client:
            return await ask(client)

    return asyncio.run(go())


def recorded_and_replayed(folder: Path, provider: Provider, ask: Ask) -> list[Event]:
    """Record an agent, freeze its session and replay it without the provider; return the recorded events.

    The replay must emit the same events.
    """

    async def go(url: str) -> tuple[str, list[Event]]:
        async with AsyncAnthropic(api_key="made-up", base_url=url, open_telemetry=False) as client:
            agentobs.record(client)
            with agentobs.session("recorded") as session:
                return session.session_id, await ask(client)

    agentobs.stop_recorder()
    assert agentobs.start(str(folder / "home"))
    with provider:
        session_id, events = asyncio.run(go(provider.base_url))
        assert agentobs.stop_recorder()
    home = open_home(str(folder / "home"))
    fixture = folder / "fixture"
    fixture.mkdir()
    session = read_session(home, session_id, segment_ids(home))
    (fixture / "recording.jsonl").write_bytes(write(session, {}))
    replayed: list[Event] = []

    async def again() -> None:
        replayed.extend((await go("http://127.0.0.1:9"))[1])

    with Replayer(load(fixture)) as replayer:
        replayer.run(again)
    assert in_order(replayed) == in_order(events)
    return events
