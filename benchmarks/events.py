"""The cost of an event, compared with an append to a deque and with OpenTelemetry, with and without a hanging
consumer.
"""

from __future__ import annotations

import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from opentelemetry._logs import LogRecord
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import (
    BatchLogRecordProcessor,
    LogRecordExporter,
    LogRecordExportResult,
)

import agentobs
from agentobs import runtime, tracing
from agentobs.recording.journal.home import open_home
from agentobs.recording.recorder import Recorder
from agentobs.records.exchanges import Place
from agentobs.records.facts import Event
from agentobs.records.labels import Label
from agentobs.sink import Record, Sink
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

EVENTS = 1_000
"""The number of events in one round."""
ROUNDS = 15
THREADS = 10
FLOOR, REPEATED = "an append to a deque", "floor, repeated"
UNATTACHED = "agentobs, no consumer is attached yet"
FULL = "agentobs, no consumer is attached and the queue is full"
DROPPED = "agentobs, consumer that drops the events"
STUCK = "agentobs, another thread hangs in the consumer"
RECORDED = "agentobs, recorded"
CREATED = "agentobs, created by `agentobs.event` and recorded"
TELEMETRY = "OpenTelemetry log record, exporter that drops it"
PLACE = Place("5" * 32, "1" * 32, "main", 3, None, "main", "c" * 32, 1)
EVENT = Event(
    session_id=PLACE.session_id,
    interaction_id=PLACE.interaction_id,
    lane=Label("main"),
    turn=3,
    at_ns=1,
    kind=Label("context"),
    label=None,
    numbers={Label("tokens"): 1000, Label("messages"): 10},
    chain_id=PLACE.chain_id,
    depth=1,
)
ATTRIBUTES = {
    "session.id": PLACE.session_id, "interaction": PLACE.interaction_id, "lane": "main", "turn": 3,
    "source": "main", "chain": PLACE.chain_id, "depth": 1, "tokens": 1000, "messages": 10,
}  # fmt: skip


class DroppingExporter(LogRecordExporter):
    """An exporter that drops all log records."""

    def export(self, batch: object) -> LogRecordExportResult:
        """Drop a batch."""
        return LogRecordExportResult.SUCCESS

    def shutdown(self) -> None:
        """Do nothing."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Do nothing."""
        return True


def sections() -> Iterator[Section]:
    """Measure the cost of events."""
    with tempfile.TemporaryDirectory() as home:
        recorder = Recorder(open_home(Path(home)))
        provider = LoggerProvider(shutdown_on_exit=False)
        provider.add_log_record_processor(
            BatchLogRecordProcessor(DroppingExporter(), max_queue_size=10 * EVENTS)
        )
        yield _section(1, recorder, provider)
        yield _section(THREADS, recorder, provider)
        recorder.close()
        provider.shutdown()


def _section(threads: int, recorder: Recorder, provider: LoggerProvider) -> Section:
    logger, count = provider.get_logger("benchmark"), EVENTS // threads
    queue: deque[Any] = deque()
    dropping, recording = Sink(), Sink()
    dropping.attach(lambda record: None)
    recording.attach(recorder)
    full = Sink(0)
    stuck, release = _stuck_sink()

    def floor() -> None:
        for _ in range(count):
            queue.append(EVENT)

    def create() -> None:
        for _ in range(count):
            agentobs.event("app.seen", tokens=1000, messages=10)

    def telemetry() -> None:
        for _ in range(count):
            logger.emit(LogRecord(timestamp=1, event_name="context", attributes=ATTRIBUTES.copy()))

    def unattached(_: int) -> Cost:
        return cost_in_threads(partial(_emit, Sink(EVENTS), count), threads, None)

    def created(_: int) -> Cost:
        with runtime.replaced(consumer=recorder), tracing.at(PLACE):
            return cost_in_threads(agentobs.carried(create), threads, flush)

    def measure(work: Callable[[], None], settle: Callable[[], object] | None, _: int) -> Cost:
        return cost_in_threads(work, threads, settle)

    flush = partial(recorder.flush, 60.0)
    variants: dict[str, Callable[[int], Cost]] = {
        FLOOR: partial(measure, floor, queue.clear),
        REPEATED: partial(measure, floor, queue.clear),
        UNATTACHED: unattached,
        FULL: partial(measure, partial(_emit, full, count), None),
        DROPPED: partial(measure, partial(_emit, dropping, count), None),
        STUCK: partial(measure, partial(_emit, stuck, count), None),
        RECORDED: partial(measure, partial(_emit, recording, count), flush),
        CREATED: created,
        TELEMETRY: partial(measure, telemetry, provider.force_flush),
    }
    for each in variants.values():
        each(0)
    measured = compare(variants, range(1, ROUNDS + 1))
    release.set()
    threads_text = "in one thread" if threads == 1 else f"in {threads} concurrent threads"
    return Section(
        f"An event, {threads_text}",
        f"{ROUNDS} rounds of {EVENTS} events with 13 fields; microseconds per event, medians of the rounds. CPU of "
        "callers is the sum of all threads that emit events. CPU of the process includes all work until the "
        "recorder's thread has written the events to the journal, or OpenTelemetry's batch was exported. Except in "
        "the row with `agentobs.event`, the same event object is emitted each time. OpenTelemetry's log record is "
        "created each time and has nine attributes.",
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
        (
            Verdict(
                f"an event through the sink, {threads_text}, CPU of callers",
                2.0,
                _microseconds(measured, DROPPED, "thread_ns"),
                "{:.2f} us",
                "The sink acquires a lock and records which thread delivers; other threads queue their events.",
            ),
            Verdict(
                f"an event while a consumer hangs, {threads_text}, CPU of callers",
                2.0,
                _microseconds(measured, STUCK, "thread_ns"),
                "{:.2f} us",
                "The size of the event is estimated, it is queued or counted as dropped, and the thread yields.",
            ),
        ),
    )


def _stuck_sink() -> tuple[Sink, threading.Event]:
    """Return a sink with a thread that hangs in its consumer, and the event that releases the thread."""
    stuck, is_stuck, release = Sink(), threading.Event(), threading.Event()

    def consumer(_: Record) -> None:
        is_stuck.set()
        release.wait()

    stuck.attach(consumer)
    threading.Thread(target=stuck.emit, args=(EVENT,), daemon=True).start()
    is_stuck.wait()
    return stuck, release


def _emit(target: Sink, count: int) -> None:
    emit = target.emit
    for _ in range(count):
        emit(EVENT)


def _microseconds(measured: list[Round], variant: str, part: Part) -> float:
    return 1e3 * milliseconds(measured, variant, part) / EVENTS
