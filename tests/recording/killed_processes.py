"""Processes that record and are killed: `python -m tests.recording.killed_processes WHAT ...`.

They print what was acknowledged.

- `stream URL`: reads a streamed response with a real client until it is killed; prints `running` after the first event.
- `tool URL FILE`: runs the agent loop with a tool that writes FILE and then kills the process, without waiting.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def stream(url: str) -> None:
    """Read a stream that the provider holds back, until the process is killed."""
    import anthropic

    import agentobs

    client = agentobs.record(anthropic.Anthropic(api_key="made-up", base_url=url, max_retries=0))
    with agentobs.session("killed"):
        stream = client.messages.create(
            model="claude-sonnet-5",
            max_tokens=64,
            messages=[{"role": "user", "content": "Hello"}],
            stream=True,
        )
        for event in stream:
            if event.type == "content_block_delta":
                say("running")


def a_tool(url: str, file: str) -> None:
    """Run the agent loop with a tool that writes a file and then kills the process."""
    from anthropic import AsyncAnthropic

    import agentobs
    from agentobs.agent import live_world, run
    from agentobs.agent import tool as as_tool
    from agentobs.recording.journal.file_system import Files
    from agentobs.recording.options import Options
    from tests.agent.agent_runs import options

    @as_tool
    def effect() -> str:
        """Write a file."""
        Path(file).write_text("done")
        recorder = agentobs.recording.session.start_recorder()
        assert recorder is not None
        say(f"late {recorder.statistics().late}")
        os.kill(os.getpid(), signal.SIGKILL)
        return ""

    def slowly(descriptor: int, data: memoryview) -> int:
        if b" tool_uses " in bytes(data):
            # If the agent did not wait for the sync, the tool would kill the process during this pause.
            time.sleep(0.1)
        return os.write(descriptor, data)

    async def main() -> None:
        agentobs.start(options=Options(files=Files(write=slowly)))
        client = agentobs.record(AsyncAnthropic(api_key="made-up", base_url=url))
        with agentobs.session("killed"):
            world = live_world(client, [effect])
            agent_options = options(model="claude-sonnet-4-6")
            async for _ in run("Go", world=world, options=agent_options, tools=[effect]):
                pass

    asyncio.run(main())


if __name__ == "__main__":
    works: dict[str, Callable[..., None]] = {"stream": stream, "tool": a_tool}
    works[sys.argv[1]](*sys.argv[2:])
