"""Torture cases of the bytes: 33 to 36, pieces, encodings, events that nobody knows, and headers."""

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
from tests.replay.on_the_wire import (
    ASK,
    BOTH,
    client,
    listen,
    message_json,
    recorded,
    replayed,
)
from tests.replay.raw_provider import JSON, SSE, Call, pieces


def raw_pieces(url: str) -> list[bytes]:
    """Return the pieces of one answer as they come to the client."""
    asked = client(url)
    with agentobs.session("pieces"):
        with asked.messages.with_streaming_response.create(**ASK, stream=True) as response:
            return list(response.http_response.iter_raw())


BODY = b"".join(message_events(text("Grüße, wörld"))).replace(rb"\u00fc", "ü".encode())


def split(body: bytes, size: int) -> list[bytes]:
    return [body[at : at + size] for at in range(0, len(body), size)]


def test_33_chunk_boundaries_are_replayed_on_demand(tmp_path: Path) -> None:
    """1 byte, 7 bytes, in the middle of a character: on demand each piece is the one that came; else one."""
    body, inside = BODY, BODY.index("ü".encode()) + 1
    for number, cuts in enumerate((split(body, 1), split(body, 7), [body[:inside], body[inside:]])):
        home = tmp_path / str(number)
        live, fixture, _ = recorded(home, [pieces(200, SSE, *cuts)], raw_pieces)
        assert b"".join(live) == body
        assert len(live) >= len(cuts)
        assert replayed(fixture, raw_pieces, chunks="recorded") == live
    assert replayed(fixture, raw_pieces) == [body]
    events = [event + b"\n\n" for event in body.split(b"\n\n")[:-1]]
    assert replayed(fixture, raw_pieces, chunks="events") == events
    assert replayed(fixture, raw_pieces, chunks=7) == split(body, 7)
    assert replayed(fixture, raw_pieces, chunks=1) == split(body, 1)
    assert live == [body[:inside], body[inside:]]


def test_33_a_fixture_is_served_in_the_pieces_of_the_wire(tmp_path: Path) -> None:
    """`agentobs serve` of a fixture sends what came as it came, and knows when."""
    cuts = [BODY[:100], BODY[100:101], BODY[101:]]
    live, fixture, _ = recorded(tmp_path, [pieces(200, SSE, *cuts)], raw_pieces)
    recording = as_recording(fixture)
    with ServedProvider(recording) as provider:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(agentobs, "record", lambda client: client)
            assert raw_pieces(provider.url) == live == cuts
    [exchange] = recording.exchanges
    assert isinstance(exchange, ModelExchange)
    assert [c.after_ns // 1_000_000 for c in exchange.answer.chunks] == [
        after_ms for _, after_ms in fixture.asks[0].pieces
    ]


@BOTH
def test_33_what_is_cut_inside_a_character_reads_the_same(
    tmp_path: Path, asynchronous: bool
) -> None:
    """The SDK puts split characters together again, live and replayed, sync and async."""
    plays = [pieces(200, SSE, *split(BODY, 1))]
    live, fixture, _ = recorded(tmp_path, plays, lambda url: listen(url, asynchronous))
    assert "Grü" in str(live)
    for chunks in ("events", "recorded", 1, 7):
        assert replayed(fixture, lambda url: listen(url, asynchronous), chunks=chunks) == live


def test_33_pieces_come_at_the_recorded_pace(tmp_path: Path, waits: list[float]) -> None:
    """With `pace` a piece comes as long after the one before as it came; else at once."""
    had = threading.Event()

    def slow(call: Call) -> None:
        call.head()
        call.send(BODY[:200])
        assert had.wait(20)
        call.send(BODY[200:])
        call.end()

    def run(url: str) -> list[bytes]:
        with agentobs.session("slow"):
            with client(url).messages.with_streaming_response.create(
                **ASK, stream=True
            ) as response:
                found = []
                for piece in response.http_response.iter_raw():
                    found.append(piece)
                    threading.Event().wait(0.03)
                    had.set()
                return found

    live, fixture, _ = recorded(tmp_path, [slow], run)
    [asked] = fixture.asks
    gaps = [b - a for (_, a), (_, b) in zip(asked.pieces, asked.pieces[1:], strict=False)]
    assert sum(gaps) >= 25
    waits.clear()
    assert replayed(fixture, run, chunks="recorded", pace=2) == live
    first = asked.pieces[0][1]
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
def test_33_pieces_of_no_bytes_are_refused(wrong: dict[str, Any]) -> None:
    """One clear error."""
    with pytest.raises(UsageError, match=r"pieces of|a pace of"):
        ReplayOptions(**wrong)


def packed(encoding: str, data: bytes) -> bytes:
    import brotli
    from backports import zstd

    pack: dict[str, Any] = {"gzip": gzip.compress, "br": brotli.compress, "zstd": zstd.compress}
    made: bytes = pack[encoding](data)
    return made


def every_encoding(url: str) -> list[str]:
    """Listen to one stream after the other."""
    asked = client(url)
    with agentobs.session("packed"):
        found = []
        for _ in range(3):
            with asked.messages.stream(**ASK) as stream:
                found.append(stream.get_final_text())
        return found


ELSEWHERE = """
import sys
for name in ("brotli", "brotlicffi", "zstandard"):
    sys.modules[name] = None
import httpx2
assert "br" not in httpx2.Client().headers["accept-encoding"]
from replay import Replayer, load
from tests.replay.on_the_wire import NOWHERE
from tests.replay.test_torture_bytes import every_encoding
with Replayer(load(sys.argv[1])) as replayed:
    print(replayed.run(every_encoding, NOWHERE))
"""


def test_34_encoded_answers_replay_where_nobody_can_decode_them(tmp_path: Path) -> None:
    """gzip, br and zstd, recorded where brotli is: plain text in the fixture, replayed where it is not."""
    body = b"".join(message_events(text("hello")))
    encodings = ("gzip", "br", "zstd")
    plays = [
        pieces(200, {**SSE, "content-encoding": each}, *split(packed(each, body), 40))
        for each in encodings
    ]
    live, fixture, raw = recorded(tmp_path, plays, every_encoding)
    assert live == ["hello"] * 3
    assert "br" in raw.asked[0].headers["accept-encoding"]
    assert fixture.path.read_text().count('"text": "hello"') == 0
    assert fixture.path.read_text().count("hello") == 3
    assert all("base64" not in line for line in fixture.path.read_text().splitlines())
    run = [sys.executable, "-c", ELSEWHERE, str(fixture.path.parent)]
    root = Path(__file__).parents[2]
    environ = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(run, capture_output=True, text=True, env=environ, cwd=root, check=False)
    assert (done.stdout.strip(), done.stderr) == (str(live), "")


def test_35_whatever_the_provider_says_reaches_the_sdk_byte_for_byte(tmp_path: Path) -> None:
    """Signed and redacted thinking, citations, server tools, unknown events, blocks, deltas and blanks: untouched."""
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
    # As the provider does: blanks before the last brace, comments, more than one blank.
    made = [piece.replace(b"}\n\n", b"}    \n\n") for piece in sse(*events)]
    body = b": a comment\n\n" + b"".join(made) + b"event: weather\r\ndata:{}\r\n\r\n"

    live, fixture, _ = recorded(tmp_path, [pieces(200, SSE, body)], raw_pieces)
    assert b"".join(live) == body
    assert b"".join(replayed(fixture, raw_pieces)) == body

    def whole(url: str) -> Any:
        with agentobs.session("whole"):
            with client(url).messages.stream(**ASK) as stream:
                return [event.to_dict() for event in stream], stream.get_final_message().to_dict()

    body = b"".join(made)
    live, fixture, _ = recorded(tmp_path / "whole", [pieces(200, SSE, body)], whole)
    assert [block["type"] for block in live[1]["content"]] == [block["type"] for block, _ in blocks]
    assert replayed(fixture, whole) == live


def test_36_what_the_agent_sees_of_headers_is_replayed(tmp_path: Path) -> None:
    """The request id and the limits are the recorded ones; date, cookies and the organization are in no file."""
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
            response = client(url).messages.with_raw_response.create(**ASK)
            message = response.parse()
            shown = {k: v for k, v in response.headers.items() if "ratelimit" in k}
            return message._request_id, response.request_id, shown

    live, fixture, _ = recorded(tmp_path, [pieces(200, headers, message_json(text("hi")))], run)
    assert live[:2] == ("req_36", "req_36")
    assert live[2]["anthropic-ratelimit-requests-remaining"] == "41"
    assert replayed(fixture, run) == live
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for gone in ("3f2b8c1e", "cookie-of-somebody", "11:11:11", "what-nobody-needs", "set-cookie"):
        assert gone.encode() not in written
