"""An agent in a separate process that is killed while it runs, or that resumes a session.

Usage: `python -m tests.agent.killed_agent URL WHEN [SESSION]`. WHEN is `answered` (killed before any tool ran) or
`later` (killed while the tool `crash` runs). If SESSION is given, that session is resumed. Prints one JSON object if
the process is not killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys

from anthropic import AsyncAnthropic

import agentobs
from agentobs import wiring
from agentobs.agent import Conversation, Message, Result, live_world, resumed, run, tool
from agentobs.agent.sub_agents.starter import sub_agents
from agentobs.agent.tools.agent_definitions import AgentDefinition
from agentobs.recording.session import start_recorder
from tests.agent.agent_runs import options

MODEL = "claude-sonnet-4-6"


def die() -> None:
    """Kill the process as soon as everything that was recorded is in the journal."""
    recorder = start_recorder()
    assert recorder is not None
    assert recorder.flush(20)
    os.kill(os.getpid(), signal.SIGKILL)


@tool
def write(what: str) -> str:
    """Write something."""
    return f"wrote {what}"


@tool
def crash() -> str:
    """Kill the process."""
    die()
    return "still there"


async def main(url: str, when: str, earlier: str | None) -> None:
    tools = [
        write,
        crash,
        sub_agents([AgentDefinition("scout", "Finds things.", tools=("crash",))]),
    ]
    client = agentobs.record(AsyncAnthropic(api_key="made-up", base_url=url))
    with agentobs.session("killed") as session:
        world = live_world(client, tools, load=wiring.load_conversation)
        conversation = await resumed(world, earlier) if earlier else Conversation()
        before = str(conversation.meter.total().usd)
        agents = {name: child.messages for name, child in conversation.children.items()}
        running = run(
            "Go", world=world, options=options(model=MODEL), tools=tools, conversation=conversation
        )
        async for event in running:
            if isinstance(event, Message) and when == "answered":
                die()
            if isinstance(event, Result):
                report = {
                    "session_id": session.session_id,
                    "text": event.text,
                    "before": before,
                    "error": event.error_text,
                }
                print(
                    json.dumps(
                        {**report, "agents": agents, "after": str(conversation.meter.total().usd)}
                    )
                )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None))
