"""Every recorded exchange is served, sent again by the real SDK, recorded, ingested, frozen and replayed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic

import agentobs
from agentobs.provider.anthropic.messages import request_error
from agentobs.records.exchanges import ModelExchange
from replay import Replayer, load
from replay.fixture.format import FILE
from replay.fixture.writer import write
from tests.wire import corpus, usage
from tests.wire.conversations import (
    calls_with_results,
    interactions,
    stored_calls_with_results,
    stored_interactions,
    stored_turns,
    turns,
)
from tests.wire.corpus import Exchange, continued_responses
from tests.wire.recorded_batches import KEY, Batch, ingested, model_exchanges, record_files
from tests.wire.sdk_requests import send

pytestmark = pytest.mark.filterwarnings("ignore:The model .* is deprecated:DeprecationWarning")
"""The recorded requests name models that are deprecated now."""


def client_of(url: str) -> Anthropic:
    return Anthropic(api_key=KEY, base_url=url, max_retries=0)


def group(number: int) -> pytest.MarkDecorator:
    return pytest.mark.xdist_group(f"exchanges-{number}")


REPLAYED = [
    pytest.param(number, marks=[group(number), *([] if number < 1 else [pytest.mark.soak])])
    for number in range(corpus.BATCHES)
]
"""A normal run replays one batch; a soak run replays all batches."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(number, marks=[group(number), *([pytest.mark.slow] if number else [])])
        for number in range(corpus.BATCHES)
    ],
)
def batch(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Batch]:
    """An eighth of the files; all exchanges of these files are recorded and ingested."""
    path = tmp_path_factory.mktemp("exchanges")
    files = record_files(corpus.batch(request.param), path, client_of, send)
    with ingested(path, files) as batch:
        yield batch


def test_every_file_is_in_one_batch() -> None:
    """Every file of the manifest is in exactly one batch, and the batches contain as many exchanges as the manifest
    states.
    """
    batches = [file for number in range(corpus.BATCHES) for file in corpus.batch(number)]
    counts = {file.name: len(file.exchanges) for file in batches}
    assert len(batches) == len(counts) > 0
    assert counts == {entry["file"]: entry["interactions"] for entry in corpus.manifest()}


@pytest.mark.slow
def test_the_client_receives_the_recorded_responses(batch: Batch) -> None:
    """A client that is recorded receives the status and body of each response unchanged."""
    for recorded in batch.files:
        assert recorded.responses == [
            (e.status, e.text.encode()) for e in recorded.file.exchanges
        ], recorded.file.name


@pytest.mark.slow
def test_the_journal_contains_the_exact_exchanges(batch: Batch) -> None:
    """The requests and responses that are read from the segments equal the corpus byte for byte."""
    for recorded in batch.files:
        recording = batch.recordings[recorded.session_id]
        found = [journaled(exchange) for exchange in model_exchanges(recording)]
        assert found == [expected(exchange) for exchange in recorded.file.exchanges], (
            recorded.file.name
        )
        assert (recording.outcome, recording.dropped) == ("completed", 0)


@pytest.mark.slow
def test_the_store_counts_every_attempt(batch: Batch) -> None:
    """The store contains one attempt per exchange, with the facts of its response."""
    sql = """
        SELECT session_id, method, status, outcome, error_type, streamed, model_requested, model, stop_reason,
            message_id, request_id, retry_after_ms, message_count, tool_use_count, response_bytes, redactions
        FROM attempts ORDER BY started_ns
    """
    for recorded in batch.files:
        rows = batch.rows(sql, recorded)
        assert rows == [attempt(exchange) for exchange in recorded.file.exchanges], (
            recorded.file.name
        )


def test_each_attempt_continues_the_last_response_in_its_history(batch: Batch) -> None:
    """An attempt continues the last response in its history, even if the client changed other parts of the history."""
    for recorded in batch.files:
        assert batch.continued_attempts(recorded) == continued_responses(recorded.file.exchanges), (
            recorded.file.name
        )


def test_conversations_have_turns_tool_results_and_interactions(batch: Batch) -> None:
    """In a conversation with tools, each attempt has its turn and its interaction, and each call has its result."""
    conversations = [each for each in batch.files if corpus.TAG_CONVERSATION in each.file.tags]
    assert conversations
    for recorded in conversations:
        name = recorded.file.name
        assert stored_turns(batch, recorded) == turns(recorded), name
        assert stored_calls_with_results(batch, recorded) == calls_with_results(recorded), name
        assert stored_interactions(batch, recorded) == interactions(recorded), name


def test_usage_is_the_last_reported_usage(batch: Batch) -> None:
    """The usage rows of each attempt contain the counts that the response reports last: the total and its
    iterations.
    """
    for recorded in batch.files:
        counts = [row for exchange in recorded.file.exchanges for row in usage.usage_rows(exchange)]
        assert batch.rows(usage.ROWS, recorded) == counts, recorded.file.name


@pytest.mark.slow
@pytest.mark.parametrize("batch", REPLAYED, indirect=True)
def test_a_frozen_session_replays_byte_for_byte(batch: Batch, tmp_path: Path) -> None:
    """If a session is frozen, loaded and replayed without a provider, each request receives the recorded response byte
    for byte.
    """
    client = client_of("http://127.0.0.1:9")

    def send_again(file: corpus.WireFile) -> list[Any]:
        with agentobs.session("wire"):
            return [send(client, exchange) for exchange in file.exchanges]

    for recorded in batch.files:
        (tmp_path / FILE).write_bytes(
            write(batch.recordings[recorded.session_id], {"made": "by a test"})
        )
        with Replayer(load(tmp_path)) as replayed:
            agentobs.record(client)
            responses = send_again(recorded.file)
        assert responses == recorded.responses, recorded.file.name
        assert replayed.progress.requests_matched == len(recorded.file.exchanges)


def journaled(exchange: ModelExchange) -> dict[str, Any]:
    """Return an exchange of the journal, with a parsed body if it is JSON."""
    question, answer = exchange.question, exchange.answer
    is_text = question.headers.get("content-type", "").startswith("multipart/")
    return {
        "request": (question.method, question.path),
        "body": question.body.decode() if is_text else json.loads(question.body or b"null"),
        "response": (answer.status, answer.headers, answer.ending, answer.failure),
        "bytes": answer.body,
    }


def expected(exchange: Exchange) -> dict[str, Any]:
    """Return the expected result of `journaled` for an exchange."""
    return {
        "request": (exchange.method, exchange.path),
        "body": exchange.body,
        "response": (exchange.status, headers(exchange), "complete", None),
        "bytes": exchange.text.encode(),
    }


def headers(exchange: Exchange) -> dict[str, str]:
    """Return the recorded headers; if the source removed the content type, it is derived from the body."""
    stream = "text/event-stream; charset=utf-8"
    return {
        "content-type": stream if exchange.is_stream else "application/json",
        **exchange.headers,
    }


def attempt(exchange: Exchange) -> tuple[Any, ...]:
    """Return the expected row of the store for an exchange."""
    message, error, body = exchange.message or {}, exchange.error or {}, exchange.body
    response = message or json_object(exchange)
    outcome = "http_error" if exchange.status >= 400 else "stream_error" if error else "ok"
    wait = exchange.headers.get("retry-after")
    return (
        exchange.method,
        exchange.status,
        outcome,
        error.get("type"),
        exchange.is_stream,
        body.get("model") if isinstance(body, dict) else None,
        response.get("model"),
        response.get("stop_reason"),
        message.get("id"),
        exchange.headers.get("request-id"),
        float(wait) * 1000 if wait else None,
        len(exchange.messages) or None,
        len(exchange.calls),
        len(exchange.text.encode()),
        0,
    )


def json_object(exchange: Exchange) -> dict[str, Any]:
    """Return the JSON object of a response that is not a message, such as a batch or a legacy text completion.

    It is empty if the response is not a JSON object.
    """
    try:
        parsed = json.loads(exchange.text)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def test_accepted_requests_have_no_error() -> None:
    """The strict emulated provider does not reject any request that the real provider accepted."""
    rejected = {
        file.name: request_error(exchange.body)
        for file in map(corpus.read, corpus.files())
        for exchange in file.exchanges
        if exchange.status == 200
        and exchange.path.partition("?")[0] == "/v1/messages"
        and isinstance(exchange.body, dict)
        and "thread" not in exchange.body
        and request_error(exchange.body)
    }
    assert rejected == {}
