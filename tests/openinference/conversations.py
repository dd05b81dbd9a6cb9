"""Conversations of an agent that uses only the SDK of Anthropic. They run in two environments with different SDKs."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import anthropic

MODEL = "claude-sonnet-5"
TOOLS: list[Any] = [
    {
        "name": "weather",
        "description": "Return the weather of a city.",
        "input_schema": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
    {"name": "clock", "description": "Return the time.", "input_schema": {"type": "object"}},
]


def ask(client: Any) -> None:
    """Send a prompt as a string, and get a response that is not streamed."""
    client.messages.create(
        model=MODEL,
        max_tokens=64,
        system="You are brief.",
        stop_sequences=["STOP"],
        metadata={"user_id": "user-1"},
        messages=[{"role": "user", "content": "Hello"}],
        extra_body={"temperature": 0.5},
    )


def stream(client: Any) -> None:
    """Get a response with thinking as a stream, from the helper of the SDK and from its events."""
    prompt = [{"role": "user", "content": [{"type": "text", "text": "Think of a number"}]}]
    thinking = {"type": "enabled", "budget_tokens": 1024}
    parameters = {"model": MODEL, "max_tokens": 2048, "thinking": thinking, "messages": prompt}
    with client.messages.stream(**parameters) as events:
        events.get_final_message()
    for _ in client.messages.create(**parameters, stream=True):
        pass


def call_tools(client: Any) -> None:
    """Run two tools, one of which fails, and send their results with an instruction and an image."""
    messages: list[Any] = [{"role": "user", "content": "What is the weather in Rome?"}]
    parameters = {"model": MODEL, "max_tokens": 64, "tools": TOOLS}
    choice = {"type": "any", "disable_parallel_tool_use": False}
    answer = client.messages.create(**parameters, tool_choice=choice, messages=messages)
    calls = [block for block in answer.content if block.type == "tool_use"]
    results: list[Any] = [run_tool(block) for block in calls]
    image = {"type": "url", "url": "https://example.com/rome.png"}
    more = [{"type": "text", "text": "Answer in one word."}, {"type": "image", "source": image}]
    messages.append({"role": "assistant", "content": answer.content})
    messages.append({"role": "user", "content": [*results, *more]})
    with client.messages.stream(**parameters, messages=messages) as events:
        events.get_final_message()


def run_tool(block: Any) -> dict[str, Any]:
    """Return the result of a tool call; only one city has weather."""
    result = {"type": "tool_result", "tool_use_id": block.id}
    if block.input.get("city") != "Rome":
        return {**result, "content": "there is no such city", "is_error": True}
    return {**result, "content": [{"type": "text", "text": json.dumps({"sky": "clear"})}]}


def retry(client: Any) -> None:
    """Send a request that is answered at the second attempt."""
    prompt = [{"role": "user", "content": "Hello"}]
    client.messages.create(model=MODEL, max_tokens=64, messages=prompt)


def cache(client: Any) -> None:
    """Send a prompt that is written to the cache and read from it."""
    system = [{"type": "text", "text": "Long.", "cache_control": {"type": "ephemeral"}}]
    prompt = [{"role": "user", "content": "Hello"}]
    for _ in range(2):
        client.messages.create(model=MODEL, max_tokens=64, system=system, messages=prompt)


def search(client: Any) -> None:
    """Get a response with a tool that the provider runs and with citations."""
    tool = {"type": "web_search_20250305", "name": "web_search"}
    prompt = [{"role": "user", "content": "Hello"}]
    client.messages.create(model=MODEL, max_tokens=64, tools=[tool], messages=prompt)


def count(client: Any) -> None:
    """Count the tokens of a prompt."""
    prompt = [{"role": "user", "content": "Hello"}]
    client.messages.count_tokens(model=MODEL, system="You are brief.", messages=prompt)


def fail(client: Any) -> None:
    """Send requests that the provider rejects."""
    prompt = [{"role": "user", "content": "Hello"}]
    with contextlib.suppress(anthropic.APIError):
        client.messages.create(model=MODEL, max_tokens=64, messages=prompt)
    with (
        contextlib.suppress(anthropic.APIError),
        client.messages.stream(model=MODEL, max_tokens=64, messages=prompt) as events,
    ):
        events.get_final_message()


CONVERSATIONS: Mapping[str, Callable[[Any], None]] = {
    each.__name__: each for each in (ask, stream, call_tools, retry, cache, search, count, fail)
}
"""The conversations by name."""
