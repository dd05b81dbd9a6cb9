"""The timekeeper: the thread of the recorder that syncs what was written and makes the worker check the journal.

It sleeps without a timeout if there is nothing to do, so an idle process is not woken up. While a span is open, it
wakes up to look for orphaned spans.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from agentobs import world
from agentobs.recording.options import Sync
from agentobs.recording.recorder_progress import Progress
from agentobs.recording.segment_writer import Writer
from agentobs.recording.span_sweeper import Sweeper

SYNC_SECONDS = 0.18
"""How often written data is synced, exchanges in progress are written, and a failed disk is tried again. A sync takes
time as well; the documented limit is 200 ms.
"""


class Timekeeper:
    """Decides when to sync and when to send the worker a tick."""

    def __init__(
        self,
        mode: Sync,
        writer: Writer,
        progress: Progress,
        sweeper: Sweeper,
        *,
        has_periodic_work: Callable[[], bool],
        send_tick: Callable[[], None],
        guarded: Callable[[Callable[[], None]], None],
        warn: Callable[[Exception], None],
    ) -> None:
        """Prepare a timekeeper; `run` is the function of its thread.

        Args:
            mode: when to sync.
            writer: what to sync.
            progress: is notified of each sync.
            sweeper: closes orphaned spans.
            has_periodic_work: returns whether the worker needs ticks.
            send_tick: queues a tick for the worker.
            guarded: calls a function, and reports its exception instead of raising it.
            warn: reports that a sync failed.
        """
        self._mode, self._writer, self._progress, self._sweeper = mode, writer, progress, sweeper
        self._has_periodic_work, self._send_tick = has_periodic_work, send_tick
        self._guarded, self._warn = guarded, warn
        self.failed_syncs = 0
        """How often a sync failed."""
        self._is_asleep = False
        """Whether the thread may be waiting for `_wakeup` without a timeout."""
        self._is_sync_due = False
        self._is_tick_queued = False
        self._ticked_ns = 0
        self._wakeup, self._stopped = threading.Event(), threading.Event()

    def wake(self) -> None:
        """Wake the thread up if it is asleep, because there is periodic work now."""
        if self._is_asleep:
            self._wakeup.set()

    def request_sync(self) -> None:
        """Sync what was written, at the next opportunity."""
        if self._mode != "process":
            self._is_sync_due = True
        if self._is_asleep or self._mode == "always":
            self._wakeup.set()

    def note_tick(self) -> None:
        """Note that the worker has received the last tick."""
        self._is_tick_queued = False

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._wakeup.set()

    def run(self) -> None:
        """Sync, sweep and tick until `stop` is called."""
        is_always = self._mode == "always"
        while not self._stopped.is_set():
            self._is_asleep = True
            if not self._has_work():
                self._wakeup.wait(self._sweeper.seconds_to_next())
            self._is_asleep = False
            self._wakeup.clear()
            if not is_always:
                self._stopped.wait(SYNC_SECONDS)
            self.work()
            if is_always and not self._is_sync_due and self._has_work():
                self._wakeup.wait(SYNC_SECONDS)

    def work(self) -> None:
        """Sync what was written, sweep if that is due, and send a tick unless the last one is recent."""
        self._guarded(self._sync)
        self._guarded(self._sweeper.sweep_if_due)
        now_ns = world.monotonic()
        if not self._is_tick_queued and now_ns - self._ticked_ns >= int(SYNC_SECONDS * 1e9):
            self._ticked_ns, self._is_tick_queued = now_ns, True
            self._send_tick()

    def _has_work(self) -> bool:
        return self._is_sync_due or self._has_periodic_work()

    def _sync(self) -> None:
        if not self._is_sync_due:
            return
        self._is_sync_due, processed = False, self._progress.processed
        try:
            self._writer.sync()
        except Exception as error:
            self.failed_syncs += 1
            self._warn(error)
        self._progress.note_synced(processed)
