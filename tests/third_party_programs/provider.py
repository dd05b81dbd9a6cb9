"""A provider for agents that read files: it asks for a file, then for two, and ends.

The files are read with the tool of the agent. An agent that is asked to start two researchers starts two sub-agents
with equal prompts; each of them reads another file. Responses depend on the messages of their request, except that the
sub-agents get their files in the order of their first requests. The responses are gzipped if the client accepts that.
"""

from __future__ import annotations

import json
import secrets
import threading
import zlib
from collections import Counter
from typing import Any

from tests.provider_script import MODEL, message_events
from tests.replay.raw_provider import JSON, SSE, Call, play_chunks

PROMPT = "Read the notes."
OTHER_PROMPT = "Read the notes aloud."
RESEARCH_PROMPT = "Start two researchers."
OTHER_RESEARCH_PROMPT = "Start two researchers now."
BACKGROUND_PROMPT = "Start two researchers in the background."
OTHER_BACKGROUND_PROMPT = "Start two researchers in the background now."
SLOW_PROMPT = "Start two researchers in the background, one of them slow."
OTHER_SLOW_PROMPT = "Start two researchers in the background now, one of them slow."
SUB_AGENT_PROMPT = "Research a file."
FOLLOW_UP = "What did they say?"
OTHER_FOLLOW_UP = "What did they say about it?"
FINAL_TEXT = "The notes are about the sun."
LATE_TEXT = "I have read it as well."
"""The last text of the second sub-agent. If it is slow, it ends after the report about the first one."""
SECONDS_MAX = 60.0
"""The longest wait for a report."""
FILES = {
    "notes.txt": "The sun shines in Rome.\n",
    "more.txt": "It rains in Oslo.\n",
    "sky.txt": "There is fog in Quito.\n",
    "wind.txt": "It is windy in Lima.\n",
}
"""The files in the working directory."""
ENDING = "submit"
"""The tool with which agents of dspy end."""


class Provider:
    """Answers requests, and counts what it received and sent."""

    def __init__(self) -> None:
        """Start without requests."""
        self._lock = threading.Lock()
        self._researchers = 0
        self._threads: dict[str, tuple[list[Any], list[Any]]] = {}
        """The history and the tools of each response, which a client of the beta `thread` does not send again."""
        self._is_slow = False
        self._has_report = threading.Event()
        """Is set when the agent has got the report about a sub-agent in the background."""
        self.bodies: list[bytes] = []
        """The body of each request for a message."""
        self.responses: list[bytes] = []
        """The body of each response with a message, before compression."""
        self.turns = self.tool_calls = 0
        self.tokens: Counter[str] = Counter()
        """The tokens by class, as in the field `usage` of responses."""

    def play(self, call: Call) -> None:
        """Respond to one request."""
        if call.path.partition("?")[0] != "/v1/messages":
            status = 200 if call.method == "HEAD" else 404
            play_chunks(status, JSON)(call)
            return
        request = json.loads(call.body)
        with self._lock:
            self.bodies.append(call.body)
            number = len(self.bodies)
            messages, tools = self._conversation(request)
            content = self._content(messages, {tool.get("name"): tool for tool in tools})
            history = [*messages, {"role": "assistant", "content": content}]
            self._threads[f"msg_{number}"] = (history, tools)
            chunks, headers = self._response(request, number, content)
            self.turns += 1
            self.tool_calls += sum(block["type"] == "tool_use" for block in content)
            self.responses.append(b"".join(chunks))
        if b"<task-id>" in call.body:
            self._has_report.set()
        if self._is_slow and content == [_text(LATE_TEXT)]:
            self._has_report.wait(SECONDS_MAX)
        headers = {**headers, "request-id": f"req_{number}"}
        if "gzip" in call.headers.get("accept-encoding", ""):
            headers["content-encoding"] = "gzip"
            chunks = _gzipped(chunks)
        play_chunks(200, headers, *chunks)(call)

    def _response(
        self, request: dict[str, Any], number: int, content: list[dict[str, Any]]
    ) -> tuple[list[bytes], dict[str, str]]:
        output = 7 + number
        self.tokens.update(input_tokens=10, cache_read_input_tokens=3, output_tokens=output)
        model = request.get("model", MODEL)
        if request.get("stream"):
            return message_events(*content, number=number, output_tokens=output, model=model), dict(
                SSE
            )
        calls = any(block["type"] == "tool_use" for block in content)
        message = {
            "id": f"msg_{number}",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": content,
            "stop_reason": "tool_use" if calls else "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 10, "cache_read_input_tokens": 3, "output_tokens": output},
        }
        return [json.dumps(message).encode()], dict(JSON)

    def _conversation(self, request: dict[str, Any]) -> tuple[list[Any], list[Any]]:
        """Return all messages and tools of a request, even if it continues a thread."""
        thread = request.get("thread") or {}
        before, tools = self._threads.get(thread.get("previous_message_id", ""), ([], []))
        return [*before, *request["messages"]], request.get("tools") or tools

    def _content(self, messages: list[Any], tools: dict[str, Any]) -> list[dict[str, Any]]:
        if not tools:
            return [_text("The notes")]
        turns, task = _position(messages)
        if RESEARCH_PROMPT.rstrip(".") in task:
            if turns == 0:
                is_background = "in the background" in task
                self._is_slow = "slow" in task
                return [_research(tools, is_background=is_background) for _ in range(2)]
            return [_text(FINAL_TEXT)]
        if SUB_AGENT_PROMPT in task:
            if turns == 0:
                self._researchers += 1
                name = ("notes.txt", "more.txt")[(self._researchers - 1) % 2]
                return [_text("I read it."), _read(tools, name)]
            is_second = FILES["more.txt"].strip() in json.dumps(messages)
            return [_text(LATE_TEXT if is_second else "I have read it.")]
        if FOLLOW_UP.rstrip("?") in task and turns == 0:
            return [_read(tools, "wind.txt")]
        if FOLLOW_UP.rstrip("?") not in task and turns == 0:
            return [_text("I read them."), _read(tools, "notes.txt")]
        if turns == 1 and FOLLOW_UP.rstrip("?") not in task:
            return [_read(tools, "more.txt"), _read(tools, "sky.txt")]
        if ENDING in tools:
            return [_call(ENDING, answer=FINAL_TEXT)]
        return [_text(FINAL_TEXT)]


def _gzipped(chunks: list[bytes]) -> list[bytes]:
    """Return compressed chunks, each of which can be decoded when it arrives."""
    compressor = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    found = [compressor.compress(each) + compressor.flush(zlib.Z_SYNC_FLUSH) for each in chunks]
    return [*found, compressor.flush()]


def _position(messages: list[dict[str, Any]]) -> tuple[int, str]:
    """Return how many responses there are since the last task of the user, and its text."""
    turns = 0
    for message in reversed(messages):
        content = message["content"]
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        if message["role"] == "assistant":
            turns += 1
        elif not any(block["type"] == "tool_result" for block in blocks):
            texts = [block["text"] for block in blocks if block["type"] == "text"]
            task = "\n".join(each for each in texts if not each.startswith("<system-reminder>"))
            if message["role"] == "user" and task:
                return turns, task
    return turns, ""


def _text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def _call(name: str, **arguments: Any) -> dict[str, Any]:
    call_id = f"toolu_{secrets.token_hex(10)}"
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def _read(tools: dict[str, Any], name: str) -> dict[str, Any]:
    if "Bash" in tools:
        return _call("Bash", command=f"cat {name}", description=f"Read {name}")
    return _call("read_file", path=name)


def _research(tools: dict[str, Any], *, is_background: bool) -> dict[str, Any]:
    return _call(
        "Agent" if "Agent" in tools else "Task",
        description="Research a file",
        prompt=SUB_AGENT_PROMPT,
        subagent_type="general-purpose",
        run_in_background=is_background,
    )
