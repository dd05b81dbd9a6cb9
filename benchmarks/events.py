"""What an event costs: ours beside an append to a deque, and beside OpenTelemetry's, with the sink well and stuck."""

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
from agentobs import tracing
from agentobs.recording.journal.home import open_home
from agentobs.recording.recorder import Recorder
from agentobs.records.exchanges import Place
from agentobs.records.facts import Event
from agentobs.records.labels import Label
from agentobs.sink import Record, Sink, sink
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
"""Events of one round."""
ROUNDS = 15
THREADS = 10
FLOOR, AGAIN = "an append to a deque", "again"
NOBODY = "ours, nobody listens yet"
FULL = "ours, nobody listens and the queue is full"
DROPPED = "ours, to a consumer that drops"
STUCK = "ours, another thread is stuck in the consumer"
RECORDED = "ours, recorded"
MADE = "ours, made by `agentobs.event` and recorded"
TELEMETRY = "OpenTelemetry's log, exporter that drops"
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


class Drops(LogRecordExporter):
    """Takes logs and does nothing."""

    def export(self, batch: object) -> LogRecordExportResult:
        """Drop them."""
        return LogRecordExportResult.SUCCESS

    def shutdown(self) -> None:
        """Do nothing."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Do nothing."""
        return True


def sections() -> Iterator[Section]:
    """Measure events."""
    with tempfile.TemporaryDirectory() as home:
        recorder = Recorder(open_home(Path(home)))
        provider = LoggerProvider(shutdown_on_exit=False)
        provider.add_log_record_processor(
            BatchLogRecordProcessor(Drops(), max_queue_size=10 * EVENTS)
        )
        yield _section(1, recorder, provider)
        yield _section(THREADS, recorder, provider)
        recorder.close()
        provider.shutdown()


def _section(threads: int, recorder: Recorder, provider: LoggerProvider) -> Section:
    logger, count = provider.get_logger("benchmark"), EVENTS // threads
    waiting: deque[Any] = deque()
    dropping, recording = Sink(), Sink()
    dropping.attach(lambda record: None)
    recording.attach(recorder)
    full = Sink(0)
    stuck, go_on = _stuck()

    def floor() -> None:
        for _ in range(count):
            waiting.append(EVENT)

    def made() -> None:
        for _ in range(count):
            agentobs.event("app.seen", tokens=1000, messages=10)

    def telemetry() -> None:
        for _ in range(count):
            logger.emit(LogRecord(timestamp=1, event_name="context", attributes=ATTRIBUTES.copy()))

    def nobody(_: int) -> Cost:
        return cost_in_threads(partial(_emit, Sink(EVENTS), count), threads, None)

    def own(_: int) -> Cost:
        with sink.redirect(recorder), tracing.at(PLACE):
            return cost_in_threads(agentobs.carried(made), threads, flush)

    def alone(work: Callable[[], None], settle: Callable[[], object] | None, _: int) -> Cost:
        return cost_in_threads(work, threads, settle)

    flush = partial(recorder.flush, 60.0)
    variants: dict[str, Callable[[int], Cost]] = {
        FLOOR: partial(alone, floor, waiting.clear),
        AGAIN: partial(alone, floor, waiting.clear),
        NOBODY: nobody,
        FULL: partial(alone, partial(_emit, full, count), None),
        DROPPED: partial(alone, partial(_emit, dropping, count), None),
        STUCK: partial(alone, partial(_emit, stuck, count), None),
        RECORDED: partial(alone, partial(_emit, recording, count), flush),
        MADE: own,
        TELEMETRY: partial(alone, telemetry, provider.force_flush),
    }
    for each in variants.values():
        each(0)
    measured = compare(variants, range(1, ROUNDS + 1))
    go_on.set()
    where = "in one thread" if threads == 1 else f"in {threads} threads at once"
    return Section(
        f"An event, {where}",
        f"{ROUNDS} rounds of {EVENTS} events of 13 fields; microseconds an event, the medians of the rounds. The "
        "caller's CPU is that of all threads that emit. That of the process counts until the recorder's thread has "
        "written them to the journal, or OpenTelemetry's batch was taken. Ours is emitted as it is, but where it is "
        "made; OpenTelemetry's log is made and has nine attributes.",
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
        (
            Verdict(
                f"an event through the sink, {where}, CPU of the caller's",
                2.0,
                _each(measured, DROPPED, "thread_ns"),
                "{:.2f} us",
                "A lock is taken, whose turn it is is noted, and whoever meets another one at it queues its event.",
            ),
            Verdict(
                f"an event while the sink is stuck, {where}, CPU of the caller's",
                2.0,
                _each(measured, STUCK, "thread_ns"),
                "{:.2f} us",
                "It is weighed and queued or counted as dropped, and the processor is offered to who is stuck.",
            ),
        ),
    )


def _stuck() -> tuple[Sink, threading.Event]:
    """Return a sink in whose consumer a thread is stuck, and what lets it go on."""
    stuck, is_stuck, go_on = Sink(), threading.Event(), threading.Event()

    def consumer(_: Record) -> None:
        is_stuck.set()
        go_on.wait()

    stuck.attach(consumer)
    threading.Thread(target=stuck.emit, args=(EVENT,), daemon=True).start()
    is_stuck.wait()
    return stuck, go_on


def _emit(into: Sink, count: int) -> None:
    emit = into.emit
    for _ in range(count):
        emit(EVENT)


def _each(measured: list[Round], who: str, part: Part) -> float:
    return 1e3 * milliseconds(measured, who, part) / EVENTS
