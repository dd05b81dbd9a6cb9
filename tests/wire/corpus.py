"""The recorded traffic: where it lies, and what each of its files says by itself.

Nothing here uses the code under test: what a test expects is read from the files alone.
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
    f"no recorded traffic at {{}}: set {ENVIRONMENT} to the folder that holds its manifest.json "
    "(default: ../shared/wire beside the checkout)"
)
BATCHES = 8
"""How many tests share the files among them."""


@dataclass(frozen=True)
class Exchange:
    """One recorded question and its answer."""

    method: str
    path: str
    asked_headers: dict[str, str]
    body: Any
    """Parsed JSON, a string where it was none, or None."""
    status: int
    headers: dict[str, str]
    text: str
    """The body of the answer."""

    @property
    def is_stream(self) -> bool:
        """Whether the answer is a stream of events."""
        return self.text.lstrip().startswith("event:")

    @property
    def asks_model(self) -> bool:
        """Whether this question makes a turn where it is answered."""
        return self.method == "POST" and self.path.partition("?")[0] == "/v1/messages"

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages of the question."""
        return self.body.get("messages", []) if isinstance(self.body, dict) else []

    @functools.cached_property
    def events(self) -> list[dict[str, Any]]:
        """The JSON of the stream's events."""
        data = (line.partition(":")[2] for line in self.text.split("\n") if line[:5] == "data:")
        return [json.loads(text) for text in data]

    @functools.cached_property
    def message(self) -> dict[str, Any] | None:
        """The assistant's message, its content blocks without their text where it was streamed."""
        if self.is_stream:
            return _folded(self.events)
        try:
            parsed = json.loads(self.text)
        except ValueError:
            return None
        return parsed if isinstance(parsed, dict) and parsed.get("type") == "message" else None

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The tool calls that the answer leaves to the client."""
        content = self.message["content"] if self.message else []
        return [block for block in content if block["type"] == "tool_use"]

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The tools that the question declares."""
        return self.body.get("tools") or [] if isinstance(self.body, dict) else []

    @property
    def error(self) -> dict[str, Any] | None:
        """What the answer says went wrong: its body, or an event of its stream."""
        told = [e for e in self.events if e["type"] == "error"] if self.is_stream else []
        if self.status >= 400:
            told = [json.loads(self.text)]
        return told[0]["error"] if told else None


def _folded(events: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Add up a stream: heads of the blocks, input and text grown, counts replaced by the last ones."""
    message: dict[str, Any] | None = None
    for event in events:
        if event["type"] == "message_start":
            message = {**event["message"], "content": []}
        elif message is None:
            continue
        elif event["type"] == "content_block_start":
            message["content"].append({**event["content_block"], "partial_json": ""})
        elif event["type"] == "content_block_delta":
            _grow(message["content"][event["index"]], event["delta"])
        elif event["type"] == "message_delta":
            counts = {k: v for k, v in event["usage"].items() if v is not None}
            message = {**message, **event["delta"], "usage": {**message["usage"], **counts}}
    return message


def _grow(block: dict[str, Any], delta: dict[str, Any]) -> None:
    for name in ("text", "thinking", "partial_json"):
        if name in delta:
            block[name] += delta[name]


@dataclass(frozen=True)
class WireFile:
    """One file of the corpus."""

    name: str
    """Its path under the corpus, which is its name in the manifest."""
    path: Path
    tags: frozenset[str]
    exchanges: tuple[Exchange, ...]


def blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the content blocks of a message; a text is one block."""
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def continued(exchanges: Sequence[Exchange]) -> list[int | None]:
    """Say of each question which earlier answer it goes on from: the last one that stands in its history."""
    return [_continued(exchanges, number) for number in range(len(exchanges))]


def _continued(exchanges: Sequence[Exchange], number: int) -> int | None:
    said = [m for m in exchanges[number].messages if m["role"] == "assistant"]
    for message in reversed(said):
        for earlier in reversed(range(number)):
            answer = exchanges[earlier]
            if answer.asks_model and answer.message and _same(answer.message, message):
                return earlier
    return None


def _same(answer: dict[str, Any], message: dict[str, Any]) -> bool:
    """Whether a message of the history is an answer: it makes the same calls, or is equivalent text."""
    old, new = _calls(answer), _calls(message)
    if old or new:
        return bool(old & new)
    text = _text(answer)
    return bool(text) and text == _text(message)


def _calls(message: dict[str, Any]) -> set[str]:
    return {block["id"] for block in blocks(message) if block["type"] == "tool_use"}


def _text(message: dict[str, Any]) -> str:
    return "".join(block["text"] for block in blocks(message) if block["type"] == "text")


def folder() -> Path:
    """Where the corpus lies, or should lie."""
    return Path(os.environ.get(ENVIRONMENT) or DEFAULT)


@functools.cache
def manifest() -> list[dict[str, Any]]:
    """The entries of all files that hold exchanges, in the order of their names."""
    entries = json.loads((folder() / "manifest.json").read_bytes())["files"]
    return sorted((e for e in entries if e["kind"] == "http"), key=lambda e: str(e["file"]))


def files(tag: str | None = None) -> list[str]:
    """The names of the files with a tag, or of all of them."""
    return [entry["file"] for entry in manifest() if tag is None or tag in entry["tags"]]


def batch(number: int, tag: str | None = None) -> list[WireFile]:
    """Every eighth of the files with a tag, from `number` on."""
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
        asked, answered = value["request"], value["response"]
        yield Exchange(
            method=asked["method"],
            path=asked["path"],
            asked_headers=asked["headers"],
            body=asked["body"],
            status=answered["status"],
            headers=answered["headers"],
            text=answered["body_text"],
        )
