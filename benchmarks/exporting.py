"""What sending telemetry costs: ours beside OpenTelemetry's exporter, to a receiver that does nothing; and memory."""

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
from agentobs.records.backend import Told
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
"""Turns of one round: each is two spans, a model call and a tool call."""
ROUNDS = 7
BATCH = 512
MANY = 100_000
"""Spans of the session whose memory is measured, where AGENTOBS_BENCH_SPANS says nothing else."""
FLOOR, AGAIN = "the official exporter alone", "again"
SENDER = "our encoding and sending alone"
SDK = "the official SDK and exporter: spans made, then sent"
AFTER = "ours after the fact: read from the store, made, sent, marked"
LIVE = "ours live: spans, a log record for each call, and sums"
T0 = 1_790_000_000_000_000_000
SESSION = "5" * 32

_RECEIVER = """
import socket, sys, threading

def serve(connection):
    kept = b""
    with connection:
        while True:
            while b"\\r\\n\\r\\n" not in kept:
                data = connection.recv(1 << 20)
                if not data:
                    return
                kept += data
            head, _, body = kept.partition(b"\\r\\n\\r\\n")
            length = next(int(h[15:]) for h in head.lower().split(b"\\r\\n") if h.startswith(b"content-length:"))
            left = length - len(body)
            while left > 0:
                data = connection.recv(1 << 20)
                if not data:
                    return
                left -= len(data)
                body = data if left < 0 else b""
            kept = body[len(body) + left:] if left < 0 else b""
            connection.sendall(
                b"HTTP/1.1 200 OK\\r\\ncontent-type: application/x-protobuf\\r\\ncontent-length: 0\\r\\n\\r\\n"
            )

with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    while True:
        threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""
"""Takes whatever is posted, in a process of its own, and says yes."""


def sections() -> Iterator[Section]:
    """Measure exporting."""
    with receiver() as endpoint, tempfile.TemporaryDirectory() as folder:
        yield _speed(endpoint, Path(folder))
    yield _memory(int(os.environ.get("AGENTOBS_BENCH_SPANS") or MANY))


@contextlib.contextmanager
def receiver() -> Iterator[str]:
    """Run a receiver; yields its address."""
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
    made: list[ReadableSpan] = []
    official = OTLPSpanExporter(endpoint=f"{endpoint}/v1/traces")
    told = [Told(fact, n) for n, fact in enumerate(facts, 1)]

    def export(spans: list[ReadableSpan]) -> None:
        for at in range(0, len(spans), BATCH):
            official.export(spans[at : at + BATCH])

    def with_sdk(_: int) -> Cost:
        kept: list[ReadableSpan] = []

        def both() -> None:
            _make(kept)
            export(kept)

        return cost_of(both)

    def ours(_: int) -> Cost:
        with otlp.sending(endpoint) as to:
            batches = [made[at : at + BATCH] for at in range(0, len(made), BATCH)]
            return cost_of(lambda: [to.send("traces", batch) for batch in batches])

    def after(_: int) -> Cost:
        with otlp.sending(endpoint) as to, open_store(home) as store:
            spoken = profile_named("both")
            return cost_of(
                lambda: send_recorded(
                    store,
                    to.send,
                    spoken,
                    to.destination,
                    signals=("traces",),
                    again=True,
                )
            )

    def live(_: int) -> Cost:
        backend = otlp.standard(endpoint, limits=Limits(queue_items=10**6, queue_bytes=2**30))

        def hear() -> None:
            for each in told:
                backend(each)

        cost = cost_of(hear, lambda: backend.flush(60))
        assert backend.statistics().dropped == {}
        backend.close()
        return cost

    _make(made)
    variants: dict[str, Callable[[int], Cost]] = {
        FLOOR: lambda _: cost_of(lambda: export(made)),
        AGAIN: lambda _: cost_of(lambda: export(made)),
        SENDER: ours,
        SDK: with_sdk,
        AFTER: after,
        LIVE: live,
    }
    for each in variants.values():
        each(0)
    measured = compare(variants, range(1, ROUNDS + 1))
    return Section(
        "Sending spans",
        f"{ROUNDS} rounds of {2 * TURNS:,} spans over HTTP as protobuf, to a receiver in another process that does "
        "nothing with them; spans of one kind have some 20 attributes, of the other 8. The exporter alone is given "
        "spans that are finished. CPU is that of the process until the receiver took all. Ours live sends a log "
        "record for each call, too, which is not counted in the spans.",
        ("", "CPU a span", "x the exporter alone", "x SDK and exporter", "spans a second"),
        tuple(
            (
                who,
                f"{_each(measured, who, 'process_ns'):.0f} us",
                f"{ratio(measured, who, FLOOR, 'process_ns'):.2f}",
                f"{ratio(measured, who, SDK, 'process_ns'):.2f}",
                f"{1e6 / max(_each(measured, who, 'wall_ns'), 1e-9):,.0f}" if who != LIVE else "",
            )
            for who in variants
        ),
    )


def _memory(spans: int) -> Section:
    # What is remembered of calls is bounded: with 20,000 spans it is full.
    sizes = (max(spans // 5, 2), spans)
    rows, grown = [], []
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            recorded(Path(folder) / "home", size // 2)
            ran = subprocess.run(
                [sys.executable, "-c", _SENDS, str(Path(folder) / "home")],
                capture_output=True,
                text=True,
                check=True,
            )
        taken, before, peak, seconds = (float(each) for each in ran.stdout.split()[-4:])
        grown.append((peak - before) / 1024)
        rows.append(
            (
                f"{int(taken):,}",
                f"{before / 1024:.0f} MB",
                f"{peak / 1024:.0f} MB",
                f"{taken / seconds:,.0f}",
            )
        )
    return Section(
        "Memory of sending one long session after the fact",
        "One session, all three signals, in a process of its own: its memory when it is about to begin, and at most.",
        ("spans", "before", "at most", "spans a second"),
        tuple(rows),
        (
            Verdict(
                f"memory that sending {sizes[1]:,} spans takes beyond that of {sizes[0]:,}",
                32,
                grown[1] - grown[0],
                "{:.0f} MB",
                "Tables of what is remembered fill up to 10,000 entries each.",
            ),
        ),
    )


_SENDS = """
import sys, time
from agentobs.recording.journal.home import existing_home
from agentobs.store.backend import open_store
from benchmarks.exporting import receiver
from exporters import otlp
from exporters.otlp.backfill import send_recorded
from exporters.conventions.semconv import profile_named

def size(name):
    # What `getrusage` tells of the most is that of the process that started this one, too.
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name))

home = existing_home(sys.argv[1])
with receiver() as endpoint, otlp.sending(endpoint) as to, open_store(home) as store:
    before, begun = size("VmRSS"), time.monotonic()
    report = send_recorded(store, to.send, profile_named("both"), to.destination)
    assert report.is_complete, report.lines()
    print(report.taken["traces"], before, size("VmHWM"), time.monotonic() - begun)
"""


def recorded(path: Path, turns: int) -> Home:
    """Return a home with one session of so many turns, ingested."""
    home = open_home(path)
    segment = Segment(home)
    waiting: list[tuple[str, dict[str, Any]]] = []
    for number, fact in enumerate(session(turns), 1):
        waiting.append((TABLES[type(fact)], {**columns(fact), "session_sequence": number}))
        if len(waiting) == 10_000:
            segment.facts.append_all(waiting)
            waiting.clear()
    segment.facts.append_all(waiting)
    segment.close()
    ingest(home)
    return existing_home(path)


def session(turns: int) -> Iterator[Fact]:
    """Yield the facts of a session of one interaction with so many turns."""
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


CALL: dict[str, Any] = {
    f"gen_ai.attribute.number{n}": n if n % 2 else f"value {n}" for n in range(22)
}
TOOL: dict[str, Any] = {
    f"gen_ai.attribute.number{n}": n if n % 2 else f"value {n}" for n in range(8)
}


def _make(kept: list[ReadableSpan]) -> None:
    """Make as many spans as a round has with the SDK, and keep them."""

    class Keeps(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            kept.append(span)

    provider = TracerProvider(shutdown_on_exit=False, span_limits=SpanLimits())
    provider.add_span_processor(Keeps())
    tracer = provider.get_tracer("benchmark")
    for turn in range(TURNS):
        at = T0 + turn * 10**9
        for name, attributes, kind in (
            ("chat", CALL, SpanKind.CLIENT),
            ("tool", TOOL, SpanKind.INTERNAL),
        ):
            span = tracer.start_span(name, kind=kind, attributes=attributes, start_time=at)
            span.end(at + 10**8)


def _each(measured: list[Round], who: str, part: Part) -> float:
    return 1e3 * milliseconds(measured, who, part) / (2 * TURNS)
