"""The record queue: its size is limited in bytes, and each record is counted."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest

import agentobs
from agentobs import world
from agentobs.recording import record_queue
from agentobs.recording.record_queue import (
    _LIMIT_SECONDS,
    PAUSE_SECONDS,
    QUEUE_BYTES,
    Command,
    RecordQueue,
    WorkerPauses,
)
from agentobs.recording.recorder import Recorder
from agentobs.records.exchanges import (
    Answer,
    Chunk,
    ModelExchange,
    Place,
    Question,
    ReturnValue,
    SessionReturn,
    ToolAnswer,
    ToolExchange,
    ToolQuestion,
    WorldExchange,
    WorldQuestion,
    queue_bytes,
)
from agentobs.records.facts import Event, SpanEnd, SpanStart
from agentobs.records.labels import Label
from agentobs.sink import Record
from tests.store.recordings import T0, a_home, end, start, tool

RECORD_BYTES = 1024
"""The size that a record without content has in the queue."""


def test_records_are_returned_in_order_with_the_counts_of_their_sessions() -> None:
    queue = RecordQueue(lambda: True, durably=False)
    records: list[Record] = [start(1), start(2), end(1)]
    assert [queue.put(each) for each in records] == [None] * 3
    queue.send_tick()
    queue.close()
    assert [queue.get() for _ in range(5)] == [
        (records[0], RECORD_BYTES, 1),
        (records[1], RECORD_BYTES, 1),
        (records[2], RECORD_BYTES, 2),
        Command.TICK,
        Command.STOP,
    ]


def test_a_full_queue_accepts_records_again_after_some_were_processed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(record_queue, "QUEUE_BYTES", 2 * RECORD_BYTES)
    queue = RecordQueue(lambda: True, durably=False)
    assert [queue.put(start(number)) for number in (1, 2, 3)] == [None, None, "queue_full"]
    queue.note_processed(RECORD_BYTES)
    assert queue.put(start(4)) is None
    assert (queue.accounts.received, queue.progress.accepted, queue.progress.processed) == (4, 3, 1)


def test_a_closed_queue_accepts_no_record() -> None:
    queue = RecordQueue(lambda: True, durably=False)
    queue.close()
    assert queue.put(tool(1, "t1", "weather", at=T0)) == "closed"
    assert (queue.accounts.received, queue.progress.accepted) == (1, 0)


def test_the_worker_is_started_with_the_first_record_and_only_once() -> None:
    """The first record starts the worker; if no thread can be started, the record is refused, and the next record tries
    again.
    """
    can_start = iter((False, True))
    queue = RecordQueue(lambda: next(can_start), durably=False)
    assert [queue.put(start(number)) for number in (1, 2, 3)] == ["no_thread", None, None]


PLACE = Place("s")
TEXT = "x" * 7000


@pytest.mark.parametrize(
    "record",
    [
        ModelExchange(
            PLACE,
            "attempt",
            T0,
            1,
            2,
            Question("POST", "/v1/messages", {}, b"x" * 3000),
            Answer(200, {}, (Chunk(b"x" * 2000, 1), Chunk(b"x" * 2000, 2)), "complete"),
        ),
        ToolExchange(PLACE, T0, 1, ToolQuestion("t", "read", {}), ToolAnswer(TEXT, False)),
        WorldExchange(PLACE, T0, 1, WorldQuestion("memory", "s", TEXT[:3000]), [TEXT[3000:]]),
        SessionReturn(end(1), ReturnValue({"text": TEXT})),
    ],
    ids=lambda record: type(record).__name__,
)
def test_a_record_counts_with_its_content(record: object) -> None:
    """The size of a record includes the content that it keeps in memory."""
    assert 7000 <= queue_bytes(record) - RECORD_BYTES <= 7010


def test_a_busy_worker_lets_other_threads_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the worker computes, it pauses every half millisecond; less often if the queue is long."""
    now, fill = [0], [0.0]
    pauses: list[float] = []
    monkeypatch.setattr(world, "monotonic", lambda: now[0])
    monkeypatch.setattr(world, "pause", pauses.append)
    worker_pauses = WorkerPauses(lambda: fill[0])
    for elapsed_us in (100, 300, 200, 100, 600, 10):
        now[0] += elapsed_us * 1000
        worker_pauses.pause_if_due()
    assert pauses == [PAUSE_SECONDS] * 2
    fill[0] = 0.3
    for elapsed_us in (2_900, 200, 2_900, 200):
        now[0] += elapsed_us * 1000
        worker_pauses.pause_if_due()
    assert pauses == [PAUSE_SECONDS] * 4
    fill[0] = 0.6
    now[0] += 10_000_000
    worker_pauses.pause_if_due()
    fill[0] = 0.0
    monkeypatch.setattr(sys, "getswitchinterval", lambda: 0.0001)
    worker_pauses.pause_if_due()
    assert pauses == [PAUSE_SECONDS] * 4


@pytest.fixture
def switch_seconds() -> Iterator[float]:
    """The limit after which the interpreter takes its lock away; restored after the test."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield 0.005
    sys.setswitchinterval(before)


def test_the_interpreter_interrupts_the_worker(
    monkeypatch: pytest.MonkeyPatch, switch_seconds: float
) -> None:
    """While the worker computes, the limit of the interpreter is half a millisecond; not while it pauses or waits."""
    paused_with: list[float] = []
    monkeypatch.setattr(world, "pause", lambda _: paused_with.append(sys.getswitchinterval()))
    worker_pauses = WorkerPauses(lambda: 0.0)
    with worker_pauses:
        assert sys.getswitchinterval() == pytest.approx(_LIMIT_SECONDS)
        worker_pauses.pause_if_due()
        assert sys.getswitchinterval() == pytest.approx(_LIMIT_SECONDS)
    assert paused_with == [pytest.approx(switch_seconds)]
    assert sys.getswitchinterval() == pytest.approx(switch_seconds)


def test_the_limit_of_the_program_is_kept(switch_seconds: float) -> None:
    """A lower limit is not changed, and a limit that the program sets meanwhile is not restored."""
    for lower in (0.0001, 0.0005):
        sys.setswitchinterval(lower)
        with WorkerPauses(lambda: 0.0):
            assert sys.getswitchinterval() == pytest.approx(lower)
        assert sys.getswitchinterval() == pytest.approx(lower)
    sys.setswitchinterval(switch_seconds)
    with WorkerPauses(lambda: 0.0):
        sys.setswitchinterval(0.02)
    assert sys.getswitchinterval() == pytest.approx(0.02)


def test_a_limit_that_the_program_saved_meanwhile_is_replaced(switch_seconds: float) -> None:
    """If a program saves the limit while the worker computes, and sets it again later, its own limit returns."""
    worker_pauses = WorkerPauses(lambda: 0.0)
    with worker_pauses:
        saved = sys.getswitchinterval()
    sys.setswitchinterval(saved)
    with worker_pauses:
        assert sys.getswitchinterval() == pytest.approx(_LIMIT_SECONDS)
    assert sys.getswitchinterval() == pytest.approx(switch_seconds)


def test_a_forked_child_has_the_limit_of_the_program(tmp_path: Path, switch_seconds: float) -> None:
    """A child that is forked while the worker computes has the limit that the program had before."""
    recorder = Recorder(a_home(tmp_path))
    with recorder._pauses:
        child = os.fork()
        if not child:
            os._exit(sys.getswitchinterval() > switch_seconds / 2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    recorder.close()


def test_a_fork_between_two_steps_of_the_change_restores_the_limit(
    monkeypatch: pytest.MonkeyPatch, switch_seconds: float
) -> None:
    """Whenever the limit is lowered, the limit to restore is known, so a child that is forked then can restore it."""
    known: list[float | None] = []
    change = sys.setswitchinterval

    def changed(seconds: float) -> None:
        known.append(worker_pauses._limit)
        change(seconds)
        known.append(worker_pauses._limit)

    worker_pauses = WorkerPauses(lambda: 0.0)
    monkeypatch.setattr(sys, "setswitchinterval", changed)
    with worker_pauses:
        pass
    assert known == [pytest.approx(switch_seconds)] * 4
    assert worker_pauses._limit is None


SPAN = SpanStart("s", "t", "a", None, Label("main"), Label("work"), None, T0, turn=2)


@pytest.mark.parametrize(
    "record",
    [
        SPAN,
        replace(SPAN, numbers={"n": 1.5}, labels={"l": Label("x")}),
        SpanEnd("s", "a", T0 + 1, "error", Label("ValueError"), late=True),
        Event("s", None, Label("main"), None, T0, Label("kind"), None, {"n": 2}, rate=0.5),
    ],
    ids=lambda record: type(record).__name__,
)
def test_a_span_or_event_is_returned_as_it_was(record: Record) -> None:
    """A record that waits as a tuple of its values is returned with all of them."""
    queue = RecordQueue(lambda: True, durably=False)
    assert queue.put(record) is None
    assert queue.get() == (record, queue_bytes(record), 1)


@pytest.mark.slow
def test_the_garbage_collector_does_not_track_waiting_ends_of_spans() -> None:
    """A thousand waiting ends of spans are not a thousand objects that a garbage collection visits."""
    queue = RecordQueue(lambda: True, durably=False)
    gc.collect()
    before = len(gc.get_objects())
    for number in range(1_000):
        assert queue.put(SpanEnd("s", str(number), T0, "ok", None)) is None
    gc.collect()
    assert len(gc.get_objects()) - before < 100


def test_the_fill_is_the_share_of_the_queue_that_is_in_use() -> None:
    """The fill of the queue rises with the sizes of the records that wait, and falls when they were processed."""
    records = RecordQueue(lambda: True, durably=False)
    exchange = ToolExchange(
        PLACE, T0, 1, ToolQuestion("t", "read", {}), ToolAnswer("x" * (QUEUE_BYTES // 2), False)
    )
    assert records.fill == 0
    assert records.put(exchange) is None
    assert records.fill == pytest.approx(0.5, abs=0.01)
    records.note_processed(queue_bytes(exchange))
    assert records.fill == 0


def test_the_worker_pauses_between_the_steps_of_an_exchange(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request, the response and the facts of an exchange are separate steps, and so is each record."""
    taken: list[str] = []
    monkeypatch.setattr(
        WorkerPauses, "pause_if_due", lambda self: taken.append(threading.current_thread().name)
    )
    agentobs.start(str(tmp_path / "home"))
    replies = httpx2.MockTransport(lambda request: httpx2.Response(200, json={"type": "message"}))
    with agentobs.session("steps"):
        agentobs.record(httpx2.Client(transport=replies)).post(
            "http://provider.test/v1/messages", json={"model": "m", "messages": []}
        )
    assert agentobs.flush()
    agentobs.stop_recorder()
    assert set(taken) == {"agentobs-recorder"}
    assert len(taken) >= 6
