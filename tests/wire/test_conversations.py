"""Recorded conversations with tools, walked again: the store holds who answered whom, and what it cost."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from anthropic import AsyncAnthropic

from tests.wire import corpus, usage
from tests.wire.asking import ask_async
from tests.wire.corpus import Exchange, blocks, continued
from tests.wire.taking import KEY, Batch, Taken, stored, take

TAG = "multi_turn_tool_use"
pytestmark = pytest.mark.filterwarnings("ignore:The model .* is deprecated:DeprecationWarning")
"""What was recorded asks models that are old by now."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(number, marks=pytest.mark.xdist_group(f"conversations-{number % 2}"))
        for number in range(corpus.BATCHES)
    ],
)
def batch(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Batch]:
    """An eighth of the conversations, walked by the SDK's async client in one event loop."""
    path = tmp_path_factory.mktemp("conversations")
    with asyncio.Runner() as runner:

        @contextmanager
        def client_of(url: str) -> Iterator[AsyncAnthropic]:
            client = AsyncAnthropic(api_key=KEY, base_url=url, max_retries=0)
            yield client
            runner.run(client.close())

        def ask(client: AsyncAnthropic, exchange: Exchange) -> list[str]:
            return runner.run(ask_async(client, exchange), context=contextvars.copy_context())

        taken = take(corpus.batch(request.param, TAG), path, client_of, ask)
    with stored(path, taken) as batch:
        yield batch


def test_every_conversation_is_walked() -> None:
    """The batches hold each file with tools and several turns once, and there are such files."""
    held = [file.name for number in range(corpus.BATCHES) for file in corpus.batch(number, TAG)]
    assert sorted(held) == corpus.files(TAG) != []


def test_the_sdk_hears_the_recorded_calls(batch: Batch) -> None:
    """The SDK's own types hold the tool calls that were recorded, streamed or not."""
    for taken in batch.taken:
        calls = [[call["id"] for call in e.calls] for e in taken.file.exchanges]
        assert taken.heard == calls, taken.file.name


def test_each_request_goes_on_from_the_right_answer(batch: Batch) -> None:
    """An attempt continues the last answer in its history, and turns count the answers before it."""
    sql = "SELECT turn FROM attempts WHERE session_id = $session ORDER BY started_ns"
    for taken in batch.taken:
        assert batch.chain(taken) == continued(taken.file.exchanges), taken.file.name
        assert [turn for (turn,) in batch.rows(sql, taken)] == turns(taken), taken.file.name


def test_tool_calls_have_their_results(batch: Batch) -> None:
    """Each call of an answer stands beside the result that a later request carries, if one does."""
    sql = """
        SELECT asking.started_ns, c.tool_use_id, c.name, c.ordinal, c.result_ns, c.is_error, c.source
        FROM tool_calls AS c JOIN attempts AS asking USING (session_id, attempt_id)
        WHERE session_id = $session ORDER BY asking.started_ns, ordinal
    """
    for taken in batch.taken:
        starts = "SELECT started_ns FROM attempts WHERE session_id = $session ORDER BY started_ns"
        number = {started_ns: at for at, (started_ns,) in enumerate(batch.rows(starts, taken))}
        rows = [
            (number[asked], *call, number.get(answered), is_error, source)
            for asked, *call, answered, is_error, source in batch.rows(sql, taken)
        ]
        assert rows == paired(taken), taken.file.name


def test_interactions_begin_with_a_prompt(batch: Batch) -> None:
    """An interaction goes from a prompt to the answer that calls no tool, to the next prompt, or to the end."""
    sql = """
        SELECT interaction_id, result FROM attempts LEFT JOIN interactions USING (session_id, interaction_id)
        WHERE session_id = $session ORDER BY attempts.started_ns
    """
    for taken in batch.taken:
        rows = batch.rows(sql, taken)
        ids = list(dict.fromkeys(interaction_id for interaction_id, _ in rows if interaction_id))
        told = [(ids.index(one) if one else None, result) for one, result in rows]
        assert told == interactions(taken), taken.file.name


def test_usage_of_each_call_is_its_last_count(batch: Batch) -> None:
    """What each answer of a conversation used is what it counts last."""
    for taken in batch.taken:
        counts = [row for exchange in taken.file.exchanges for row in usage.counted(exchange)]
        assert batch.rows(usage.ROWS, taken) == counts, taken.file.name


def turns(taken: Taken) -> list[int | None]:
    """The turn of each question: one more than the answers before it; None where it makes none."""
    found: list[int | None] = []
    answers = 0
    for exchange in taken.file.exchanges:
        found.append(answers + 1 if exchange.asks_model else None)
        answers += exchange.asks_model and exchange.message is not None
    return found


def interactions(taken: Taken) -> list[tuple[int | None, str | None]]:
    """The interaction of each question, from 0, and how it ended."""
    numbers: list[int | None] = []
    results: list[str | None] = []
    is_open = False
    for exchange in taken.file.exchanges:
        if exchange.asks_model and (_is_prompt(exchange) or not is_open):
            results[-1:] = ["interrupted"] if is_open else results[-1:]
            results.append(None)
            is_open = True
        numbers.append(len(results) - 1 if is_open else None)
        if exchange.asks_model and exchange.message and not exchange.calls:
            results[-1], is_open = "success", False
    results[-1:] = ["interrupted"] if is_open else results[-1:]
    return [(at, None if at is None else results[at]) for at in numbers]


def _is_prompt(exchange: Exchange) -> bool:
    """Whether nothing that was said after the last answer is a tool's result."""
    said = itertools.takewhile(lambda m: m["role"] != "assistant", reversed(exchange.messages))
    return not any(block["type"] == "tool_result" for message in said for block in blocks(message))


def paired(taken: Taken) -> list[tuple[Any, ...]]:
    """Each call with the first later question that carries its result: its number, and whether it is an error."""
    exchanges = taken.file.exchanges
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
