"""Targets that read what a provider or a client sends: streams, encodings, telemetry, and the environment."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from agentobs import runtime, world
from agentobs.collector.http_receiver import RESPONSES, _decompressed, _Refused
from agentobs.collector.otlp_requests import (
    MalformedRequest,
    Signal,
    TooManyRecords,
    parse_request,
    records_in,
)
from agentobs.collector.telemetry_events import telemetry_event
from agentobs.determinism import session_inheritance
from agentobs.errors import AgentobsError
from agentobs.ledger.price_book import book_of
from agentobs.provider.anthropic.cloud_frames import enframe, framed, frames, unframe
from agentobs.provider.anthropic.streams import assemble, assemble_any, read_response
from agentobs.provider.content_encoding import StreamDecoder, decoded, decoded_body
from agentobs.provider.registry import dialect_of, message_of, received_messages
from agentobs.provider.server_events import last_event_end, server_events, split_events
from agentobs.proxy.client_variables import VARIABLES, extra_variable, upstreams, without_proxy
from agentobs.recording.facts.interpreter import Interpreter
from agentobs.recording.journal import compression
from agentobs.recording.journal.home import Home, locate, open_home
from agentobs.recording.options import Options, content_mode, git_mode
from agentobs.recording.vault.encryption import content_key
from agentobs.recording.wire.http_framing import BodyReader, RequestReader, starts_request
from agentobs.records.exchanges import Answer, Chunk, ModelExchange, Place, Question
from agentobs.redaction import redact
from agentobs.store import disk_usage
from agentobs.store.duckdb import archives
from agentobs.tracing import propagation
from exporters.otlp.collector_backend import headers_of
from tests.collector.telemetry import api_request, counter, logs, span, spans
from tests.fuzzing.runner import Opened
from tests.importers.recorded_agent import recorded_pairs

T0 = 1_790_000_000_000_000_000
STREAM = {"content-type": "text/event-stream; charset=utf-8"}
FRAMES = {"content-type": "application/vnd.amazon.eventstream"}
CONVERSE = "/model/anthropic.claude-sonnet-4-5/converse-stream"


def _bodies() -> list[bytes]:
    """Return streams of the Messages API, with texts, tool calls, thinking, server tools and an error."""
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"id": "msg_1", "role": "assistant", "model": "claude-sonnet-4-5",
         "content": [], "usage": {"input_tokens": 9, "cache_creation": {"ephemeral_5m_input_tokens": 2}}}},
        {"type": "content_block_start", "index": 0,
         "content_block": {"type": "thinking", "thinking": "", "signature": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "Well"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "c2ln"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "server_tool_use", "id": "srvtoolu_1",
         "name": "web_search", "input": {}}},
        {"type": "content_block_delta", "index": 1,
         "delta": {"type": "input_json_delta", "partial_json": "{\"q\": 1}"}},
        {"type": "content_block_stop", "index": 1},
        {"type": "ping"},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"},
         "usage": {"output_tokens": 7, "server_tool_use": {"web_search_requests": 1}}},
        {"type": "message_stop"},
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
    ]  # fmt: skip
    made = b"".join(
        b"event: %s\ndata: %s\n\n" % (e["type"].encode(), json.dumps(e).encode()) for e in events
    )
    return [made, *(pair.response_body for pair in recorded_pairs(stream=True))]


@contextlib.contextmanager
def event_streams(folder: Path) -> Iterator[Opened]:
    """Streams of server-sent events: their events, their message, and the facts of the response."""

    def run(data: bytes) -> bool:
        assert b"".join(split_events(data)) == data
        last_event_end(data)
        list(server_events(data))
        message = assemble(STREAM, data)
        read_response(Answer(200, STREAM, (Chunk(data, 0),), "complete"))
        return bool(message)

    yield Opened(_bodies(), run)


@contextlib.contextmanager
def framed_streams(folder: Path) -> Iterator[Opened]:
    """Framed streams of Bedrock, for both of its APIs."""
    converse = b"".join(
        framed({":event-type": kind, ":message-type": "event"}, json.dumps(value).encode())
        for kind, value in (
            ("messageStart", {"role": "assistant"}),
            (
                "contentBlockStart",
                {"contentBlockIndex": 0, "start": {"toolUse": {"toolUseId": "t", "name": "x"}}},
            ),
            ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"toolUse": {"input": "{}"}}}),
            ("contentBlockDelta", {"contentBlockIndex": 1, "delta": {"text": "Hello"}}),
            ("messageStop", {"stopReason": "end_turn"}),
            (
                "metadata",
                {"usage": {"inputTokens": 1, "outputTokens": 2}, "metrics": {"latencyMs": 3}},
            ),
        )
    )
    invoke = enframe(each.data.encode() for each in server_events(_bodies()[0]))

    def run(data: bytes) -> bool:
        list(frames(data))
        unframe(data)
        assemble_any(data)
        answer = Answer(200, FRAMES, (Chunk(data, 0),), "complete")
        for path in (CONVERSE, CONVERSE.replace("converse-stream", "invoke-with-response-stream")):
            message_of(path, answer)
            received_messages(path, answer)
        dialect_of(CONVERSE).stream_chunks(FRAMES, data)
        return any(True for _ in frames(data))

    yield Opened([converse, invoke], run, _sealed_frames)


def _sealed_frames(data: bytes) -> bytes:
    """Return the bytes as frames with correct lengths and checksums, split where a frame seems to start."""
    starts = [at for at in range(0, len(data), 7) if data.find(b":message-type", at, at + 200) > 0][
        :5
    ] or [0]
    found = []
    for start, end in zip(starts, [*starts[1:], len(data)], strict=True):
        size = int.from_bytes(data[start + 4 : start + 8], "big") % (end - start + 1)
        body = data[start + 12 : end]
        prelude = (len(body) + 16).to_bytes(4, "big") + size.to_bytes(4, "big")
        frame = prelude + zlib.crc32(prelude).to_bytes(4, "big") + body
        found.append(frame + zlib.crc32(frame).to_bytes(4, "big"))
    return b"".join(found)


@contextlib.contextmanager
def responses(folder: Path) -> Iterator[Opened]:
    """Responses of a provider, as the recorder derives facts and content from them."""
    home = open_home(folder / "home")
    request = recorded_pairs()[1].request_body
    bodies = [*_bodies(), *(pair.response_body for pair in recorded_pairs())]
    number = 0
    interpreter = Interpreter(home.key())

    def run(data: bytes) -> None:
        nonlocal number, interpreter
        number += 1
        if number % 500 == 0:
            interpreter = Interpreter(home.key())
        is_stream = not data.lstrip().startswith(b"{")
        headers = STREAM if is_stream else {"content-type": "application/json"}
        size = max(len(data) // 3, 1)
        chunks = tuple(Chunk(data[at : at + size], at) for at in range(0, len(data), size))
        place = Place(f"{number % 50:032x}", turn=1)
        exchange = ModelExchange(
            place=place,
            attempt_id=f"{number:032x}",
            started_ns=T0,
            headers_ns=1,
            ended_ns=2,
            question=Question("POST", "/v1/messages", {}, request),
            answer=Answer(200, headers, chunks, "complete"),
        )
        interpreter.interpret_partial(exchange)
        interpreter.interpret(exchange)

    yield Opened(bodies, run)


@contextlib.contextmanager
def requests(folder: Path) -> Iterator[Opened]:
    """Requests of any client, from which the recorder derives facts and content."""
    home = open_home(folder / "home")
    pairs = recorded_pairs()
    answer = Answer(
        200, {"content-type": "application/json"}, (Chunk(pairs[1].response_body, 0),), "complete"
    )
    paths = (
        "/v1/messages",
        "/v1/messages/batches",
        "/v1/messages/count_tokens",
        CONVERSE,
        "/v1/sessions/x/events",
    )
    number = 0
    interpreter = Interpreter(home.key())

    def run(data: bytes) -> None:
        nonlocal number, interpreter
        number += 1
        if number % 500 == 0:
            interpreter = Interpreter(home.key())
        exchange = ModelExchange(
            place=Place(f"{number % 20:032x}", turn=1),
            attempt_id=f"{number:032x}",
            started_ns=T0,
            headers_ns=1,
            ended_ns=2,
            question=Question("POST", paths[number % len(paths)], {}, data),
            answer=answer,
        )
        interpreter.interpret(exchange)

    yield Opened([pair.request_body for pair in pairs], run)


@contextlib.contextmanager
def encodings(folder: Path) -> Iterator[Opened]:
    """Bodies with a content encoding; the first byte selects it."""
    import brotli

    plain = _bodies()[0]
    packed = [
        gzip.compress(plain, mtime=0),
        zlib.compress(plain),
        brotli.compress(plain),
        compression.compressed(plain),
    ]
    names = ("gzip", "deflate", "br", "zstd", "gzip, br", "x-unknown")

    def run(data: bytes) -> bool:
        name = names[data[0] % len(names)] if data else ""
        body = data[1:]
        decoder = StreamDecoder(name)
        for at in range(0, len(body), 500):
            list(decoder.decode(body[at : at + 500]))
        exchange = ModelExchange(
            place=Place("x"),
            attempt_id="0" * 32,
            started_ns=0,
            headers_ns=0,
            ended_ns=0,
            question=Question("POST", "/", {}, b""),
            answer=Answer(200, {}, (Chunk(body, 0),), "complete", encoding=name),
        )
        decoded(exchange)
        return decoded_body(body, name) != body

    yield Opened([bytes([at]) + each for at, each in enumerate(packed)], run)


@contextlib.contextmanager
def texts(folder: Path) -> Iterator[Opened]:
    """Texts that are searched for secrets."""
    seeds = [
        b"AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY password: hunter2 sk-ant-api03-"
        + b"Qz7" * 20,
        b'{"authorization": "Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abcdefghijklmnop", "token": "ghp_'
        + b"aB1" * 12,
        b"-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA7\n-----END RSA PRIVATE KEY-----\npostgres://u:p4ss@host/db",
        *_bodies(),
    ]
    yield Opened(seeds, redact)


def telemetry(is_json: bool) -> Callable[[Path], contextlib.AbstractContextManager[Opened]]:
    """Return the opener of the targets for telemetry; the first byte selects the signal."""

    @contextlib.contextmanager
    def opened(folder: Path) -> Iterator[Opened]:
        made: list[tuple[Signal, Any]] = [
            ("log", logs(api_request("req_1"), api_request("req_2", 0.5, speed="fast"))),
            ("span", spans(span("llm_request", input_tokens=3), span("tool", tool_name="Bash"))),
            ("metric", counter("claude_code.token.usage", 3, 4.5, temporality=2, type="input")),
        ]
        signals: tuple[Signal, ...] = ("log", "span", "metric")
        seeds = []
        for signal, request in made:
            body = json.dumps(request).encode()
            if not is_json:
                body = parse_request(signal, body, is_json=True).SerializeToString()
            seeds.append(signal[0].encode() + body)

        def run(data: bytes) -> bool:
            signal = next(
                (each for each in signals if data.startswith(each[0].encode())), signals[0]
            )
            try:
                for each in records_in(signal, parse_request(signal, data[1:], is_json=is_json)):
                    telemetry_event(each, "0" * 32, T0)
            except (MalformedRequest, TooManyRecords):
                return False
            RESPONSES[signal]()
            return True

        yield Opened(seeds, run)

    return opened


@contextlib.contextmanager
def compressed_telemetry(folder: Path) -> Iterator[Opened]:
    """Compressed bodies of telemetry."""

    def run(data: bytes) -> bool:
        try:
            return bool(_decompressed(data))
        except _Refused:
            return False

    yield Opened([gzip.compress(json.dumps(logs(api_request("r"))).encode(), mtime=0)], run)


@contextlib.contextmanager
def sent_requests(folder: Path) -> Iterator[Opened]:
    """Requests that a program sends with `http.client`, and the framing of bodies."""
    seeds = [
        b"POST /v1/messages HTTP/1.1\r\nHost: api.anthropic.com\r\nContent-Length: 13\r\n\r\n"
        + b'{"model":"x"}',
        b"POST http://h:1/v1/messages HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n3;x=y\r\nabc\r\n"
        b"0\r\n\r\n",
    ]

    def run(data: bytes) -> bool:
        reader = RequestReader()
        starts_request(data)
        try:
            for at in range(0, len(data), 64):
                reader.feed(data[at : at + 64])
            _ = reader.path, reader.host, reader.is_complete
            reader.changed("/other", b"x")
            BodyReader(5).feed(data)
        except ValueError:  # the caller is guarded: the request is sent, and is not recorded
            return False
        return reader.has_head

    yield Opened(seeds, run)


VARIABLE_NAMES = (
    *(
        "AGENTOBS_HOME",
        "AGENTOBS_CONTENT",
        "AGENTOBS_GIT",
        "AGENTOBS_CONTENT_KEY",
        "AGENTOBS_CONTENT_KEY_FILE",
    ),
    *(
        "AGENTOBS_PRICES",
        "AGENTOBS_WARN_BYTES",
        "AGENTOBS_ARCHIVE_BYTES",
        "TRACEPARENT",
        "AGENTOBS_JOIN",
    ),
    *(
        "AGENTOBS_ANSWERS",
        "AGENTOBS_REPLAYED_BY",
        "OTEL_EXPORTER_OTLP_HEADERS",
        "HTTPS_PROXY",
        "NO_PROXY",
    ),
    *(each.name for each in VARIABLES),
)


@contextlib.contextmanager
def environments(folder: Path) -> Iterator[Opened]:
    """Environment variables, one per line."""
    home = open_home(folder / "home")
    home.database.write_bytes(b"x")
    (folder / "prices.toml").write_bytes(b"")
    seeds = [
        b"AGENTOBS_CONTENT=vault\nAGENTOBS_GIT=on\nAGENTOBS_WARN_BYTES=1000\nAGENTOBS_ARCHIVE_BYTES=1000000000",
        b"AGENTOBS_CONTENT_KEY="
        + b"0f" * 32
        + b"\nTRACEPARENT=00-"
        + b"ab" * 16
        + b"-"
        + b"cd" * 8
        + b"-01",
        b"AGENTOBS_JOIN="
        + b"5" * 32
        + b" main/x vault 1790000000000000000,3600,1,2,3\nAGENTOBS_ANSWERS=0f /tmp/s",
        b"AGENTOBS_PRICES="
        + str(folder / "prices.toml").encode()
        + b"\nOTEL_EXPORTER_OTLP_HEADERS=a=b,c=%20d",
        b"ANTHROPIC_BASE_URL=https://gateway.example/anthropic\nHTTPS_PROXY=http://127.0.0.1:1\nNO_PROXY=localhost",
        b"AWS_REGION=eu-west-1\nANTHROPIC_BEDROCK_BASE_URL=http://h:80\nCLOUD_ML_REGION=europe-west1",
    ]

    def run(data: bytes) -> bool:
        pairs = [line.partition(b"=") for line in data.replace(b"\0", b"").split(b"\n")]
        known = {name.encode() for name in VARIABLE_NAMES}
        values = {
            os.fsdecode(name): os.fsdecode(value)[:100_000]
            for name, _, value in pairs
            if name in known
        }
        readers: tuple[Callable[[], object], ...] = (
            locate,
            lambda: content_mode(None, Options()),
            lambda: git_mode(Options()),
            content_key,
            lambda: book_of(folder),
            lambda: disk_usage.warning(Home(folder)),
            lambda: archives.is_large(home.database),
            lambda: propagation.started_by("0" * 32),
            session_inheritance.joined,
            lambda: headers_of("OTEL_EXPORTER_OTLP_HEADERS"),
            lambda: upstreams(values),
            lambda: without_proxy(values),
            lambda: extra_variable(os.fsdecode(data[:200])),
        )
        refused = 0
        with world.replaced_environ(values):
            runtime.process.state(session_inheritance.State).is_read = False
            for read in readers:
                try:
                    read()
                except AgentobsError:
                    refused += 1
        return refused < 3

    before = {name: os.environ.pop(name) for name in VARIABLE_NAMES if name in os.environ}
    state = runtime.process.state(session_inheritance.State)
    inherited = state.is_read, state.joined, state.parent
    try:
        with runtime.replaced(), warnings.catch_warnings():
            # The documented response to an invalid value of AGENTOBS_GIT; all other warnings are shown.
            text = "agentobs: git repositories are not recorded"
            warnings.filterwarnings("ignore", text, RuntimeWarning)
            yield Opened(seeds, run)
    finally:
        # Otherwise later sessions of this process would join the session of the last input.
        state.is_read, state.joined, state.parent = inherited
        os.environ.update(before)
