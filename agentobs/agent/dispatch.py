"""Dispatch: running the tool calls of one turn, and answering them with real functions.

Neighbouring calls that only read run together; every other call runs alone, in its turn.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any

from anthropic import AnthropicError

from agentobs.agent import telling
from agentobs.agent.events import ToolDispatch, ToolDone
from agentobs.agent.recovery import PROVIDER_ERRORS
from agentobs.agent.tools import Tool, bind, render
from agentobs.records.exchanges import Place, ToolAnswer, ToolQuestion
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


def live_tools(tools: Sequence[Tool]) -> Callable[[ToolQuestion], Awaitable[ToolAnswer]]:
    """Return what answers tool calls by running these tools.

    Whatever goes wrong becomes an answer that helps the model. A plain function runs in a thread, with
    the caller's context; after its time is up nobody waits for it, but it cannot be stopped.
    """
    by_name = {tool.name: tool for tool in tools}

    async def run_tool(question: ToolQuestion) -> ToolAnswer:
        tool = by_name.get(question.name)
        if tool is None:
            known = ", ".join(by_name) or "none"
            text = f"There is no tool named {question.name!r}. The tools are: {known}."
            return ToolAnswer(text, is_error=True, outcome="unknown")
        try:
            call = bind(tool, question.input)
        except Exception as error:
            text = f"The input of {tool.name} does not fit:\n{error}"
            return ToolAnswer(render(text), is_error=True, outcome="invalid")
        return await _answer(tool, call)

    return run_tool


async def _answer(tool: Tool, call: Callable[[], Any]) -> ToolAnswer:
    limit = asyncio.timeout(tool.timeout_s)
    try:
        async with limit:
            result = await _result(tool, call)
        return ToolAnswer(render(result))
    except Exception as error:
        # A replay that differs from its recording, met by a tool that asks the model: not the tool's fault.
        if isinstance(error, AnthropicError) and not isinstance(error, PROVIDER_ERRORS):
            raise
        if isinstance(error, TimeoutError) and limit.expired():
            text = f"{tool.name} did not finish within {tool.timeout_s:g} seconds and was given up."
            return ToolAnswer(text, is_error=True, outcome="timeout")
        text = f"{tool.name} failed with {type(error).__name__}: {error}"
        return ToolAnswer(render(text), is_error=True, outcome="failed")


async def _result(tool: Tool, call: Callable[[], Any]) -> Any:
    is_async = inspect.iscoroutinefunction(tool.function)
    result = call() if is_async else await asyncio.to_thread(call)
    return await result if inspect.isawaitable(result) else result


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
