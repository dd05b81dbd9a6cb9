"""A sample session with many features. It is recorded once and stored, so that tests can compare complete outputs.

python -m tests.exporters.sample_session      # records it again into sample_segment/

It contains two turns with tool calls (one needed approval, one failed), a failed attempt and its retry, thinking, cache
reads and cache writes of both lifetimes, hooks, a sub-agent, and a response of a model without a price. The session
opted in to the export of content.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any

import agentobs
from agentobs.agent import Permissions
from agentobs.agent.execution.live_answers import Reply
from agentobs.agent.permissions import Rule
from agentobs.agent.sub_agents.starter import sub_agents
from agentobs.agent.tools.agent_definitions import AgentDefinition
from agentobs.recording.journal.home import Home, existing_home, open_home
from tests.agent.provider import MODEL, Provider, call, error, message, streamed, text
from tests.exporters.sample_agents import HOOKS, look, play, recording, write

FOLDER = Path(__file__).parent / "sample_segment"
PRICED = "claude-sonnet-5"


def usage(**counts: Any) -> dict[str, Any]:
    return {
        "input_tokens": 11,
        "output_tokens": 60,
        "cache_read_input_tokens": 300,
        "cache_creation_input_tokens": 70,
        "cache_creation": {"ephemeral_5m_input_tokens": 50, "ephemeral_1h_input_tokens": 20},
        **counts,
    }


def record_sample() -> None:
    """Record the session."""
    helper = AgentDefinition("helper", "Helps.", model=MODEL)
    starts = sub_agents([helper], background=False)
    calls = [
        call("toolu_1", "look", where="box"),
        call("toolu_2", "write", what="a letter"),
        call("toolu_3", "look", nowhere="x"),
    ]
    thought = {"type": "thinking", "thinking": "Let me look.", "signature": "c2ln"}
    priced: dict[str, Any] = {"model": PRICED}
    replies = [
        error(529, "overloaded_error", retry="true"),
        streamed(
            message(
                thought,
                *calls,
                stop_reason="tool_use",
                usage=usage(output_tokens_details={"thinking_tokens": 25}),
                **priced,
            )
        ),
        streamed(
            message(
                call("toolu_4", starts.name, agent="helper", prompt="Look into the box"),
                stop_reason="tool_use",
                usage=usage(input_tokens=7, cache_creation_input_tokens=0, cache_creation={}),
                **priced,
            )
        ),
        streamed(message(text("Nothing there."))),
        streamed(message(text("Done."), usage=usage(output_tokens=5), **priced)),
    ]

    async def main(provider: Provider) -> None:
        async with provider.client() as client:
            await play(
                client,
                "Write a letter",
                tools=(look, write, starts),
                model=PRICED,
                system="You write letters.",
                hooks=HOOKS,
                agent="clerk",
                permissions=Permissions(
                    rules=(
                        Rule.parse("write(*)", "ask", "user"),
                        Rule.parse(starts.name, "allow", "user"),
                    )
                ),
                live={"hooks": HOOKS, "person": lambda consent: Reply(True)},
            )

    with Provider(replies) as provider, agentobs.session("rich", content="export"):
        asyncio.run(main(provider))


def sample_home(path: Path) -> Home:
    """Return a home that contains the recorded session."""
    home = open_home(path)
    for each in FOLDER.iterdir():
        shutil.copy(each, home.segments / each.name)
    return existing_home(path)


def make() -> None:
    """Record the session again."""
    for each in FOLDER.iterdir():
        each.unlink()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        with recording(home):
            record_sample()
            agentobs.recording.session.flush()
        for each in (home / "segments").iterdir():
            shutil.copy(each, FOLDER / each.name)
    print(*sorted(each.name for each in FOLDER.iterdir()))


if __name__ == "__main__":
    make()
