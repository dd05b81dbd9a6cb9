"""Tools that the provider ran in recorded traffic: calls and results are rows, and each result finds its call."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentobs.records.exchanges import Answer, Chunk, ModelExchange, Place, Question
from agentobs.sink import Record
from agentobs.store.duckdb.connection import connect
from agentobs.store.duckdb.ingest import ingest
from tests.store.recordings import a_home, end, record, session_id, start
from tests.wire import corpus
from tests.wire.corpus import Exchange
from tests.wire.recorded_batches import Batch, RecordedFile, ingested, record_files
from tests.wire.sdk_requests import send
from tests.wire.test_exchanges import client_of

pytestmark = [
    pytest.mark.xdist_group("wire-provider-tools"),
    pytest.mark.filterwarnings("ignore:The model .* is deprecated:DeprecationWarning"),
]

FILES = 40
"""The number of files whose responses contain such calls or results, by which missing files are detected."""

CALLS = """
    SELECT session_id, name, use, max_uses, outcome, is_error, error_code, attempt_id = result_attempt_id, tool_use_id,
        caller_id
    FROM tool_calls
    WHERE runs_on = 'provider'
    ORDER BY (SELECT started_ns FROM attempts WHERE attempts.attempt_id = tool_calls.attempt_id), ordinal
"""
RESULTS = """
    SELECT session_id, type, items, return_code
    FROM provider_tool_results
    ORDER BY session_sequence
"""


def blocks_of(exchange: Exchange) -> list[dict[str, Any]]:
    message = exchange.message if exchange.is_model_request else None
    return message["content"] if message else []


def calls_of(exchange: Exchange) -> list[dict[str, Any]]:
    kinds = ("server_tool_use", "mcp_tool_use")
    return [block for block in blocks_of(exchange) if block["type"] in kinds]


def results_of(exchange: Exchange) -> list[dict[str, Any]]:
    return [block for block in blocks_of(exchange) if block["type"].endswith("_tool_result")]


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Batch]:
    """All files with such calls or results, recorded from the real SDK and ingested."""
    names = corpus.files()
    files = [
        file
        for file in map(corpus.read, names)
        if any(calls_of(each) or results_of(each) for each in file.exchanges)
    ]
    path = tmp_path_factory.mktemp("provider_tools")
    with ingested(path, record_files(files, path, client_of, send)) as batch:
        yield batch


def expected_calls(recorded: RecordedFile) -> list[tuple[Any, ...]]:
    """Return the rows of a file's calls, computed from the file."""
    exchanges = recorded.file.exchanges
    rows = []
    for number, exchange in enumerate(exchanges):
        uses: Counter[str] = Counter()
        limits = {tool.get("name"): tool.get("max_uses") for tool in exchange.tools}
        for call in calls_of(exchange):
            uses[call["name"]] += 1
            found = next(
                (
                    (later, block)
                    for later, other in enumerate(exchanges[number:], number)
                    for block in results_of(other)
                    if block["tool_use_id"] == call["id"]
                ),
                None,
            )
            content = found[1]["content"] if found else None
            code = content.get("error_code") if isinstance(content, dict) else None
            is_error = bool(code or (found and found[1].get("is_error")))
            rows.append(
                (
                    call["name"],
                    uses[call["name"]],
                    limits.get(call["name"]),
                    None if found is None else "failed" if is_error else "executed",
                    None if found is None else is_error,
                    code,
                    None if found is None else found[0] == number,
                    call["id"],
                    (call.get("caller") or {}).get("tool_id"),
                )
            )
    return rows


@pytest.mark.slow
def test_every_call_is_a_row_with_its_result(batch: Batch) -> None:
    """Names, uses, outcomes and IDs equal those in the files; a result after a paused turn joins its call."""
    assert len(batch.files) == FILES
    total: Counter[str] = Counter()
    for recorded in batch.files:
        found = batch.rows(CALLS, recorded)
        wanted = expected_calls(recorded)
        declared = {
            tool.get("name") for exchange in recorded.file.exchanges for tool in exchange.tools
        }
        for row, other in zip(found, wanted, strict=True):
            is_own = other[7].startswith("srvtoolu_") or other[0] in declared
            assert row[0] == other[0] if is_own else row[0].startswith("digest:"), other
            assert row[1:] == other[1:], recorded.file.name
            total["later response" if row[6] is False else "calls"] += 1
    assert total == {"calls": 88, "later response": 2}


@pytest.mark.slow
def test_every_result_is_a_row(batch: Batch) -> None:
    """Results have their type, the number of their parts, and the exit status of programs."""
    for recorded in batch.files:
        wanted = []
        for exchange in recorded.file.exchanges:
            for block in results_of(exchange):
                content = block["content"]
                parts = content
                if isinstance(content, dict):
                    parts = content.get("tool_references", content.get("content"))
                items = len(parts) if isinstance(parts, list) else None
                status = content.get("return_code") if isinstance(content, dict) else None
                wanted.append((block["type"], items, status))
        assert batch.rows(RESULTS, recorded) == wanted, recorded.file.name


@pytest.mark.slow
def test_only_calls_in_streams_have_a_time(batch: Batch) -> None:
    """The time of a call is known if the response was streamed and contains the result; it is within the response."""
    for recorded in batch.files:
        rows = batch.rows(
            """
            SELECT session_id, streamed, attempt_id = result_attempt_id, calls.duration_ns,
                calls.started_ns IS NOT NULL,
                requested_ns BETWEEN attempts.started_ns AND attempts.started_ns + attempts.duration_ns,
                calls.duration_ns BETWEEN 0 AND attempts.duration_ns
            FROM tool_calls AS calls JOIN attempts USING (session_id, attempt_id)
            WHERE runs_on = 'provider'
            """,
            recorded,
        )
        for streamed, is_same, duration_ns, is_timed, is_inside, is_shorter in rows:
            assert is_timed == streamed
            assert is_inside
            assert (duration_ns is not None) == bool(streamed and is_same)
            assert is_shorter in (None, True)


def test_the_advisor_and_the_executor_have_their_own_tokens(batch: Batch) -> None:
    """A consultation has the tokens of the advisor's iteration and of the other iterations."""
    count = 0
    for recorded in batch.files:
        rows = batch.rows(
            """
            SELECT session_id, advisor_model, advisor_input_tokens, advisor_output_tokens, executor_model,
                executor_input_tokens, executor_output_tokens, use, max_uses, stop_reason
            FROM advisor_consultations ORDER BY attempt_id
            """,
            recorded,
        )
        wanted = [
            consultation(exchange)
            for exchange in recorded.file.exchanges
            if any(call["name"] == "advisor" for call in calls_of(exchange))
        ]
        assert rows == wanted, recorded.file.name
        count += len(rows)
    assert count == 3


def consultation(exchange: Exchange) -> tuple[Any, ...]:
    """Return the row of the only consultation in a response."""
    assert exchange.message is not None
    iterations = exchange.message["usage"]["iterations"]
    [advisor] = [each for each in iterations if each["type"] == "advisor_message"]
    others = [each for each in iterations if each is not advisor]
    [result] = results_of(exchange)

    def prompt(each: dict[str, Any]) -> int:
        return int(
            each["input_tokens"]
            + each["cache_read_input_tokens"]
            + each["cache_creation_input_tokens"]
        )

    return (
        advisor["model"],
        prompt(advisor),
        advisor["output_tokens"],
        exchange.message["model"],
        sum(map(prompt, others)),
        sum(each["output_tokens"] for each in others),
        1,
        None,
        result["content"]["stop_reason"],
    )


def response_only() -> list[dict[str, Any]]:
    """Return the recorded responses without requests that contain the result of a provider's tool."""
    found = []
    for path in sorted((corpus.folder() / "response_only").rglob("*.jsonl")):
        text = path.read_text("utf-8")
        if "_tool_result" in text:
            found.append(json.loads(text.splitlines()[0])["response"])
    return found


def test_responses_without_requests_are_read_as_well(tmp_path: Path) -> None:
    """Results of further tools, and an error, from responses whose requests are unknown."""
    home, records = a_home(tmp_path), list[Record]([start(1)])
    wanted: Counter[tuple[str, str, str | None]] = Counter()
    responses = [each for response in response_only() for each in as_sent(response)]
    for number, (body, headers, blocks) in enumerate(responses, 1):
        for block in blocks:
            if block["type"].endswith("_tool_result"):
                content = block["content"]
                code = content.get("error_code") if isinstance(content, dict) else None
                wanted[block["type"], "failed" if code else "executed", code] += 1
        question = Question(
            "POST", "/v1/messages", {}, b'{"model":"claude-sonnet-5","max_tokens":9,"messages":[]}'
        )
        answer = Answer(200, headers, (Chunk(body, 1),), "complete")
        records.append(
            ModelExchange(Place(session_id(1)), f"{number:032x}", number, 1, 2, question, answer)
        )
    record(home, [*records, end(1)])
    ingest(home)
    with connect(home, ingest=False) as database:
        rows = database.execute(
            "SELECT type, outcome, error_code, count(*) FROM provider_tool_results GROUP BY ALL"
        ).fetchall()
    assert {row[:3]: row[3] for row in rows} == wanted
    assert wanted["web_fetch_tool_result", "failed", "unavailable"] == 1
    assert len(wanted) > 5


Response = tuple[bytes, dict[str, str], list[dict[str, Any]]]
"""The body and headers of a response in its original framing, and its content blocks."""


def as_sent(response: dict[str, Any]) -> Iterator[Response]:
    """Yield the responses in a stored text. The events of several responses may be in one text."""
    try:
        message = json.loads(response["body_text"])
    except ValueError:
        streams: list[list[dict[str, Any]]] = []
        for line in response["body_text"].strip().splitlines():
            event = json.loads(line)
            if event["type"] == "message_start":
                streams.append([])
            streams[-1].append(event)
        for events in streams:
            body = "".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events)
            starts = [e["content_block"] for e in events if e["type"] == "content_block_start"]
            yield body.encode(), {"content-type": "text/event-stream"}, starts
    else:
        headers = {"content-type": "application/json"}
        yield response["body_text"].encode(), headers, message["content"]
