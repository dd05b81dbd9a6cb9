"""Every recorded exchange: served, asked again by the real SDK, recorded, counted, frozen and replayed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic

import agentobs
from agentobs.provider.anthropic.messages import fault_of_request
from agentobs.records.exchanges import ModelExchange
from replay import Replayer, load
from replay.fixture.format import FILE
from replay.fixture.writer import write
from tests.wire import corpus, usage
from tests.wire.asking import ask
from tests.wire.corpus import Exchange, continued
from tests.wire.taking import KEY, Batch, questions, stored, take

pytestmark = pytest.mark.filterwarnings("ignore:The model .* is deprecated:DeprecationWarning")
"""What was recorded asks models that are old by now."""


def client_of(url: str) -> Anthropic:
    return Anthropic(api_key=KEY, base_url=url, max_retries=0)


def group(number: int) -> pytest.MarkDecorator:
    return pytest.mark.xdist_group(f"exchanges-{number}")


REPLAYED = [
    pytest.param(number, marks=[group(number), *([] if number < 2 else [pytest.mark.soak])])
    for number in range(corpus.BATCHES)
]
"""A quarter of the batches is replayed in each run, all of them in a long one."""


@pytest.fixture(
    scope="module",
    params=[pytest.param(number, marks=group(number)) for number in range(corpus.BATCHES)],
)
def batch(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Batch]:
    """An eighth of the files, all their exchanges recorded and ingested."""
    path = tmp_path_factory.mktemp("exchanges")
    taken = take(corpus.batch(request.param), path, client_of, ask)
    with stored(path, taken) as batch:
        yield batch


def test_no_file_is_left_out() -> None:
    """The batches hold every file of the manifest once, and every exchange that it counts."""
    batches = [file for number in range(corpus.BATCHES) for file in corpus.batch(number)]
    held = {file.name: len(file.exchanges) for file in batches}
    assert len(batches) == len(held) > 0
    assert held == {entry["file"]: entry["interactions"] for entry in corpus.manifest()}


def test_the_client_hears_what_was_recorded(batch: Batch) -> None:
    """A recorded client gets each answer's status and bytes as they are."""
    for taken in batch.taken:
        assert taken.heard == [(e.status, e.text.encode()) for e in taken.file.exchanges], (
            taken.file.name
        )


def test_the_journal_holds_what_was_on_the_wire(batch: Batch) -> None:
    """Read back from the segments, questions and answers are the recorded ones, byte for byte."""
    for taken in batch.taken:
        recording = batch.recordings[taken.session_id]
        held = [told(exchange) for exchange in questions(recording)]
        assert held == [expected(exchange) for exchange in taken.file.exchanges], taken.file.name
        assert (recording.outcome, recording.dropped) == ("completed", 0)


def test_the_store_counts_every_attempt(batch: Batch) -> None:
    """DuckDB holds one row for each exchange, with what its answer says besides its text."""
    sql = """
        SELECT method, status, outcome, error_type, streamed, model_requested, model, stop_reason, message_id,
            request_id, retry_after_ms, message_count, tool_use_count, response_bytes, redactions
        FROM attempts WHERE session_id = $session ORDER BY started_ns
    """
    for taken in batch.taken:
        rows = batch.rows(sql, taken)
        assert rows == [attempt(exchange) for exchange in taken.file.exchanges], taken.file.name


def test_the_store_knows_which_answer_a_request_goes_on_from(batch: Batch) -> None:
    """Whatever a client changes in its history, an attempt continues the last answer that stands there."""
    for taken in batch.taken:
        assert batch.chain(taken) == continued(taken.file.exchanges), taken.file.name


def test_usage_is_what_the_answer_counts_last(batch: Batch) -> None:
    """The usage of each attempt is that of the answer's last counts, iterations beside the whole."""
    for taken in batch.taken:
        counts = [row for exchange in taken.file.exchanges for row in usage.counted(exchange)]
        assert batch.rows(usage.ROWS, taken) == counts, taken.file.name


@pytest.mark.parametrize("batch", REPLAYED, indirect=True)
def test_a_frozen_session_replays_byte_for_byte(batch: Batch, tmp_path: Path) -> None:
    """Frozen, loaded and replayed with nothing to connect to, each question gets the recorded bytes again."""
    client = client_of("http://127.0.0.1:9")
    for taken in batch.taken:
        (tmp_path / FILE).write_bytes(
            write(batch.recordings[taken.session_id], {"made": "by a test"})
        )
        with Replayer(load(tmp_path)) as replayed:
            agentobs.record(client)
            with agentobs.session("wire"):
                heard = [ask(client, exchange) for exchange in taken.file.exchanges]
        assert heard == taken.heard, taken.file.name
        assert replayed.progress.requests_matched == len(taken.file.exchanges)


def told(exchange: ModelExchange) -> dict[str, Any]:
    """What the journal says of an exchange, a JSON body parsed."""
    question, answer = exchange.question, exchange.answer
    is_text = question.headers.get("content-type", "").startswith("multipart/")
    return {
        "asked": (question.method, question.path),
        "body": question.body.decode() if is_text else json.loads(question.body or b"null"),
        "answered": (answer.status, answer.headers, answer.ending, answer.failure),
        "bytes": answer.body,
    }


def expected(exchange: Exchange) -> dict[str, Any]:
    """What the journal must say of an exchange."""
    return {
        "asked": (exchange.method, exchange.path),
        "body": exchange.body,
        "answered": (exchange.status, headers(exchange), "complete", None),
        "bytes": exchange.text.encode(),
    }


def headers(exchange: Exchange) -> dict[str, str]:
    """The recorded headers; where the file's own source took the content type away, that of the body."""
    stream = "text/event-stream; charset=utf-8"
    return {
        "content-type": stream if exchange.is_stream else "application/json",
        **exchange.headers,
    }


def attempt(exchange: Exchange) -> tuple[Any, ...]:
    """The row that the store must hold for an exchange."""
    message, error, body = exchange.message or {}, exchange.error or {}, exchange.body
    answer = message or plain(exchange)
    outcome = "http_error" if exchange.status >= 400 else "stream_error" if error else "ok"
    wait = exchange.headers.get("retry-after")
    return (
        exchange.method,
        exchange.status,
        outcome,
        error.get("type"),
        exchange.is_stream,
        body.get("model") if isinstance(body, dict) else None,
        answer.get("model"),
        answer.get("stop_reason"),
        message.get("id"),
        exchange.headers.get("request-id"),
        float(wait) * 1000 if wait else None,
        len(exchange.messages) or None,
        len(exchange.calls),
        len(exchange.text.encode()),
        0,
    )


def plain(exchange: Exchange) -> dict[str, Any]:
    """The JSON object of an answer that is no message, such as a batch; the old completions are ones."""
    try:
        parsed = json.loads(exchange.text)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def test_no_conversation_that_was_taken_counts_as_faulty() -> None:
    """What the emulated provider refuses when it is strict, the real one never answered."""
    refused = {
        file.name: fault_of_request(exchange.body)
        for file in map(corpus.read, corpus.files())
        for exchange in file.exchanges
        if exchange.status == 200
        and exchange.path.partition("?")[0] == "/v1/messages"
        and isinstance(exchange.body, dict)
        and "thread" not in exchange.body
        and fault_of_request(exchange.body)
    }
    assert refused == {}
