"""A provider with scripted responses, over real HTTP on the loopback interface.

Each response is used once, in order, and the requests are kept. A stream is made from a complete message that is split
into deltas, as in the streams of the real provider.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from anthropic import AsyncAnthropic

from agentobs.provider.anthropic.messages import request_error
from tests.loopback import LoopbackServer

MODEL = "claude-test-1"
USAGE = {"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 3}


@dataclass(frozen=True)
class Reply:
    """The response to one request."""

    chunks: tuple[bytes, ...] = ()
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: {"content-type": "application/json"})
    cut: bool = False
    """Whether the connection is closed before the announced number of bytes was sent."""
    is_reset: bool = False
    """Whether the connection is reset instead of sending a response."""
    hold: threading.Event | None = None
    """If set, the last chunk is sent after this event."""


class Provider:
    """Sends the scripted responses while its context is open."""

    def __init__(self, replies: Sequence[Reply]) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.faults: list[str] = []
        """Errors of requests that the real provider would also reject."""
        script, provider = iter(replies), self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                request = json.loads(body)
                provider.requests.append(request)
                provider.headers.append({k.lower(): v for k, v in self.headers.items()})
                refused = request_error(request) or breakpoint_error(request)
                if refused:
                    provider.faults.append(refused)
                    self._send(error(400, "invalid_request_error", text=refused))
                    return
                self._send(next(script, error(500, "script_is_over", retry="false")))

            def _send(self, reply: Reply) -> None:
                if reply.is_reset:
                    # Closing a socket without lingering resets the connection.
                    no_linger = struct.pack("ii", 1, 0)
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, no_linger)
                    self.connection.close()
                    self.close_connection = True
                    return
                size = sum(map(len, reply.chunks)) + (100 if reply.cut else 0)
                self.send_response(reply.status)
                for name, value in {**reply.headers, "content-length": str(size)}.items():
                    self.send_header(name, value)
                self.end_headers()
                *first, last = reply.chunks
                self.wfile.write(b"".join(first))
                if reply.hold:
                    reply.hold.wait(10)
                self.wfile.write(last)
                self.close_connection = reply.cut

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = LoopbackServer(Handler)
        self.base_url = self._server.base_url

    def client(self) -> AsyncAnthropic:
        return AsyncAnthropic(api_key="made-up", base_url=self.base_url)

    def __enter__(self) -> Provider:
        self._server.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.stop()
        if exc[0] is None:
            assert not self.faults


def breakpoint_error(request: dict[str, Any]) -> str | None:
    """Return why the real provider would reject the cache breakpoints of a request, or None."""
    breakpoints = json.dumps(request).count('"cache_control": {')
    return (
        f"A maximum of 4 blocks with cache_control may be provided. Found {breakpoints}."
        if breakpoints > 4
        else None
    )


def message(*content: dict[str, Any], stop_reason: str = "end_turn", **more: Any) -> dict[str, Any]:
    """Return an assistant message as the provider sends it."""
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": list(content),
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": dict(USAGE),
        **more,
    }


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def call(tool_use_id: str, name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": tool_use_id, "name": name, "input": arguments}


def unstreamed(answer: dict[str, Any]) -> Reply:
    """Return a response with the message as one JSON body."""
    return Reply((json.dumps(answer).encode(),))


def streamed(answer: dict[str, Any], **options: Any) -> Reply:
    """Return a response with the message as a stream of events."""
    chunks = tuple(event_bytes(event) for event in stream_events(answer))
    return Reply(chunks, headers={"content-type": "text/event-stream; charset=utf-8"}, **options)


def cut_after(answer: dict[str, Any], count: int) -> Reply:
    """Return a response with the first `count` events of a stream; then the connection breaks."""
    return Reply(streamed(answer).chunks[:count], headers=streamed(answer).headers, cut=True)


def error(
    status: int, kind: str, *, retry: str | None = None, text: str = "Sorry", **headers: str
) -> Reply:
    """Return an error response; keyword arguments are headers, with underscores instead of hyphens."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if retry:
        named["x-should-retry"] = retry
    body = json.dumps({"type": "error", "error": {"type": kind, "message": text}})
    return Reply((body.encode(),), status, {"content-type": "application/json", **named})


def error_in_stream(kind: str, **headers: str) -> Reply:
    """Return a response with status 200 whose only event is an error."""
    event = {"type": "error", "error": {"type": kind, "message": "Sorry"}}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply((event_bytes(event),), 200, {"content-type": "text/event-stream", **named})


def event_bytes(event: dict[str, Any]) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def stream_events(answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the events of a stream that contains the message."""
    started = {**answer, "content": [], "stop_reason": None, "usage": {**USAGE, "output_tokens": 1}}
    yield {"type": "message_start", "message": started}
    yield {"type": "ping"}
    for index, block in enumerate(answer["content"]):
        first, deltas = _block_deltas(block)
        yield {"type": "content_block_start", "index": index, "content_block": first}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    delta = {"stop_reason": answer["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": delta, "usage": answer["usage"]}
    yield {"type": "message_stop"}


def _block_deltas(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    match block["type"]:
        case "text":
            return {**block, "text": ""}, [
                {"type": "text_delta", "text": part} for part in _halves(block["text"])
            ]
        case "thinking":
            parts = _halves(block["thinking"])
            thoughts = [{"type": "thinking_delta", "thinking": part} for part in parts]
            signature = {"type": "signature_delta", "signature": block["signature"]}
            return {**block, "thinking": "", "signature": ""}, [*thoughts, signature]
        case "tool_use":
            parts = _halves(block.get("cut_input") or json.dumps(block["input"]))
            first = {key: value for key, value in block.items() if key != "cut_input"}
            return {**first, "input": {}}, [
                {"type": "input_json_delta", "partial_json": part} for part in parts
            ]
        case _:
            return block, []


def _halves(value: str) -> list[str]:
    middle = len(value) // 2
    return [value[:middle], value[middle:]]
