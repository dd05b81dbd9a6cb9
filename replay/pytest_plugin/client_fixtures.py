"""Pytest fixtures of a replayed test: clients of the SDK, the recorded session, and a world."""

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
from replay.pytest_plugin.live_run import LiveRun

KEY = "a-made-up-key"
"""A key that the SDK requires; it is never sent."""


@dataclass(frozen=True, slots=True)
class RecordedSession:
    """The session in a fixture."""

    name: str
    entry: str | None
    """The function that started the session, `module:qualified.name`; None if it was not recorded."""
    arguments: dict[str, Any] | None = field(repr=False)
    """The arguments of that function by name; None if they were not JSON values."""
    outcome: str | None
    """How it ended: `completed`, `failed` or `crashed`; `running` if it was frozen up to a turn."""
    reason: str | None
    """Why it failed."""
    requests: int
    """The number of model requests, including retries."""
    tools: int
    """The number of tool calls."""
    lanes: tuple[str, ...]
    """The main agent, `main`, and the agents that it started."""
    result: Any = field(default=None, repr=False)
    """The return value of the function that started the session, as JSON; None if it was not recorded."""


def session_of(fixture: Fixture) -> RecordedSession:
    """Return the session in a fixture."""
    header = fixture.header
    return RecordedSession(
        name=fixture.name,
        entry=header["entry"],
        arguments=header["arguments"],
        outcome=header["outcome"],
        reason=header["reason"],
        requests=len(fixture.requests),
        tools=len(fixture.tools),
        lanes=tuple(fixture.lanes),
        result=fixture.result.value if fixture.result else None,
    )


def sync_client(replayed: Replayer) -> Anthropic:
    """Return a client that gets its responses from a replay; in a live test, a client that uses the provider."""
    if isinstance(replayed, LiveRun):
        return record(Anthropic())
    http = DefaultHttpxClient(transport=httpx2.MockTransport(_refuse))
    return record(Anthropic(api_key=KEY, http_client=http))


def async_client(replayed: Replayer) -> AsyncAnthropic:
    """Like `sync_client`, for async code."""
    if isinstance(replayed, LiveRun):
        return record(AsyncAnthropic())
    http = DefaultAsyncHttpxClient(transport=httpx2.MockTransport(_refuse))
    return record(AsyncAnthropic(api_key=KEY, http_client=http))


def world_of(client: AsyncAnthropic) -> World:
    """Return the current world with a client; its tools answer from the recording and never run."""
    return runtime.effective_world(World(client=client, run_tool=_no_tool))


def _refuse(request: httpx2.Request) -> httpx2.Response:
    """Reject a request that was sent after the end of the replay, when the recording no longer answers."""
    raise httpx2.ConnectError("the replay has ended", request=request)


async def _no_tool(question: ToolQuestion) -> ToolAnswer:
    text = f"{question.name} cannot run in this world; to run tools, pass live_world(client, tools) to the agent"
    return ToolAnswer(text, is_error=True, outcome="unknown")
