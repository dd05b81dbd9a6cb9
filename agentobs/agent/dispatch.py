"""Dispatch: running the tool calls of one turn.

Neighbouring calls that only read run together; every other call runs alone, in its turn.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Sequence

from agentobs.agent import telling
from agentobs.agent.events import ToolDispatch, ToolDone
from agentobs.agent.tools import Tool
from agentobs.records.exchanges import Place, ToolQuestion
from agentobs.world import World

TOGETHER = 10
"""The most calls that run at once. Our choice."""


async def dispatch(
    calls: Sequence[ToolQuestion], tools: Sequence[Tool], world: World, here: Place | None
) -> AsyncGenerator[ToolDispatch | ToolDone, None]:
    """Run calls and tell of each; results come in the order of the calls, whichever ends first."""
    for batch in batches(calls, frozenset(tool.name for tool in tools if tool.read_only)):
        for question in batch:
            yield ToolDispatch(question)
        for done in await _together(batch, world, here):
            yield done


def batches(calls: Sequence[ToolQuestion], read_only: frozenset[str]) -> list[list[ToolQuestion]]:
    """Split calls into those that run together: neighbours that only read, and each other one alone."""
    split: list[list[ToolQuestion]] = []
    for reads, group in itertools.groupby(calls, lambda question: question.name in read_only):
        neighbours = list(group)
        split += [neighbours] if reads else [[question] for question in neighbours]
    return split


async def _together(
    batch: Sequence[ToolQuestion], world: World, here: Place | None
) -> list[ToolDone]:
    """Run a batch at once and return its results in order; when one raises, the others are stopped first."""
    gate = asyncio.Semaphore(TOGETHER)

    async def run(question: ToolQuestion) -> ToolDone:
        async with gate:
            return await _run(question, world, here)

    tasks = [asyncio.create_task(run(question)) for question in batch]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _run(question: ToolQuestion, world: World, here: Place | None) -> ToolDone:
    with telling.span("tool", here, question.name) as inside:
        started_ns = world.now()
        with telling.at(inside):
            answer = await world.run_tool(question)
        done = ToolDone(question, answer, max(world.now() - started_ns, 0))
        telling.tool(inside, started_ns, done)
    return done
