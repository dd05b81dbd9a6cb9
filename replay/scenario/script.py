"""Scripted responses: a test defines the responses of the model after the recorded path.

replay.then(calls("issue_refund", order_id="A-17"), says("Refunded."))
step = replay.until(turn=2, tools="live")
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from agentobs.provider.dialect import Block, Draft
from agentobs.provider.registry import dialect_of_body
from agentobs.records.exchanges import Answer, Chunk


@dataclass(frozen=True, slots=True)
class Scripted:
    """One response of the model."""

    blocks: tuple[Block, ...] = ()
    """Its content: texts, and tool calls without IDs, which are created on delivery."""
    status: int = 200
    """Its HTTP status; every status except 200 is an error."""
    error: str = ""
    """The type of the error."""

    def __add__(self, other: Scripted) -> Scripted:
        """Return a response with the content of both responses, such as a text and calls, or several calls."""
        return Scripted(self.blocks + other.blocks)

    def answer(self, number: int, request: Mapping[str, Any]) -> Answer:
        """Return the response in the provider's format, streamed if the request asks for a stream.

        Args:
            number: the position in the script, from 1, from which IDs are derived.
            request: the body of the request.
        """
        dialect = dialect_of_body(request)
        if self.status != 200:
            kind = self.error or "api_error"
            return _json(self.status, dialect.error_body(self.status, "scripted", kind))
        numbered = enumerate(self.blocks, 1)
        blocks = [_with_id(block, f"toolu_scripted_{number}_{place}") for place, block in numbered]
        draft = Draft(f"msg_scripted_{number}", str(request.get("model", "")), blocks)
        if not dialect.wants_stream(request):
            return _json(200, dialect.response_body(draft))
        kind, events = dialect.response_stream(draft)
        chunks = tuple(Chunk(event, 0) for event in events)
        return Answer(200, {"content-type": kind}, chunks, "complete")


def says(text: str) -> Scripted:
    """Return a text response."""
    return Scripted((Block("text", "text", text=text),))


def calls(name: str, /, **arguments: Any) -> Scripted:
    """Return a response that calls a tool; the sum of two such responses makes both calls concurrently."""
    return Scripted((Block("call", "call", name=name, value=arguments),))


def fails(status: int, error: str = "api_error") -> Scripted:
    """Return an error response, such as `fails(529, "overloaded_error")`."""
    return Scripted((), status, error)


def _with_id(block: Block, call_id: str) -> Block:
    return replace(block, id=call_id) if block.kind == "call" else block


def _json(status: int, body: bytes) -> Answer:
    return Answer(status, {"content-type": "application/json"}, (Chunk(body, 0),), "complete")
