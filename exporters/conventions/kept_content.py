"""Content that waits until its span ends: of model calls, tool calls and agents, limited in bytes.

For an agent without `record_tool`, no record contains the input and the output of a tool call. The response that
contains the call has the input, and the next request has the result. `exporters.conventions.intervals` collects both
with the functions of this module, so a live and a delayed export have the same content.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from agentobs.provider.registry import dialect_of, dialect_of_body, turns
from agentobs.records.backend import ExchangeContent

CONTENT_BYTES_MAX = 16 * 1024 * 1024
"""The maximum size of the content that waits for the end of its span, if sessions opted in. Our choice."""


@dataclass(slots=True)
class KeptContent:
    """Content by key: the ID of a span, an interaction or a tool call. The oldest is dropped if there is too much."""

    bytes_max: int = CONTENT_BYTES_MAX
    _contents: dict[str, ExchangeContent] = field(default_factory=dict)
    _bytes: int = 0

    def put(self, key: str, content: ExchangeContent) -> None:
        """Set the content of a key as the newest."""
        self.pop(key)
        self._contents[key] = content
        self._bytes += _size(content)
        while self._bytes > self.bytes_max and len(self._contents) > 1:
            self.pop(next(iter(self._contents)))

    def get(self, key: str) -> ExchangeContent | None:
        """Return the content of a key, or None."""
        return self._contents.get(key)

    def pop(self, key: str) -> ExchangeContent | None:
        """Remove and return the content of a key, or None."""
        content = self._contents.pop(key, None)
        if content is not None:
            self._bytes -= _size(content)
        return content


def call_inputs(endpoint: str, exchange: ExchangeContent) -> list[bytes]:
    """Return the inputs of the tool calls in a response that the client must run, as JSON, in their order."""
    message = dialect_of(endpoint).message({}, exchange.answer)
    return [_json(call.value) for call in message.calls]


def call_results(exchange: ExchangeContent) -> Mapping[str, deque[bytes]]:
    """Return the tool results in a request by the ID of their call, as JSON.

    Results after the last response come first, because some servers use one ID for all calls.
    """
    conversation = turns(_parsed(exchange.question))
    new = list(takewhile(lambda turn: turn.role != "assistant", reversed(conversation)))[::-1]
    found: dict[str, deque[bytes]] = {}
    for turn in (*new, *conversation[: len(conversation) - len(new)]):
        for block in turn.results:
            found.setdefault(str(block.id), deque()).append(_json(block.value))
    return found


def agent_content(exchange: ExchangeContent, before: ExchangeContent | None) -> ExchangeContent:
    """Return the content of an agent: its prompt as a request with these messages only, and its last response.

    Args:
        exchange: the content of a model call of the agent.
        before: the content of the agent so far; None for the first call. Its prompt is kept.
    """
    if before is not None:
        return ExchangeContent(before.question, exchange.answer)
    request = _parsed(exchange.question)
    prompt = list(takewhile(lambda turn: turn.role != "assistant", reversed(turns(request))))
    messages = [turn.raw for turn in reversed(prompt)]
    return ExchangeContent(_json({dialect_of_body(request).history_key: messages}), exchange.answer)


def _size(content: ExchangeContent) -> int:
    return len(content.question) + len(content.answer)


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
