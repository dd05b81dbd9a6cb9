"""The cost of sending telemetry and its memory, compared with OpenTelemetry's exporter."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.trace import SpanKind

from agentobs.recording.journal.home import Home, existing_home, open_home
from agentobs.recording.journal.segments import Segment
from agentobs.records.backend import WrittenFact
from agentobs.records.facts import (
    TABLES,
    Attempt,
    Fact,
    InteractionEnd,
    InteractionStart,
    SessionEnd,
    SessionStart,
    SpanEnd,
    SpanStart,
    UsageRow,
    columns,
)
from agentobs.records.labels import Label
from agentobs.store.backend import open_store
from agentobs.store.duckdb.ingest import ingest
from benchmarks.measure import Cost, Part, Round, compare, cost_of, milliseconds, ratio
from benchmarks.report import Section, Verdict
from exporters import otlp
from exporters.conventions.semconv import profile_named
from exporters.otlp.backfill import send_recorded
from exporters.otlp.outbox import Limits

TURNS = 1_000
"""The number of turns in one round, each with two spans: a model call and a tool call."""
ROUNDS = 7
BATCH = 512
MANY = 100_000
"""The default number of spans in the memory benchmark; AGENTOBS_BENCH_SPANS overrides it."""
FLOOR, REPEATED = "the official exporter alone", "floor, repeated"
SENDER = "agentobs, encoding and sending alone"
SDK = "the official SDK and exporter: create and send spans"
BACKFILL = "agentobs, backfill: read the store, create and send spans, save the progress"
LIVE = "agentobs, live: spans, one log record per call, and metrics"
T0 = 1_790_000_000_000_000_000
SESSION = "5" * 32

_RECEIVER = """
import socket, sys, threading

def serve(connection):
    buffer = b""
    with connection:
        while True:
            while b"\\r\\n\\r\\n" not in buffer:
                data = connection.recv(1 << 20)
                if not data:
                    return
                buffer += data
            headers, _, body = buffer.partition(b"\\r\\n\\r\\n")
            length = next(int(h[15:]) for h in headers.lower().split(b"\\r\\n") if h.startswith(b"content-length:"))
            missing = length - len(body)
            while missing > 0:
                data = connection.recv(1 << 20)
                if not data:
                    return
                missing -= len(data)
                body = data if missing < 0 else b""
            buffer = body[len(body) + missing:] if missing < 0 else b""
            connection.sendall(
                b"HTTP/1.1 200 OK\\r\\ncontent-type: application/x-protobuf\\r\\ncontent-length: 0\\r\\n\\r\\n"
            )

with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    while True:
        threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""
"""The program of the receiver process, which accepts all requests and ignores them."""


def sections() -> Iterator[Section]:
    """Measure the cost of sending telemetry."""
    with receiver() as endpoint, tempfile.TemporaryDirectory() as folder:
        yield _speed(endpoint, Path(folder))
    yield _memory(int(os.environ.get("AGENTOBS_BENCH_SPANS") or MANY))


@contextlib.contextmanager
def receiver() -> Iterator[str]:
    """Run a receiver process while the context is open; yield its URL."""
    with subprocess.Popen(
        [sys.executable, "-c", _RECEIVER], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def _speed(endpoint: str, folder: Path) -> Section:
    facts = list(session(TURNS))
    home = recorded(folder / "home", TURNS)
    spans: list[ReadableSpan] = []
    official = OTLPSpanExporter(endpoint=f"{endpoint}/v1/traces")
    written_facts = [WrittenFact(fact, n) for n, fact in enumerate(facts, 1)]

    def export(finished: list[ReadableSpan]) -> None:
        for start in range(0, len(finished), BATCH):
            official.export(finished[start : start + BATCH])

    def with_sdk(_: int) -> Cost:
        created: list[ReadableSpan] = []

        def create_and_export() -> None:
            _create_spans(created)
            export(created)

        return cost_of(create_and_export)

    def sender(_: int) -> Cost:
        with otlp.sending(endpoint) as connection:
            batches = [spans[start : start + BATCH] for start in range(0, len(spans), BATCH)]
            return cost_of(lambda: [connection.send("traces", batch) for batch in batches])

    def backfill(_: int) -> Cost:
        with otlp.sending(endpoint) as connection, open_store(home) as store:
            profile = profile_named("both")
            return cost_of(
                lambda: send_recorded(
                    store,
                    connection.send,
                    profile,
                    connection.destination,
                    signals=("traces",),
                    resend=True,
                )
            )

    def live(_: int) -> Cost:
        backend = otlp.standard(endpoint, limits=Limits(queue_items=10**6, queue_bytes=2**30))

        def receive_all() -> None:
            for each in written_facts:
                backend(each)

        cost = cost_of(receive_all, lambda: backend.flush(60))
        assert backend.statistics().dropped == {}
        backend.close()
        return cost

    _create_spans(spans)
    variants: dict[str, Callable[[int], Cost]] = {
        FLOOR: lambda _: cost_of(lambda: export(spans)),
        REPEATED: lambda _: cost_of(lambda: export(spans)),
        SENDER: sender,
        SDK: with_sdk,
        BACKFILL: backfill,
        LIVE: live,
    }
    for each in variants.values():
        each(0)
    measured = compare(variants, range(1, ROUNDS + 1))
    return Section(
        "Sending spans",
        f"{ROUNDS} rounds of {2 * TURNS:,} spans over HTTP as protobuf, to a receiver in another process that ignores "
        "them. Spans of one kind have about 20 attributes, spans of the other kind 8. The exporter alone receives "
        "finished spans. CPU of the process until the receiver has accepted all spans. The live variant also sends one "
        "log record per call; log records are not counted as spans.",
        ("", "CPU per span", "x exporter alone", "x SDK and exporter", "spans per second"),
        tuple(
            (
                variant,
                f"{_microseconds(measured, variant, 'process_ns'):.0f} us",
                f"{ratio(measured, variant, FLOOR, 'process_ns'):.2f}",
                f"{ratio(measured, variant, SDK, 'process_ns'):.2f}",
                f"{1e6 / max(_microseconds(measured, variant, 'wall_ns'), 1e-9):,.0f}"
                if variant != LIVE
                else "",
            )
            for variant in variants
        ),
    )


def _memory(spans: int) -> Section:
    # The tables of recent calls are bounded, and they are full after 20,000 spans.
    sizes = (max(spans // 5, 2), spans)
    rows, growth_mb = [], []
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            recorded(Path(folder) / "home", size // 2)
            completed = subprocess.run(
                [sys.executable, "-c", _SEND_PROGRAM, str(Path(folder) / "home")],
                capture_output=True,
                text=True,
                check=True,
            )
        spans_sent, before, peak, seconds = (float(each) for each in completed.stdout.split()[-4:])
        growth_mb.append((peak - before) / 1024)
        rows.append(
            (
                f"{int(spans_sent):,}",
                f"{before / 1024:.0f} MB",
                f"{peak / 1024:.0f} MB",
                f"{spans_sent / seconds:,.0f}",
            )
        )
    return Section(
        "Memory of a backfill of one long session",
        "One session, all three signals, in a separate process: its memory before the backfill, and its peak memory.",
        ("spans", "before", "peak", "spans per second"),
        tuple(rows),
        (
            Verdict(
                f"additional memory for {sizes[1]:,} instead of {sizes[0]:,} spans",
                32,
                growth_mb[1] - growth_mb[0],
                "{:.0f} MB",
                "The tables of recent calls grow up to 10,000 entries each.",
            ),
        ),
    )


_SEND_PROGRAM = """
import sys, time
from agentobs.recording.journal.home import existing_home
from agentobs.store.backend import open_store
from benchmarks.export import receiver
from exporters import otlp
from exporters.otlp.backfill import send_recorded
from exporters.conventions.semconv import profile_named

def size(name):
    # The peak memory that `getrusage` reports includes the parent process.
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name))

home = existing_home(sys.argv[1])
with receiver() as endpoint, otlp.sending(endpoint) as connection, open_store(home) as store:
    before, started = size("VmRSS"), time.monotonic()
    report = send_recorded(store, connection.send, profile_named("both"), connection.destination)
    assert report.is_complete, report.lines()
    print(report.accepted["traces"], before, size("VmHWM"), time.monotonic() - started)
"""


def recorded(path: Path, turns: int) -> Home:
    """Record and ingest one session of `turns` turns; return its home."""
    home = open_home(path)
    segment = Segment(home)
    batch: list[tuple[str, dict[str, Any]]] = []
    for number, fact in enumerate(session(turns), 1):
        batch.append((TABLES[type(fact)], {**columns(fact), "session_sequence": number}))
        if len(batch) == 10_000:
            segment.facts.append_all(batch)
            batch.clear()
    segment.facts.append_all(batch)
    segment.close()
    ingest(home)
    return existing_home(path)


def session(turns: int) -> Iterator[Fact]:
    """Yield the facts of a session with one interaction of `turns` turns."""
    main, word, trace = Label("main"), Label("benchmark"), "7" * 32
    yield SessionStart(SESSION, word, T0, None, word, None, word, word, {}, None)
    yield InteractionStart(SESSION, trace, main, T0)
    yield SpanStart(SESSION, trace, "1" * 16, None, main, Label("interaction"), main, T0)
    for turn in range(1, turns + 1):
        at, attempt_id = T0 + turn * 10**9, f"{turn:032x}"
        call, tool = f"{turn:015x}a", f"{turn:015x}b"
        place: dict[str, Any] = {"interaction_id": trace, "turn": turn}
        yield SpanStart(
            SESSION,
            trace,
            call,
            "1" * 16,
            main,
            Label("llm_request"),
            Label("claude-sonnet-5"),
            at,
            **place,
        )
        yield _attempt(turn, at, attempt_id, call, trace)
        yield _usage(at, attempt_id)
        yield SpanEnd(SESSION, call, at + 10**8, "ok", None)
        yield SpanStart(
            SESSION,
            trace,
            tool,
            "1" * 16,
            main,
            Label("tool"),
            Label("look"),
            at + 2 * 10**8,
            **place,
        )
        yield SpanEnd(SESSION, tool, at + 3 * 10**8, "ok", None)
    end = T0 + (turns + 1) * 10**9
    yield SpanEnd(SESSION, "1" * 16, end, "ok", None)
    yield InteractionEnd(SESSION, trace, end, Label("success"), False)
    yield SessionEnd(SESSION, end, "completed", None, None, 0)


def _attempt(turn: int, at: int, attempt_id: str, span_id: str, trace: str) -> Attempt:
    model = Label("claude-sonnet-5")
    return Attempt(
        session_id=SESSION,
        interaction_id=trace,
        lane=Label("main"),
        turn=turn,
        llm_request_id=attempt_id,
        attempt_id=attempt_id,
        attempt=1,
        continues_attempt_id=None,
        span_id=span_id,
        started_ns=at,
        headers_ns=10**6,
        first_chunk_ns=2 * 10**6,
        duration_ns=10**8,
        method=Label("POST"),
        endpoint=Label("/v1/messages"),
        makes_turns=True,
        streamed=True,
        model_requested=model,
        model=model,
        status=200,
        outcome="ok",
        error_type=None,
        stop_reason=Label("tool_use"),
        message_id=Label(f"msg_{turn}"),
        request_id=Label(f"req_{turn}"),
        retry_after_ms=None,
        message_count=2 * turn,
        tool_use_count=1,
        request_bytes=1000,
        response_bytes=1000,
        chunk_count=30,
        redactions=0,
        request_content=None,
        response_content=None,
    )


def _usage(at: int, attempt_id: str) -> UsageRow:
    return UsageRow(
        session_id=SESSION,
        attempt_id=attempt_id,
        at_ns=at,
        iteration=0,
        kind=Label("message"),
        billed=True,
        model=Label("claude-sonnet-5"),
        input_tokens=10,
        output_tokens=100,
        reasoning_tokens=None,
        cache_read_tokens=1000,
        cache_write_5m_tokens=50,
        cache_write_1h_tokens=0,
        web_search_requests=0,
        service_tier=None,
        inference_geo=None,
        speed=None,
        certainty=Label("exact"),
    )


CALL_ATTRIBUTES: dict[str, Any] = {
    f"gen_ai.attribute.number{n}": n if n % 2 else f"value {n}" for n in range(22)
}
TOOL_ATTRIBUTES: dict[str, Any] = {
    f"gen_ai.attribute.number{n}": n if n % 2 else f"value {n}" for n in range(8)
}


def _create_spans(target: list[ReadableSpan]) -> None:
    """Create the spans of a round with the SDK, and append them to `target`."""

    class CollectingProcessor(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            target.append(span)

    provider = TracerProvider(shutdown_on_exit=False, span_limits=SpanLimits())
    provider.add_span_processor(CollectingProcessor())
    tracer = provider.get_tracer("benchmark")
    for turn in range(TURNS):
        at = T0 + turn * 10**9
        for name, attributes, kind in (
            ("chat", CALL_ATTRIBUTES, SpanKind.CLIENT),
            ("tool", TOOL_ATTRIBUTES, SpanKind.INTERNAL),
        ):
            span = tracer.start_span(name, kind=kind, attributes=attributes, start_time=at)
            span.end(at + 10**8)


def _microseconds(measured: list[Round], variant: str, part: Part) -> float:
    return 1e3 * milliseconds(measured, variant, part) / (2 * TURNS)
