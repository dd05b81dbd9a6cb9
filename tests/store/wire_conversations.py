"""HTTP exchanges of a client without agentobs support, in which each request repeats the history."""

from __future__ import annotations

import json
from typing import Any

from agentobs.records.exchanges import Answer, Chunk, ModelExchange, Place, Question
from agentobs.sink import Record
from tests.store.recordings import MODEL, SECOND, T0, end, session_id, start


class WireConversation:
    """Builds a session turn by turn; each turn takes one second."""

    def __init__(
        self, number: int = 1, *, model: str = MODEL, system: str = "", call_id: str = ""
    ) -> None:
        self.number, self.model, self.system, self.call_id = number, model, system, call_id
        self.records: list[Record] = [start(number)]
        self.messages: list[dict[str, Any]] = [{"role": "user", "content": "Go."}]
        self.tools: list[dict[str, Any]] = []
        self.betas = ""
        self._results: list[dict[str, Any]] = []
        self._turns = self._calls = 0

    @property
    def session_id(self) -> str:
        return session_id(self.number)

    def calls(self, *calls: tuple[str, Any], takes: int = SECOND // 2, **usage: int) -> list[str]:
        """Add a response with tool calls, each given as name and input; return the IDs of the calls."""
        ids = []
        content = []
        for name, value in calls:
            self._calls += 1
            ids.append(self.call_id or f"toolu_{self.number}_{self._calls}")
            content.append({"type": "tool_use", "id": ids[-1], "name": name, "input": value})
        self._add_exchange(content, takes, usage)
        return ids

    def says(self, words: str, takes: int = SECOND // 2, **usage: int) -> None:
        """Add a response that consists of a text."""
        self._add_exchange([{"type": "text", "text": words}], takes, usage)

    def result(self, tool_use_id: str, content: Any = "fine", *, is_error: bool = False) -> None:
        """Add the result of a call to the next request."""
        block = {"type": "tool_result", "tool_use_id": tool_use_id, "content": content}
        self._results.append({**block, "is_error": True} if is_error else block)

    def prompt(self, words: str = "And now?") -> None:
        """Add a prompt of a person."""
        self.messages.append({"role": "user", "content": words})

    def whole(self) -> list[Record]:
        """Return all records, including the end of the session."""
        return [*self.records, end(self.number)]

    def _add_exchange(
        self, content: list[dict[str, Any]], takes: int, usage: dict[str, int]
    ) -> None:
        self._turns += 1
        if self._results:
            self.messages.append({"role": "user", "content": self._results})
            self._results = []
        request = {"model": self.model, "max_tokens": 100, "messages": self.messages}
        if self.system:
            request["system"] = self.system
        called = [{"name": each["name"]} for each in content if each["type"] == "tool_use"]
        if self.tools or called:
            request["tools"] = self.tools or called
        message = {
            "id": f"msg_{self.number}_{self._turns}",
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": "tool_use" if content[0]["type"] == "tool_use" else "end_turn",
            "usage": {"input_tokens": 10, "output_tokens": 20, **usage},
        }
        headers = {"content-type": "application/json"}
        at = T0 + self._turns * SECOND
        body = json.dumps(message).encode()
        self.records.append(
            ModelExchange(
                place=Place(self.session_id),
                attempt_id=f"{self.number:08x}{self._turns:08x}{at:016x}",
                started_ns=at,
                headers_ns=1_000_000,
                ended_ns=takes,
                question=Question(
                    "POST",
                    "/v1/messages",
                    headers | ({"anthropic-beta": self.betas} if self.betas else {}),
                    json.dumps(request).encode(),
                ),
                answer=Answer(200, headers, (Chunk(body, 2_000_000),), "complete"),
            )
        )
        self.messages = [*self.messages, {"role": "assistant", "content": content}]
