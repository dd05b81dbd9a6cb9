"""Tools that the provider ran for the requests of a batch: the same calls and results as in ordinary responses.

The blocks are from recorded traffic. The recorded batches contain no such tools, so each response is also the result of
a batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from anthropic.types.messages import MessageBatchIndividualResponse, batch_create_params
from pydantic import TypeAdapter

from agentobs.records.exchanges import Answer, Chunk, Ending, ModelExchange, Place, Question
from agentobs.store.duckdb.connection import connect
from agentobs.store.duckdb.ingest import ingest
from tests.cli.test_commands import Shell
from tests.dashboards.live_app import serving
from tests.store.recordings import a_home, end, record, session_id, start
from tests.wire import corpus
from tests.wire.corpus import Exchange

BATCH = "msgbatch_01HkcTjaV5uDC8jWR4ZsDV8d"
VERSION = {"anthropic-version": "2023-06-01"}
JSON = {"content-type": "application/json"}
TOOLS = ("server_tool_use", "mcp_tool_use")


def has_tools(exchange: Exchange) -> bool:
    message = exchange.message if exchange.is_model_request and not exchange.is_stream else None
    return message is not None and any(block["type"] in TOOLS for block in message["content"])


@pytest.fixture(scope="module")
def recorded() -> list[Exchange]:
    """All recorded exchanges with such calls that are not streams."""
    files = map(corpus.read, corpus.files())
    return [each for file in files for each in file.exchanges if has_tools(each)]


def answered(
    number: int,
    method: str,
    path: str,
    body: Any,
    answer: bytes,
    *,
    session: int = 1,
    ending: Ending = "complete",
) -> ModelExchange:
    question = Question(method, path, VERSION, b"" if body is None else json.dumps(body).encode())
    return ModelExchange(
        Place(session_id(session)),
        f"{session:016x}{number:016x}",
        1_795_000_000_000_000_000 + number * 10**9,
        1,
        10**6,
        question,
        Answer(200, JSON, (Chunk(answer, 1),), ending),
    )


def created(number: int, exchanges: Sequence[Exchange], session: int = 1) -> ModelExchange:
    """Return the request that creates a batch of recorded requests."""
    requests = [
        {"custom_id": custom_id(at), "params": each.body} for at, each in enumerate(exchanges)
    ]
    TypeAdapter(batch_create_params.Request).validate_python(requests[0])
    answer = json.dumps({"id": BATCH, "type": "message_batch"}).encode()
    body = {"requests": requests}
    return answered(number, "POST", "/v1/messages/batches?beta=true", body, answer, session=session)


def custom_id(at: int) -> str:
    return f"Ada's question {at}"


def lines(exchanges: Sequence[Exchange]) -> bytes:
    """Return the results of a batch with the recorded responses, and results of other kinds."""
    results = [
        {"custom_id": custom_id(at), "result": {"type": "succeeded", "message": each.message}}
        for at, each in enumerate(exchanges)
    ]
    error = {
        "type": "error",
        "error": {"type": "api_error", "message": "tool_use"},
        "request_id": None,
    }
    results.append({"custom_id": "x", "result": {"type": "errored", "error": error}})
    results.append({"custom_id": "y", "result": {"type": "expired"}})
    for each in results[-2:]:
        MessageBatchIndividualResponse.model_validate(each)
    return b"".join(json.dumps(each).encode() + b"\n" for each in results)


def results(
    number: int, body: bytes, *, session: int = 1, ending: Ending = "complete"
) -> ModelExchange:
    path = f"/v1/messages/batches/{BATCH}/results"
    return answered(number, "GET", path, None, body, session=session, ending=ending)


def ordinary(exchanges: Sequence[Exchange], session: int) -> Iterator[ModelExchange]:
    for number, each in enumerate(exchanges, 1):
        text = each.text.encode()
        yield answered(number, "POST", "/v1/messages", each.body, text, session=session)


CALLS = """
    SELECT tool_use_id, name, server, input_bytes, result_bytes, outcome, is_error, error_code, use, max_uses,
        caller_id, source, duration_ns
    FROM tool_calls WHERE session_id = $session AND runs_on = 'provider' ORDER BY ALL
"""
RESULTS = """
    SELECT tool_use_id, type, items, return_code, stop_reason, iteration, error_code
    FROM provider_tool_results WHERE session_id = $session ORDER BY ALL
"""
ADVISED = """
    SELECT tool_use_id, outcome, stop_reason, advisor_model, advisor_input_tokens, advisor_output_tokens,
        executor_model, executor_input_tokens, executor_output_tokens
    FROM advisor_consultations WHERE session_id = $session ORDER BY ALL
"""


@pytest.mark.slow
def test_tools_in_a_batch_are_those_of_ordinary_responses(
    tmp_path: Path, recorded: list[Exchange]
) -> None:
    """Calls, results, errors, uses and the advisor's tokens are equal, and count once if the results are fetched again,
    even after a transfer that broke off.
    """
    assert len(recorded) >= 20
    home, body = a_home(tmp_path), lines(recorded)
    cut = body[: len(body) // 2]
    batch = [
        created(1, recorded),
        results(2, cut, ending="cut"),
        results(3, body),
        results(4, body),
    ]
    record(home, [start(1), *batch, end(1, at=1_800_000_000_000_000_000)])
    separate = list(ordinary(recorded, 2))
    record(home, [start(2), *separate, end(2, at=1_800_000_000_000_000_000)])
    ingest(home)
    with connect(home, ingest=False) as database:

        def rows(sql: str, session: int) -> list[tuple[Any, ...]]:
            return database.execute(sql, {"session": session_id(session)}).fetchall()

        for sql in (CALLS, RESULTS, ADVISED):
            assert rows(sql, 1) == rows(sql, 2), sql
        assert len(rows(CALLS, 1)) >= 20
        assert {"web_search", "advisor"} <= {row[1] for row in rows(CALLS, 1)}
        keyed = database.execute(
            """
            SELECT count(*), count(DISTINCT calls.batch_result_id), count(usage.attempt_id)
            FROM tool_calls AS calls
            LEFT JOIN (SELECT DISTINCT batch_result_id, attempt_id FROM usage) AS usage
                USING (batch_result_id, attempt_id)
            WHERE calls.session_id = $session
            """,
            {"session": session_id(1)},
        ).fetchall()
        assert keyed == [(len(rows(CALLS, 1)), len(recorded), len(rows(CALLS, 1)))]
        assert "Ada" not in str(rows("FROM provider_tool_uses WHERE session_id = $session", 1))
        assert "Ada" not in str(rows("FROM event_log WHERE session_id = $session", 1))


@pytest.mark.slow
def test_limits_are_unknown_in_a_session_that_did_not_create_the_batch(
    tmp_path: Path, recorded: list[Exchange]
) -> None:
    """A program that only fetches the results sees calls and results; their limits are NULL."""
    home = a_home(tmp_path)
    limited = [
        replace(each, body={**each.body, "tools": [{**tool, "max_uses": 7} for tool in each.tools]})
        for each in recorded
        if any(tool.get("name") == "web_search" for tool in each.tools)
    ]
    record(home, [start(1), results(1, lines(limited)), end(1, at=1_800_000_000_000_000_000)])
    record(
        home,
        [
            start(2),
            created(1, limited, session=2),
            results(2, lines(limited), session=2),
            end(2, at=1_800_000_000_000_000_000),
        ],
    )
    ingest(home)
    with connect(home, ingest=False) as database:
        found = database.execute(
            "SELECT DISTINCT session_id, max_uses FROM tool_calls WHERE name = 'web_search' ORDER BY ALL"
        ).fetchall()
    assert found == [(session_id(1), None), (session_id(2), 7)]


def test_equal_ids_in_two_results_are_two_calls(tmp_path: Path) -> None:
    """A call without a result in one result of a batch does not get a result from another one."""
    call = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    usage = {"input_tokens": 1, "output_tokens": 1}
    body = b"".join(
        json.dumps(
            {
                "custom_id": name,
                "result": {
                    "type": "succeeded",
                    "message": {
                        "role": "assistant", "model": "claude-sonnet-5", "content": content, "usage": usage,
                    },
                },
            }
        ).encode()
        + b"\n"
        for name, content in (("a", [call]), ("b", [call, found]))
    )  # fmt: skip
    home = a_home(tmp_path)
    record(home, [start(1), results(1, body), end(1, at=1_800_000_000_000_000_000)])
    ingest(home)
    with connect(home, ingest=False) as database:
        rows = database.execute(
            "SELECT ordinal, use, outcome FROM tool_calls ORDER BY ordinal"
        ).fetchall()
    assert rows == [(1, 1, None), (2, 1, "executed")]


@pytest.mark.slow
def test_commands_and_pages_show_the_tools_of_a_batch(
    tmp_path: Path, recorded: list[Exchange], capsys: pytest.CaptureFixture[str]
) -> None:
    """The timeline, the list of tools, and the page of the session contain the calls."""
    home = a_home(tmp_path)
    record(
        home,
        [
            start(1),
            created(1, recorded),
            results(2, lines(recorded)),
            end(1, at=1_800_000_000_000_000_000),
        ],
    )
    ingest(home)
    shell = Shell(home.path, capsys)
    assert "web_search" in shell("show", "story").out
    assert "web_search" in shell("tools").out
    with serving(home) as client:
        page = client.get(f"/sessions/{session_id(1)}")
        assert page.status == 200
        assert "web_search" in page.html
