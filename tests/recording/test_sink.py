"""The sink: which records are queued or dropped, the order of delivery, and that the agent is never affected."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import agentobs
from agentobs import sink as sinks
from agentobs import world
from agentobs.errors import RecordingError
from agentobs.recording.session import flush
from agentobs.records.exchanges import Answer, Chunk, ModelExchange, Place, Question, SessionCall
from agentobs.records.facts import Event, SessionEnd, SessionStart
from agentobs.records.labels import Label
from agentobs.sink import Record, Sink
from replay.fixture.writer import write as fixture_bytes
from tests import queries
from tests.replay.agents import last_session


@pytest.fixture
def shared_sink() -> Iterator[Sink]:
    """The sink of this process, reset before and after the test, because other tests read its counts."""
    sinks.sink.detach()
    sinks.sink._reset()
    yield sinks.sink
    sinks.sink.detach()
    sinks.sink._reset()


def exchange(size: int, session_id: str = "s") -> ModelExchange:
    answer = Answer(200, {}, (Chunk(b"x" * size, 1),), "complete")
    question = Question("POST", "/", {}, b"")
    return ModelExchange(Place(session_id), "a" * 32, 1, 2, 3, question, answer)


def event(number: int, kind: str = "own") -> Event:
    return Event("s", None, Label("main"), None, number, Label(kind), None, {})


def numbers(records: list[Record]) -> list[int]:
    return [each.at_ns for each in records if isinstance(each, Event) and each.kind != "drop"]


def drops(records: list[Record]) -> list[tuple[str | None, dict[str, float]]]:
    found = [each for each in records if isinstance(each, Event) and each.kind == "drop"]
    return [(each.label, {str(k): v for k, v in each.numbers.items()}) for each in found]


def test_the_queue_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a consumer, records are queued up to a total size in bytes; further records are dropped and counted."""
    monkeypatch.setattr(sinks, "WAITING_BYTES", 10_000)
    waiting = Sink()
    for _ in range(5):
        waiting.emit(exchange(3000))
    statistics = waiting.statistics()
    assert (statistics.emitted, statistics.queued, statistics.dropped) == (5, 2, 3)
    assert statistics.dropped_by_kind == {"attempt": 3}
    seen: list[Record] = []
    assert waiting.attach(seen.append)
    assert waiting.flush()
    waiting.detach()
    waiting.emit(exchange(3000))
    assert (len(seen), waiting.statistics().queued) == (3, 1)
    assert drops(seen) == [("attempt", {"count": 3, "exchanges": 3})]


def test_the_queue_is_bounded_in_records() -> None:
    """After 4,096 events, further events are dropped, counted by kind, and reported at their position in the order."""
    waiting = Sink()
    for number in range(4096):
        waiting.emit(event(number))
    waiting.emit(event(-1))
    waiting.emit(event(-1))
    waiting.emit(event(-1, "other"))
    statistics = waiting.statistics()
    assert (statistics.queued, statistics.dropped_by_kind) == (4096, {"own": 2, "other": 1})
    seen: list[Record] = []
    assert waiting.attach(seen.append)
    assert waiting.flush()
    waiting.emit(event(4096))
    assert numbers(seen) == list(range(4097))
    assert [type(each) is Event and str(each.kind) for each in seen[4096:]] == [
        "drop",
        "drop",
        "own",
    ]
    assert drops(seen) == [
        ("own", {"count": 2, "exchanges": 0}),
        ("other", {"count": 1, "exchanges": 0}),
    ]


def test_the_event_loop_delivers_the_queue_in_batches() -> None:
    """Attaching a consumer delivers nothing itself: the event loop delivers the queue in batches between other work,
    and new records stay in order.
    """
    waiting, seen, turns = Sink(), list[Record](), list[int]()
    for number in range(300):
        waiting.emit(event(number))

    async def agent() -> None:
        assert waiting.attach(seen.append)
        assert seen == []
        number = 300
        while waiting.statistics().queued:
            waiting.emit(event(number))
            number += 1
            await asyncio.sleep(0)
            turns.append(len(seen))
        waiting.emit(event(number))
        assert numbers(seen) == list(range(number + 1))

    asyncio.run(agent())
    assert len(turns) >= 4
    assert max(b - a for a, b in zip([0, *turns], turns, strict=False)) <= sinks.BATCH


def test_a_thread_delivers_without_an_event_loop() -> None:
    """Without an event loop, another thread than the caller's delivers the queue."""
    waiting, threads, all_there = Sink(), set[int](), threading.Event()
    for number in range(200):
        waiting.emit(event(number))

    def consumer(record: Record) -> None:
        threads.add(threading.get_ident())
        if isinstance(record, Event) and record.at_ns == 199:
            all_there.set()

    assert waiting.attach(consumer)
    assert all_there.wait(20)
    assert threading.get_ident() not in threads


def test_the_queue_is_delivered_after_its_loop_has_ended() -> None:
    """If an event loop ends before everything is delivered, the rest of the queue is delivered nevertheless."""
    waiting, seen, all_there = Sink(), list[Record](), threading.Event()
    for number in range(500):
        waiting.emit(event(number))

    def consumer(record: Record) -> None:
        seen.append(record)
        if numbers([record]) == [500]:
            all_there.set()

    async def attach() -> None:
        waiting.attach(consumer)

    asyncio.run(attach())
    waiting.emit(event(500))
    assert all_there.wait(20)
    assert numbers(seen) == list(range(501))


def test_only_the_first_consumer_is_attached() -> None:
    """Attaching a second consumer changes nothing, returns False, and is counted; after detaching, another consumer can
    be attached.
    """
    shared, first, second = Sink(), list[Record](), list[Record]()
    assert shared.attach(first.append)
    assert not shared.attach(second.append)
    assert not shared.attach(first.append)
    shared.emit(event(1))
    assert (len(first), second, shared.statistics().refused_attaches) == (1, [], 2)
    assert len(shared.detach()) == 1
    assert shared.attach(second.append)


def test_a_burst_arrives_completely() -> None:
    """If 10,000 events are emitted right after the first consumer was attached, all of them arrive in order."""
    shared, seen = Sink(), list[Record]()

    async def agent() -> None:
        for number in range(3000):
            shared.emit(event(number))
        shared.attach(seen.append)
        for number in range(3000, 13_000):
            shared.emit(event(number))

    asyncio.run(agent())
    assert shared.flush()
    assert numbers(seen) == list(range(13_000))
    assert shared.statistics().dropped == 0


def test_ten_threads_keep_their_order() -> None:
    """The events of each of ten threads arrive completely and in order, even if the first consumer is attached
    meanwhile.
    """
    shared, seen, half = Sink(100_000), list[Record](), threading.Barrier(11)

    def emit(thread: int) -> None:
        for number in range(600):
            if number == 200:
                half.wait()
            shared.emit(event(thread * 1000 + number))

    threads = [threading.Thread(target=emit, args=(thread,)) for thread in range(10)]
    for each in threads:
        each.start()
    half.wait()
    assert shared.attach(seen.append)
    for each in threads:
        each.join()
    assert shared.flush()
    found = numbers(seen)
    assert (len(found), shared.statistics().dropped) == (6000, 0)
    for thread in range(10):
        own = [number for number in found if number // 1000 == thread]
        assert own == [thread * 1000 + number for number in range(600)]


def test_all_consumers_see_the_same_order() -> None:
    """All consumers receive the events of several threads in the same order."""
    shared, first, second = Sink(), list[Record](), list[Record]()
    shared.attach(first.append, second.append)

    def emit(thread: int) -> None:
        for number in range(500):
            shared.emit(event(thread * 1000 + number))

    threads = [threading.Thread(target=emit, args=(thread,)) for thread in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert shared.flush()
    assert numbers(first) == numbers(second)
    assert len(first) == 2000


def test_a_stuck_consumer_blocks_only_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a consumer blocks one thread, other threads continue; their records are queued up to a limit, and drops are
    reported.
    """
    monkeypatch.setattr(sinks, "BACKLOG_BYTES", 100 * 1024)
    shared, seen = Sink(50), list[Record]()
    is_stuck, go_on = threading.Event(), threading.Event()

    def consumer(record: Record) -> None:
        is_stuck.set()
        go_on.wait(60)
        seen.append(record)

    shared.attach(consumer)
    held = threading.Thread(target=shared.emit, args=(event(0),))
    held.start()
    assert is_stuck.wait(20)
    for number in range(1, 201):
        shared.emit(event(number))
    assert not shared.flush(0.01)
    statistics = shared.statistics()
    assert (statistics.queued, statistics.dropped_by_kind) == (100, {"own": 100})
    go_on.set()
    held.join()
    assert shared.flush()
    assert numbers(seen) == list(range(101))
    assert drops(seen) == [("own", {"count": 100, "exchanges": 0})]


def test_a_flush_without_a_consumer(shared_sink: Sink) -> None:
    """If records are queued and no consumer is attached, `flush` returns False immediately; if the queue is empty, it
    returns True.
    """
    assert shared_sink.flush()
    assert flush()
    shared_sink.emit(event(1))
    requested_ns = world.monotonic()
    assert not shared_sink.flush(1000)
    assert not flush(1000)
    assert world.monotonic() - requested_ns < 100e9
    seen: list[Record] = []
    assert shared_sink.attach(seen.append)
    assert shared_sink.flush()
    assert numbers(seen) == [1]


def test_no_records_are_queued_after_giving_up() -> None:
    """After `give_up`, no record is kept until a consumer is attached; the consumer then receives a report of the
    drops.
    """
    given_up = Sink()
    given_up.emit(exchange(1))
    given_up.give_up()
    given_up.emit(exchange(1))
    assert not given_up.flush()
    statistics = given_up.statistics()
    assert (statistics.queued, statistics.dropped) == (0, 2)
    seen: list[Record] = []
    given_up.attach(seen.append)
    given_up.emit(exchange(1))
    assert given_up.flush()
    assert (len(seen), drops(seen)) == (2, [("attempt", {"count": 2, "exchanges": 2})])


def test_a_failing_consumer_is_removed_if_warnings_are_errors(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """If a consumer fails while warnings are errors, the other consumers get the record, and the agent gets no
    exception.

    Standard error shows the reason.
    """
    seen: list[Record] = []

    class Worse(ValueError):
        def __repr__(self) -> str:
            raise self

    def failing(record: Record) -> None:
        raise ValueError("broken consumer")

    def failing_worse(record: Record) -> None:
        raise Worse

    shared = Sink()
    shared.attach(failing, failing_worse, seen.append)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shared.emit(exchange(1))
        shared.emit(exchange(1))
    assert (len(seen), shared.statistics().consumers_removed) == (2, 2)
    error_output = capsys.readouterr().err
    assert "removed: ValueError" in error_output
    assert "broken consumer" not in error_output  # the text of the error may contain anything


@pytest.mark.slow
def test_garbage_collection_may_emit_during_an_emit() -> None:
    """A record that the garbage collector emits while a consumer runs does not wait and causes no error."""
    shared, seen = Sink(), list[Record]()

    class Ending:
        def __del__(self) -> None:
            shared.emit(event(2))

    def consumer(record: Record) -> None:
        gc.collect()
        seen.append(record)

    assert shared.attach(consumer)
    circle = Ending()
    circle.itself = circle  # type: ignore[attr-defined]  # only the collector ends it
    del circle
    shared.emit(event(1))
    assert numbers(seen) == [1, 2]
    assert shared.statistics() == sinks.Statistics(2, 0, 0, 0)


def test_a_signal_handler_may_emit_during_an_emit() -> None:
    """A record that a signal handler emits during an emit arrives, and a handler that raises leaves the sink in a valid
    state.
    """
    shared, seen = Sink(), list[Record]()

    def handler(number: int, frame: Any) -> None:
        shared.emit(event(2))
        raise KeyboardInterrupt

    def consumer(record: Record) -> None:
        seen.append(record)
        if numbers([record]) == [1]:
            signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        shared.attach(consumer)
        with pytest.raises(KeyboardInterrupt):
            shared.emit(event(1))
    finally:
        signal.signal(signal.SIGUSR1, before)
    shared.emit(event(3))
    assert shared.flush()
    assert numbers(seen) == [1, 2, 3]


def in_child(work: Callable[[], object]) -> str:
    """Fork, and return the output of the child."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os.write(writing, repr(work()).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        output = pipe.read().decode()
    os.waitpid(child, 0)
    return output


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_starts_with_an_empty_queue() -> None:
    """A forked child keeps the consumers of its parent, but neither the queue nor a held lock."""
    waiting = Sink()
    waiting.emit(event(1))
    assert in_child(lambda: waiting.statistics().queued) == "0"
    assert waiting.statistics().queued == 1
    is_stuck, go_on, seen = threading.Event(), threading.Event(), list[Record]()

    def consumer(record: Record) -> None:
        seen.append(record)
        is_stuck.set()
        go_on.wait(60)

    busy = Sink()
    busy.attach(consumer)
    held = threading.Thread(target=busy.emit, args=(event(1),))
    held.start()
    assert is_stuck.wait(20)
    busy.emit(event(2))

    def child() -> list[int]:
        go_on.set()
        seen.clear()
        busy.emit(event(3))
        return numbers(seen)

    with busy._lock:  # any thread may hold the lock when a process forks
        output = in_child(child)
    go_on.set()
    held.join()
    assert (output, numbers(seen)) == ("[3]", [1, 2])


def test_a_session_that_lost_an_exchange_is_incomplete(
    shared_sink: Sink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exchanges that were dropped before the recorder was attached are counted in the end of their session, so it
    cannot be frozen.
    """
    monkeypatch.setattr(sinks, "WAITING_BYTES", 8_000)
    label = Label("x")
    start = SessionStart("5" * 32, label, 1, None, label, None, label, label, {}, None)
    end = SessionEnd("5" * 32, 2, "completed", None, None, 0)
    for record in (
        SessionCall(start, None),
        exchange(9000, "5" * 32),
        exchange(9000, "5" * 32),
        end,
    ):
        shared_sink.emit(record)
    assert shared_sink.statistics().queued == 3
    agentobs.start(str(tmp_path / "home"))
    assert agentobs.stop_recorder()
    session = last_session(tmp_path / "home")
    assert session.dropped == 2
    with pytest.raises(RecordingError, match="2 records were not written"):
        fixture_bytes(session, {})
    assert queries.query("SELECT dropped FROM session_ends", home=str(tmp_path / "home")) == [(2,)]
    assert queries.query(
        "SELECT label, numbers FROM events WHERE kind = 'drop'", home=str(tmp_path / "home")
    ) == [("attempt", {"count": 2.0, "exchanges": 2.0})]


def test_an_exchange_that_was_lost_after_its_session_counts_as_well(
    shared_sink: Sink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that lost an exchange cannot be frozen, even if the loss is not counted in its end."""
    monkeypatch.setattr(sinks, "WAITING_BYTES", 8_000)
    label = Label("x")
    start = SessionStart("6" * 32, label, 1, None, label, None, label, label, {}, None)
    end = SessionEnd("6" * 32, 2, "completed", None, None, 0)
    for record in (SessionCall(start, None), end, exchange(9000, "6" * 32)):
        shared_sink.emit(record)
    agentobs.start(str(tmp_path / "home"))
    assert agentobs.stop_recorder()
    with pytest.raises(RecordingError, match="1 records were not written"):
        fixture_bytes(last_session(tmp_path / "home"), {})


def test_emitted_records_are_in_the_journal_after_a_flush(
    shared_sink: Sink, tmp_path: Path
) -> None:
    """A flush also writes records that still wait for the event loop to deliver them."""
    for number in range(100):
        shared_sink.emit(event(number))

    async def agent() -> list[Any]:
        agentobs.start(str(tmp_path / "home"))
        assert shared_sink.statistics().queued == 100
        assert flush(30)
        with agentobs.connect(home=str(tmp_path / "home")) as connection:
            return connection.execute(
                "SELECT count(*), min(session_sequence) FROM events"
            ).fetchall()

    assert asyncio.run(agent()) == [(100, 1)]
    assert agentobs.stop_recorder()
