"""The recorded traffic: its location, and a reader of its files.

This module does not use the code under test, so the expected values of a test come only from the files.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ENVIRONMENT = "AGENTOBS_WIRE"
DEFAULT = Path(__file__).parents[2].parent / "shared" / "wire"
HINT = (
    f"no recorded traffic at {{}}: set {ENVIRONMENT} to the folder that contains its manifest.json "
    "(default: ../shared/wire, relative to the checkout)"
)
TAG_CONVERSATION = "multi_turn_tool_use"
"""The tag of the files that contain several turns and tool results."""
BATCHES = 8
"""The number of batches into which the files are divided; each batch is one test."""


@dataclass(frozen=True)
class Exchange:
    """One recorded request and its response."""

    method: str
    path: str
    request_headers: dict[str, str]
    body: Any
    """The request body: parsed JSON, a string if it is not JSON, or None."""
    status: int
    headers: dict[str, str]
    text: str
    """The response body."""

    @property
    def is_stream(self) -> bool:
        """Whether the response is a stream of events."""
        return self.text.lstrip().startswith("event:")

    @property
    def is_model_request(self) -> bool:
        """Whether this is a request to the model, which is a turn if it gets a response."""
        return self.method == "POST" and self.path.partition("?")[0] == "/v1/messages"

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages of the request."""
        return self.body.get("messages", []) if isinstance(self.body, dict) else []

    @functools.cached_property
    def events(self) -> list[dict[str, Any]]:
        """The parsed JSON of the stream's events."""
        data = (line.partition(":")[2] for line in self.text.split("\n") if line[:5] == "data:")
        return [json.loads(text) for text in data]

    @functools.cached_property
    def message(self) -> dict[str, Any] | None:
        """The assistant's message, or None. In a streamed message, inputs of tool calls are in `partial_json`."""
        if self.is_stream:
            return _assembled(self.events)
        try:
            parsed = json.loads(self.text)
        except ValueError:
            return None
        return parsed if isinstance(parsed, dict) and parsed.get("type") == "message" else None

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The tool calls of the response that the client has to execute."""
        content = self.message["content"] if self.message else []
        return [block for block in content if block["type"] == "tool_use"]

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The tools that the request declares."""
        return self.body.get("tools") or [] if isinstance(self.body, dict) else []

    @property
    def error(self) -> dict[str, Any] | None:
        """The error of the response, from its body or from an event of its stream; None if there is none."""
        errors = [e for e in self.events if e["type"] == "error"] if self.is_stream else []
        if self.status >= 400:
            errors = [json.loads(self.text)]
        return errors[0]["error"] if errors else None


def _assembled(events: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Assemble the message of a stream: blocks with their complete text and input, and the last usage counts."""
    message: dict[str, Any] | None = None
    for event in events:
        if event["type"] == "message_start":
            message = {**event["message"], "content": []}
        elif message is None:
            continue
        elif event["type"] == "content_block_start":
            message["content"].append({**event["content_block"], "partial_json": ""})
        elif event["type"] == "content_block_delta":
            _append(message["content"][event["index"]], event["delta"])
        elif event["type"] == "message_delta":
            counts = {k: v for k, v in event["usage"].items() if v is not None}
            message = {**message, **event["delta"], "usage": {**message["usage"], **counts}}
    return message


def _append(block: dict[str, Any], delta: dict[str, Any]) -> None:
    for name in ("text", "thinking", "partial_json"):
        if name in delta:
            block[name] += delta[name]


@dataclass(frozen=True)
class WireFile:
    """A file of the corpus."""

    name: str
    """The path relative to the corpus, as in the manifest."""
    path: Path
    tags: frozenset[str]
    exchanges: tuple[Exchange, ...]


def blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the content blocks of a message; a string is returned as one text block."""
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def continued_responses(exchanges: Sequence[Exchange]) -> list[int | None]:
    """Return, for each request, the number of the last response in its history; None if there is none."""
    return [_continued_response(exchanges, number) for number in range(len(exchanges))]


def _continued_response(exchanges: Sequence[Exchange], number: int) -> int | None:
    history = [m for m in exchanges[number].messages if m["role"] == "assistant"]
    for message in reversed(history):
        for earlier in reversed(range(number)):
            exchange = exchanges[earlier]
            if (
                exchange.is_model_request
                and exchange.message
                and _is_same(exchange.message, message)
            ):
                return earlier
    return None


def _is_same(response: dict[str, Any], message: dict[str, Any]) -> bool:
    """Return whether a message of the history is this response: they share a tool call, or have no calls and equal
    text.
    """
    response_ids, message_ids = _call_ids(response), _call_ids(message)
    if response_ids or message_ids:
        return bool(response_ids & message_ids)
    text = _text(response)
    return bool(text) and text == _text(message)


def _call_ids(message: dict[str, Any]) -> set[str]:
    return {block["id"] for block in blocks(message) if block["type"] == "tool_use"}


def _text(message: dict[str, Any]) -> str:
    return "".join(block["text"] for block in blocks(message) if block["type"] == "text")


def folder() -> Path:
    """Return the path of the corpus; it may not exist."""
    return Path(os.environ.get(ENVIRONMENT) or DEFAULT)


@functools.cache
def manifest() -> list[dict[str, Any]]:
    """Return the manifest's entries of all files that contain exchanges, sorted by name."""
    entries = json.loads((folder() / "manifest.json").read_bytes())["files"]
    return sorted((e for e in entries if e["kind"] == "http"), key=lambda e: str(e["file"]))


def files(tag: str | None = None) -> list[str]:
    """Return the names of the files with a tag, or of all files."""
    return [entry["file"] for entry in manifest() if tag is None or tag in entry["tags"]]


def batch(number: int, tag: str | None = None) -> list[WireFile]:
    """Return every eighth file with a tag, starting at `number`."""
    return [read(name) for name in files(tag)[number::BATCHES]]


@functools.cache
def read(name: str) -> WireFile:
    """Read one file."""
    entry = next(entry for entry in manifest() if entry["file"] == name)
    path = folder() / name
    return WireFile(name, path, frozenset(entry["tags"]), tuple(_exchanges(path)))


def _exchanges(path: Path) -> Iterator[Exchange]:
    for line in path.read_bytes().splitlines():
        value = json.loads(line)
        request, response = value["request"], value["response"]
        yield Exchange(
            method=request["method"],
            path=request["path"],
            request_headers=request["headers"],
            body=request["body"],
            status=response["status"],
            headers=response["headers"],
            text=response["body_text"],
        )
