"""Bytes of responses: chunk boundaries, encodings, unknown events, and headers."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import agentobs
from agentobs.errors import UsageError
from agentobs.recording.wire.provider_server import ServedProvider
from agentobs.records.exchanges import ModelExchange
from replay import ReplayOptions
from replay.fixture.format import as_recording
from tests.provider_script import message_events, sse, text
from tests.replay.agents import MODEL
from tests.replay.raw_provider import JSON, SSE, Call, play_chunks
from tests.replay.wire_recordings import (
    BOTH,
    REQUEST,
    client,
    listen,
    message_json,
    recorded,
    replayed,
)


def raw_chunks(url: str) -> list[bytes]:
    """Return the chunks of one response as the client receives them."""
    sdk = client(url)
    with agentobs.session("pieces"):
        with sdk.messages.with_streaming_response.create(**REQUEST, stream=True) as response:
            return list(response.http_response.iter_raw())


BODY = b"".join(message_events(text("Grüße, wörld"))).replace(rb"\u00fc", "ü".encode())


def split(body: bytes, size: int) -> list[bytes]:
    return [body[at : at + size] for at in range(0, len(body), size)]


@pytest.mark.slow
def test_chunk_boundaries_are_replayed_if_requested(tmp_path: Path) -> None:
    """The recorded chunks of a response are replayed if requested, even if they split a character; the default is one
    chunk.
    """
    body, inside = BODY, BODY.index("ü".encode()) + 1
    for number, cuts in enumerate((split(body, 1), split(body, 7), [body[:inside], body[inside:]])):
        home = tmp_path / str(number)
        live, fixture, _ = recorded(home, [play_chunks(200, SSE, *cuts)], raw_chunks)
        assert b"".join(live) == body
        assert len(live) >= len(cuts)
        assert replayed(fixture, raw_chunks, chunks="recorded") == live
    assert replayed(fixture, raw_chunks) == [body]
    events = [event + b"\n\n" for event in body.split(b"\n\n")[:-1]]
    assert replayed(fixture, raw_chunks, chunks="events") == events
    assert replayed(fixture, raw_chunks, chunks=7) == split(body, 7)
    assert replayed(fixture, raw_chunks, chunks=1) == split(body, 1)
    assert live == [body[:inside], body[inside:]]


def test_a_fixture_is_served_in_its_recorded_chunks(tmp_path: Path) -> None:
    """A fixture contains the times of its chunks, and a provider that serves the fixture sends the recorded chunks."""
    cuts = [BODY[:100], BODY[100:101], BODY[101:]]
    live, fixture, _ = recorded(tmp_path, [play_chunks(200, SSE, *cuts)], raw_chunks)
    recording = as_recording(fixture)
    with ServedProvider(recording) as provider:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(agentobs, "record", lambda client: client)
            assert raw_chunks(provider.url) == live == cuts
    [exchange] = recording.exchanges
    assert isinstance(exchange, ModelExchange)
    assert [c.after_ns // 1_000_000 for c in exchange.answer.chunks] == [
        after_ms for _, after_ms in fixture.requests[0].chunks
    ]


@pytest.mark.slow
@BOTH
def test_a_character_split_between_chunks_is_reassembled(
    tmp_path: Path, asynchronous: bool
) -> None:
    """A character that is split between chunks reaches the agent complete, live and in a replay, sync and async."""
    plays = [play_chunks(200, SSE, *split(BODY, 1))]
    live, fixture, _ = recorded(tmp_path, plays, lambda url: listen(url, asynchronous))
    assert "Grü" in str(live)
    for chunks in ("events", "recorded", 1, 7):
        assert replayed(fixture, lambda url: listen(url, asynchronous), chunks=chunks) == live


def test_chunks_are_sent_at_the_recorded_pace(tmp_path: Path, waits: list[float]) -> None:
    """With `pace`, each chunk is sent after its recorded delay, divided by the pace."""
    had = threading.Event()

    def slow(call: Call) -> None:
        call.send_headers()
        call.send(BODY[:200])
        assert had.wait(20)
        call.send(BODY[200:])
        call.end()

    def run(url: str) -> list[bytes]:
        with agentobs.session("slow"):
            with client(url).messages.with_streaming_response.create(
                **REQUEST, stream=True
            ) as response:
                found = []
                for chunk in response.http_response.iter_raw():
                    found.append(chunk)
                    threading.Event().wait(0.03)
                    had.set()
                return found

    live, fixture, _ = recorded(tmp_path, [slow], run)
    [request] = fixture.requests
    gaps = [b - a for (_, a), (_, b) in zip(request.chunks, request.chunks[1:], strict=False)]
    assert sum(gaps) >= 25
    waits.clear()
    assert replayed(fixture, run, chunks="recorded", pace=2) == live
    first = request.chunks[0][1]
    expected = [gap / 2000 for gap in [first, *gaps] if gap]
    assert [round(wait, 6) for wait in waits] == [round(wait, 6) for wait in expected]


@pytest.mark.parametrize(
    "wrong",
    [
        {"chunks": 0},
        {"chunks": -1},
        {"chunks": True},
        {"chunks": "bytes"},
        {"pace": 0},
        {"pace": float("inf")},
        {"pace": "fast"},
    ],
)
def test_invalid_chunks_and_paces_are_rejected(wrong: dict[str, Any]) -> None:
    """Invalid values of `chunks` and `pace` are rejected."""
    with pytest.raises(UsageError, match=r"invalid chunks|invalid pace"):
        ReplayOptions(**wrong)


def compressed(encoding: str, data: bytes) -> bytes:
    import brotli
    from backports import zstd

    pack: dict[str, Any] = {"gzip": gzip.compress, "br": brotli.compress, "zstd": zstd.compress}
    data_packed: bytes = pack[encoding](data)
    return data_packed


def every_encoding(url: str) -> list[str]:
    """Read one streamed response for each encoding."""
    sdk = client(url)
    with agentobs.session("packed"):
        found = []
        for _ in range(3):
            with sdk.messages.stream(**REQUEST) as stream:
                found.append(stream.get_final_text())
        return found


WITHOUT_BROTLI = """
import sys
for name in ("brotli", "brotlicffi", "zstandard"):
    sys.modules[name] = None
import httpx2
assert "br" not in httpx2.Client().headers["accept-encoding"]
from replay import Replayer, load
from tests.replay.wire_recordings import NOWHERE
from tests.replay.test_response_bytes import every_encoding
with Replayer(load(sys.argv[1])) as replayed:
    print(replayed.run(every_encoding, NOWHERE))
"""


@pytest.mark.slow
def test_compressed_responses_replay_without_a_decoder(tmp_path: Path) -> None:
    """Responses that were recorded with gzip, br and zstd are plain text in the fixture, and replay without brotli."""
    body = b"".join(message_events(text("hello")))
    encodings = ("gzip", "br", "zstd")
    plays = [
        play_chunks(200, {**SSE, "content-encoding": each}, *split(compressed(each, body), 40))
        for each in encodings
    ]
    live, fixture, raw = recorded(tmp_path, plays, every_encoding)
    assert live == ["hello"] * 3
    assert "br" in raw.requests[0].headers["accept-encoding"]
    assert fixture.path.read_text().count('"text": "hello"') == 0
    assert fixture.path.read_text().count("hello") == 3
    assert all("base64" not in line for line in fixture.path.read_text().splitlines())
    run = [sys.executable, "-c", WITHOUT_BROTLI, str(fixture.path.parent)]
    root = Path(__file__).parents[2]
    environ = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(run, capture_output=True, text=True, env=environ, cwd=root, check=False)
    assert (done.stdout.strip(), done.stderr) == (str(live), "")


def test_responses_reach_the_sdk_byte_for_byte(tmp_path: Path) -> None:
    """All parts of a response reach the SDK byte for byte, including signatures, unknown events and blocks, and
    whitespace.
    """
    usage = {"input_tokens": 1, "output_tokens": 1}
    start = {"id": "msg_1", "type": "message", "role": "assistant", "model": MODEL, "content": []}
    blocks: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
        (
            {"type": "thinking", "thinking": "", "signature": ""},
            [
                {"type": "thinking_delta", "thinking": "hmm"},
                {"type": "signature_delta", "signature": "RXJjQkNrZ0lBUkFDR0FJaQ=="},
            ],
        ),
        ({"type": "redacted_thinking", "data": "RW1vd2JnQT0="}, []),
        (
            {"type": "text", "text": "", "citations": []},
            [
                {"type": "text_delta", "text": "sun \u2028 \ud83c\udf1e"},
                {
                    "type": "citations_delta",
                    "citation": {
                        "type": "char_location",
                        "cited_text": "sun",
                        "document_index": 0,
                        "document_title": None,
                        "start_char_index": 0,
                        "end_char_index": 3,
                        "file_id": None,
                    },
                },
            ],
        ),
        (
            {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
            [{"type": "input_json_delta", "partial_json": '{"query": "sun"}'}],
        ),
        (
            {
                "type": "web_search_tool_result",
                "tool_use_id": "srvtoolu_1",
                "content": [
                    {
                        "type": "web_search_result",
                        "url": "https://sun.test",
                        "title": "Sun",
                        "encrypted_content": "RW5j",
                        "page_age": None,
                    }
                ],
            },
            [],
        ),
        ({"type": "hologram_of_2031", "deep": [{"x": 1.50}]}, [{"type": "hologram_delta", "y": 2}]),
    ]
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**start, "usage": usage}, "later": None},
        {"type": "ping"},
        {"type": "weather_report_of_2031", "sky": {"clear": True}},
    ]
    for index, (block, deltas) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events += [{"type": "content_block_delta", "index": index, "delta": d} for d in deltas]
        events.append({"type": "content_block_stop", "index": index})
    events += [
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
        {"type": "message_stop"},
    ]
    # As the provider does: spaces after the last brace, and comments.
    event_chunks = [chunk.replace(b"}\n\n", b"}    \n\n") for chunk in sse(*events)]
    body = b": a comment\n\n" + b"".join(event_chunks) + b"event: weather\r\ndata:{}\r\n\r\n"

    live, fixture, _ = recorded(tmp_path, [play_chunks(200, SSE, body)], raw_chunks)
    assert b"".join(live) == body
    assert b"".join(replayed(fixture, raw_chunks)) == body

    def unstreamed_events(url: str) -> Any:
        with agentobs.session("whole"):
            with client(url).messages.stream(**REQUEST) as stream:
                return [event.to_dict() for event in stream], stream.get_final_message().to_dict()

    body = b"".join(event_chunks)
    live, fixture, _ = recorded(
        tmp_path / "whole", [play_chunks(200, SSE, body)], unstreamed_events
    )
    assert [block["type"] for block in live[1]["content"]] == [block["type"] for block, _ in blocks]
    assert replayed(fixture, unstreamed_events) == live


def test_response_headers_are_replayed(tmp_path: Path) -> None:
    """The request ID and the rate limits are replayed; no file contains the date, cookies, the organization or unknown
    headers.
    """
    headers = {
        **JSON,
        "request-id": "req_36",
        "anthropic-ratelimit-requests-remaining": "41",
        "anthropic-ratelimit-tokens-reset": "2026-11-22T12:00:00Z",
        "anthropic-organization-id": "3f2b8c1e-aaaa-4000-8000-00000000000a",
        "set-cookie": "__cf_bm=cookie-of-somebody; path=/",
        "date": "Sun, 22 Nov 2026 11:11:11 GMT",
        "x-internal": "what-nobody-needs",
    }

    def run(url: str) -> Any:
        with agentobs.session("headers"):
            response = client(url).messages.with_raw_response.create(**REQUEST)
            message = response.parse()
            shown = {k: v for k, v in response.headers.items() if "ratelimit" in k}
            return message._request_id, response.request_id, shown

    live, fixture, _ = recorded(
        tmp_path, [play_chunks(200, headers, message_json(text("hi")))], run
    )
    assert live[:2] == ("req_36", "req_36")
    assert live[2]["anthropic-ratelimit-requests-remaining"] == "41"
    assert replayed(fixture, run) == live
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for absent in ("3f2b8c1e", "cookie-of-somebody", "11:11:11", "what-nobody-needs", "set-cookie"):
        assert absent.encode() not in written
