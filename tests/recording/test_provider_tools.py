"""Tools that the provider runs: times, limits, errors, names and unknown kinds, in responses of the SDK's types."""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from anthropic.types import beta
from anthropic.types.browser_member_name import BROWSER_MEMBER_NAME_VALUES
from anthropic.types.computer_member_name import COMPUTER_MEMBER_NAME_VALUES

from agentobs.provider.anthropic.cloud_frames import FRAMES, enframe
from agentobs.records.exchanges import Answer, Chunk, ModelExchange, Place, Question
from agentobs.store.duckdb.connection import connect
from tests.store.recordings import T0, a_home, end, record, session_id, start

MODEL = "claude-sonnet-5"
MS = 1_000_000
SEARCH = {"type": "web_search_20260318", "name": "web_search", "max_uses": 2}
USAGE = {"input_tokens": 5, "output_tokens": 7}


def call(number: int, name: str = "web_search", **more: Any) -> dict[str, Any]:
    """Return a call of a tool of the provider, checked by the SDK's type."""
    block = {
        "type": "server_tool_use",
        "id": f"srvtoolu_{number}",
        "name": name,
        "input": {},
        **more,
    }
    return beta.BetaServerToolUseBlock.model_validate(block).model_dump(exclude_none=True)


def found(number: int) -> dict[str, Any]:
    """Return the result of a web search with one page."""
    page: dict[str, Any] = {
        "type": "web_search_result",
        "url": "https://example.com/private",
        "title": "T",
        "encrypted_content": "x",
        "page_age": None,
    }
    return {
        "type": "web_search_tool_result",
        "tool_use_id": f"srvtoolu_{number}",
        "content": [page],
    }


def failed(number: int, kind: str, code: str) -> dict[str, Any]:
    """Return a result that is an error."""
    return {
        "type": f"{kind}_tool_result",
        "tool_use_id": f"srvtoolu_{number}",
        "content": {"type": f"{kind}_tool_result_error", "error_code": code},
    }


def exchange(
    number: int,
    blocks: Sequence[dict[str, Any]],
    *,
    streamed: bool = False,
    framed: bool = False,
    usage: dict[str, Any] | None = None,
    **body: Any,
) -> ModelExchange:
    """Return a request and its response; in a stream, event n arrives n ms after the request."""
    request = {
        "model": MODEL,
        "max_tokens": 100,
        "messages": [{"role": "user", "content": f"Question {number}"}],
        **body,
    }
    message = {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": list(blocks),
        "stop_reason": "end_turn",
        "usage": usage or USAGE,
    }
    if streamed or framed:
        events = list(_events(message))
        lines = [json.dumps(each).encode() for each in events]
        parts = (
            [enframe([line]) for line in lines]
            if framed
            else [
                b"event: %s\ndata: %s\n\n" % (event["type"].encode(), line)
                for event, line in zip(events, lines, strict=True)
            ]
        )
        kind = FRAMES if framed else "text/event-stream"
        chunks = tuple(Chunk(part, at * MS) for at, part in enumerate(parts, 1))
    else:
        kind, chunks = "application/json", (Chunk(json.dumps(message).encode(), MS),)
    return ModelExchange(
        place=Place(session_id(1)),
        attempt_id=f"{number:032x}",
        started_ns=T0 + number * 1000 * MS,
        headers_ns=MS,
        ended_ns=chunks[-1].after_ns,
        question=Question(
            "POST",
            "/model/anthropic.claude/invoke-with-response-stream" if framed else "/v1/messages",
            {"content-type": "application/json"},
            json.dumps(request).encode(),
        ),
        answer=Answer(200, {"content-type": kind}, chunks, "complete"),
    )


def _events(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}}
    for index, block in enumerate(message["content"]):
        yield {"type": "content_block_start", "index": index, "content_block": block}
        if "input" in block:
            text = '{"q": "\\"type\\":\\"content_block_start\\""}'
            delta = {"type": "input_json_delta", "partial_json": text}
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    stop = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": stop, "usage": message["usage"]}
    yield {"type": "message_stop"}


def rows(tmp_path: Path, sql: str, *exchanges: ModelExchange) -> list[tuple[Any, ...]]:
    """Record the exchanges in one session, and return the rows of a query."""
    home = a_home(tmp_path)
    record(home, [start(1), *exchanges, end(1)])
    with connect(home) as database:
        return database.execute(sql).fetchall()


@pytest.mark.slow
@pytest.mark.parametrize("framed", [False, True])
def test_the_time_of_a_call_is_from_its_block_to_its_result(tmp_path: Path, framed: bool) -> None:
    """A text in an input that looks like the start of a block is not counted, not even in the frames of a platform."""
    blocks = [call(1), call(2), found(2), {"type": "text", "text": "then"}, found(1)]
    made = exchange(1, blocks, streamed=True, framed=framed, tools=[SEARCH])
    found_rows = rows(
        tmp_path,
        """
        SELECT name, ordinal, use, max_uses, runs_on, source, outcome, requested_ns, started_ns, duration_ns, result_ns
        FROM tool_calls ORDER BY ordinal
        """,
        made,
    )
    # The events: start, (block, delta, stop) for each call, (block, stop) for each other block.
    calls, results = [2, 5], [12, 8]
    assert found_rows == [
        (
            "web_search", ordinal, ordinal, 2, "provider", "response", "executed",
            made.started_ns + begun * MS, made.started_ns + begun * MS, (ended - begun) * MS,
            made.started_ns + ended * MS,
        )
        for ordinal, (begun, ended) in enumerate(zip(calls, results, strict=True), 1)
    ]  # fmt: skip


def test_without_a_stream_no_time_is_invented(tmp_path: Path) -> None:
    """The call is known only when the response has ended; its duration is NULL, not 0."""
    made = exchange(1, [call(1), found(1)], tools=[SEARCH])
    sql = "SELECT requested_ns, started_ns, duration_ns, result_ns FROM tool_calls"
    ended_ns = made.started_ns + made.ended_ns
    assert rows(tmp_path, sql, made) == [(ended_ns, None, None, ended_ns)]


def test_a_result_in_a_later_response_joins_its_call(tmp_path: Path) -> None:
    """After a paused turn, the result has the attempt of its call; the time between is not that of the tool."""
    paused = exchange(1, [call(1)], streamed=True, tools=[SEARCH])
    continued = exchange(2, [found(1), call(2)], streamed=True, tools=[SEARCH])
    sql = """
        SELECT attempt_id, use, outcome, duration_ns, result_attempt_id FROM tool_calls ORDER BY requested_ns
    """
    assert rows(tmp_path, sql, paused, continued) == [
        (paused.attempt_id, 1, "executed", None, continued.attempt_id),
        (continued.attempt_id, 1, None, None, None),
    ]


def test_a_result_without_a_known_call_is_kept(tmp_path: Path) -> None:
    """If the response with the call was not recorded, the result has no attempt, and there is no call."""
    sql = "SELECT attempt_id, outcome, (SELECT count(*) FROM tool_calls) FROM provider_tool_results"
    assert rows(tmp_path, sql, exchange(1, [found(9)])) == [(None, "executed", 0)]


ERRORS = [
    (kind, code)
    for kind, values in dict[str, Any](
        {
            "advisor": beta.BetaAdvisorToolResultErrorObject,
            "bash_code_execution": beta.BetaBashCodeExecutionToolResultErrorObject,
            "code_execution": beta.BetaCodeExecutionToolResultErrorObject,
            "text_editor_code_execution": beta.BetaTextEditorCodeExecutionToolResultErrorObject,
            "tool_search": beta.BetaToolSearchToolResultErrorObject,
            "web_fetch": beta.BetaWebFetchToolResultErrorBlock,
            "web_search": beta.BetaWebSearchToolResultErrorObject,
        }
    ).items()
    for code in typing.get_args(values.model_fields["error_code"].annotation)
]
"""All error codes of the installed SDK, each with its kind of tool."""


def test_every_error_code_of_the_sdk_is_readable(tmp_path: Path) -> None:
    """An error has its code as the provider wrote it, and the type of its block."""
    blocks = [failed(number, *error) for number, error in enumerate(ERRORS)]
    sql = """
        SELECT type, error_code, outcome, is_error FROM provider_tool_results ORDER BY session_sequence
    """
    assert len(ERRORS) > 30
    assert rows(tmp_path, sql, exchange(1, blocks)) == [
        (f"{kind}_tool_result", code, "failed", True) for kind, code in ERRORS
    ]


def test_a_kind_of_result_that_nobody_has_seen_is_recorded(tmp_path: Path) -> None:
    """A new tool of the provider has calls and results; a code that is not a term becomes a digest."""
    sketch = {**call(1), "name": "sketch_board"}
    blocks = [
        sketch,
        {"type": "sketch_tool_result", "tool_use_id": "srvtoolu_1", "content": {"page": 1}},
        {**sketch, "id": "srvtoolu_2", "type": "sketch_tool_use"},
        failed(2, "sketch", "My secret text"),
    ]
    sql = """
        SELECT name LIKE 'digest:%', outcome, error_code LIKE 'digest:%', result_bytes FROM tool_calls ORDER BY ordinal
    """
    first = len('{"page": 1}')
    made = rows(tmp_path, sql, exchange(1, blocks))
    assert [row[:3] for row in made] == [(True, "executed", None), (True, "failed", True)]
    assert made[0][3] == first


def mcp_call(number: int, name: str, server: str) -> dict[str, Any]:
    return {
        "type": "mcp_tool_use",
        "id": f"mcptoolu_{number}",
        "name": name,
        "server_name": server,
        "input": {"q": "private"},
    }


MCP_REQUESTS: list[tuple[dict[str, Any], list[bool]]] = [
    ({}, [False, False]),
    ({"mcp_servers": [{"type": "url", "name": "wiki", "url": "https://x"}]}, [False, True]),
    (
        {
            "mcp_servers": [
                {
                    "type": "url",
                    "name": "wiki",
                    "url": "https://x",
                    "tool_configuration": {"allowed_tools": ["read_page"]},
                }
            ]
        },
        [True, True],
    ),
    (
        {
            "tools": [
                {"type": "mcp_toolset", "mcp_server_name": "wiki", "configs": {"read_page": {}}}
            ]
        },
        [True, True],
    ),
    (
        {
            "tools": [
                {
                    "type": "mcp_toolset",
                    "mcp_server_name": "wiki",
                    "tools": [{"name": "read_page", "input_schema": {}}],
                }
            ]
        },
        [True, True],
    ),
]
"""Requests, and whether they declare the tool `read_page` and the server `wiki`."""


@pytest.mark.slow
@pytest.mark.parametrize(("request_body", "declared"), MCP_REQUESTS)
def test_names_of_mcp_tools_are_readable_if_the_request_declares_them(
    tmp_path: Path, request_body: dict[str, Any], declared: list[bool]
) -> None:
    """Other names of servers and tools are digests, because a third party chose them."""
    result = {
        "type": "mcp_tool_result",
        "tool_use_id": "mcptoolu_1",
        "is_error": True,
        "content": [{"type": "text", "text": "no"}],
    }
    blocks = [mcp_call(1, "read_page", "wiki"), result]
    sql = "SELECT name, server, outcome, is_error, error_code FROM tool_calls"
    [row] = rows(tmp_path, sql, exchange(1, blocks, **request_body))
    assert [row[0] == "read_page", row[1] == "wiki"] == declared
    assert all(each in ("read_page", "wiki") or each.startswith("digest:") for each in row[:2])
    assert row[2:] == ("failed", True, None)


def test_an_advisor_that_exceeds_its_limits(tmp_path: Path) -> None:
    """Consultations beyond the limit fail; each successful one has the tokens of its own iteration."""
    advisor = {
        "type": "advisor_20260301",
        "name": "advisor",
        "model": "claude-opus-4-8",
        "max_uses": 2,
        "max_tokens": 50,
    }

    def advice(number: int, stop_reason: str) -> dict[str, Any]:
        content = {"type": "advisor_result", "text": "private", "stop_reason": stop_reason}
        return {
            "type": "advisor_tool_result",
            "tool_use_id": f"srvtoolu_{number}",
            "content": content,
        }

    def iteration(kind: str, model: str, tokens: int) -> dict[str, Any]:
        return {
            "type": kind,
            "model": model,
            "input_tokens": tokens,
            "output_tokens": tokens + 1,
            "cache_read_input_tokens": 1000,
            "cache_creation_input_tokens": 0,
        }

    usage = {
        **USAGE,
        "iterations": [
            iteration("message", MODEL, 1),
            iteration("advisor_message", "claude-opus-4-8", 10),
            iteration("message", MODEL, 2),
            iteration("advisor_message", "claude-opus-4-8", 20),
            iteration("message", MODEL, 3),
        ],
    }
    blocks = [
        call(1, "advisor"),
        advice(1, "end_turn"),
        call(2, "advisor"),
        advice(2, "max_tokens"),
        call(3, "advisor"),
        failed(3, "advisor", "max_uses_exceeded"),
    ]
    sql = """
        SELECT use, max_uses, max_result_tokens, outcome, error_code, stop_reason, advisor_model, advisor_input_tokens,
            advisor_output_tokens, executor_model, executor_input_tokens, executor_output_tokens
        FROM advisor_consultations ORDER BY use
    """
    executor = (MODEL, 3006, 9)
    opus = "claude-opus-4-8"
    assert rows(tmp_path, sql, exchange(1, blocks, usage=usage, tools=[advisor])) == [
        (1, 2, 50, "executed", None, "end_turn", opus, 1010, 11, *executor),
        (2, 2, 50, "executed", None, "max_tokens", opus, 1020, 21, *executor),
        (3, 2, 50, "failed", "max_uses_exceeded", None, None, None, None, *executor),
    ]


def test_results_of_code_have_the_exit_status_and_the_calling_code(tmp_path: Path) -> None:
    """A failed program is not a failed call; a call that code made names the call of the code."""
    status = {
        "type": "bash_code_execution_result",
        "stdout": "",
        "stderr": "private",
        "return_code": 3,
        "content": [{"type": "bash_code_execution_output", "file_id": "file_1"}],
    }
    nested = call(2, caller={"type": "code_execution_20260120", "tool_id": "srvtoolu_1"})
    blocks = [
        call(1, "bash_code_execution"),
        nested,
        found(2),
        {
            "type": "bash_code_execution_tool_result",
            "tool_use_id": "srvtoolu_1",
            "content": status,
        },
    ]
    sql = """
        SELECT calls.name, calls.caller_id, calls.is_error, results.return_code, results.items
        FROM tool_calls AS calls
        JOIN provider_tool_results AS results USING (session_id, attempt_id, ordinal) ORDER BY ordinal
    """
    assert rows(tmp_path, sql, exchange(1, blocks)) == [
        ("bash_code_execution", None, False, 3, 1),
        ("web_search", "srvtoolu_1", False, None, 1),
    ]


def test_hostile_blocks_do_not_stop_the_recording(tmp_path: Path) -> None:
    """Blocks without IDs, names or contents, and limits that are not counts, are recorded as far as possible."""
    blocks: list[Any] = [
        {"type": "server_tool_use"},
        {"type": "server_tool_use", "id": 7, "name": ["x"], "input": None, "caller": "me"},
        {"type": "web_search_tool_result"},
        {"type": "x_tool_result", "tool_use_id": None, "content": {"error_code": 5}},
    ]
    tools = [{"name": "web_search", "max_uses": "many"}, "tool", {"name": 3, "max_uses": -1}]
    sql = "SELECT count(*), count(outcome), count(max_uses) FROM tool_calls"
    made = exchange(1, blocks, tools=tools, mcp_servers=[1, {"name": 2}])
    assert rows(tmp_path, sql, made) == [(2, 2, 0)]


def test_hostile_requests_do_not_stop_the_recording(tmp_path: Path) -> None:
    """A number that no provider accepts, and a tool whose schema is not an object, are left out."""
    prompt = [{"role": "user", "content": [{"text": "Hello"}]}]
    tools = {"tools": [{"toolSpec": {"name": "look", "inputSchema": 5}}]}
    cloud = json.dumps({"messages": prompt, "toolConfig": tools}).encode()
    made = exchange(2, [], max_tokens=10**400)
    question = dataclasses.replace(made.question, path="/model/m/converse", body=cloud)
    other = dataclasses.replace(made, attempt_id=f"{3:032x}", question=question)
    sql = "SELECT endpoint, parameters IS NULL FROM attempts ORDER BY 1"
    assert rows(tmp_path, sql, made, other) == [
        ("/model/:id/converse", True),
        ("/v1/messages", True),
    ]


def test_provider_calls_are_not_calls_of_the_client(tmp_path: Path) -> None:
    """The turn has no calls that the client must run, so the interaction ends with the response."""
    sql = """
        SELECT a.tool_use_count, i.result, s.tool_calls, (SELECT count(*) FROM tool_uses)
        FROM attempts AS a
        JOIN interactions AS i USING (interaction_id)
        JOIN sessions AS s ON a.session_id = s.session_id
    """
    assert rows(tmp_path, sql, exchange(1, [call(1), found(1)])) == [(0, "success", 0, 0)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("toolset", "names"),
    [
        ("browser_toolset_20260801", BROWSER_MEMBER_NAME_VALUES),
        ("computer_toolset_20260801", COMPUTER_MEMBER_NAME_VALUES),
    ],
)
def test_tools_of_a_toolset_are_readable_if_it_is_declared(
    tmp_path: Path, toolset: str, names: Sequence[str]
) -> None:
    """A toolset of the provider declares the names of its tools, which the client runs; otherwise they are digests."""
    blocks = [
        {"type": "tool_use", "id": f"toolu_{at}", "name": name, "input": {}}
        for at, name in enumerate(names)
    ]
    sql = "SELECT name FROM tool_calls WHERE runs_on = 'client' ORDER BY ordinal"
    declared = rows(tmp_path / "with", sql, exchange(1, blocks, tools=[{"type": toolset}]))
    assert declared == [(name,) for name in names]
    others = rows(tmp_path / "without", sql, exchange(1, blocks))
    assert all(name.startswith("digest:") for (name,) in others)


def test_the_number_of_skills_is_a_parameter(tmp_path: Path) -> None:
    """Of the skills in the container of a request, facts contain only the number."""
    skills = [{"type": "custom", "skill_id": "skill_private", "version": "latest"}] * 2
    made = exchange(1, [{"type": "text", "text": "x"}], container={"skills": skills})
    [(parameters,)] = rows(tmp_path, "SELECT parameters FROM attempts", made)
    assert parameters == {"max_tokens": "100", "container.skills": "2"}
