"""The responses of the demo's provider: prepared for the demo in the provider's format, not recorded."""

from __future__ import annotations

from typing import Any

from agentobs.provider.dialect import Block, Draft, Tokens
from agentobs.provider.registry import DIALECTS
from agentobs.records.exchanges import Answer, Chunk, ModelExchange, Place, Question, Recording

MODEL = "claude-sonnet-5"


_DIALECT = DIALECTS[0]


def _call(call_id: str, name: str, arguments: dict[str, Any]) -> Block:
    return Block("call", "call", id=call_id, name=name, value=arguments)


def recording() -> Recording:
    """Return the responses of one conversation, to be served in order: an overload, then three turns."""
    answers = [_overloaded(), *(_stream(number, *turn) for number, turn in enumerate(_TURNS, 1))]
    exchanges = tuple(
        ModelExchange(
            place=Place("demo"),
            attempt_id=f"{number:032x}",
            started_ns=number,
            headers_ns=None,
            ended_ns=0,
            question=Question("POST", _DIALECT.turn_path, {}, b""),
            answer=answer,
        )
        for number, answer in enumerate(answers, 1)
    )
    return Recording("demo", "made by us", None, None, "completed", None, None, 0, exchanges)


_TURNS: tuple[tuple[list[Block], Tokens], ...] = (
    (
        [
            Block("text", "text", text="I will look up the order and the policy."),
            _call("toolu_demo01", "lookup_order", {"order_id": "A-17"}),
            _call("toolu_demo02", "lookup_policy", {"carrier": "DHL"}),
        ],
        Tokens(12, 118, 0, 1480, 640, has_cache=True),
    ),
    (
        [_call("toolu_demo03", "issue_refund", {"order_id": "A-17", "amount": "41,90"})],
        Tokens(9, 74, 2120, 230, 0, has_cache=True),
    ),
    (
        [
            Block(
                "text",
                "text",
                text="I am sorry: I could not refund order A-17. The refund system refused the amount 41,90.",
            )
        ],
        Tokens(8, 41, 2350, 96, 0, has_cache=True),
    ),
)


def _overloaded() -> Answer:
    body = _DIALECT.error_body(529, "Overloaded")
    headers = {"content-type": "application/json", "retry-after": "1", "request-id": "req_demo00"}
    return Answer(529, headers, (Chunk(body, 0),), "complete")


def _stream(number: int, content: list[Block], tokens: Tokens) -> Answer:
    draft = Draft(f"msg_demo{number:02}", MODEL, content, tokens)
    kind, events = _DIALECT.response_stream(draft, deltas=2)
    chunks = tuple(Chunk(event, at * 12_000_000) for at, event in enumerate(events))
    headers = {"content-type": kind, "request-id": f"req_demo{number:02}"}
    return Answer(200, headers, chunks, "complete")
