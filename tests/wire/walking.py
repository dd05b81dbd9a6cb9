"""Walking recorded conversations with the agent loop: its prompts, its tools' recorded results, its answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from anthropic import AsyncAnthropic

from agentobs.agent.events import Message, Result
from agentobs.agent.execution.tool_runner import live_tools
from agentobs.agent.loop import live_world, run
from agentobs.agent.permissions import Permissions
from agentobs.agent.state import Conversation, Options
from agentobs.agent.tools.tool import Tool, declared
from agentobs.records.exchanges import ToolAnswer, ToolQuestion
from tests.wire.corpus import Exchange, WireFile, blocks, continued

SERVER_TOOLS = ("web_search", "web_fetch", "code_execution", "tool_search", "advisor")
"""What the types of tools begin with that the provider runs."""
SECONDS = 30.0
"""How long an answer may take; also keeps the SDK from demanding a stream for a long one."""
NO_RESULT = ToolAnswer("no result was recorded", is_error=True, outcome="failed")


def runs_on_client(file: WireFile) -> bool:
    """Whether the client runs every tool that the file declares."""
    bodies = [e.body for e in file.exchanges if isinstance(e.body, dict)]
    types = [str(tool.get("type")) for e in file.exchanges for tool in e.tools]
    remote = any(body.get("mcp_servers") or body.get("container") for body in bodies)
    return not remote and not any(kind.startswith(SERVER_TOOLS) for kind in types)


def conversations(file: WireFile) -> list[list[int]]:
    """Return the file's conversations of two questions and more, each as the numbers of its exchanges."""
    before = continued(file.exchanges)
    paths = []
    for last in set(range(len(before))) - set(before):
        path: list[int] = []
        at: int | None = last
        while at is not None:
            path.insert(0, at)
            at = before[at]
        if len(path) > 1:
            paths.append(path)
    return paths


async def walk(client: AsyncAnthropic, path: Sequence[Exchange]) -> None:
    """Give the loop the first prompt, and each later one when it has answered the one before."""
    talk = Conversation(messages=tuple(path[0].messages[:-1]))
    heard = 0
    while heard < len(path):
        prompt = path[heard].messages[-1]["content"]
        if heard and _holds_results(path[heard].messages[-1]):
            return
        answers, failed = await _run(client, prompt, path, heard, talk)
        heard += answers
        if failed:
            return


async def _run(
    client: AsyncAnthropic, prompt: Any, path: Sequence[Exchange], first: int, talk: Conversation
) -> tuple[int, bool]:
    """Run the loop on a prompt, until it ends or has heard the last recorded answer."""
    world = replace(live_world(client), run_tool=_recorded_results(path))
    heard, failed = 0, False

    def tools() -> list[Tool]:
        """Those of the request that comes next: clients change them between turns."""
        return [declared(declaration, dict) for declaration in path[first + heard].tools]

    running = run(
        prompt, world=world, options=_options(path[first]), tools=tools, conversation=talk
    )
    async with aclosing(running) as events:
        async for event in events:
            heard += isinstance(event, Message)
            failed = isinstance(event, Result) and event.error is not None
            if first + heard == len(path):
                break
    return heard, failed


def _options(exchange: Exchange) -> Options:
    ours = ("model", "max_tokens", "system", "messages", "tools", "stream")
    body = exchange.body
    return Options(
        model=body["model"],
        max_tokens=body["max_tokens"],
        system=body.get("system"),
        stream=exchange.is_stream,
        max_retries=0,
        permissions=Permissions(mode="bypassPermissions", bypass_confirmed=True),
        extra={key: value for key, value in body.items() if key not in ours},
    )


def _recorded_results(path: Sequence[Exchange]) -> Callable[[ToolQuestion], Awaitable[ToolAnswer]]:
    """Answer each call by a tool that returns what was recorded; an error as it was told."""
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

        async def returns(_: dict[str, Any]) -> Any:
            return result["content"]

        live = live_tools([declared({"name": question.name}, returns)])
        return await live.run_tool(question)

    return run_tool


def _holds_results(message: dict[str, Any]) -> bool:
    return any(block["type"] == "tool_result" for block in blocks(message))
