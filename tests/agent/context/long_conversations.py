"""Shared helpers of the tests of long conversations: responses with token counts, tools, and runs with a small
window.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentobs.agent.context import Context
from agentobs.agent.events import Event
from agentobs.agent.state import Conversation
from agentobs.agent.tools.tool import Tool, tool
from tests.agent.agent_runs import events_of
from tests.agent.provider import Provider, Reply, call, error, message, streamed, text

SMALL = Context(window_tokens=3000, summary_tokens=500, reserve_tokens=500, kept_results=1)
"""A context whose window allows a conversation of 2,000 tokens."""
TOO_LONG = error(
    400, "invalid_request_error", text="prompt is too long: 210000 tokens > 200000 maximum"
)
TOO_LARGE = error(
    413, "request_too_large"
)  # synthetic: recorded traffic does not contain this error
THOUGHT = {"type": "thinking", "thinking": "Hm", "signature": "c2lnbmVkIQ=="}


@tool(read_only=True, paths=("where",))
def look(where: str) -> str:
    """Look into a file."""
    return f"{where}: " + "y" * 2450


@tool(read_only=True)
def peek(where: str) -> str:
    """Look at something small."""
    return where


def response_of(tokens: int, *content: dict[str, Any], **more: Any) -> Reply:
    """Return a response whose usage states that the conversation has this many tokens."""
    usage = {"input_tokens": tokens - 10, "output_tokens": 10}
    return streamed(message(*content, usage=usage, **more))


DONE = response_of(300, text("Done."))
SUMMARY = response_of(2500, text("They looked at files."))


def look_responses(*tokens: int, of: str = "look") -> list[Reply]:
    """Return responses that each read a file; the files are named a, b, c ..."""
    letters = "abcdefghijklmnop"
    return [
        response_of(count, {**THOUGHT}, call(f"toolu_{letter}", of, where=f"{letter}.txt"))
        for count, letter in zip(tokens, letters, strict=False)
    ]


def run_agent(
    replies: Sequence[Reply],
    *,
    tools: Sequence[Tool] = (look, peek),
    conversation: Conversation | None = None,
    prompt: str = "Hello",
    **changes: Any,
) -> tuple[list[Event], list[dict[str, Any]]]:
    """Run the agent; return its events and the requests."""
    changes = {"context": SMALL, **changes}
    with Provider(replies) as provider:
        events = events_of(provider, prompt, tools=tools, conversation=conversation, **changes)
    return events, provider.requests


def results(request: dict[str, Any]) -> list[Any]:
    return [
        block["content"]
        for each in request["messages"]
        if isinstance(each["content"], list)
        for block in each["content"]
        if block["type"] == "tool_result"
    ]


def long_responses(turns: int) -> list[Reply]:
    """Return responses with so much text that trimming, or dropping a few groups, is not enough; then a final
    response.
    """
    long = text("z" * 3600)
    texts = [
        response_of(1200 * (n + 1), THOUGHT, long, call(f"toolu_{n}", "peek", where=f"{n}.txt"))
        for n in range(turns)
    ]
    return [*texts, DONE]


def blocks_of(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return content if isinstance(content, list) else [text(content)]


def before(turns: int, size: int = 3000, response_chars: int = 0) -> list[dict[str, Any]]:
    """Return a conversation of this many turns, each of which reads a file."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Find the key."}]
    for n in range(turns):
        outcome = {"type": "tool_result", "tool_use_id": f"t{n}", "content": "y" * size}
        messages += [
            {
                "role": "assistant",
                "content": [
                    text("So." + "z" * response_chars),
                    call(f"t{n}", "look", where=f"{n}.txt"),
                ],
            },
            {"role": "user", "content": [outcome]},
        ]
    return [*messages, {"role": "assistant", "content": [text("Not found. " + "z" * size)]}]
