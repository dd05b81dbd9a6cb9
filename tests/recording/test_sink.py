"""The sink: what waits, what is dropped, and what never reaches the agent."""

from __future__ import annotations

import gc
import warnings

import pytest

from agentobs import sink as sinks
from agentobs.records.exchanges import Answer, Chunk, ModelExchange, Place, Question
from agentobs.sink import Record, Sink


def exchange(size: int) -> ModelExchange:
    answer = Answer(200, {}, (Chunk(b"x" * size, 1),), "complete")
    return ModelExchange(Place("s"), "a", 1, 2, 3, Question("POST", "/", {}, b""), answer)


def test_what_waits_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a consumer, records are kept up to a weight, then dropped and counted."""
    monkeypatch.setattr(sinks, "WAITING_BYTES", 10_000)
    waiting = Sink()
    for _ in range(5):
        waiting.emit(exchange(3000))
    told = waiting.statistics()
    assert (told.emitted, told.queued, told.dropped) == (5, 2, 3)
    seen: list[Record] = []
    assert waiting.attach(seen.append)
    waiting.detach()
    waiting.emit(exchange(3000))
    assert (len(seen), waiting.statistics().queued) == (2, 1)


def test_nothing_waits_for_nobody() -> None:
    """After giving up nothing is kept, until somebody comes after all."""
    given_up = Sink()
    given_up.emit(exchange(1))
    given_up.give_up()
    given_up.emit(exchange(1))
    told = given_up.statistics()
    assert (told.queued, told.dropped) == (0, 2)
    seen: list[Record] = []
    given_up.attach(seen.append)
    given_up.emit(exchange(1))
    assert len(seen) == 1


def test_a_failing_consumer_is_removed_where_warnings_are_errors(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The others get the record, the agent gets no exception, and standard error says why."""
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
    assert "broken consumer" in capsys.readouterr().err


def test_an_exchange_may_end_in_the_middle_of_an_emit() -> None:
    """A collection of garbage that emits while the sink holds its lock neither waits nor breaks it."""
    shared = Sink()

    class Ending:
        def __del__(self) -> None:
            shared.emit(exchange(1))

    def consumer(record: Record) -> None:
        gc.collect()

    shared.emit(exchange(1))
    circle = Ending()
    circle.itself = circle  # type: ignore[attr-defined]  # only the collector ends it
    del circle
    assert shared.attach(consumer)
    assert shared.statistics() == sinks.Statistics(2, 0, 0, 0)
