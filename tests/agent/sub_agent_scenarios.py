"""Scenarios of the loop: agents that start sub-agents."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from pathlib import Path
from typing import Any

from agentobs.agent import (
    Abort,
    AgentDefinition,
    Budget,
    Event,
    Permissions,
    Rule,
    SubAgent,
    ToolDispatch,
    sub_agents,
    tool,
)
from tests.agent.provider import call, error, message, streamed, text
from tests.agent.scenario import ExternalInput, Scenario

DONE = message(text("Done."))
FOUND = message(text("Nothing there."))
PRICED = "claude-sonnet-4-6"


@tool(read_only=True)
def look(where: str) -> str:
    """Look somewhere."""
    return f"nothing in {where}"


@tool(subject="what")
def write(what: str) -> str:
    """Write something."""
    return f"wrote {what}"


@tool(read_only=True)
async def work() -> str:
    """Work for ever."""
    await asyncio.Event().wait()
    return ""


@tool(read_only=True)
async def pause() -> str:
    """Pause."""
    await asyncio.sleep(0.5)
    return "paused"


START = sub_agents(
    [
        AgentDefinition("scout", "Looks around.", system="You look around.", tools=("look",)),
        AgentDefinition("twin", "Does what you do.", system="You do."),
    ]
)
TOOLS = (look, write, work, pause, START)


def start(tool_use_id: str, agent: str = "scout", **more: Any) -> dict[str, Any]:
    return call(tool_use_id, "agent", agent=agent, prompt="Look in the box.", **more)


def priced(*content: dict[str, Any]) -> dict[str, Any]:
    usage = {"input_tokens": 100_000, "output_tokens": 1, "cache_read_input_tokens": 0}
    return message(*content, model=PRICED, usage=usage)


def _stopping(folder: Path) -> ExternalInput:
    """Return an external input that stops the run as soon as both agents are running."""
    abort, seen = Abort(), list[Event]()

    def on(event: Event) -> None:
        if isinstance(event, SubAgent) and isinstance(event.event, ToolDispatch):
            seen.append(event)
            if len(seen) == 2:
                abort.stop()

    return ExternalInput(abort=abort, on=on)


SCENARIOS: dict[str, Scenario] = {
    "agents": Scenario(
        "Concurrent agents send the same request and get different responses; their reports are "
        "data.",
        [
            streamed(message(start("a"), start("b"), start("c"))),
            *(streamed(message(call("x", "look", where=box))) for box in ("box", "bag", "bin")),
            *(streamed(message(text(words))) for words in ("One.", "Two.", "Three.")),
            streamed(DONE),
        ],
        TOOLS,
    ),
    "agent-of-itself": Scenario(
        "An agent starts itself down to the depth limit; there it gets an error.",
        [
            *(streamed(message(start(name, "twin"))) for name in "abcd"),
            *(streamed(FOUND) for _ in range(3)),
            streamed(DONE),
        ],
        TOOLS,
    ),
    "agent-in-background": Scenario(
        "An agent works in the background, and its result is added together with the results of the"
        " turn.",
        [
            streamed(message(start("a", run_in_background=True), call("b", "pause"))),
            streamed(FOUND),
            streamed(DONE),
        ],
        TOOLS,
    ),
    "agent-resumed": Scenario(
        "An agent that has reported is continued by its ID; an unknown ID is an error.",
        [
            streamed(message(start("a"))),
            streamed(FOUND),
            streamed(message(start("b", resume="a"))),
            streamed(message(text("I looked again."))),
            streamed(message(start("c", resume="z"))),
            streamed(DONE),
        ],
        TOOLS,
    ),
    "agent-failed": Scenario(
        "The provider rejects the request of a sub-agent; its starter gets its partial text and the"
        " reason for its end.",
        [
            streamed(message(start("a"))),
            streamed(message(text("The lid is open."), call("c", "look", where="box"))),
            error(400, "invalid_request_error"),
            streamed(DONE),
        ],
        TOOLS,
    ),
    "agents-stopped": Scenario(
        "Stopped while agents work: each agent ends in its own lane.",
        [
            streamed(message(start("a", "twin"), start("b", "twin"))),
            *(streamed(message(call("c", "work"))) for _ in range(2)),
        ],
        TOOLS,
        external_input=_stopping,
    ),
    "agent-denied": Scenario(
        "The permissions and hooks of its starter apply to a sub-agent.",
        [
            streamed(message(start("a", "twin"))),
            streamed(message(call("c", "write", what="secret"))),
            streamed(FOUND),
            streamed(DONE),
        ],
        TOOLS,
        options={"permissions": Permissions(rules=(Rule("deny", "write", "secret", "user"),))},
    ),
    "agent-out-of-money": Scenario(
        "A sub-agent exhausts the budget of its starter; both end.",
        [
            streamed(priced(start("a", "twin"))),
            streamed(priced(call("c", "look", where="box"))),
        ],
        TOOLS,
        options={"model": PRICED, "budget": Budget(interaction_usd=Decimal("0.5"))},
    ),
}
