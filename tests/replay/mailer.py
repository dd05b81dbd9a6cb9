"""An agent of the agent loop that needs answers from the world: approvals, paths, and messages sent during the run."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from anthropic import AsyncAnthropic

import agentobs
from agentobs.agent.events import Event
from agentobs.agent.execution.live_answers import Consent, Inbox, Reply
from agentobs.agent.loop import live_world, run
from agentobs.agent.run_result import Result
from agentobs.agent.state import AgentOptions
from agentobs.agent.tools.tool import Tool, tool
from agentobs.records.exchanges import Answer, Recording
from agentobs.world import Abort
from replay import Fixture
from tests.provider_script import MODEL, call, streamed, text
from tests.replay.agents import KEY, frozen, recorded

On = Callable[["Mailer", Event], None]
Person = Callable[["Mailer", Consent], Reply]


def send(to: str, body: str = "") -> str:
    """Send a mail."""
    if to == "broken":
        raise ConnectionError("no such server")
    return f"sent to {to}"


def save(path: str) -> str:
    """Save the draft."""
    return f"saved {path}"


SEND = tool(send)
LOOK = tool(read_only=True, name="look")(lambda: "two mails")
SAVE = tool(paths=("path",), tool_class="edit")(save)
FAX = tool(available=lambda: True, optional=True, name="fax")(lambda: "faxed")


class Mailer:
    """The agent, with options for changes that a later version might make."""

    def __init__(self, url: str | None = None, **changes: Any) -> None:
        self.url = url
        self.tools: Sequence[Tool] = changes.get("tools", (SEND, LOOK, SAVE))
        self.options: dict[str, Any] = changes.get("options", {})
        self._person: Person = changes.get("person", approves)
        self._on: On = changes.get("on", lambda agent, event: None)
        self.inbox, self.abort = Inbox(), Abort()
        self.events: list[Event] = []

    def person(self, consent: Consent) -> Reply:
        return self._person(self, consent)

    async def answer(self, prompt: str) -> str:
        """Run one interaction and return its text."""
        client = agentobs.record(AsyncAnthropic(api_key=KEY, base_url=self.url, max_retries=0))
        world = live_world(
            client, self.tools, person=self.person, inbox=self.inbox, abort=self.abort
        )
        options = AgentOptions(model=MODEL, max_tokens=99, **self.options)
        with agentobs.session("mailer"):
            running = run(prompt, world=world, options=options, tools=self.tools)
            async with contextlib.aclosing(running) as events:
                async for event in events:
                    self.events.append(event)
                    self._on(self, event)
        last = self.events[-1]
        assert isinstance(last, Result)
        return f"{last.terminal_reason}: {last.text}"

    def run(self, prompt: str = "Mail them.") -> str:
        return asyncio.run(self.answer(prompt))


def approves(agent: Mailer, consent: Consent) -> Reply:
    return Reply(allow=True)


def mails(*to: str) -> list[Answer]:
    """Return a turn that sends mails, with one tool call for each recipient, and a final turn."""
    calls = [call(number, "send", to=each) for number, each in enumerate(to, 1)]
    return [streamed(text("Mailing."), *calls, number=1), streamed(text("Done."), number=2)]


def recorded_fixture(
    tmp_path: Path, responses: Sequence[Answer], **changes: Any
) -> tuple[Fixture, Mailer, str]:
    """Record and freeze one run; return the fixture, the agent, and its result."""
    recording, agent, results = recorded_run(tmp_path, responses, **changes)
    return frozen(tmp_path, recording, "mailer"), agent, results


def recorded_run(
    tmp_path: Path, responses: Sequence[Answer], **changes: Any
) -> tuple[Recording, Mailer, str]:
    """Record one run; return the recording, the agent, and its result."""
    agents: list[Mailer] = []
    results: list[str] = []

    def run_it(url: str) -> None:
        agents.append(Mailer(url, **changes))
        results.append(agents[0].run())

    return recorded(tmp_path, run_it, responses), agents[0], results[0]
