"""Record a conversation of `agentobs.Agent`, freeze it, and replay it without its tools, hooks and persons."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import agentobs
from agentobs.agent import AgentOptions, Event, ToolDone
from agentobs.recording.journal.home import Home, open_home
from agentobs.recording.journal.segments import segment_ids
from agentobs.recording.vault.vault import read_session
from agentobs.records.exchanges import Recording, ToolExchange
from replay import Replayer, load
from replay.fixture.writer import write
from tests import queries

from .provider import MODEL, Provider, Reply, message, streamed, text

DONE = streamed(message(text("Done.")))

Observer = Callable[[agentobs.Agent, Event], None]
"""Is called with each event of a conversation."""


def calling(*calls: dict[str, Any]) -> Reply:
    """Return a response that calls tools."""
    return streamed(message(*calls, stop_reason="tool_use"))


def options(**changes: Any) -> AgentOptions:
    """Return options with the default permissions and without cache breakpoints."""
    return AgentOptions(**{"model": MODEL, "max_tokens": 100, "cache": None, **changes})


@dataclass
class Conversation:
    """A recorded conversation."""

    home: Home
    session_id: str
    events: list[Event]
    requests: list[dict[str, Any]]
    start: Callable[[Any], agentobs.Agent] = field(repr=False)
    prompts: Sequence[str] = ("Hello",)

    @property
    def recording(self) -> Recording:
        """The recorded session."""
        return read_session(self.home, self.session_id, segment_ids(self.home))

    @property
    def tools(self) -> list[ToolExchange]:
        """The recorded tool calls."""
        return [each for each in self.recording.exchanges if isinstance(each, ToolExchange)]

    @property
    def results(self) -> list[Any]:
        """The content of the last message of the last request."""
        return list(self.requests[-1]["messages"][-1]["content"])

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        return [tuple(row) for row in queries.query(sql, home=self.home.path)]

    def replayed(self, folder: Path) -> list[Event]:
        """Freeze the session, replay it with the same agent, and return the events of the replay."""
        folder.mkdir()
        (folder / "recording.jsonl").write_bytes(write(self.recording, {}))
        with Provider([]) as provider, Replayer(load(folder)) as replayer:
            _, events = replayer.run(converse, provider, self.start, self.prompts, _ignore)
        return list(events)


def record(
    folder: Path,
    replies: Sequence[Reply],
    start: Callable[[Any], agentobs.Agent],
    *,
    prompts: Sequence[str] = ("Hello",),
    on: Observer | None = None,
) -> Conversation:
    """Record a conversation into the home `folder / "home"`; `start` creates the agent for a client."""
    agentobs.stop_recorder()
    agentobs.start(home=str(folder / "home"))
    with Provider(replies) as provider:
        session_id, events = asyncio.run(converse(provider, start, prompts, on or _ignore))
        assert agentobs.stop_recorder()
        home = open_home(str(folder / "home"))
        return Conversation(home, session_id, events, provider.requests, start, prompts)


async def converse(
    provider: Provider,
    start: Callable[[Any], agentobs.Agent],
    prompts: Sequence[str],
    on: Observer,
) -> tuple[str, list[Event]]:
    """Run an agent in a session, and return the ID of the session and all events."""
    events: list[Event] = []
    async with provider.client() as client:
        agent = start(agentobs.record(client))
        with agentobs.session("calls") as session:
            for prompt in prompts:
                async for event in agent.stream(prompt):
                    events.append(event)
                    on(agent, event)
        return session.session_id, events


def outcomes(events: Sequence[Event]) -> list[tuple[str, Any, str, Any]]:
    """Return the tool, the executed input, the outcome and the result of each call."""
    done = [each for each in events if isinstance(each, ToolDone)]
    return [(d.question.name, d.question.input, d.answer.outcome, d.answer.content) for d in done]


def _ignore(agent: agentobs.Agent, event: Event) -> None:
    """Do nothing."""
