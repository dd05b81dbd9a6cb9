"""Every kind that the SDK's types define leaves a fact, or is at least recorded without an error."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentobs.provider.registry import dialect_of
from agentobs.records.exchanges import Answer, Chunk
from tests.recording.test_managed_agents import DAY, resource, stored, stream
from tests.recording.test_provider_tools import exchange, rows
from tests.sdk_kinds import SDK_KINDS

DIALECT = dialect_of("/v1/messages")


def test_every_stop_reason_is_readable(tmp_path: Path) -> None:
    """The reason why a response ended is a fact in the provider's words."""
    reasons = sorted(SDK_KINDS["stop reason"])
    made = []
    for number, reason in enumerate(reasons, 1):
        each = exchange(number, [{"type": "text", "text": "x"}])
        body = each.answer.body.replace(b'"end_turn"', json.dumps(reason).encode())
        made.append(replace(each, answer=replace(each.answer, chunks=(Chunk(body, 1),))))
    assert rows(tmp_path, "SELECT stop_reason FROM attempts ORDER BY started_ns", *made) == [
        (reason,) for reason in reasons
    ]


@pytest.mark.parametrize("streamed", [False, True])
def test_every_type_of_error_is_readable(tmp_path: Path, streamed: bool) -> None:
    """An error of a rejected request, or the first event of a stream, has its type, and costs nothing."""
    errors = sorted(SDK_KINDS["type of error"])
    made = []
    for number, kind in enumerate(errors, 1):
        value = {"type": "error", "error": {"type": kind, "message": "private"}}
        body = json.dumps(value).encode()
        answer = Answer(400, {"content-type": "application/json"}, (Chunk(body, 1),), "complete")
        if streamed:
            event = b"event: error\ndata: %s\n\n" % body
            headers = {"content-type": "text/event-stream"}
            answer = Answer(200, headers, (Chunk(event, 1),), "complete")
        made.append(replace(exchange(number, []), answer=answer))
    sql = (
        "SELECT error_type, outcome, (SELECT count(*) FROM usage) FROM attempts ORDER BY started_ns"
    )
    outcome = "stream_error" if streamed else "http_error"
    assert rows(tmp_path, sql, *made) == [(kind, outcome, 0) for kind in errors]


def test_every_block_of_a_response_has_a_kind() -> None:
    """Each type of block is text, reasoning, a call or a result; only blocks with other content have no such kind."""
    kinds = SDK_KINDS["block of a response"] | SDK_KINDS["block of a request"]
    content = [{"type": kind, "id": f"id_{kind}"} for kind in sorted(kinds)]
    found = {
        each.type: each.kind for each in DIALECT.turn({"role": "user", "content": content}).blocks
    }
    assert found.keys() == kinds
    assert {kind for kind, meaning in found.items() if meaning == "other"} == {
        "compaction",
        "container_upload",
        "document",
        "fallback",
        "image",
        "mcp_tool_listing",
        "search_result",
        "tool_addition",
        "tool_removal",
    }
    results = {kind for kind, meaning in found.items() if meaning == "provider_result"}
    assert results == {kind for kind in kinds if kind.endswith("_tool_result")}
    assert {kind for kind, meaning in found.items() if meaning == "provider_call"} == {
        "server_tool_use",
        "mcp_tool_use",
    }


def test_every_event_and_delta_of_a_stream_is_read() -> None:
    """A stream with each type of delta is reassembled completely."""
    deltas = {
        "text_delta": ("text", "text"),
        "thinking_delta": ("thinking", "thinking"),
        "compaction_delta": ("compaction", "content"),
        "input_json_delta": ("server_tool_use", "partial_json"),
        "signature_delta": ("thinking", "signature"),
        "citations_delta": ("text", "citation"),
    }
    assert deltas.keys() == SDK_KINDS["delta"]
    started = {"role": "assistant", "content": []}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": started}]
    for index, (kind, (block, field)) in enumerate(deltas.items()):
        delta = {"type": kind, field: '{"a": 1}'}
        events += [
            {"type": "content_block_start", "index": index, "content_block": {"type": block}},
            {"type": "content_block_delta", "index": index, "delta": delta},
            {"type": "content_block_stop", "index": index},
        ]
    events += [
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn"},
            "usage": {"output_tokens": 1},
        },
        {"type": "message_stop"},
    ]
    assert {event["type"] for event in events} == SDK_KINDS["event of a stream"]
    body = "".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events).encode()
    message = DIALECT.message({"content-type": "text/event-stream"}, body)
    text = '{"a": 1}'
    assert [
        {key: value for key, value in block.raw.items() if key != "type"}
        for block in message.blocks
    ] == [
        {"text": text},
        {"thinking": text},
        {"content": text},
        {"input": {"a": 1}},
        {"signature": text},
        {"citations": [text]},
    ]
    answer = Answer(200, {"content-type": "text/event-stream"}, (Chunk(body, 1),), "complete")
    assert DIALECT.facts(answer).outcome == "ok"


def test_every_event_of_a_managed_agent_is_a_row(tmp_path: Path) -> None:
    """Each type of event is recorded by its name; previews are parts of events, and have no rows."""
    kinds = sorted(SDK_KINDS["event of a managed agent"])
    events = [
        {"id": f"sevt_{number}", "type": kind, "processed_at": f"{DAY}{number:02}Z"}
        for number, kind in enumerate(kinds)
    ]
    with stored(tmp_path, [resource(), stream(2, events)]) as database:
        found = database.execute("SELECT label FROM events WHERE kind = 'managed_agent'").fetchall()
    previews = {"event_start", "event_delta"}
    assert {label for (label,) in found} == set(kinds) - previews


def test_every_reason_and_error_of_a_managed_agent_is_readable(tmp_path: Path) -> None:
    """Reasons why an agent stopped, and types of its errors, are labels in the provider's words."""
    events = [
        {"type": "session.status_idle", "stop_reason": {"type": each}}
        for each in sorted(SDK_KINDS["stop reason of a managed agent"])
    ]
    events += [
        {"type": "session.error", "error": {"type": each}}
        for each in sorted(SDK_KINDS["error of a managed agent"])
    ]
    numbered = [
        {**event, "id": f"sevt_{number}", "processed_at": f"{DAY}{number:02}Z"}
        for number, event in enumerate(events)
    ]
    sql = "SELECT labels['managed_word'] FROM events WHERE kind = 'managed_agent' ORDER BY at_ns"
    with stored(tmp_path, [resource(), stream(2, numbered)]) as database:
        found = {word for (word,) in database.execute(sql).fetchall()}
    assert found == (
        SDK_KINDS["stop reason of a managed agent"] | SDK_KINDS["error of a managed agent"]
    )
