"""Runs the agent loop on recorded conversations, with their prompts, tool results and responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from anthropic import AsyncAnthropic

from agentobs.agent.events import Message
from agentobs.agent.execution.tool_runner import live_tools
from agentobs.agent.loop import live_world, run
from agentobs.agent.permissions import Permissions
from agentobs.agent.run_result import Result
from agentobs.agent.state import AgentOptions, Conversation
from agentobs.agent.tools.tool import Tool, declared
from agentobs.records.exchanges import ToolAnswer, ToolQuestion
from tests.wire.corpus import Exchange, WireFile, blocks, continued_responses

SERVER_TOOLS = ("web_search", "web_fetch", "code_execution", "tool_search", "advisor")
"""Prefixes of the types of tools that the provider runs."""
SECONDS = 30.0
"""Timeout of one response. With a timeout, the SDK does not insist on a stream for a long response."""
NO_RESULT = ToolAnswer("no result was recorded", is_error=True, outcome="failed")


def runs_on_client(file: WireFile) -> bool:
    """Return whether the client runs all tools that the file declares."""
    bodies = [e.body for e in file.exchanges if isinstance(e.body, dict)]
    types = [str(tool.get("type")) for e in file.exchanges for tool in e.tools]
    remote = any(body.get("mcp_servers") or body.get("container") for body in bodies)
    return not remote and not any(kind.startswith(SERVER_TOOLS) for kind in types)


def conversations(file: WireFile) -> list[list[int]]:
    """Return the file's conversations with at least two requests, each as the numbers of its exchanges."""
    continued = continued_responses(file.exchanges)
    paths = []
    for last in set(range(len(continued))) - set(continued):
        path: list[int] = []
        at: int | None = last
        while at is not None:
            path.insert(0, at)
            at = continued[at]
        if len(path) > 1:
            paths.append(path)
    return paths


async def run_conversation(client: AsyncAnthropic, path: Sequence[Exchange]) -> None:
    """Run the loop on each prompt of a conversation, one after the other."""
    conversation = Conversation(messages=tuple(path[0].messages[:-1]))
    received = 0
    while received < len(path):
        prompt = path[received].messages[-1]["content"]
        if received and _has_results(path[received].messages[-1]):
            return
        responses, failed = await _run(client, prompt, path, received, conversation)
        received += responses
        if failed:
            return


async def _run(
    client: AsyncAnthropic,
    prompt: Any,
    path: Sequence[Exchange],
    first: int,
    conversation: Conversation,
) -> tuple[int, bool]:
    """Run the loop on a prompt until the loop ends or has received the last recorded response.

    Returns the number of responses, and whether the run failed.
    """
    world = replace(live_world(client), run_tool=_recorded_results(path))
    received, failed = 0, False

    def tools() -> list[Tool]:
        """Return the tools of the next request, because clients change their tools between turns."""
        return [declared(declaration, dict) for declaration in path[first + received].tools]

    running = run(
        prompt, world=world, options=_options(path[first]), tools=tools, conversation=conversation
    )
    async with aclosing(running) as events:
        async for event in events:
            received += isinstance(event, Message)
            failed = isinstance(event, Result) and event.error is not None
            if first + received == len(path):
                break
    return received, failed


def _options(exchange: Exchange) -> AgentOptions:
    set_by_loop = ("model", "max_tokens", "system", "messages", "tools", "stream")
    body = exchange.body
    return AgentOptions(
        model=body["model"],
        max_tokens=body["max_tokens"],
        system=body.get("system"),
        stream=exchange.is_stream,
        max_retries=0,
        permissions=Permissions(mode="bypassPermissions", bypass_confirmed=True),
        extra={key: value for key, value in body.items() if key not in set_by_loop},
    )


def _recorded_results(path: Sequence[Exchange]) -> Callable[[ToolQuestion], Awaitable[ToolAnswer]]:
    """Return a function that executes each tool call with its recorded result or error."""
    results = {
        block["tool_use_id"]: block
        for exchange in path
        for message in exchange.messages
        for block in blocks(message)
        if block["type"] == "tool_result"
    }

    async def run_tool(question: ToolQuestion) -> ToolAnswer:
        result = results.get(question.tool_use_id)
        if result is None:
            return NO_RESULT
        if result.get("is_error"):
            return ToolAnswer(result["content"], is_error=True, outcome="failed")

        async def recorded_result(_: dict[str, Any]) -> Any:
            return result["content"]

        live = live_tools([declared({"name": question.name}, recorded_result)])
        return await live.run_tool(question)

    return run_tool


def _has_results(message: dict[str, Any]) -> bool:
    return any(block["type"] == "tool_result" for block in blocks(message))
