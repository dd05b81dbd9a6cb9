"""The turns, interactions and tool calls of recorded conversations, as the store has them and as a file has them."""

from __future__ import annotations

import itertools
from typing import Any

from tests.wire.corpus import Exchange, blocks
from tests.wire.recorded_batches import Batch, RecordedFile


def stored_turns(batch: Batch, recorded: RecordedFile) -> list[int | None]:
    """Return the turn of each attempt in the store."""
    sql = "SELECT session_id, turn FROM attempts ORDER BY started_ns"
    return [turn for (turn,) in batch.rows(sql, recorded)]


def turns(recorded: RecordedFile) -> list[int | None]:
    """Return the turn of each request: the number of earlier responses plus one; None if it is not a model request."""
    found: list[int | None] = []
    responses = 0
    for exchange in recorded.file.exchanges:
        found.append(responses + 1 if exchange.is_model_request else None)
        responses += exchange.is_model_request and exchange.message is not None
    return found


def stored_interactions(
    batch: Batch, recorded: RecordedFile
) -> list[tuple[int | None, str | None]]:
    """Return the interaction of each attempt in the store, counted from 0, and its result."""
    sql = """
        SELECT session_id, interaction_id, result
        FROM attempts LEFT JOIN interactions USING (session_id, interaction_id)
        ORDER BY attempts.started_ns
    """
    rows = batch.rows(sql, recorded)
    ids = list(dict.fromkeys(interaction_id for interaction_id, _ in rows if interaction_id))
    return [(ids.index(each) if each else None, result) for each, result in rows]


def interactions(recorded: RecordedFile) -> list[tuple[int | None, str | None]]:
    """Return the interaction of each request, counted from 0, and its result."""
    numbers: list[int | None] = []
    results: list[str | None] = []
    is_open = False
    for exchange in recorded.file.exchanges:
        if exchange.is_model_request and (_is_prompt(exchange) or not is_open):
            results[-1:] = ["interrupted"] if is_open else results[-1:]
            results.append(None)
            is_open = True
        numbers.append(len(results) - 1 if is_open else None)
        if exchange.is_model_request and exchange.message and not exchange.calls:
            results[-1], is_open = "success", False
    results[-1:] = ["interrupted"] if is_open else results[-1:]
    return [(number, None if number is None else results[number]) for number in numbers]


def _is_prompt(exchange: Exchange) -> bool:
    """Return whether no message after the last response contains a tool result."""
    new = itertools.takewhile(lambda m: m["role"] != "assistant", reversed(exchange.messages))
    return not any(block["type"] == "tool_result" for message in new for block in blocks(message))


def stored_calls_with_results(batch: Batch, recorded: RecordedFile) -> list[tuple[Any, ...]]:
    """Return each tool call in the store, the number of the request with its result, and whether that is an error."""
    sql = """
        SELECT session_id, caller.started_ns, c.tool_use_id, c.name, c.ordinal, c.result_ns, c.is_error, c.source
        FROM tool_calls AS c JOIN attempts AS caller USING (session_id, attempt_id)
        WHERE c.runs_on = 'client' ORDER BY caller.started_ns, ordinal
    """
    starts = "SELECT session_id, started_ns FROM attempts ORDER BY started_ns"
    number = {started_ns: at for at, (started_ns,) in enumerate(batch.rows(starts, recorded))}
    return [
        (number[started_ns], *call, number.get(result_ns), is_error, source)
        for started_ns, *call, result_ns, is_error, source in batch.rows(sql, recorded)
    ]


def calls_with_results(recorded: RecordedFile) -> list[tuple[Any, ...]]:
    """Return each tool call, the number of the first later request with its result, and whether that is an error."""
    exchanges = recorded.file.exchanges
    return [
        (at, call["id"], call["name"], ordinal, *_result(exchanges[at + 1 :], at + 1, call["id"]))
        for at, exchange in enumerate(exchanges)
        for ordinal, call in enumerate(exchange.calls, 1)
    ]


def _result(later: tuple[Exchange, ...], first: int, call_id: str) -> tuple[Any, ...]:
    for at, exchange in enumerate(later, first):
        for block in [block for message in exchange.messages for block in blocks(message)]:
            if block["type"] == "tool_result" and block["tool_use_id"] == call_id:
                return (at, bool(block.get("is_error")), "wire")
    return (None, None, None)
