"""Plain agents on the SDK, and functions that record and freeze their sessions."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from anthropic import Anthropic, AsyncAnthropic

import agentobs
from agentobs.recording.journal.home import existing_home
from agentobs.recording.journal.segments import Line, facts_path, read, segment_ids
from agentobs.recording.vault.vault import read_session
from agentobs.recording.wire.provider_server import ServedProvider, ServeOptions
from agentobs.records.exchanges import Answer, Recording
from replay import Divergence, Fixture, load
from replay.agent_code import leftover_state
from replay.freeze.conversion import freeze
from tests.provider_script import call, script, streamed, text

KEY = "sk-ant-api03-a-key-that-must-never-be-written-0001"
MODEL = "claude-sonnet-5"
TOOLS = [
    {"name": name, "description": name, "input_schema": {"type": "object", "properties": {}}}
    for name in ("weather", "clock")
]
WEATHER = {"Oslo": "rain, 4 C", "Rome": "sun, 21 C"}


def answers() -> list[Answer]:
    """Return the responses of three turns: one tool call, two tool calls, a final text."""
    return [
        streamed(text("Looking."), call(1, "weather", city="Oslo"), number=1),
        streamed(call(2, "weather", city="Rome"), call(3, "clock", zone="UTC"), number=2),
        streamed(text("Oslo is wet."), number=3),
    ]


class Agent:
    """A plain agent loop on the SDK, with options for changes that a later version might make."""

    def __init__(self, url: str | None = None, **changes: Any) -> None:
        self.changes = {"weather": WEATHER, "system": "Be brief.", "tools": TOOLS, **changes}
        self.options: dict[str, Any] = {"api_key": changes.get("key", KEY), "base_url": url}
        if self.options["api_key"] is None:
            del self.options["api_key"]

    def ask(self) -> dict[str, Any]:
        extra = self.changes.get("extra", {})
        return {
            "model": MODEL,
            "max_tokens": 64,
            "system": self.changes["system"],
            "tools": self.changes["tools"],
            **extra,
        }

    def tool(self, block: Any) -> str:
        if block.name == "clock":
            return str(self.changes.get("clock", "12:00"))
        return str(self.changes["weather"][block.input["city"]])

    def answer(self, prompt: str) -> str:
        """Run the loop and return the last text."""
        client = agentobs.record(Anthropic(max_retries=1, **self.options))
        messages: list[Any] = [{"role": "user", "content": prompt}]
        with agentobs.session("weather-agent"):
            while True:
                with client.messages.stream(messages=messages, **self.ask()) as stream:
                    message = stream.get_final_message()
                calls = [block for block in message.content if block.type == "tool_use"]
                if not calls:
                    return "".join(b.text for b in message.content if b.type == "text")
                messages += [
                    {"role": "assistant", "content": [b.to_dict() for b in message.content]},
                    {"role": "user", "content": [self.result(block) for block in calls]},
                ]

    def result(self, block: Any) -> dict[str, Any]:
        return {"type": "tool_result", "tool_use_id": block.id, "content": self.tool(block)}


def recorded(
    tmp_path: Path, run: Callable[[str], Any], responses: Sequence[Answer], **options: Any
) -> Recording:
    """Run an agent against scripted responses, record it into a home below `tmp_path`, and return its last session."""
    home = tmp_path / "home"
    agentobs.stop_recorder()
    with ServedProvider(script(*responses), ServeOptions(match="order", **options)) as provider:
        from agentobs.recording.session import start_recorder

        start_recorder(str(home))
        try:
            run(provider.url)
        finally:
            assert agentobs.stop_recorder()
    leftover_state.forget()
    return last_session(home)


def last_session(path: Path) -> Recording:
    home = existing_home(path)
    segments = segment_ids(home)
    starts = [
        line.value()["session_id"]
        for each in segments
        for line in read(facts_path(home, each))
        if isinstance(line, Line) and line.kind == "session_starts"
    ]
    return read_session(home, starts[-1], segments)


def frozen(tmp_path: Path, recording: Recording, name: str = "weather") -> Fixture:
    return load(freeze(recording, tmp_path / name, {"anthropic": "test"}).fixture)


def weather(tmp_path: Path) -> Fixture:
    """Return a fixture of the plain agent's session."""
    run = recorded(tmp_path, lambda url: Agent(url).answer("How is it?"), answers())
    return frozen(tmp_path, run)


def report(divergence: Divergence) -> str:
    """Return a report without the parts that depend on the checkout: the folder of the fixture, line numbers."""
    return re.sub(
        r"(\.py):\d+ in\b", r"\1:LINE in", divergence.text().replace(divergence.path, "FIXTURE")
    )


async def ask_concurrently(url: str | None, order: Sequence[int]) -> list[str]:
    """Send three different requests concurrently, and start them in the given order."""
    client = agentobs.record(AsyncAnthropic(api_key=KEY, base_url=url, max_retries=0))

    async def ask(number: int) -> str:
        prompt = [{"role": "user", "content": f"question {number}"}]
        async with client.messages.stream(model=MODEL, max_tokens=9, messages=prompt) as stream:  # type: ignore[arg-type]
            return await stream.get_final_text()

    with agentobs.session("twins"):
        return await asyncio.gather(*(ask(number) for number in order))
