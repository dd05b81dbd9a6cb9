"""A provider for the agent that pays: the same conversation with each framework.

Each response depends only on its request, because frameworks name the tools differently and send further requests.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Literal
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
Spender = Literal["nobody", "the agent", "the sub-agent"]
"""The agent whose response costs more than the budget, which is one dollar."""
COSTLY_TOKENS = 200_000
"""Output tokens that cost two dollars."""


class Bank:
    """The results that the model received from the tools of one agent."""

    def __init__(self) -> None:
        self.start("nobody")

    def start(self, spender: Spender) -> None:
        """Start the conversation again."""
        self.spender = spender
        self.results = dict[str, str]()
        """The result of each call, by ID."""
        self.turns = 0
        """The number of requests of the agent, without those of its sub-agent."""
        self.sub_agent_prompts = list[str]()
        self.sub_agent_tools = set[str]()
        """The names of the tools that the sub-agent could use."""

    def response(self, request: dict[str, Any]) -> tuple[str, bytes]:
        """Return the content type and the body of the response to a request."""
        tools = {tool["name"]: tool for tool in request.get("tools", ())}
        pay = next((name for name in tools if name.endswith("pay")), None)
        if PROMPT not in json.dumps(request["messages"]):
            self.sub_agent_prompts.append(json.dumps(request["messages"]))
            self.sub_agent_tools |= set(tools)
            is_costly = self.spender == "the sub-agent"
            return _response(request, [{"type": "text", "text": "Bob is here."}], is_costly)
        if pay is None:
            return _response(request, [{"type": "text", "text": "Paying"}])  # a title, for example
        self.turns += 1
        return _response(request, self._content(request, tools, pay), self.spender == "the agent")

    def _content(
        self, request: dict[str, Any], tools: dict[str, Any], pay: str
    ) -> list[dict[str, Any]]:
        """Return the content of the response to the agent itself."""
        found = [
            block
            for each in request["messages"]
            if isinstance(each["content"], list)
            for block in each["content"]
            if block["type"] == "tool_result"
        ]
        self.results |= {block["tool_use_id"]: json.dumps(block["content"]) for block in found}
        if found:
            return [{"type": "text", "text": "Done."}]
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


def _response(
    request: dict[str, Any], content: list[dict[str, Any]], is_costly: bool = False
) -> tuple[str, bytes]:
    tokens = COSTLY_TOKENS if is_costly else 7
    if request.get("stream"):
        events = message_events(*content, number=0, output_tokens=tokens)
        return "text/event-stream", b"".join(events)
    stop = "tool_use" if any(block["type"] == "tool_use" for block in content) else "end_turn"
    message = {
        "id": "msg_0",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-5",
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": tokens},
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
                        kind, sent = bank.response(request)
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


Run = Callable[[Callable[[str], bool]], str]
"""Runs one agent on the prompt, with the person who is asked about each payment, and returns its answer."""


def compare(run: Run, *, finishes_turn: bool = False) -> None:
    """Check that an agent behaves like each of the others.

    Its tool runs if the person agrees, and does not run if the person refuses. Its hook vetoes a call, about which the
    person is not asked. Its sub-agent answers, and has no tools. Above the budget, it runs no tool, requests no
    approval, sends no further request, and returns no text.

    Args:
        run: runs the agent.
        finishes_turn: whether tools of the response that exceeds the budget may run.
    """
    with served() as bank:
        for agrees in (True, False):
            bank.start("nobody")
            assert _run(run, agrees) == ("Done.", ["Ann"])
            assert bank.turns == 2
            assert ("paid Ann" in bank.results["toolu_ann"]) is agrees
            assert ("denied" in bank.results["toolu_ann"]) is not agrees
            assert "Mallory is blocked" in bank.results["toolu_mallory"]
            assert "Bob is here." in bank.results["toolu_bob"]
            assert any("Find Bob" in each for each in bank.sub_agent_prompts)
            assert bank.sub_agent_tools == set()
        bank.start("the agent")
        text, asked = _run(run, True)
        assert text == ""
        assert asked == [] or finishes_turn
        assert (bank.turns, bank.sub_agent_prompts) == (1, [])
        bank.start("the sub-agent")
        assert _run(run, True) == ("", ["Ann"])
        assert bank.turns == 1


def _run(run: Run, agrees: bool) -> tuple[str, list[str]]:
    """Return the answer of an agent, and the payee that the person was asked about."""
    asked: list[str] = []

    def ask(to: str) -> bool:
        asked.append(to)
        return agrees

    return run(ask), asked
