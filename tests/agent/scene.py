"""What the tests of the agent share: a world that ticks, a run to its end, and facts as a tree."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, TypeVar

from anthropic import AsyncAnthropic

from agentobs import tracing
from agentobs.agent.events import Event
from agentobs.agent.execution import live_tools
from agentobs.agent.loop import run
from agentobs.agent.state import Conversation, Options
from agentobs.agent.tools import Tool
from agentobs.records.exchanges import Place
from agentobs.records.facts import SpanEnd, SpanStart
from agentobs.sink import Record, sink
from agentobs.world import World

from .provider import MODEL, Provider

T = TypeVar("T")
SESSION = "0" * 32


def options(**changes: Any) -> Options:
    return Options(model=MODEL, max_tokens=100, **changes)


def ticking_world(
    client: AsyncAnthropic, tools: Sequence[Tool] = (), waits: list[float] | None = None
) -> World:
    """A world whose clock ticks once a look, whose ids count, and whose waits are only noted."""
    clock, ids = itertools.count(1), itertools.count(1)
    noted: list[float] = [] if waits is None else waits

    async def sleep(seconds: float) -> None:
        noted.append(seconds)

    return World(
        client=client,
        run_tool=live_tools(tools),
        now=lambda: next(clock),
        sleep=sleep,
        new_id=lambda: f"{next(ids):032x}",
        random=lambda: 0.0,
    )


def events_of(
    provider: Provider,
    prompt: str = "Hello",
    *,
    tools: Sequence[Tool] = (),
    conversation: Conversation | None = None,
    waits: list[float] | None = None,
    **changes: Any,
) -> list[Event]:
    """Run the agent to its end and return its events."""

    async def collect() -> list[Event]:
        async with provider.client() as client:
            world = ticking_world(client, tools, waits)
            running = run(
                prompt,
                world=world,
                options=options(**changes),
                tools=tools,
                conversation=conversation,
            )
            return [event async for event in running]

    return asyncio.run(collect())


@contextlib.contextmanager
def recorded() -> Iterator[list[Record]]:
    """Collect what goes to the sink, at a place in a session."""
    records: list[Record] = []
    with sink.redirect(records.append), tracing.at(Place(SESSION)):
        yield records


def spans(records: Sequence[Record]) -> list[tuple[str, str | None, str | None, str]]:
    """(name, label, name of the parent, how it ended) of each span, in the order of opening."""
    names = {r.span_id: str(r.name) for r in records if isinstance(r, SpanStart)}
    ends = {r.span_id: r.status for r in records if isinstance(r, SpanEnd)}
    return [
        (str(r.name), r.label, names.get(r.parent_span_id or ""), ends.get(r.span_id, "open"))
        for r in records
        if isinstance(r, SpanStart)
    ]


def in_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(coroutine)
