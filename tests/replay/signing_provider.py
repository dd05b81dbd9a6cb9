"""A provider that signs thinking, and rejects a history with signed or encrypted values that it did not issue.

Signatures look like real ones: base64 of a protobuf message that contains the ID of the account's organization.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.loopback import LoopbackServer
from tests.provider_script import sse

ORGANIZATION = "6f1e2d3c-4b5a-4978-8a6b-5c4d3e2f1a0b"
MODEL = "claude-sonnet-5"
INPUT_TOKENS, OUTPUT_TOKENS = 1000, 100
"""The billed tokens of each response."""


def field(number: int, data: bytes) -> bytes:
    """Return a length-delimited field of a protobuf message, for at most 16,383 bytes."""
    size = len(data)
    length = bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
    return bytes([number << 3 | 2]) + length + data


def sealed(text: str, *, organization: str | None = ORGANIZATION) -> str:
    """Return a signed value for a text. If `organization` is None, it contains no organization ID."""
    secret = b"".join(hashlib.sha512(f"{text} {part}".encode()).digest() for part in range(4))
    fields = field(1, b"\x08\x0c") + field(3, MODEL.encode()) + field(5, secret)
    if organization is not None:
        fields += field(7, organization.encode())
    return base64.b64encode(field(2, fields)).decode()


class SigningProvider:
    """A provider that remembers what it issued, received and rejected."""

    def __init__(self, *, organization: str | None = ORGANIZATION, chunks: int = 1) -> None:
        self.organization, self.chunks = organization, chunks
        self.issued: set[tuple[str, str]] = set()
        """Text and signature of each issued block."""
        self.requests: list[dict[str, Any]] = []
        self.refused: list[str] = []
        self.accepted = 0
        self.url = ""
        self.first_blocks: list[dict[str, Any]] = []
        """Blocks at the start of each response."""
        self.thinking = ""
        """The thinking of each response; if empty, it differs for each response."""
        self._lock = threading.Lock()

    def answer(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Return status and message for a request."""
        with self._lock:
            self.requests.append(body)
            number = len(self.requests)
            for block in _sealed_blocks(body["messages"]):
                if block not in self.issued:
                    self.refused.append(block[1])
                    error = {"type": "invalid_request_error", "message": "Invalid `signature`"}
                    return 400, {"type": "error", "error": error}
            self.accepted += 1
            return 200, self._message(body, number)

    def _message(self, body: dict[str, Any], number: int) -> dict[str, Any]:
        turn = 1 + sum(each["role"] == "assistant" for each in body["messages"])
        content = [*self.first_blocks, *self._thoughts(number), *_turn_content(body, turn, number)]
        self.issued |= set(_sealed_blocks([{"content": content}]))
        return {
            "id": f"msg_{number}",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": content,
            "stop_reason": "tool_use" if content[-1]["type"] == "tool_use" else "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": INPUT_TOKENS, "output_tokens": OUTPUT_TOKENS},
        }

    def _thoughts(self, number: int) -> list[dict[str, Any]]:
        def sealed_value(text: str) -> str:
            return sealed(f"{text} {number}", organization=self.organization)

        result = {
            "type": "web_search_result",
            "url": "https://example.com",
            "title": "Refunds",
            "encrypted_content": sealed_value("result"),
            "page_age": None,
        }
        return [
            {
                "type": "thinking",
                "thinking": self.thinking or f"Step {number}.",
                "signature": sealed_value("signature"),
            },
            {"type": "redacted_thinking", "data": sealed_value("hidden")},
            {
                "type": "server_tool_use",
                "id": f"srvtoolu_{number}",
                "name": "web_search",
                "input": {"query": "refund"},
            },
            {
                "type": "web_search_tool_result",
                "tool_use_id": f"srvtoolu_{number}",
                "content": [result],
            },
        ]

    def events(self, message: dict[str, Any]) -> list[bytes]:
        """Return a message as a stream, with each signature split into the configured number of chunks."""
        usage = {**message["usage"], "output_tokens": 1}
        start = {**message, "content": [], "stop_reason": None, "usage": usage}
        events: list[dict[str, Any]] = [{"type": "message_start", "message": start}]
        for index, block in enumerate(message["content"]):
            opened, deltas = self._deltas(block)
            started = {"type": "content_block_start", "index": index, "content_block": opened}
            events += [started]
            events += [
                {"type": "content_block_delta", "index": index, "delta": each} for each in deltas
            ]
            events += [{"type": "content_block_stop", "index": index}]
        delta = {"stop_reason": message["stop_reason"], "stop_sequence": None}
        end = {"type": "message_delta", "delta": delta, "usage": message["usage"]}
        return sse(*events, end, {"type": "message_stop"})

    def _deltas(self, block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        match block["type"]:
            case "text":
                return {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]
            case "thinking":
                size = -(-len(block["signature"]) // self.chunks)
                parts = [
                    block["signature"][at : at + size]
                    for at in range(0, len(block["signature"]), size)
                ]
                thinking = {"type": "thinking_delta", "thinking": block["thinking"]}
                signed = [{"type": "signature_delta", "signature": part} for part in parts]
                return {**block, "thinking": "", "signature": ""}, [thinking, *signed]
            case "tool_use" | "server_tool_use":
                partial = json.dumps(block["input"])
                delta = {"type": "input_json_delta", "partial_json": partial}
                return {**block, "input": {}}, [delta]
        return block, []


def _turn_content(body: dict[str, Any], turn: int, number: int) -> list[dict[str, Any]]:
    """Return the content of a turn: tool calls, and a text in the last turn. Sub-agents have two turns, other agents
    three. An agent that can start a sub-agent does so first.
    """
    is_below = "sub-agent" in json.dumps(body["messages"][0])
    if turn > (1 if is_below else 2):
        return [{"type": "text", "text": f"Done after {turn} turns."}]
    use = {"type": "tool_use", "id": f"toolu_{turn}_{number}"}
    if turn == 1 and not is_below and any(tool["name"] == "agent" for tool in body["tools"]):
        fields = {"agent": "scout", "prompt": "sub-agent: look it up"}
        return [{**use, "name": "agent", "input": fields}]
    return [{**use, "name": "lookup", "input": {"order": f"A-{turn}"}}]


def _sealed_blocks(messages: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    for message in messages:
        for block in message["content"] if isinstance(message["content"], list) else ():
            if block["type"] == "thinking":
                yield block["thinking"], block["signature"]
            elif block["type"] == "redacted_thinking":
                yield "", block["data"]
            elif block["type"] == "web_search_tool_result":
                yield "", block["content"][0]["encrypted_content"]


@contextmanager
def serve_signing(**options: Any) -> Iterator[SigningProvider]:
    """Serve a signing provider on the loopback interface."""
    provider = SigningProvider(**options)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            status, message = provider.answer(body)
            streams = status == 200 and bool(body.get("stream"))
            data = b"".join(provider.events(message)) if streams else json.dumps(message).encode()
            kind = "text/event-stream" if streams else "application/json"
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("request-id", f"req_{len(provider.requests)}")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = LoopbackServer(Handler)
    server.start()
    provider.url = server.base_url
    try:
        yield provider
    finally:
        server.stop()
