"""Processes that record and are killed: `python -m tests.recording.killed WHAT ...`; what was acknowledged is printed.

- `stream URL`: a streamed answer of a real client, read for ever; `running` once something of it is there.
- `tool URL FILE`: our own loop, whose tool writes FILE and then kills the process, without waiting for anything.
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
        asked = client.messages.create(
            model="claude-sonnet-5",
            max_tokens=64,
            messages=[{"role": "user", "content": "Hello"}],
            stream=True,
        )
        for event in asked:
            if event.type == "content_block_delta":
                say("running")


def a_tool(url: str, file: str) -> None:
    """Run the loop; its tool has an effect and takes the process along at once."""
    from anthropic import AsyncAnthropic

    import agentobs
    from agentobs.agent import live_world, run
    from agentobs.agent import tool as as_tool
    from agentobs.recording.journal.file_system import Files
    from agentobs.recording.options import Options
    from tests.agent.scene import options

    @as_tool
    def effect() -> str:
        """Change something outside."""
        Path(file).write_text("done")
        recorder = agentobs.recording.session.start_recorder()
        assert recorder is not None
        say(f"late {recorder.statistics().late}")
        os.kill(os.getpid(), signal.SIGKILL)
        return ""

    def slowly(descriptor: int, data: memoryview) -> int:
        if b" tool_uses " in bytes(data):
            time.sleep(0.1)  # without waiting for it, the tool would long have run
        return os.write(descriptor, data)

    async def main() -> None:
        agentobs.start(options=Options(files=Files(write=slowly)))
        client = agentobs.record(AsyncAnthropic(api_key="made-up", base_url=url))
        with agentobs.session("killed"):
            world = live_world(client, [effect])
            asked = options(model="claude-sonnet-4-6")
            async for _ in run("Go", world=world, options=asked, tools=[effect]):
                pass

    asyncio.run(main())


if __name__ == "__main__":
    works: dict[str, Callable[..., None]] = {"stream": stream, "tool": a_tool}
    works[sys.argv[1]](*sys.argv[2:])
