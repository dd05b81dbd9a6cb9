"""An agent with scripted responses that changes files. Each response waits for the snapshot of its request."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import httpx2
import pytest
from anthropic import Anthropic

import agentobs
from agentobs.effects.switches import OBSERVERS
from agentobs.effects.workspaces.observer import FileObserver

MODEL = "claude-sonnet-5"
TOOLS: Any = [
    {"name": name, "description": name, "input_schema": {"type": "object"}}
    for name in (
        *("write", "edit", "remove", "move", "shell", "look", "task", "Read"),
        *("run", "mcp__calc__add"),
    )
]
Call = tuple[str, dict[str, Any]]
Script = Mapping[str, Sequence[Sequence[Call]]]
"""The calls of each response, by the prompt of a conversation; after the last one the response is a text."""


class Provider:
    """Responds by a script; each response is held until the snapshot of its request has ended."""

    def __init__(self, script: Script) -> None:
        """Respond by `script`."""
        self._script = script
        self.observers: list[FileObserver] = []
        self.before_response: Callable[[str, int], None] = lambda prompt, turn: None
        """Is called with the prompt of the conversation and the number of the turn."""
        self.waits = True

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        """Respond to one request."""
        messages = json.loads(request.content)["messages"]
        prompt = str(messages[0]["content"])
        turn = sum(each["role"] == "assistant" for each in messages) + 1
        for observer in self.observers:
            assert not self.waits or observer.settle(60)
        self.before_response(prompt, turn)
        turns = self._script[prompt]
        calls = turns[turn - 1] if turn <= len(turns) else []
        slug = prompt.replace(" ", "-")
        content: list[dict[str, Any]] = [
            {"type": "tool_use", "id": call_id(slug, turn, at), "name": name, "input": value}
            for at, (name, value) in enumerate(calls)
        ]
        body = {
            "id": f"msg_{slug}{turn}",
            "type": "message",
            "role": "assistant",
            "model": MODEL,
            "content": content or [{"type": "text", "text": f"Done: {prompt}."}],
            "stop_reason": "tool_use" if calls else "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }
        return httpx2.Response(200, json=body)


def call_id(prompt: str, turn: int, at: int = 0) -> str:
    """Return the ID of a call in a form of the provider's."""
    number = sum(ord(each) * (place + 7) for place, each in enumerate(prompt)) % 100_000
    return f"toolu_{number}_{turn}_{at}"


class Agent:
    """Runs the tools of the script in a workspace; `task` starts concurrent sub-agents."""

    def __init__(self, root: Path, provider: Provider) -> None:
        """Work in `root`."""
        self.root, self.provider = root, provider
        self.client = agentobs.record(
            Anthropic(
                api_key="made-up",
                base_url="http://127.0.0.1:9",
                max_retries=0,
                http_client=httpx2.Client(transport=httpx2.MockTransport(provider)),
            )
        )
        self.servers: dict[str, Callable[[str, dict[str, Any]], str]] = {}
        """Calls a tool of an MCP server, by the name of the server."""
        self.after_tools: Callable[[str, int], None] = lambda prompt, turn: None
        """Is called when the tools of a turn have run."""

    def run(self, prompt: str) -> str:
        """Run one conversation to its end."""
        messages: list[Any] = [{"role": "user", "content": prompt}]
        turn = 0
        while True:
            turn += 1
            response: Any = self.client.messages.create(
                model=MODEL, max_tokens=100, messages=messages, tools=TOOLS
            )
            messages.append(
                {"role": "assistant", "content": [e.model_dump() for e in response.content]}
            )
            calls = [each for each in response.content if each.type == "tool_use"]
            if not calls:
                return str(response.content[0].text)
            results: list[Any] = [None] * len(calls)
            tasks = [
                threading.Thread(target=self._task, args=(results, at, call.input))
                for at, call in enumerate(calls)
                if call.name == "task"
            ]
            for each in tasks:
                each.start()
            for at, call in enumerate(calls):
                if call.name != "task":
                    results[at] = self.tool(call.name, call.input)
            for each in tasks:
                each.join()
            self.after_tools(prompt, turn)
            answers = [
                {"type": "tool_result", "tool_use_id": call.id, "content": str(result)}
                for call, result in zip(calls, results, strict=True)
            ]
            messages.append({"role": "user", "content": answers})

    def _task(self, results: list[Any], at: int, value: dict[str, Any]) -> None:
        results[at] = self.run(value["prompt"])

    def tool(self, name: str, value: dict[str, Any]) -> str:
        """Run one tool."""
        path = self.root / value.get("path", ".")
        if name == "write":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(value["content"])
        elif name == "edit":
            path.write_text(path.read_text().replace(value["old_string"], value["new_string"], 1))
        elif name == "remove":
            path.unlink()
        elif name == "move":
            path.rename(self.root / value["to"])
        elif name == "shell":
            for line in value["command"].splitlines():
                verb, target, *text = line.split(" ", 2)
                if verb == "append":
                    with (self.root / target).open("a") as file:
                        file.write(text[0])
                elif verb == "rm":
                    for each in self.root.glob(target):
                        each.unlink()
        elif name == "run":
            ended = subprocess.run(
                ["sh", "-c", value["command"]], cwd=self.root, capture_output=True, check=False
            )
            return f"exit code {ended.returncode}\n{ended.stdout.decode(errors='replace')}"
        elif name.startswith("mcp__"):
            _, server, tool = name.split("__")
            return self.servers[server](tool, value)
        return "ok"


class Waiting(Protocol):
    """A provider that can wait for the snapshots of observers."""

    observers: list[FileObserver]


@contextmanager
def observed(monkeypatch: pytest.MonkeyPatch, provider: Waiting) -> Iterator[None]:
    """Let the provider know each observer of files that is created."""

    def create() -> FileObserver:
        provider.observers.append(FileObserver())
        return provider.observers[-1]

    with monkeypatch.context() as patch:
        patch.setitem(OBSERVERS, "files", create)
        yield
