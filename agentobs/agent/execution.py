"""Execution: answering tool calls with real functions."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from anthropic import AnthropicError

from agentobs.agent.recovery import PROVIDER_ERRORS
from agentobs.agent.tools import Tool, bind, render
from agentobs.records.exchanges import ToolAnswer, ToolQuestion


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
