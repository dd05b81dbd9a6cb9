"""A loopback provider that chooses each response by the content of the request, never by the order of requests.

Each response has a new message ID and new tool_use IDs, like the responses of a real provider.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.loopback import serving

Block = dict[str, Any]


@dataclass(frozen=True)
class ErrorReply:
    """An error response."""

    status: int
    kind: str
    message: str


Reply = list[Block] | ErrorReply


@dataclass(frozen=True)
class Result:
    """A tool result in a request, with the name and input of its call."""

    name: str
    input: dict[str, Any]
    text: str
    is_error: bool


@dataclass(frozen=True)
class Request:
    """A request as the provider sees it."""

    body: dict[str, Any]

    @property
    def prompt(self) -> str:
        """The text of the first message."""
        return _text(self.body["messages"][0]["content"])

    @property
    def system(self) -> str:
        """The system prompt."""
        return _text(self.body.get("system") or "")

    @property
    def turn(self) -> int:
        """The number of assistant messages in the request."""
        return sum(message["role"] == "assistant" for message in self.body["messages"])

    @property
    def last_text(self) -> str:
        """The text of the last message."""
        return _text(self.body["messages"][-1]["content"])

    @property
    def results(self) -> list[Result]:
        """All tool results, from oldest to newest."""
        calls: dict[str, Block] = {}
        results = []
        for block in self._blocks():
            if block["type"] == "tool_use":
                calls[block["id"]] = block
            if block["type"] == "tool_result":
                call = calls[block["tool_use_id"]]
                text = _text(block.get("content") or "")
                is_error = bool(block.get("is_error"))
                results.append(Result(call["name"], call["input"], text, is_error))
        return results

    def result(self, name: str) -> Result | None:
        """Return the last result of a tool, or None."""
        return next((each for each in reversed(self.results) if each.name == name), None)

    def _blocks(self) -> Iterator[Block]:
        for message in self.body["messages"]:
            if isinstance(message["content"], list):
                yield from message["content"]


def text(content: str) -> Block:
    """Return a text block."""
    return {"type": "text", "text": content}


def call(name: str, /, **arguments: Any) -> Block:
    """Return a tool_use block with a new ID."""
    return {
        "type": "tool_use",
        "id": f"toolu_{secrets.token_hex(12)}",
        "name": name,
        "input": arguments,
    }


@dataclass
class Traffic:
    """The requests that a provider received."""

    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def serve_provider(answer: Callable[[Request], Reply]) -> Iterator[Traffic]:
    """Serve a provider while the context is open; yield the traffic that it receives."""
    traffic = Traffic()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with traffic.lock:
                traffic.bodies.append(body)
            _respond(self, body, _validation_error(body) or answer(Request(body)))

        def log_message(self, *_: Any) -> None:
            pass

    with serving(Handler) as url:
        traffic.url = url
        yield traffic


def _validation_error(body: dict[str, Any]) -> ErrorReply | None:
    """Return the error with which the real provider rejects mismatched tool_use and tool_result blocks, or None."""
    call_ids: set[str] = set()
    for message in body["messages"]:
        blocks = message["content"] if isinstance(message["content"], list) else []
        result_ids = {each["tool_use_id"] for each in blocks if each["type"] == "tool_result"}
        if result_ids != call_ids:
            return ErrorReply(400, "invalid_request_error", "tool_use and tool_result do not match")
        call_ids = {each["id"] for each in blocks if each["type"] == "tool_use"}
    return None


def _respond(handler: BaseHTTPRequestHandler, body: dict[str, Any], reply: Reply) -> None:
    if body.get("thread"):
        reply = ErrorReply(400, "invalid_request_error", "threads are not supported")
    headers = {"request-id": f"req_{secrets.token_hex(12)}"}
    if isinstance(reply, ErrorReply):
        error: dict[str, Any] = {"type": reply.kind, "message": reply.message}
        if body.get("thread"):
            error["details"] = {"error_code": "thread_unsupported_request", "unsupported": []}
            headers["x-should-retry"] = "false"
        _send(handler, reply.status, headers, [_json({"type": "error", "error": error})])
    elif body.get("stream"):
        headers["content-type"] = "text/event-stream; charset=utf-8"
        events = [f"event: {e['type']}\ndata: {json.dumps(e)}\n\n".encode() for e in _events(reply)]
        _send(handler, 200, headers, events)
    else:
        _send(handler, 200, headers, [_json(_message(reply))])


def _send(
    handler: BaseHTTPRequestHandler, status: int, headers: dict[str, str], chunks: list[bytes]
) -> None:
    handler.send_response(status)
    for name, value in {"content-type": "application/json", **headers}.items():
        handler.send_header(name, value)
    handler.send_header("transfer-encoding", "chunked")
    handler.end_headers()
    for chunk in [*chunks, b""]:
        handler.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        handler.wfile.flush()


def _message(blocks: list[Block]) -> dict[str, Any]:
    stop = "tool_use" if any(block["type"] == "tool_use" for block in blocks) else "end_turn"
    return {
        "id": f"msg_{secrets.token_hex(12)}",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-5",
        "content": blocks,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": 21, "output_tokens": 17},
    }


def _events(blocks: list[Block]) -> Iterator[dict[str, Any]]:
    message = _message(blocks)
    start = {**message, "content": [], "stop_reason": None}
    yield {"type": "message_start", "message": start}
    for index, block in enumerate(blocks):
        if block["type"] == "text":
            empty: Block = {"type": "text", "text": ""}
            words = block["text"].split(" ")
            chunks = [" " + word if n else word for n, word in enumerate(words)]
            deltas = [{"type": "text_delta", "text": chunk} for chunk in chunks]
        else:
            empty = {**block, "input": {}}
            arguments = json.dumps(block["input"])
            middle = len(arguments) // 2
            halves = [arguments[:middle], arguments[middle:]]
            deltas = [{"type": "input_json_delta", "partial_json": half} for half in halves]
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    end = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": end, "usage": {"output_tokens": 17}}
    yield {"type": "message_stop"}


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(block["text"] for block in content if block["type"] == "text")
