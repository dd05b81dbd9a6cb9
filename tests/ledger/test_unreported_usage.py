"""Missing counts are not zero: responses that broke off before they reported usage, and streams of cloud platforms."""

from __future__ import annotations

import base64
import dataclasses
import json
import struct
import zlib
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx2
import pytest
from anthropic import Anthropic, APIError

import agentobs
from agentobs.provider.anthropic.cloud_frames import unframe
from agentobs.recording.wire.provider_server import ServedProvider, ServeOptions
from agentobs.records.exchanges import Answer, Chunk, Failure, ModelExchange, Question
from agentobs.store.duckdb.connection import connect
from tests.marks import mark_all_but_first
from tests.provider_script import cut, script, streamed, text
from tests.store.recordings import MODEL, a_home, attempt, end, record, start

SONNET = "claude-sonnet-4-5-20250929"
WHOLE = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": SONNET, "content": [],
    "stop_reason": "end_turn", "usage": {"input_tokens": 1_000_000, "output_tokens": 0},
}  # fmt: skip
OVERLOADED = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"}}\n\n'
BEGUN = {"type": "message_start", "message": {**WHOLE, "stop_reason": None,
         "usage": {"input_tokens": 1_000_000, "output_tokens": 1}}}  # fmt: skip
EVENTS = (BEGUN, {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1000}},
          {"type": "message_stop"})  # fmt: skip
JSON, SSE, FRAMES = "application/json", "text/event-stream", "application/vnd.amazon.eventstream"


def answered(body: bytes, kind: str = JSON, **changes: Any) -> ModelExchange:
    """Return a call with a response that has this body."""
    values: dict[str, Any] = {"status": 200, "ending": "complete", "failure": None, **changes}
    chunks = (Chunk(body, 1),) if body else ()
    answer = Answer(
        values["status"], {"content-type": kind}, chunks, values["ending"], values["failure"]
    )
    return dataclasses.replace(attempt(1, 1), answer=answer)


def costs(tmp_path: Path, exchange: ModelExchange) -> list[tuple[Any, ...]]:
    home = a_home(tmp_path)
    record(home, [start(1), exchange, end(1)])
    with connect(home) as connection:
        sql = "SELECT u.model, cost_usd, cost_status, note FROM costs JOIN usage AS u USING (attempt_id)"
        return connection.execute(sql).fetchall()


@pytest.mark.parametrize(
    "exchange",
    mark_all_but_first([
        answered(json.dumps(WHOLE).encode()[:-40], ending="cut"),
        answered(b"", SSE, ending="cancelled"),
        answered(b"event: message_start\ndata: " + json.dumps(BEGUN).encode()[:-60], SSE, ending="cut"),
        answered(b"", status=None, ending="cancelled"),
        answered(b"", status=None, ending="error", failure=Failure("ReadTimeout", "")),
        answered(json.dumps({**WHOLE, "usage": None}).encode()),
        answered(b"<html>", "text/html"),
    ], pytest.mark.slow),
    ids=["body", "headers", "start", "waiting", "timeout", "null", "proxy"],
)  # fmt: skip
def test_a_response_without_counts_is_a_lower_bound(
    tmp_path: Path, exchange: ModelExchange
) -> None:
    """If a response has no counts, the model may still have run, so its row makes a sum a lower bound.

    The row has zeros for the requested model.
    """
    [(model, usd, status, note)] = costs(tmp_path, exchange)
    assert model in (MODEL, SONNET)
    assert (usd, status, note) == (Decimal(0), "lower_bound", "usage:unreported")


@pytest.mark.slow
@pytest.mark.parametrize(
    "exchange",
    [
        attempt(1, 1, status=529),
        answered(b"", status=529, ending="cancelled"),
        answered(OVERLOADED, SSE),
        answered(b"", status=None, ending="error", failure=Failure("ConnectError", "")),
        dataclasses.replace(answered(b"{}"), question=Question("POST", "/v1/messages/count_tokens", {}, b"{}")),
        dataclasses.replace(answered(b"{}"), question=Question("GET", "/v1/models", {}, b"")),
    ],
    ids=["status", "unread", "event", "unsent", "counting", "models"],
)  # fmt: skip
def test_rejected_and_unsent_requests_cost_nothing(tmp_path: Path, exchange: ModelExchange) -> None:
    """A request that was rejected before any output, that was not sent, or that has no model, has no usage row."""
    assert costs(tmp_path, exchange) == []


def test_the_session_cost_is_a_lower_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a stream broke off before its first event, `session.cost()` is a lower bound."""
    monkeypatch.setenv("AGENTOBS_HOME", str(tmp_path / "home"))
    agentobs.stop_recorder()
    answers = script(cut(streamed(text("ok")), 0))
    with ServedProvider(answers, ServeOptions(match="order")) as provider:
        client = agentobs.record(Anthropic(api_key="k", base_url=provider.url, max_retries=0))
        with agentobs.session("broken") as session:
            with pytest.raises((APIError, httpx2.TransportError)):
                list(client.messages.create(model="claude-sonnet-5", max_tokens=9, stream=True,
                                            messages=[{"role": "user", "content": "x"}]))  # fmt: skip
            found = session.cost()
    agentobs.stop_recorder()
    assert found is not None
    assert (found.usd, found.calls, found.status) == (Decimal(0), 1, "lower_bound")


def frame(payload: bytes, **headers: str) -> bytes:
    """Return one frame, in the format of the platform."""
    header_bytes = b"".join(
        bytes([len(k) + 1]) + b":" + k.replace("_", "-").encode() + b"\x07" + struct.pack(">H", len(v)) + v.encode()
        for k, v in headers.items()
    )  # fmt: skip
    prelude = struct.pack(">II", 16 + len(header_bytes) + len(payload), len(header_bytes))
    whole = prelude + struct.pack(">I", zlib.crc32(prelude)) + header_bytes + payload
    return whole + struct.pack(">I", zlib.crc32(whole))


def event(value: Any) -> bytes:
    data = base64.b64encode(json.dumps(value).encode()).decode()
    return frame(
        json.dumps({"bytes": data, "p": "abc"}).encode(), event_type="chunk", message_type="event"
    )


def on_bedrock(exchange: ModelExchange) -> ModelExchange:
    path = "/model/us.anthropic.claude-sonnet-4-5-20250929-v1%3A0/invoke-with-response-stream"
    return dataclasses.replace(exchange, question=Question("POST", path, {}, b'{"messages":[]}'))


def test_the_frames_of_a_platform_are_read(tmp_path: Path) -> None:
    """The counts of a framed stream are read, as an estimate, because the platform may have its own prices."""
    stream = b"".join(map(event, EVENTS))
    found = costs(tmp_path, on_bedrock(answered(stream, FRAMES)))
    assert found == [(SONNET, Decimal("6.0225"), "estimated", "platform:bedrock")]


@pytest.mark.slow
def test_a_framed_stream_that_breaks_off(tmp_path: Path) -> None:
    """If a framed stream breaks off, the counts before the break are a lower bound.

    If there are no counts, the row has zeros for the model in the path.
    """
    stream = b"".join(map(event, EVENTS))
    cut_short = answered(stream[: len(event(BEGUN)) + 9], FRAMES, ending="cut")
    [(_, usd, status, note)] = costs(tmp_path / "a", on_bedrock(cut_short))
    assert (usd, note) == (Decimal("6.0000225"), "platform:bedrock")
    assert status == "lower_bound"
    [(model, usd, status, note)] = costs(
        tmp_path / "b", on_bedrock(answered(stream[:50], FRAMES, ending="cut"))
    )
    assert model == "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
    assert (usd, note) == (Decimal(0), "usage:unreported/platform:bedrock")
    assert status == "lower_bound"
    refused = frame(
        b'{"message":"slow down"}', exception_type="throttlingException", message_type="exception"
    )
    assert costs(tmp_path / "c", on_bedrock(answered(refused, FRAMES))) == []


def test_changed_bytes_do_not_raise_an_error() -> None:
    """Whichever byte of a framed stream is changed, reading it raises no error, and ends at the invalid frame."""
    whole = event(BEGUN) + event(EVENTS[1])
    for at in range(0, len(whole), 7):
        damaged = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        assert unframe(whole).startswith(unframe(damaged))
    assert unframe(frame(b"[]", event_type="chunk")) == b""
    assert unframe(b"\0" * 100) == b""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "model", "platform"),
    [
        ("/v1/projects/p/publishers/anthropic/models/claude-sonnet-4-5@20250929:rawPredict", None, "vertex"),
        ("/v1/messages", "us.anthropic.claude-sonnet-4-5-20250929-v1:0", "bedrock"),
        ("/v1/messages", "claude-sonnet-4-5@20250929", "vertex"),
    ],
)  # fmt: skip
def test_a_platform_is_recognized_by_path_or_model_name(
    tmp_path: Path, path: str, model: str | None, platform: str
) -> None:
    """A call on a cloud platform is recognized by its path or by its model name, and its cost is an estimate.

    The platform's prices may differ from the provider's, even if the response has the plain model name.
    """
    body = json.dumps({"model": model, "messages": []} if model else {"messages": []}).encode()
    made = dataclasses.replace(
        answered(json.dumps(WHOLE).encode()), question=Question("POST", path, {}, body)
    )
    assert costs(tmp_path, made) == [(SONNET, Decimal(6), "estimated", f"platform:{platform}")]
