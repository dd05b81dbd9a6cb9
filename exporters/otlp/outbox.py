"""The outbox: a bounded queue with its own thread, so that no collector can block the agent.

The queue is bounded in bytes and in items. Items that do not fit, and items that a collector rejects, are dropped and
counted by reason. At any time, handed = delivered + waiting + dropped. If a collector cannot be reached, messages are
retried with exponential backoff; a delay that the collector requests is respected.

OpenTelemetry's own batch processor is not used: it lost half of a burst of one second, and delayed the exit of a
program by 30 seconds when the collector was not running.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from agentobs import world
from agentobs.errors import warn_once

Signal = Literal["traces", "logs", "metrics"]
SIGNALS: tuple[Signal, ...] = ("traces", "logs", "metrics")
"""A kind of telemetry; each has its own URL path."""

Reason = Literal[
    "queue_full",
    "refused",
    "rejected",
    "too_large",
    "gave_up",
    "at_exit",
    "closed",
    "unreadable",
]
"""Why an item was not delivered, in this order: the queue was full; the collector rejected the message; it rejected a
part of the message; a single item was too large for it; the retries were exhausted; the program ended; the outbox was
already closed; the item could not be encoded.
"""


@dataclass(frozen=True, slots=True)
class Sent:
    """The result of sending one message."""

    outcome: Literal["accepted", "later", "too_large", "refused", "unreadable"]
    """Accepted; retry later; split the message and retry; do not retry; not sent, because it cannot be encoded."""
    rejected: int = 0
    """The number of rejected items in an accepted message."""
    after_seconds: float | None = None
    """The delay that the collector requested; None if it requested none."""
    is_throttled: bool = False
    """Whether the collector is overloaded."""
    why: str = ""
    """Why the message was not accepted, in our own words: never text from the collector."""
    is_unreachable: bool = False
    """Whether no connection to the collector could be made, or it broke."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the queue, of messages and of retries."""

    queue_bytes: int = 16 * 1024 * 1024
    """The maximum size of the queue, including items that are being sent. Our choice."""
    queue_items: int = 20_000
    """The maximum number of queued items. Our choice: a burst of 10,000 must fit."""
    batch_items: int = 512
    """Items per message, as in OpenTelemetry's batch processor."""
    batch_bytes: int = 2 * 1024 * 1024
    """The approximate maximum size of a message; gRPC accepts 4 MiB."""
    delay_seconds: float = 1.0
    """The maximum time that an item waits before it is sent. Our choice."""
    metrics_seconds: float = 60.0
    """The interval of metrics, as in OpenTelemetry's periodic reader."""
    timeout_seconds: float = 10.0
    """The timeout of one message, as in OpenTelemetry's exporters."""
    tries: int = 6
    """The number of attempts per message. Our choice: with the backoff below, they take about a minute."""
    backoff_seconds: float = 1.0
    """The first backoff; each backoff is twice as long as the previous one. Our choice."""
    backoff_seconds_max: float = 30.0
    """The maximum backoff. Our choice."""
    after_seconds_max: float = 300.0
    """The maximum delay that a collector can request; longer ones are cut to it. Our choice."""


@dataclass(frozen=True, slots=True)
class DeliveryStatistics:
    """The counts of the outbox."""

    handed: int
    """Spans and events that were passed to the outbox."""
    delivered: int
    """Spans and events that the collector accepted."""
    waiting: int
    """Spans and events that wait or are being sent."""
    waiting_bytes: int
    """The approximate size of the waiting spans and events."""
    dropped: Mapping[str, int]
    """Spans and events that were not delivered, by reason."""
    messages: int
    """Messages that the collector accepted, including metrics."""
    retried: int
    """Messages that were sent again."""
    throttled: int
    """How often the collector reported overload."""
    metrics_failed: int
    """Metrics messages that were not accepted; the next message contains the same sums."""


class Item(NamedTuple):
    """One span or log record to send."""

    signal: Signal
    payload: Any
    size: int
    at_ns: int
    """When the item was added to the queue, on the monotonic clock."""


Send = Callable[[Signal, Sequence[Any]], Sent]
"""Sends one message, within its timeout; never raises."""
Gather = Callable[[], Any]
"""Returns the current metrics, or None if there are none."""


class Outbox:
    """Sends items, in order, on one thread."""

    def __init__(
        self,
        send: Send,
        gather: Gather = lambda: None,
        limits: Limits | None = None,
        to: str = "",
        release: Callable[[], None] = lambda: None,
    ) -> None:
        """Send items with `send`, and periodically the metrics that `gather` returns.

        Args:
            send: sends one message.
            gather: returns the metrics, or None if there are none.
            limits: limits of the queue, of messages and of retries.
            to: the address of the collector, for warnings.
            release: closes connections when the thread ends.
        """
        self._send, self._gather, self._release = send, gather, release
        self._limits, self._to = limits or Limits(), to
        self._begin()
        weak = weakref.WeakMethod(self._begin)
        os.register_at_fork(after_in_child=lambda: _call_if_alive(weak))

    def _begin(self) -> None:
        """Start with an empty queue: at the start, or after a fork, because the parent sends its own items."""
        self._queues: dict[Signal, deque[Item]] = {"traces": deque(), "logs": deque()}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._bytes = self._handed = self._delivered = self._in_flight = 0
        self._accepted: Counter[Signal] = Counter()
        self._settled: Counter[Signal] = Counter()
        self._lost = 0
        self._dropped: Counter[str] = Counter()
        self._messages = self._retried = self._throttled = self._metrics_failed = 0
        self._flushing = 0
        self._gathers_wanted = self._gathers_done = 0
        self._metrics_at = world.monotonic()
        self._is_closed = False

    def put(self, signal: Signal, payload: Any, size: int) -> bool:
        """Add one item to the queue without waiting. Return whether it was added."""
        with self._changed:
            self._handed += 1
            limits = self._limits
            waiting = self._waiting()
            if self._is_closed:
                self._dropped["closed"] += 1
                return False
            if waiting >= limits.queue_items or self._bytes + size > limits.queue_bytes:
                self._dropped["queue_full"] += 1
                return False
            self._bytes += size
            self._accepted[signal] += 1
            queue = self._queues[signal]
            queue.append(Item(signal, payload, size, world.monotonic()))
            self._start_thread()
            if len(queue) in (1, limits.batch_items):
                self._changed.notify_all()
            return True

    def flush(self, seconds: float = 5.0) -> bool:
        """Send all queued items and the metrics now. Return whether the collector accepted all of them in time.

        Items that were dropped earlier do not affect the return value; `statistics` counts them.
        """
        with self._changed:
            target, lost = dict(self._accepted), self._lost
            self._gathers_wanted += 1
            wanted, failed = self._gathers_wanted, self._metrics_failed
            self._start_thread()
            self._flushing += 1
            self._changed.notify_all()
            try:
                done = self._changed.wait_for(lambda: self._has_settled(target, wanted), seconds)
            finally:
                self._flushing -= 1
            return done and self._lost == lost and self._metrics_failed == failed

    def close(self, seconds: float = 0.25) -> bool:
        """Send queued items for at most this time, then drop and count the rest. Return whether nothing was dropped."""
        if self._is_closed:
            return True
        done = self.flush(seconds)
        with self._changed:
            self._is_closed = True
            unsent = self._waiting()
            self._dropped["at_exit"] += unsent
            for queue in self._queues.values():
                queue.clear()
            self._bytes = self._in_flight = 0
            self._changed.notify_all()
        return done and not unsent

    def statistics(self) -> DeliveryStatistics:
        """Return the counts so far."""
        with self._changed:
            return DeliveryStatistics(
                handed=self._handed,
                delivered=self._delivered,
                waiting=self._waiting(),
                waiting_bytes=self._bytes,
                dropped={reason: count for reason, count in self._dropped.items() if count},
                messages=self._messages,
                retried=self._retried,
                throttled=self._throttled,
                metrics_failed=self._metrics_failed,
            )

    def _start_thread(self) -> None:
        if self._thread is None and not self._is_closed:
            self._thread = threading.Thread(
                target=self._run_thread, name="agentobs-outbox", daemon=True
            )
            self._thread.start()

    def _run_thread(self) -> None:
        try:
            self._send_all()
        finally:
            self._release()

    def _send_all(self) -> None:
        """Send due items and metrics until the outbox is closed."""
        while True:
            with self._changed:
                while not (self._is_closed or (due := self._due()) or self._metrics_due()):
                    self._changed.wait(self._pause())
                if self._is_closed:
                    return
                batch = self._next_batch(due) if due else []
            if batch:
                self._deliver(batch)
            else:
                self._deliver_metrics()

    def _waiting(self) -> int:
        return sum(map(len, self._queues.values())) + self._in_flight

    def _has_settled(self, target: Mapping[Signal, int], gathers: int) -> bool:
        all_sent = all(self._settled[signal] >= count for signal, count in target.items())
        return all_sent and self._gathers_done >= gathers

    def _due(self) -> deque[Item] | None:
        """Return the queue from which a message is due, or None."""
        waiting = [queue for queue in self._queues.values() if queue]
        if not waiting:
            return None
        oldest = min(waiting, key=lambda queue: queue[0].at_ns)
        waited = (world.monotonic() - oldest[0].at_ns) / 1e9
        if self._flushing or waited >= self._limits.delay_seconds:
            return oldest
        if self._bytes >= self._limits.batch_bytes:
            return oldest
        return next((q for q in waiting if len(q) >= self._limits.batch_items), None)

    def _metrics_due(self) -> bool:
        waited = (world.monotonic() - self._metrics_at) / 1e9
        return self._gathers_wanted > self._gathers_done or waited >= self._limits.metrics_seconds

    def _pause(self) -> float:
        """Return the seconds until the next message is due."""
        until_metrics = self._limits.metrics_seconds - (world.monotonic() - self._metrics_at) / 1e9
        oldest = min((q[0].at_ns for q in self._queues.values() if q), default=None)
        if oldest is None:
            return max(until_metrics, 0.0)
        waited = (world.monotonic() - oldest) / 1e9
        return max(min(until_metrics, self._limits.delay_seconds - waited), 0.0)

    def _next_batch(self, queue: deque[Item]) -> list[Item]:
        """Remove the items of the next message from a queue, and return them in order."""
        batch = [queue.popleft()]
        size = batch[0].size
        while queue and len(batch) < self._limits.batch_items:
            if size + queue[0].size > self._limits.batch_bytes:
                break
            batch.append(queue.popleft())
            size += batch[-1].size
        self._in_flight = len(batch)
        return batch

    def _deliver(self, batch: Sequence[Item]) -> None:
        """Send a message until it is accepted or rejected, or the retries are exhausted."""
        for number in range(1, self._limits.tries + 1):
            sent = self._send(batch[0].signal, [item.payload for item in batch])
            if sent.outcome == "accepted":
                self._count_accepted(batch, sent.rejected)
                return
            self._warn(sent)
            if sent.outcome == "too_large" and len(batch) > 1:
                half = len(batch) // 2
                self._deliver(batch[:half])
                self._deliver(batch[half:])
                return
            if sent.outcome != "later":
                self._count_dropped(batch, sent.outcome)
                return
            if number < self._limits.tries and not self._wait_for_retry(number, sent):
                return
        self._count_dropped(batch, "gave_up")

    def _deliver_metrics(self) -> None:
        """Send the metrics without retries: they are sums, so the next message replaces a lost one."""
        with self._changed:
            wanted = self._gathers_wanted
        metrics = self._gather()
        sent = self._send("metrics", [metrics]) if metrics is not None else None
        with self._changed:
            self._metrics_at = world.monotonic()
            if sent is not None:
                self._messages += sent.outcome == "accepted"
                self._metrics_failed += sent.outcome != "accepted" or sent.rejected > 0
                self._throttled += sent.is_throttled
            self._gathers_done = wanted
            self._changed.notify_all()
        if sent is not None and sent.outcome != "accepted":
            self._warn(sent)

    def _wait_for_retry(self, number: int, sent: Sent) -> bool:
        """Wait for the backoff. Return whether to retry: False if the outbox was closed in the meantime."""
        limits = self._limits
        backoff = min(limits.backoff_seconds * 2 ** (number - 1), limits.backoff_seconds_max)
        pause = backoff * (0.8 + 0.4 * world.chance())
        if sent.after_seconds is not None:
            pause = min(sent.after_seconds, limits.after_seconds_max)
        until = world.monotonic() + int(pause * 1e9)
        with self._changed:
            self._throttled += sent.is_throttled
            while not self._is_closed and (remaining := until - world.monotonic()) > 0:
                self._changed.wait(remaining / 1e9)
            self._retried += not self._is_closed
            return not self._is_closed

    def _count_accepted(self, batch: Sequence[Item], rejected: int) -> None:
        rejected = max(0, min(rejected, len(batch)))
        with self._changed:
            self._messages += 1
            if self._is_closed:
                # `close` counted these items as dropped, but they have been delivered.
                self._dropped["at_exit"] -= len(batch)
                self._in_flight += len(batch)
            self._delivered += len(batch) - rejected
            self._dropped["rejected"] += rejected
            self._lost += rejected
            self._settle(batch)

    def _count_dropped(self, batch: Sequence[Item], reason: Reason | str) -> None:
        with self._changed:
            if self._is_closed:
                return
            self._dropped[reason] += len(batch)
            self._lost += len(batch)
            self._settle(batch)

    def _settle(self, batch: Sequence[Item]) -> None:
        if not self._is_closed:
            self._bytes -= sum(item.size for item in batch)
        self._in_flight -= len(batch)
        self._settled[batch[0].signal] += len(batch)
        self._changed.notify_all()

    def _warn(self, sent: Sent) -> None:
        warn_once(
            f"telemetry does not reach {self._to}: {sent.why}. The agent and its recording continue; "
            "undelivered items are counted in the backend's statistics().",
            about=f"telemetry to {self._to}",
        )


def _call_if_alive(weak: weakref.WeakMethod[Callable[[], None]]) -> None:
    if (method := weak()) is not None:
        method()
