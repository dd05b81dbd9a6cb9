"""A small coding agent without agentobs, run as a program: it sends what Claude Code sends, with the same variations.

Each run has new IDs of its session, sub-agents and background tasks. Requests name the working directory, the directory
of the configuration and that for temporary files. Sub-agents run in parallel. `AGENT_ORDER` contains the order in which
they start and end, such as `2,0,1`; `AGENT_PROMPT` the prompt; `AGENT_LEAK` a host to which the agent tries to connect;
`AGENT_AUTHORIZATION` another authorization than the key.
"""

from __future__ import annotations

import gzip
import http.client
import json
import os
import secrets
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

TOOLS = [
    {"name": name, "input_schema": {"type": "object"}}
    for name in ("Agent", "Bash", "Read", "Write")
]


class Session:
    """One run."""

    def __init__(self) -> None:
        self.url = urlsplit(os.environ["ANTHROPIC_BASE_URL"])
        self.id = str(uuid.uuid4())
        self.device = secrets.token_hex(32)
        self.directory = str(Path.cwd())
        self.configuration = os.environ["CLAUDE_CONFIG_DIR"]
        self.temporary = os.environ["TMPDIR"]
        self.order = [int(n) for n in os.environ.get("AGENT_ORDER", "").split(",") if n]

    def send(self, body: dict[str, Any] | None, agent: str | None = None) -> Any:
        """Send one request over a new connection, and return the message of the response."""
        assert self.url.hostname is not None
        connection = http.client.HTTPConnection(self.url.hostname, self.url.port, timeout=30)
        if body is None:
            connection.request("HEAD", self.url.path or "/")
            return connection.getresponse().read()
        identity = {"device_id": self.device, "account_uuid": "", "session_id": self.id}
        body = {**body, "metadata": {"user_id": json.dumps(identity)}, "stream": True}
        headers = {
            "content-type": "application/json",
            "content-encoding": "gzip",
            "x-api-key": os.environ.get("ANTHROPIC_API_KEY", ""),
            "anthropic-version": "2023-06-01",
            "x-claude-code-session-id": self.id,
            **({"x-claude-code-agent-id": agent} if agent else {}),
        }
        if authorization := os.environ.get("AGENT_AUTHORIZATION"):
            headers = {**headers, "x-api-key": "", "authorization": authorization}
        data = gzip.compress(json.dumps(body).encode())
        connection.request("POST", f"{self.url.path}/v1/messages?beta=true", data, headers)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        if response.status != 200:
            os.write(2, f"HTTP {response.status}: {text}\n".encode())
            os._exit(3)
        return assembled(text)

    def body(self, messages: list[Any], system: str) -> dict[str, Any]:
        environment = (
            "# Environment\nYou have been invoked in the following environment: \n"
            f" - Primary working directory: {self.directory}\n - Started: {time.time()}\n"
        )
        memory = f"You have a memory at `{self.configuration}/projects/{slug(self.directory)}/memory/`.\n"
        billing = f"x-anthropic-billing-header: cc_version=2.1.{secrets.token_hex(2)};"
        parts = [billing, f"{system}\n{memory}{environment}"]
        return {
            "model": "claude-sonnet-5",
            "max_tokens": 1000,
            "system": [{"type": "text", "text": part} for part in parts],
            "tools": TOOLS,
            "messages": messages,
        }

    def converse(self, prompt: str, system: str, agent: str | None = None, gate: Any = None) -> str:
        """Run the loop of one agent, and return its last text."""
        reminder = f"<system-reminder>\nThe time is {time.time()} in {self.id}.\n</system-reminder>"
        first = [{"type": "text", "text": reminder}, {"type": "text", "text": prompt}]
        messages: list[Any] = [{"role": "user", "content": first}]
        while True:
            last = messages[-1]["content"][-1]
            last["cache_control"] = {"type": "ephemeral"}
            if gate is not None:
                gate()
            blocks = self.send(self.body(messages, system), agent)
            last.pop("cache_control")
            messages += [{"role": "assistant", "content": [block]} for block in blocks]
            calls = [block for block in blocks if block["type"] == "tool_use"]
            if not calls:
                return "".join(block["text"] for block in blocks)
            messages.append({"role": "user", "content": self.results(calls)})

    def results(self, calls: list[Any]) -> list[Any]:
        if calls[0]["name"] == "Agent":
            return self.agents(calls)
        return [_result(call, self.run(call["name"], call["input"])) for call in calls]

    def run(self, name: str, given: dict[str, Any]) -> str:
        match name:
            case "Bash" if given.get("background"):
                task = "b" + secrets.token_hex(4)
                place = f"{self.temporary}/claude-0/{slug(self.directory)}/{self.id}/tasks/{task}.output"
                return f"Command running in background with ID: {task}. Output is being written to: {place}."
            case "Bash":
                return subprocess.run(
                    given["command"], shell=True, capture_output=True, text=True
                ).stdout
            case "Read":
                return Path(given["path"]).read_text()
            case _:
                Path(given["path"]).write_text(given["text"])
                return f"wrote {given['path']}"

    def agents(self, calls: list[Any]) -> list[Any]:
        """Run sub-agents in parallel; their first requests and their results have the order of `AGENT_ORDER`."""
        order = self.order or list(range(len(calls)))
        turns = [threading.Event() for _ in range(len(order) + 1)]
        found: dict[int, str] = {}

        def work(place: int, number: int) -> None:
            name = "a" + secrets.token_hex(8)
            turns[place].wait()
            prompt = calls[number]["input"]["prompt"]
            sent = []

            def gate() -> None:
                sent.append(1)
                if len(sent) == 2:  # the first request was answered
                    turns[place + 1].set()

            text = self.converse(prompt, "You are a sub-agent.", name, gate)
            found[number] = (
                f"{text}\nagentId: {name}\n<usage>duration_ms: {secrets.randbelow(9999)}</usage>"
            )

        threads = [threading.Thread(target=work, args=pair) for pair in enumerate(order)]
        for thread in threads:
            thread.start()
        turns[0].set()
        for thread in threads:
            thread.join()
        return [_result(calls[number], found[number]) for number in order]


def assembled(stream: str) -> list[Any]:
    """Return the content blocks of a stream."""
    blocks: list[Any] = []
    for line in stream.splitlines():
        event = json.loads(line[6:]) if line.startswith("data: ") else {}
        match event.get("type"):
            case "content_block_start":
                blocks.append({**event["content_block"], "partial": ""})
            case "content_block_delta":
                delta = event["delta"]
                blocks[event["index"]]["partial"] += (
                    delta.get("text") or delta.get("partial_json") or ""
                )
            case _:
                pass
    for block in blocks:
        partial = block.pop("partial")
        if block["type"] == "text":
            block["text"] += partial
        elif partial:
            block["input"] = json.loads(partial)
    return blocks


def slug(directory: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in directory)


def _result(call: Any, text: str) -> Any:
    return {"type": "tool_result", "tool_use_id": call["id"], "content": text}


def main() -> None:
    session = Session()
    prompt = os.environ.get("AGENT_PROMPT", "Report on the files.")
    session.send(None)
    quota = {
        "model": "claude-haiku",
        "max_tokens": 1,
        "messages": [{"role": "user", "content": "quota"}],
    }
    session.send(quota)
    title = {
        "model": "claude-haiku",
        "max_tokens": 100,
        "system": "Write a title.",
        "messages": [{"role": "user", "content": prompt}],
    }
    side = threading.Thread(target=session.send, args=(title,))
    side.start()
    if leak := os.environ.get("AGENT_LEAK"):
        try:
            urllib.request.urlopen(leak, timeout=10)
        except OSError as error:
            print(f"no network: {type(error).__name__}")
    print(session.converse(prompt, "You are a coding agent."))
    side.join()
    sys.exit(int(os.environ.get("AGENT_EXIT", "0")))


if __name__ == "__main__":
    main()
