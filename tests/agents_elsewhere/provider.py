"""A provider that plays one trip, whoever plans it: an overload, parallel tools, two agents at once, a tool that fails.

What comes next is told by what was said: so it does not matter who asks first, and each answer has an id of its own.
"""

from __future__ import annotations

import json
import threading
from typing import Any

from tests.provider_script import message_events
from tests.replay.raw_provider import JSON, SSE, Call, pieces

PROMPT = "Trip: where does the sun shine?"
PLACES = {"Oslo": "rain", "Rome": "sun", "Cairo": "heat", "Quito": "fog"}
"""What the tool `weather` says; it fails for anywhere else."""
TOPICS = {"desert": "Cairo", "mountain": "Quito"}
"""What an agent that researches a topic looks at."""
SAID = "Rome it is."


class Provider:
    """Answers of one conversation, and of those that it starts."""

    def __init__(self, *, has_threads: bool = False) -> None:
        """Know nothing yet; without threads, requests that go on from an earlier answer are refused."""
        self.overloads = 1
        self._has_threads = has_threads
        self._histories: dict[str, list[Any]] = {}
        self._lock = threading.Lock()
        self.continued = self.refused = 0
        """How many requests went on from an earlier answer, and how many that wanted to were refused."""

    def play(self, call: Call) -> None:
        """Answer one request."""
        asked = json.loads(call.body)
        with self._lock:
            answer = self._answer(asked)
        answer(call)

    def _answer(self, asked: dict[str, Any]) -> Any:
        if self.overloads:
            self.overloads -= 1
            headers = {**JSON, "retry-after-ms": "1", "request-id": "req_overloaded"}
            return pieces(529, headers, _error("overloaded_error", "Overloaded"))
        thread = asked.get("thread")
        if thread and not self._has_threads:
            self.refused += 1
            details = {"error_code": "thread_unsupported_request", "unsupported": []}
            body = _error("invalid_request_error", "threads are not supported", details=details)
            return pieces(400, {**JSON, "x-should-retry": "false"}, body)
        messages = list(asked["messages"])
        if thread and thread.get("type") == "continue":
            self.continued += 1
            messages = [*self._histories[thread["previous_message_id"]], *messages]
        return self._turn(asked, messages)

    def _turn(self, asked: dict[str, Any], messages: list[Any]) -> Any:
        task = _text(messages[0]["content"])
        turn = sum(message["role"] == "assistant" for message in messages)
        content = _trip(turn) if task.startswith("Trip") else _research(task, turn)
        name = f"{task.split()[-1].strip('?.')}_{turn}"
        whole = _message(name, content)
        self._histories[whole["id"]] = [*messages, {"role": "assistant", "content": content}]
        headers = {"request-id": f"req_{name}"}
        if asked.get("stream"):
            events = message_events(*content, number=0)
            events = [each.replace(b'"msg_0"', json.dumps(whole["id"]).encode()) for each in events]
            return pieces(200, {**SSE, **headers}, *events)
        return pieces(200, {**JSON, **headers}, json.dumps(whole).encode())


def _trip(turn: int) -> list[dict[str, Any]]:
    if turn == 0:
        looks = [_call(f"look{n}", "weather", city=city) for n, city in enumerate(("Oslo", "Rome"))]
        asks = [_call(f"ask_{topic}", "research", topic=topic) for topic in TOPICS]
        return [{"type": "text", "text": "Looking."}, *looks, *asks]
    if turn == 1:
        return [_call("fails", "weather", city="Atlantis")]
    return [{"type": "text", "text": SAID}]


def _research(task: str, turn: int) -> list[dict[str, Any]]:
    topic = task.rsplit(maxsplit=1)[-1].strip(".")
    if turn == 0:
        return [_call(f"look_{topic}", "weather", city=TOPICS[topic])]
    return [{"type": "text", "text": f"There is weather in the {topic}."}]


def _call(name: str, tool: str, **given: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{name}", "name": tool, "input": given}


def _message(name: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    stop = "tool_use" if any(block["type"] == "tool_use" for block in content) else "end_turn"
    return {
        "id": f"msg_{name}",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-5",
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 7},
    }


def _error(kind: str, message: str, **more: Any) -> bytes:
    error = {"type": kind, "message": message, **more}
    return json.dumps({"type": "error", "error": error}).encode()


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return next(block["text"] for block in content if block["type"] == "text")
