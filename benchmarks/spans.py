"""The cost of a span, compared with two reads of the clock and with OpenTelemetry, in one thread and in ten."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

import agentobs
from agentobs import runtime, tracing
from agentobs.recording.journal.home import open_home
from agentobs.recording.recorder import Recorder
from agentobs.records.exchanges import Place
from agentobs.sink import Record
from benchmarks.measure import (
    Cost,
    Part,
    Round,
    compare,
    cost_in_threads,
    milliseconds,
    ratio,
)
from benchmarks.report import Section, Verdict

SPANS = 1_000
"""The number of spans in one round."""
ROUNDS = 15
THREADS = 10
FLOOR, REPEATED = "two reads of the clock", "floor, repeated"
DROPPED = "agentobs, consumer that drops the facts"
RECORDED = "agentobs, recorded"
BLOCK = "agentobs as a context manager, recorded"
TELEMETRY = "OpenTelemetry, exporter that drops the spans"
ATTRIBUTES = "OpenTelemetry with 12 attributes"
TWELVE = {f"gen_ai.attribute.{number}": f"value {number}" for number in range(12)}
PLACE = Place("5" * 32, "1" * 32)


class DroppingExporter(SpanExporter):
    """An exporter that drops all spans."""

    def export(self, spans: object) -> SpanExportResult:
        """Drop a batch."""
        return SpanExportResult.SUCCESS


def sections() -> Iterator[Section]:
    """Measure the cost of spans."""
    with tempfile.TemporaryDirectory() as home:
        recorder = Recorder(open_home(Path(home)))
        provider = TracerProvider(shutdown_on_exit=False)
        # The queue is large enough for a complete round, because dropping spans would cost less than exporting them.
        provider.add_span_processor(
            BatchSpanProcessor(DroppingExporter(), max_queue_size=10 * SPANS)
        )
        yield _section(1, recorder, provider)
        yield _section(THREADS, recorder, provider)
        recorder.close()
        provider.shutdown()


def _section(threads: int, recorder: Recorder, provider: TracerProvider) -> Section:
    tracer = provider.get_tracer("benchmark")

    def telemetry() -> None:
        for _ in range(SPANS // threads):
            tracer.start_span("app.tool").end()

    def attributes() -> None:
        for _ in range(SPANS // threads):
            tracer.start_span("app.tool", attributes=TWELVE).end()

    def settle() -> None:
        provider.force_flush()

    flush = partial(recorder.flush, 60.0)
    variants: dict[str, Callable[[int], Cost]] = {
        FLOOR: partial(_cost, partial(_floor, threads), threads, None, None),
        REPEATED: partial(_cost, partial(_floor, threads), threads, None, None),
        DROPPED: partial(_cost, partial(_open_and_close, threads), threads, _drop, None),
        RECORDED: partial(_cost, partial(_open_and_close, threads), threads, recorder, flush),
        BLOCK: partial(_cost, partial(_use_context_manager, threads), threads, recorder, flush),
        TELEMETRY: partial(_cost, telemetry, threads, None, settle),
        ATTRIBUTES: partial(_cost, attributes, threads, None, settle),
    }
    for each in variants.values():
        each(0)
    measured = compare(variants, range(1, ROUNDS + 1))
    threads_text = "in one thread" if threads == 1 else f"in {threads} concurrent threads"
    verdicts = (
        Verdict(
            f"a span started, ended and recorded, {threads_text}, CPU of callers",
            5.0,
            _microseconds(measured, RECORDED, "thread_ns"),
            "{:.1f} us",
            "The creation of two facts, an ID and a place takes half of it. The other half is the recorder's: under a "
            "lock, it estimates the size of each fact, counts it for its session, and queues it.",
        ),
        Verdict(
            f"the same, divided by OpenTelemetry with 12 attributes, {threads_text}",
            1 / 7,
            ratio(measured, RECORDED, ATTRIBUTES, "thread_ns"),
            why="See above; with a consumer that drops the facts, a span costs a fifth of OpenTelemetry's.",
        ),
    )
    return Section(
        f"A span, {threads_text}",
        f"{ROUNDS} rounds of {SPANS} spans, which are started and ended, without attributes; microseconds per span, "
        "medians of the rounds. CPU of callers is the sum of all threads that create spans. CPU of the process "
        "includes all work until the recorder's thread has written both facts to the journal, or OpenTelemetry's "
        "batch was exported. The floor is the minimum that a span requires.",
        ("", "CPU, callers", "x floor", "x OpenTelemetry", "CPU, process", "wall"),
        tuple(
            (
                variant,
                f"{_microseconds(measured, variant, 'thread_ns'):.2f}",
                f"{ratio(measured, variant, FLOOR, 'thread_ns'):.1f}",
                f"{ratio(measured, variant, TELEMETRY, 'thread_ns'):.3f}",
                f"{_microseconds(measured, variant, 'process_ns'):.2f}",
                f"{_microseconds(measured, variant, 'wall_ns'):.2f}",
            )
            for variant in variants
        ),
        verdicts,
    )


def _microseconds(measured: list[Round], variant: str, part: Part) -> float:
    return 1e3 * milliseconds(measured, variant, part) / SPANS


def _cost(
    work: Callable[[], None],
    threads: int,
    consumer: Callable[[Record], None] | None,
    settle: Callable[[], object] | None,
    _: int,
) -> Cost:
    """Return the cost of work in `threads` threads.

    If there is a consumer, the work runs in a session whose events the consumer receives.
    """
    if consumer is None:
        return cost_in_threads(work, threads, settle)
    with runtime.replaced(consumer=consumer), tracing.at(PLACE):
        return cost_in_threads(agentobs.carried(work), threads, settle)


def _floor(threads: int) -> None:
    now = time.monotonic_ns
    for _ in range(SPANS // threads):
        now()
        now()


def _open_and_close(threads: int) -> None:
    open_span = agentobs.open_span
    for _ in range(SPANS // threads):
        open_span("app.tool").close()


def _use_context_manager(threads: int) -> None:
    span = agentobs.span
    for _ in range(SPANS // threads):
        with span("app.tool"):
            pass


def _drop(record: Record) -> None:
    """Drop a record."""
