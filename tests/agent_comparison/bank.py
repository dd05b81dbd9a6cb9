"""A provider for the agent that pays: the same conversation with each framework.

Each response depends only on its request, because frameworks name the tools differently and send further requests.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.loopback import serving
from tests.provider_script import message_events

FOLDER = Path(__file__).parent
PROMPT = "Pay Ann and Mallory, and find Bob"
NO_THREADS = {
    "type": "invalid_request_error",
    "message": "threads are not supported",
    "details": {"error_code": "thread_unsupported_request", "unsupported": []},
}
"""The error with which the SDK's tool runner (2.12) sends the complete history instead."""
USAGE = {"input_tokens": 10, "output_tokens": 7}


class Bank:
    """What the model was told by the tools of one agent."""

    def __init__(self) -> None:
        self.results: dict[str, str] = {}
        """The result of each call, by ID."""
        self.sub_agent_prompts: list[str] = []

    def content(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the content of the response to a request."""
        blocks = [
            block
            for each in request["messages"]
            if isinstance(each["content"], list)
            for block in each["content"]
        ]
        for block in blocks:
            if block["type"] == "tool_result":
                self.results[block["tool_use_id"]] = json.dumps(block["content"])
        history = json.dumps(request["messages"])
        if PROMPT not in history:
            self.sub_agent_prompts.append(history)
            return [{"type": "text", "text": "Bob is here."}]
        if any(block["type"] == "tool_result" for block in blocks):
            return [{"type": "text", "text": "Done."}]
        tools = {tool["name"]: tool for tool in request.get("tools", ())}
        pay = next((name for name in tools if name.endswith("pay")), None)
        if pay is None:
            return [{"type": "text", "text": "Paying"}]  # a title, for example
        start = next(name for name in ("agent", "scouting", "Task", "Agent") if name in tools)
        find = {
            "agent": {"agent": "scout", "prompt": "Find Bob"},
            "scouting": {"prompt": "Find Bob"},
        }.get(start, {"subagent_type": "scout", "prompt": "Find Bob", "description": "Find Bob"})
        return [
            _call("ann", pay, {"to": "Ann"}),
            _call("mallory", pay, {"to": "Mallory"}),
            _call("bob", start, find),
        ]


def _call(name: str, tool: str, arguments: dict[str, str]) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{name}", "name": tool, "input": arguments}


def response(request: dict[str, Any], content: list[dict[str, Any]]) -> tuple[str, bytes]:
    """Return the content type and the body of a response."""
    if request.get("stream"):
        return "text/event-stream", b"".join(message_events(*content, number=0))
    stop = "tool_use" if any(block["type"] == "tool_use" for block in content) else "end_turn"
    message = {
        "id": "msg_0",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-5",
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": USAGE,
    }
    return "application/json", json.dumps(message).encode()


@contextmanager
def served() -> Iterator[Bank]:
    """Serve the provider, and name it in the variables that clients read."""
    bank, lock = Bank(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            kind, sent, status = "application/json", b'{"input_tokens": 10}', 200
            if self.path.partition("?")[0].endswith("/messages"):
                request = json.loads(body)
                if request.get("thread"):
                    status, sent = 400, json.dumps({"type": "error", "error": NO_THREADS}).encode()
                else:
                    with lock:
                        kind, sent = response(request, bank.content(request))
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, *_: Any) -> None:
            pass

    with serving(Handler) as url:
        with patch.dict(os.environ, {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "made-up"}):
            yield bank


def lines(name: str) -> int:
    """Return the number of lines of code of an agent, without blank lines, comments and docstrings of the module."""
    text = (FOLDER / f"{name}.py").read_text().split('"""', 2)[2]
    return sum(bool(line.strip()) for line in text.splitlines())


def check(bank: Bank, text: str, asked: list[str]) -> None:
    """Check that the tool, the hook, the person and the sub-agent have done their part."""
    assert text == "Done."
    assert "paid Ann" in bank.results["toolu_ann"]
    assert "Mallory is blocked" in bank.results["toolu_mallory"]
    assert "Bob is here." in bank.results["toolu_bob"]
    assert any("Find Bob" in each for each in bank.sub_agent_prompts)
    assert "Ann" in asked
