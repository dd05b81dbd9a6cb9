"""Recorded conversations with tools, which are sent again: the store has their turns, tool results, interactions and
usage.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from anthropic import AsyncAnthropic

from tests.marks import mark_all_but_first
from tests.wire import corpus, usage
from tests.wire.conversations import (
    calls_with_results,
    interactions,
    stored_calls_with_results,
    stored_interactions,
    stored_turns,
    turns,
)
from tests.wire.corpus import TAG_CONVERSATION, Exchange, continued_responses
from tests.wire.recorded_batches import KEY, Batch, ingested, record_files
from tests.wire.sdk_requests import send_async

pytestmark = pytest.mark.filterwarnings("ignore:The model .* is deprecated:DeprecationWarning")
"""The recorded requests name models that are deprecated now."""


@pytest.fixture(
    scope="module",
    params=mark_all_but_first(range(corpus.BATCHES), pytest.mark.soak),
)
def batch(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Batch]:
    """An eighth of the conversations, sent by the SDK's async client in one event loop.

    A normal run sends one batch; `test_exchanges.py` sends all conversations with the sync client.
    """
    path = tmp_path_factory.mktemp("conversations")
    with asyncio.Runner() as runner:

        @contextmanager
        def client_of(url: str) -> Iterator[AsyncAnthropic]:
            client = AsyncAnthropic(api_key=KEY, base_url=url, max_retries=0)
            yield client
            runner.run(client.close())

        def send(client: AsyncAnthropic, exchange: Exchange) -> list[str]:
            return runner.run(send_async(client, exchange), context=contextvars.copy_context())

        files = record_files(corpus.batch(request.param, TAG_CONVERSATION), path, client_of, send)
    with ingested(path, files) as batch:
        yield batch


def test_every_conversation_is_in_one_batch() -> None:
    """Each file with tools and several turns is in exactly one batch, and there are some of these files."""
    names = [
        file.name
        for number in range(corpus.BATCHES)
        for file in corpus.batch(number, TAG_CONVERSATION)
    ]
    assert sorted(names) == corpus.files(TAG_CONVERSATION) != []


@pytest.mark.slow
def test_the_sdk_returns_the_recorded_tool_calls(batch: Batch) -> None:
    """The messages that the SDK returns contain the recorded tool calls, streamed or not."""
    for recorded in batch.files:
        calls = [[call["id"] for call in e.calls] for e in recorded.file.exchanges]
        assert recorded.responses == calls, recorded.file.name


@pytest.mark.slow
def test_each_request_continues_the_last_response_in_its_history(batch: Batch) -> None:
    """An attempt continues the last response in its history, and its turn is the number of earlier responses plus
    one.
    """
    for recorded in batch.files:
        assert batch.continued_attempts(recorded) == continued_responses(recorded.file.exchanges), (
            recorded.file.name
        )
        assert stored_turns(batch, recorded) == turns(recorded), recorded.file.name


def test_tool_calls_have_their_results(batch: Batch) -> None:
    """Each tool call of a response is joined with the result in a later request, if there is one."""
    for recorded in batch.files:
        rows = stored_calls_with_results(batch, recorded)
        assert rows == calls_with_results(recorded), recorded.file.name


def test_interactions_begin_with_a_prompt(batch: Batch) -> None:
    """An interaction lasts from a prompt until a response without tool calls, the next prompt, or the end."""
    for recorded in batch.files:
        assert stored_interactions(batch, recorded) == interactions(recorded), recorded.file.name


def test_usage_of_each_call_is_its_last_reported_usage(batch: Batch) -> None:
    """The usage of each response is the usage that it reports last."""
    for recorded in batch.files:
        counts = [row for exchange in recorded.file.exchanges for row in usage.usage_rows(exchange)]
        assert batch.rows(usage.ROWS, recorded) == counts, recorded.file.name
