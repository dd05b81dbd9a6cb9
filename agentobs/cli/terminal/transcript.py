"""The transcript of a recording: messages, thinking, calls and results, in the order in which they were sent."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agentobs.provider.dialect import Block, Turn
from agentobs.provider.registry import dialect_of, message_of, turns
from agentobs.records.display import printable
from agentobs.records.exchanges import ModelExchange, Recording

MOST_REQUESTS = 400
"""The maximum number of requests of a session that are shown; the last ones are shown. Our choice."""
MOST_CHARACTERS = 20_000
"""The maximum number of characters of one text. Our choice."""

Kind = Literal["user", "model", "thinking", "call", "result", "error"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One text of the transcript."""

    attempt_id: str
    lane: str
    number: int
    """The number of the request in its lane, from 1."""
    kind: Kind
    title: str
    text: str


def transcript(recording: Recording) -> list[Entry]:
    """Return the entries of a recording; each message appears once, with the request that sent it first."""
    requests = [each for each in recording.exchanges if isinstance(each, ModelExchange)]
    numbers: dict[str, int] = {}
    known: dict[str, Sequence[Turn]] = {}
    found: list[Entry] = []
    first = len(requests) - MOST_REQUESTS
    for at, exchange in enumerate(requests):
        lane = exchange.place.lane
        numbers[lane] = numbers.get(lane, 0) + 1
        if at < first:
            continue
        history = history_of(exchange)
        repeated = repeated_messages(exchange, known.get(lane, ()), history)
        known[lane] = history
        found += entries(exchange, numbers[lane], history, repeated)
    return found


def entries(
    exchange: ModelExchange, number: int, history: Sequence[Turn], repeated: int
) -> list[Entry]:
    """Return the entries of one request and its response.

    Args:
        exchange: the request.
        number: its number in its lane, from 1.
        history: its messages, from `history_of`.
        repeated: the number of messages at the start that are not new.
    """
    sent = request_entries(exchange, number, history, repeated)
    return [*sent, *_entries(exchange, number, _response(exchange))]


def request_entries(
    exchange: ModelExchange, number: int, history: Sequence[Turn], repeated: int
) -> list[Entry]:
    """Return the entries of one request without its response; the arguments are those of `entries`."""
    names = {str(b.id): b.name for turn in history for b in turn.blocks if b.kind in _CALLS}
    return _entries(exchange, number, _request(history[repeated:], names))


def new_entries(exchange: ModelExchange, history: Sequence[Turn], first: int) -> list[Entry]:
    """Return the entries of the new messages of one request, including those of the model, and of its response.

    Args:
        exchange: the request.
        history: its messages, from `history_of`.
        first: the position of the first new message, from `new_messages`.
    """
    names = {str(b.id): b.name for turn in history for b in turn.blocks if b.kind in _CALLS}
    entries: list[Entry] = []
    for turn in history[first:]:
        is_model = turn.role == "assistant"
        entries += _entries(
            exchange, 1, _said(turn.blocks) if is_model else _request([turn], names)
        )
    return [*entries, *_entries(exchange, 1, _response(exchange))]


def _entries(
    exchange: ModelExchange, number: int, parts: Iterator[tuple[Kind, str, str]]
) -> list[Entry]:
    lane = exchange.place.lane
    return [
        Entry(exchange.attempt_id, lane, number, kind, title, _cut(text))
        for kind, title, text in parts
    ]


def history_of(exchange: ModelExchange) -> Sequence[Turn]:
    """Return the messages of a request."""
    return turns(parsed_body(exchange.question.body))


_CALLS = ("call", "provider_call")
_RESULTS = ("result", "provider_result")


def repeated_messages(exchange: ModelExchange, old: Sequence[Turn], new: Sequence[Turn]) -> int:
    """Return the number of messages at the start of a request that are those of the previous request.

    A moved cache breakpoint does not change a message.

    Args:
        exchange: the request.
        old: the messages of the previous request of its lane; empty if it is the first one.
        new: the messages of the request.
    """
    without = dialect_of(exchange.question.path).without_breakpoints
    for at, (one, other) in enumerate(zip(old, new, strict=False)):
        if one.raw != other.raw and without(one.raw) != without(other.raw):
            return at
    return min(len(old), len(new))


def _request(new: Sequence[Turn], names: dict[str, str]) -> Iterator[tuple[Kind, str, str]]:
    """Yield the new texts of a request. Responses that it repeats were shown when they arrived."""
    for turn in new:
        if turn.role == "assistant":
            continue
        for block in turn.blocks:
            if block.kind == "text":
                yield "user", "user", block.text
            elif block.kind in _RESULTS:
                name = names.get(str(block.id), "a tool")
                kind: Kind = "error" if block.is_error else "result"
                yield kind, f"{'error' if block.is_error else 'result'} of {name}", _value(block)


def _response(exchange: ModelExchange) -> Iterator[tuple[Kind, str, str]]:
    answer = exchange.answer
    if answer.status is None or answer.status >= 400:
        status = "no response" if answer.status is None else f"status {answer.status}"
        yield "error", status, answer.body.decode("utf-8", "replace")
        return
    yield from _said(message_of(exchange.question.path, answer).blocks)
    if answer.ending != "complete":
        failure = answer.failure
        cause = ": ".join(filter(None, (failure.name, failure.message))) if failure else ""
        yield "error", f"the response is incomplete ({answer.ending})", cause


def _said(blocks: Sequence[Block]) -> Iterator[tuple[Kind, str, str]]:
    """Yield the texts of a message of the model."""
    for block in blocks:
        if block.kind == "text" and block.text:
            yield "model", "model", block.text
        elif block.kind == "reasoning" and block.text:
            yield "thinking", "thinking", block.text
        elif block.kind in _CALLS:
            yield "call", f"calls {block.name}", _value(block)


def _value(block: Block) -> str:
    value = block.text or block.value
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, indent=2, default=repr)


def parsed_body(body: bytes) -> Any:
    """Return the JSON of a request body; None if it is not valid JSON."""
    try:
        return json.loads(body.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        return None


def _cut(text: str) -> str:
    lines = "\n".join(map(printable, text[:MOST_CHARACTERS].expandtabs(4).splitlines()))
    rest = len(text) - MOST_CHARACTERS
    return f"{lines}\n… {rest:,} more characters" if rest > 0 else lines
