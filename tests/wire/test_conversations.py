"""Recorded conversations with tools, which are sent again: the store has their turns, tool results, interactions and
usage.
"""

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
from tests.wire.corpus import Exchange, blocks, continued_responses
from tests.wire.recorded_batches import KEY, Batch, RecordedFile, ingested, record_files
from tests.wire.sdk_requests import send_async

TAG = "multi_turn_tool_use"
pytestmark = pytest.mark.filterwarnings("ignore:The model .* is deprecated:DeprecationWarning")
"""The recorded requests name models that are deprecated now."""


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
    """An eighth of the conversations, sent by the SDK's async client in one event loop."""
    path = tmp_path_factory.mktemp("conversations")
    with asyncio.Runner() as runner:

        @contextmanager
        def client_of(url: str) -> Iterator[AsyncAnthropic]:
            client = AsyncAnthropic(api_key=KEY, base_url=url, max_retries=0)
            yield client
            runner.run(client.close())

        def send(client: AsyncAnthropic, exchange: Exchange) -> list[str]:
            return runner.run(send_async(client, exchange), context=contextvars.copy_context())

        files = record_files(corpus.batch(request.param, TAG), path, client_of, send)
    with ingested(path, files) as batch:
        yield batch


def test_every_conversation_is_in_one_batch() -> None:
    """Each file with tools and several turns is in exactly one batch, and there are some of these files."""
    names = [file.name for number in range(corpus.BATCHES) for file in corpus.batch(number, TAG)]
    assert sorted(names) == corpus.files(TAG) != []


def test_the_sdk_returns_the_recorded_tool_calls(batch: Batch) -> None:
    """The messages that the SDK returns contain the recorded tool calls, streamed or not."""
    for recorded in batch.files:
        calls = [[call["id"] for call in e.calls] for e in recorded.file.exchanges]
        assert recorded.responses == calls, recorded.file.name


def test_each_request_continues_the_last_response_in_its_history(batch: Batch) -> None:
    """An attempt continues the last response in its history, and its turn is the number of earlier responses plus
    one.
    """
    sql = "SELECT session_id, turn FROM attempts ORDER BY started_ns"
    for recorded in batch.files:
        assert batch.continued_attempts(recorded) == continued_responses(recorded.file.exchanges), (
            recorded.file.name
        )
        assert [turn for (turn,) in batch.rows(sql, recorded)] == turns(recorded), (
            recorded.file.name
        )


def test_tool_calls_have_their_results(batch: Batch) -> None:
    """Each tool call of a response is joined with the result in a later request, if there is one."""
    sql = """
        SELECT session_id, caller.started_ns, c.tool_use_id, c.name, c.ordinal, c.result_ns, c.is_error, c.source
        FROM tool_calls AS c JOIN attempts AS caller USING (session_id, attempt_id)
        WHERE c.runs_on = 'client' ORDER BY caller.started_ns, ordinal
    """
    starts = "SELECT session_id, started_ns FROM attempts ORDER BY started_ns"
    for recorded in batch.files:
        number = {started_ns: at for at, (started_ns,) in enumerate(batch.rows(starts, recorded))}
        rows = [
            (number[started_ns], *call, number.get(result_ns), is_error, source)
            for started_ns, *call, result_ns, is_error, source in batch.rows(sql, recorded)
        ]
        assert rows == calls_with_results(recorded), recorded.file.name


def test_interactions_begin_with_a_prompt(batch: Batch) -> None:
    """An interaction lasts from a prompt until a response without tool calls, the next prompt, or the end."""
    sql = """
        SELECT session_id, interaction_id, result
        FROM attempts LEFT JOIN interactions USING (session_id, interaction_id)
        ORDER BY attempts.started_ns
    """
    for recorded in batch.files:
        rows = batch.rows(sql, recorded)
        ids = list(dict.fromkeys(interaction_id for interaction_id, _ in rows if interaction_id))
        found = [(ids.index(each) if each else None, result) for each, result in rows]
        assert found == interactions(recorded), recorded.file.name


def test_usage_of_each_call_is_its_last_reported_usage(batch: Batch) -> None:
    """The usage of each response is the usage that it reports last."""
    for recorded in batch.files:
        counts = [row for exchange in recorded.file.exchanges for row in usage.usage_rows(exchange)]
        assert batch.rows(usage.ROWS, recorded) == counts, recorded.file.name


def turns(recorded: RecordedFile) -> list[int | None]:
    """Return the turn of each request: the number of earlier responses plus one; None if it is not a model request."""
    found: list[int | None] = []
    responses = 0
    for exchange in recorded.file.exchanges:
        found.append(responses + 1 if exchange.is_model_request else None)
        responses += exchange.is_model_request and exchange.message is not None
    return found


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
