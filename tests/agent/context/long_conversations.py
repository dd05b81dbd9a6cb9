"""Shared helpers of the tests of long conversations: responses with token counts, tools, and a run
in a small window.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentobs.agent.context import Context
from agentobs.agent.events import Event
from agentobs.agent.state import Conversation
from agentobs.agent.tools.tool import Tool, tool
from tests.agent.provider import Provider, Reply, call, error, message, streamed, text
from tests.agent.scene import events_of

SMALL = Context(window_tokens=3000, summary_tokens=500, reserve_tokens=500, kept_results=1)
"""A window in which a conversation has 2,000 tokens."""
TOO_LONG = error(
    400, "invalid_request_error", text="prompt is too long: 210000 tokens > 200000 maximum"
)
TOO_LARGE = error(413, "request_too_large")  # synthetic: no recorded traffic has one
THOUGHT = {"type": "thinking", "thinking": "Hm", "signature": "c2lnbmVkIQ=="}


@tool(read_only=True, paths=("where",))
def look(where: str) -> str:
    """Look into a file."""
    return f"{where}: " + "y" * 2450


@tool(read_only=True)
def peek(where: str) -> str:
    """Look at something small."""
    return where


def said(tokens: int, *content: dict[str, Any], **more: Any) -> Reply:
    """A response with which the conversation has this many tokens."""
    usage = {"input_tokens": tokens - 10, "output_tokens": 10}
    return streamed(message(*content, usage=usage, **more))


DONE = said(300, text("Done."))
SUMMARY = said(2500, text("They looked at files."))


def looks(*tokens: int, of: str = "look") -> list[Reply]:
    """Responses that each look into a file, named a, b, c ..."""
    letters = "abcdefghijklmnop"
    return [
        said(count, {**THOUGHT}, call(f"toolu_{letter}", of, where=f"{letter}.txt"))
        for count, letter in zip(tokens, letters, strict=False)
    ]


def played(
    replies: Sequence[Reply],
    *,
    tools: Sequence[Tool] = (look, peek),
    talk: Conversation | None = None,
    prompt: str = "Hello",
    **changes: Any,
) -> tuple[list[Event], list[dict[str, Any]]]:
    """Run the agent; return its events and the requests."""
    changes = {"context": SMALL, **changes}
    with Provider(replies) as provider:
        events = events_of(provider, prompt, tools=tools, conversation=talk, **changes)
    return events, provider.requests


def results(request: dict[str, Any]) -> list[Any]:
    return [
        block["content"]
        for each in request["messages"]
        if isinstance(each["content"], list)
        for block in each["content"]
        if block["type"] == "tool_result"
    ]


def heavy(turns: int) -> list[Reply]:
    """Responses with so much text that neither trimming nor dropping a little is enough, then the last one."""
    long = text("z" * 3600)
    texts = [
        said(1200 * (n + 1), THOUGHT, long, call(f"toolu_{n}", "peek", where=f"{n}.txt"))
        for n in range(turns)
    ]
    return [*texts, DONE]


def blocks_of(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return content if isinstance(content, list) else [text(content)]


def before(turns: int, size: int = 3000, said_: int = 0) -> list[dict[str, Any]]:
    """A conversation of this many turns that looked into files."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Find the key."}]
    for n in range(turns):
        outcome = {"type": "tool_result", "tool_use_id": f"t{n}", "content": "y" * size}
        messages += [
            {
                "role": "assistant",
                "content": [text("So." + "z" * said_), call(f"t{n}", "look", where=f"{n}.txt")],
            },
            {"role": "user", "content": [outcome]},
        ]
    return [*messages, {"role": "assistant", "content": [text("Not found. " + "z" * size)]}]
