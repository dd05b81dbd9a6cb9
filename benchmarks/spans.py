"""What a span costs: ours beside two looks at the clock, and beside OpenTelemetry's, in one thread and in ten."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

import agentobs
from agentobs import tracing
from agentobs.recording.journal.home import open_home
from agentobs.recording.recorder import Recorder
from agentobs.records.exchanges import Place
from agentobs.sink import Record, sink
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
"""Spans of one round."""
ROUNDS = 15
THREADS = 10
FLOOR, AGAIN = "two looks at the clock", "again"
DROPPED = "ours, to a consumer that drops"
RECORDED = "ours, recorded"
BLOCK = "ours as a block, recorded"
TELEMETRY = "OpenTelemetry, exporter that drops"
ATTRIBUTES = "the same, with 12 attributes"
TWELVE = {f"gen_ai.attribute.{number}": f"value {number}" for number in range(12)}
PLACE = Place("5" * 32, "1" * 32)


class Drops(SpanExporter):
    """Takes spans and does nothing."""

    def export(self, spans: object) -> SpanExportResult:
        """Drop them."""
        return SpanExportResult.SUCCESS


def sections() -> Iterator[Section]:
    """Measure spans."""
    with tempfile.TemporaryDirectory() as home:
        recorder = Recorder(open_home(Path(home)))
        provider = TracerProvider(shutdown_on_exit=False)
        # Room for a whole round: what is measured is a span, not what is dropped before it is one.
        provider.add_span_processor(BatchSpanProcessor(Drops(), max_queue_size=10 * SPANS))
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
        AGAIN: partial(_cost, partial(_floor, threads), threads, None, None),
        DROPPED: partial(_cost, partial(_handles, threads), threads, _nothing, None),
        RECORDED: partial(_cost, partial(_handles, threads), threads, recorder, flush),
        BLOCK: partial(_cost, partial(_blocks, threads), threads, recorder, flush),
        TELEMETRY: partial(_cost, telemetry, threads, None, settle),
        ATTRIBUTES: partial(_cost, attributes, threads, None, settle),
    }
    for each in variants.values():
        each(0)
    measured = compare(variants, range(1, ROUNDS + 1))
    where = "in one thread" if threads == 1 else f"in {threads} threads at once"
    verdicts = (
        Verdict(
            f"a span started, ended and recorded, {where}, CPU of the caller's",
            5.0,
            _each(measured, RECORDED, "thread_ns"),
            "{:.1f} us",
            "Making two facts, an id and a place takes half of it; the other half is what the recorder does to take "
            "them: each is weighed, counted by its session and put on a queue, under a lock.",
        ),
        Verdict(
            f"the same over OpenTelemetry's with 12 attributes, {where}",
            1 / 7,
            ratio(measured, RECORDED, ATTRIBUTES, "thread_ns"),
            why="As above; to a consumer that does nothing ours is a fifth of it.",
        ),
    )
    return Section(
        f"A span, {where}",
        f"{ROUNDS} rounds of {SPANS} spans, each started and ended, without attributes; microseconds a span, the "
        "medians of the rounds. The caller's CPU is that of all threads that make spans. That of the process counts "
        "until the recorder's thread has written both facts to the journal, or OpenTelemetry's batch was taken. The "
        "floor is what a span cannot do without.",
        ("", "CPU, callers", "x floor", "x OpenTelemetry", "CPU, process", "wall"),
        tuple(
            (
                who,
                f"{_each(measured, who, 'thread_ns'):.2f}",
                f"{ratio(measured, who, FLOOR, 'thread_ns'):.1f}",
                f"{ratio(measured, who, TELEMETRY, 'thread_ns'):.3f}",
                f"{_each(measured, who, 'process_ns'):.2f}",
                f"{_each(measured, who, 'wall_ns'):.2f}",
            )
            for who in variants
        ),
        verdicts,
    )


def _each(measured: list[Round], who: str, part: Part) -> float:
    return 1e3 * milliseconds(measured, who, part) / SPANS


def _cost(
    work: Callable[[], None],
    threads: int,
    consumer: Callable[[Record], None] | None,
    settle: Callable[[], object] | None,
    _: int,
) -> Cost:
    """Do the work in so many threads, at a place of a session, with this consumer of what is told."""
    if consumer is None:
        return cost_in_threads(work, threads, settle)
    with sink.redirect(consumer), tracing.at(PLACE):
        return cost_in_threads(agentobs.carried(work), threads, settle)


def _floor(threads: int) -> None:
    now = time.monotonic_ns
    for _ in range(SPANS // threads):
        now()
        now()


def _handles(threads: int) -> None:
    opened = agentobs.open_span
    for _ in range(SPANS // threads):
        opened("app.tool").close()


def _blocks(threads: int) -> None:
    block = agentobs.span
    for _ in range(SPANS // threads):
        with block("app.tool"):
            pass


def _nothing(record: Record) -> None:
    """Take a record and do nothing."""
