"""Fixtures of a test besides its replay: clients of the SDK, the recorded session, and a world."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import httpx2
from anthropic import Anthropic, AsyncAnthropic, DefaultAsyncHttpxClient, DefaultHttpxClient

from agentobs import runtime
from agentobs.recording.session import record
from agentobs.records.exchanges import ToolAnswer, ToolQuestion
from agentobs.world import World
from replay.fixture.format import Fixture
from replay.playback.replayer import Replayer
from replay.pytest_plugin.live_run import Live

KEY = "a-made-up-key"
"""A key that the SDK requires; it is never sent."""


@dataclass(frozen=True, slots=True)
class RecordedSession:
    """The session that a fixture holds."""

    name: str
    entry: str | None
    """The function that started it, `module:qualified.name`; None if that was not recorded."""
    arguments: dict[str, Any] | None = field(repr=False)
    """Its arguments by name; None if they were not JSON values."""
    outcome: str | None
    """How it ended: `completed`, `failed` or `crashed`; `running` if it was frozen up to a turn."""
    reason: str | None
    """Why it failed."""
    requests: int
    """How many model requests there were, retries included."""
    tools: int
    """How many tool calls there were."""
    lanes: tuple[str, ...]
    """The main agent, `main`, and the agents that it started."""
    result: Any = field(default=None, repr=False)
    """The return value of its function, as JSON; None if that was not recorded."""


def session_of(fixture: Fixture) -> RecordedSession:
    """Return the session that a fixture holds."""
    told = fixture.header
    return RecordedSession(
        name=fixture.name,
        entry=told["entry"],
        arguments=told["arguments"],
        outcome=told["outcome"],
        reason=told["reason"],
        requests=len(fixture.asks),
        tools=len(fixture.tools),
        lanes=tuple(fixture.lanes),
        result=fixture.result.value if fixture.result else None,
    )


def sync_client(replayed: Replayer) -> Anthropic:
    """Return a client that is answered by a replay; in a live test, one that uses the provider."""
    if isinstance(replayed, Live):
        return record(Anthropic())
    http = DefaultHttpxClient(transport=httpx2.MockTransport(_nobody))
    return record(Anthropic(api_key=KEY, http_client=http))


def async_client(replayed: Replayer) -> AsyncAnthropic:
    """Like `sync_client`, for async code."""
    if isinstance(replayed, Live):
        return record(AsyncAnthropic())
    http = DefaultAsyncHttpxClient(transport=httpx2.MockTransport(_nobody))
    return record(AsyncAnthropic(api_key=KEY, http_client=http))


def world_of(client: AsyncAnthropic) -> World:
    """Return the world in force with a client; its tools answer from the recording, and none runs."""
    return runtime.world_in_force(World(client=client, run_tool=_no_tool))


def _nobody(request: httpx2.Request) -> httpx2.Response:
    """The transport below the one that answers from the recording; it is only reached when that one is closed."""
    raise httpx2.ConnectError("the replay has ended", request=request)


async def _no_tool(question: ToolQuestion) -> ToolAnswer:
    told = f"{question.name} does not run in this world: pass live_world(client, tools) to the agent for tools that do"
    return ToolAnswer(told, is_error=True, outcome="unknown")
