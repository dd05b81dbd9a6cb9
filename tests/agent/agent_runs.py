"""Shared helpers of the agent tests: a deterministic world, complete runs, and spans of records."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from anthropic import AsyncAnthropic

from agentobs import runtime, tracing
from agentobs.agent.events import Event
from agentobs.agent.execution.live_answers import LiveAnswers
from agentobs.agent.execution.tool_runner import live_tools
from agentobs.agent.loop import run
from agentobs.agent.permissions import Permissions
from agentobs.agent.run_result import Result
from agentobs.agent.state import AgentOptions, Conversation, Tools
from agentobs.agent.tools.tool import Tool
from agentobs.records.exchanges import Place
from agentobs.records.facts import SpanEnd, SpanStart
from agentobs.sink import Record
from agentobs.world import Abort, World

from .provider import MODEL, Provider

T = TypeVar("T")
SESSION = "0" * 32


ALLOW_ALL = Permissions(mode="bypassPermissions", bypass_confirmed=True)
"""Permissions that allow every tool, for tests of other features."""


def options(**changes: Any) -> AgentOptions:
    """Return options for tests of other features: every tool may run, and requests have no cache breakpoints."""
    usual: dict[str, Any] = {"model": MODEL, "max_tokens": 100, "permissions": ALLOW_ALL}
    return AgentOptions(**{**usual, "cache": None, **changes})


def ticking_world(
    client: AsyncAnthropic,
    tools: Sequence[Tool] = (),
    waits: list[float] | None = None,
    *,
    abort: Abort | None = None,
    **sources: Any,
) -> World:
    """Return a world whose clock ticks at each read, whose IDs count up, and whose waits are only recorded.

    `sources` are further arguments of `LiveAnswers` (`person`, `inbox`, `roots` ...).
    """
    clock, ids = itertools.count(1), itertools.count(1)
    recorded_waits: list[float] = [] if waits is None else waits

    async def sleep(seconds: float) -> None:
        recorded_waits.append(seconds)

    running = live_tools(tools, person="person" in sources)
    return World(
        client=client,
        run_tool=running.run_tool,
        stop_tool=running.stop_tool,
        ask=LiveAnswers(tools, running, **sources).ask,
        abort=abort or Abort(),
        now=lambda: next(clock),
        sleep=sleep,
        new_id=lambda: f"{next(ids):032x}",
        random=lambda: 0.0,
    )


def events_of(
    provider: Provider,
    prompt: str = "Hello",
    *,
    tools: Tools = (),
    conversation: Conversation | None = None,
    waits: list[float] | None = None,
    world: Mapping[str, Any] | None = None,
    on: Callable[[Event], None] | None = None,
    **changes: Any,
) -> list[Event]:
    """Run the agent to its end and return its events.

    `world` contains arguments of `ticking_world`, and `known`: the tools that can run if `tools` is a function.
    `changes` are changes of the default options; `on` is called with each event.
    """

    async def collect() -> list[Event]:
        events: list[Event] = []
        async with provider.client() as client:
            sources = dict(world or {})
            known = sources.pop("known", None) or (() if callable(tools) else tools)
            here = ticking_world(client, known, waits, **sources)
            running = run(
                prompt,
                world=here,
                options=options(**changes),
                tools=tools,
                conversation=conversation,
            )
            async for event in running:
                events.append(event)
                if on is not None:
                    on(event)
        return events

    return asyncio.run(collect())


@contextlib.contextmanager
def recorded() -> Iterator[list[Record]]:
    """Collect the records that are emitted to the sink while the context is open; they belong to a fixed session."""
    records: list[Record] = []
    with runtime.replaced(consumer=records.append), tracing.at(Place(SESSION)):
        yield records


def spans(records: Sequence[Record]) -> list[tuple[str, str | None, str | None, str]]:
    """Return (name, label, name of the parent, status) of each span, in the order in which they were opened."""
    names = {r.span_id: str(r.name) for r in records if isinstance(r, SpanStart)}
    ends = {r.span_id: r.status for r in records if isinstance(r, SpanEnd)}
    return [
        (str(r.name), r.label, names.get(r.parent_span_id or ""), ends.get(r.span_id, "open"))
        for r in records
        if isinstance(r, SpanStart)
    ]


def in_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(coroutine)


def of_kind(events: Sequence[Any], *kinds: type) -> list[Any]:
    return [event for event in events if isinstance(event, kinds)]


def result_of(events: Sequence[Event]) -> Result:
    """Return the result, after checking that it is the last event and the only result."""
    assert [isinstance(e, Result) for e in events] == [False] * (len(events) - 1) + [True]
    (result,) = events[-1:]
    assert isinstance(result, Result)
    return result
