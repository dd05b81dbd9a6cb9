"""A scripted provider for `tests.replay.coding_agent`, which records the exchanges."""

from __future__ import annotations

import dataclasses
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from agentobs import world
from agentobs.provider.server_events import server_events
from agentobs.recording.wire.provider_server import Script, ServedProvider
from agentobs.records.exchanges import Answer, Chunk, ModelExchange, Place, Question, Recording
from tests.provider_script import script, sse, streamed, text

AGENTS = 4
PROGRAM = Path(__file__).with_name("coding_agent.py")
COMMAND = (sys.executable, str(PROGRAM))


def recording_of(exchanges: tuple[ModelExchange, ...]) -> Recording:
    return dataclasses.replace(script(), exchanges=exchanges)


class RecordingScript(Script):
    """Answers the coding agent in `directory`, and keeps the exchanges."""

    request_headers: tuple[str, ...] = ("x-claude-code-agent-id", "x-claude-code-session-id")

    def __init__(self, directory: Path) -> None:
        super().__init__(script(), "order")
        self.directory = directory
        self.made: list[ModelExchange] = []
        self.agents = 0

    def take(self, question: Question) -> ModelExchange | None:
        body = json.loads(question.body)
        with self._lock:
            number = len(self.made) + 1
            answer = split_stream(streamed(*self._blocks(body), number=number))
            started = world.now()
            exchange = ModelExchange(
                Place("recorded"), f"{number:032x}", started, None, started + 1, question, answer
            )
            self.made.append(exchange)
        return exchange

    def _blocks(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        messages = body["messages"]
        turns = sum(
            one["role"] == "assistant" and other["role"] == "user"
            for one, other in itertools.pairwise(messages)
        )
        if "tools" not in body:
            return [text("A title")]
        if "sub-agent" in body["system"][1]["text"]:
            if turns == 0:
                self.agents += 1
                path = str(self.directory / f"{self.agents % AGENTS}.txt")
                return [
                    text(f"I read {path}."),
                    _call(f"toolu_read{self.agents}", "Read", path=path),
                ]
            return [text(f"It contains {messages[-1]['content'][0]['content']}")]
        prompt = "Look at a file, and report its text."
        steps = [
            [text("Looking."), _call("toolu_pwd", "Bash", command="pwd; cat 1.txt")],
            [
                _call(f"toolu_agent{n}", "Agent", description=f"look {n}", prompt=prompt)
                for n in range(AGENTS)
            ],
            [_call("toolu_task", "Bash", command="sleep 1", background=True)],
            [_call("toolu_write", "Write", path=str(self.directory / "out.txt"), text="done\n")],
            [text(f"All files in {self.directory} are read.")],
        ]
        return steps[turns]


def _call(call_id: str, name: str, **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": given}


def split_stream(answer: Answer, size: int = 7) -> Answer:
    """Return a stream in which each delta has at most `size` characters of text, in chunks of 100 bytes."""
    events: list[dict[str, Any]] = []
    for event in server_events(answer.body):
        value = json.loads(event.data)
        delta = value.get("delta", {})
        key = next((key for key in ("text", "partial_json") if key in delta), None)
        if key is None:
            events.append(value)
            continue
        for at in range(0, len(delta[key]), size):
            events.append({**value, "delta": {**delta, key: delta[key][at : at + size]}})
    body = b"".join(sse(*events))
    chunks = tuple(Chunk(body[at : at + 100], at) for at in range(0, len(body), 100))
    return dataclasses.replace(answer, chunks=chunks)


def prepared(folder: Path) -> Path:
    """Create the directories of a run, and return the working directory."""
    for name in ("work", "configuration", "temporary"):
        (folder / name).mkdir(parents=True)
    work = folder / "work"
    for number in range(AGENTS):
        (work / f"{number}.txt").write_text(f"file {number}\n")
    return work


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Return the environment of a run, apart from the provider."""
    return {
        **world.environment(),
        "CLAUDE_CONFIG_DIR": str(folder / "configuration"),
        "TMPDIR": str(folder / "temporary"),
        **more,
    }


def run(url: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the coding agent in the directories of `folder`."""
    return subprocess.run(
        COMMAND,
        cwd=folder / "work",
        env=environment(folder, ANTHROPIC_BASE_URL=url, **more),
        capture_output=True,
        text=True,
        timeout=60,
    )


def recorded(folder: Path, **more: str) -> Recording:
    """Run the coding agent with the scripted provider, and return its recording."""
    work = prepared(folder)
    answering = RecordingScript(work)
    with ServedProvider(script(), script=answering) as provider:
        ended = run(provider.url, folder, **more)
    assert ended.returncode == 0, ended.stderr
    return recording_of(tuple(answering.made))
