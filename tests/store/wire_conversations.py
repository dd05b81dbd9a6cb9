"""Conversations of a client that does not cover itself: each request repeats the history, as on the wire."""

from __future__ import annotations

import json
from typing import Any

from agentobs.records.exchanges import Answer, Chunk, ModelExchange, Place, Question
from agentobs.sink import Record
from tests.store.making import MODEL, SECOND, T0, end, session_id, start


class Talk:
    """A session that is written down turn by turn, a second each."""

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
        """The model asks for tools, each a name and an input; return the ids of the calls."""
        ids = []
        content = []
        for name, value in calls:
            self._calls += 1
            ids.append(self.call_id or f"toolu_{self.number}_{self._calls}")
            content.append({"type": "tool_use", "id": ids[-1], "name": name, "input": value})
        self._ask(content, takes, usage)
        return ids

    def says(self, words: str, takes: int = SECOND // 2, **usage: int) -> None:
        """The model answers with a text."""
        self._ask([{"type": "text", "text": words}], takes, usage)

    def result(self, tool_use_id: str, content: Any = "fine", *, is_error: bool = False) -> None:
        """A call gets its result, which the next request carries."""
        block = {"type": "tool_result", "tool_use_id": tool_use_id, "content": content}
        self._results.append({**block, "is_error": True} if is_error else block)

    def prompt(self, words: str = "And now?") -> None:
        """A person says something."""
        self.messages.append({"role": "user", "content": words})

    def whole(self) -> list[Record]:
        """Return all records, with the end of the session."""
        return [*self.records, end(self.number)]

    def _ask(self, content: list[dict[str, Any]], takes: int, usage: dict[str, int]) -> None:
        self._turns += 1
        if self._results:
            self.messages.append({"role": "user", "content": self._results})
            self._results = []
        asked = {"model": self.model, "max_tokens": 100, "messages": self.messages}
        if self.system:
            asked["system"] = self.system
        if self.tools:
            asked["tools"] = self.tools
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
                    json.dumps(asked).encode(),
                ),
                answer=Answer(200, headers, (Chunk(body, 2_000_000),), "complete"),
            )
        )
        self.messages = [*self.messages, {"role": "assistant", "content": content}]
