"""The timekeeper: when it syncs, when it sends ticks, and that it sleeps while there is nothing to do."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from agentobs.recording import timekeeper
from agentobs.recording.options import Options, Sync
from agentobs.recording.recorder_progress import Progress
from agentobs.recording.segment_writer import Writer
from agentobs.recording.span_sweeper import Sweeper
from agentobs.recording.timekeeper import Timekeeper


@pytest.fixture(autouse=True)
def short_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timekeeper, "SYNC_SECONDS", 0.005)


class FakeWriter(Writer):
    """A writer that counts its syncs, and fails if a test sets an error."""

    def __init__(self) -> None:
        self.syncs = 0
        self.error: Exception | None = None

    def sync(self) -> None:
        self.syncs += 1
        if self.error is not None:
            raise self.error


class Bench:
    """A timekeeper that runs in a thread, and what it did."""

    def __init__(self, mode: Sync) -> None:
        self.writer, self.progress = FakeWriter(), Progress(durably=True)
        self.has_work, self.ticks = False, 0
        self.warnings: list[Exception] = []
        self.keeper = Timekeeper(
            mode,
            self.writer,
            self.progress,
            Sweeper(Options()),
            has_periodic_work=lambda: self.has_work,
            send_tick=self._count_tick,
            guarded=lambda work: work(),
            warn=self.warnings.append,
        )

    def _count_tick(self) -> None:
        self.ticks += 1


@contextlib.contextmanager
def running(mode: Sync) -> Iterator[Bench]:
    bench = Bench(mode)
    thread = threading.Thread(target=bench.keeper.run)
    thread.start()
    try:
        wait_until(lambda: bench.keeper._is_asleep)
        yield bench
    finally:
        bench.keeper.stop()
        thread.join(20)
    assert not thread.is_alive()


def wait_until(is_reached: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not is_reached():
        assert time.monotonic() < deadline, "the expected state was not reached"
        time.sleep(0.001)


@pytest.mark.parametrize("mode", ["interval", "always"])
def test_a_requested_sync_is_made_once(mode: Sync) -> None:
    """A requested sync is made once, and the records that were processed before it are durable."""
    with running(mode) as bench:
        bench.progress.note_processed()
        bench.keeper.request_sync()
        wait_until(lambda: bench.progress.synced == 1)
        wait_until(lambda: bench.keeper._is_asleep)
        bench.keeper.wake()
        wait_until(lambda: bench.ticks >= 1)
    assert bench.writer.syncs == 1


def test_without_syncs_a_request_only_sends_a_tick() -> None:
    with running("process") as bench:
        bench.keeper.request_sync()
        wait_until(lambda: bench.ticks)
    assert (bench.writer.syncs, bench.progress.synced) == (0, 0)


def test_a_failed_sync_is_counted_and_reported() -> None:
    """A failed sync is counted and reported; its records count as processed, because no later sync can make them
    durable.
    """
    with running("interval") as bench:
        bench.writer.error = OSError("no space")
        bench.progress.note_processed()
        bench.keeper.request_sync()
        wait_until(lambda: bench.progress.synced == 1)
    assert (bench.keeper.failed_syncs, bench.warnings) == (1, [bench.writer.error])


def test_a_tick_is_sent_only_after_the_worker_has_received_the_previous_one() -> None:
    with running("interval") as bench:
        bench.has_work = True
        bench.keeper.wake()
        wait_until(lambda: bench.ticks == 1)
        time.sleep(0.03)
        assert bench.ticks == 1
        bench.keeper.note_tick()
        wait_until(lambda: bench.ticks == 2)


def test_an_idle_timekeeper_sends_no_ticks() -> None:
    with running("interval") as bench:
        time.sleep(0.03)
        assert (bench.ticks, bench.writer.syncs) == (0, 0)
