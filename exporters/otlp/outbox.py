"""The outbox: a bounded queue with its own thread, so that no collector can block the agent.

It is bounded in bytes and in items. What does not fit is dropped and counted by reason, and so is what a collector
rejects. At any time, accepted = delivered + waiting + dropped. An unreachable collector is retried with exponential
backoff; a requested delay is respected.

OpenTelemetry's own batch processor lost half of a burst of one second, and delayed the exit of a program by 30 seconds
when the collector was gone; therefore this exists.
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
from agentobs.errors import say_once

Signal = Literal["traces", "logs", "metrics"]
"""A kind of telemetry; each has its own address."""

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
"""Why something was not delivered: the queue was full; the collector rejected the message, or a part of it; one item
alone was too large for it; the retries were exhausted; the program ended; it came after the end; it could not be
encoded.
"""


@dataclass(frozen=True, slots=True)
class Sent:
    """The result of sending one message."""

    outcome: Literal["taken", "later", "too_large", "refused", "unreadable"]
    """Accepted; retry; retry in halves; do not retry; not sent, because it cannot be encoded."""
    rejected: int = 0
    """The rejected items of an accepted message."""
    after_seconds: float | None = None
    """The delay that the collector requested; None without one."""
    is_throttled: bool = False
    """Whether the collector is overloaded."""
    why: str = ""
    """Why it was not accepted, for messages: never text from others."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The size of the queue, and how it is sent."""

    queue_bytes: int = 16 * 1024 * 1024
    """The maximum size of the queue, including what is being sent. Our choice."""
    queue_items: int = 20_000
    """The maximum number of items. Our choice: a burst of 10,000 must fit."""
    batch_items: int = 512
    """Items per message, as in OpenTelemetry's batch processor."""
    batch_bytes: int = 2 * 1024 * 1024
    """The approximate maximum size of a message; gRPC accepts 4 MiB."""
    delay_seconds: float = 1.0
    """How long an item waits for others at most. Our choice."""
    metrics_seconds: float = 60.0
    """The interval of metrics, as in OpenTelemetry's periodic reader."""
    timeout_seconds: float = 10.0
    """The timeout of one message, as in OpenTelemetry's exporters."""
    tries: int = 6
    """The number of attempts per message. Our choice: with the backoff below, for a minute."""
    backoff_seconds: float = 1.0
    """The first backoff; each is twice as long as the one before. Our choice."""
    backoff_seconds_max: float = 30.0
    """The maximum backoff. Our choice."""
    after_seconds_max: float = 300.0
    """The maximum requested delay that is respected. Our choice."""


@dataclass(frozen=True, slots=True)
class DeliveryStatistics:
    """The counts of the outbox."""

    handed: int
    """Spans and events that were put in."""
    delivered: int
    """Those that the collector accepted."""
    waiting: int
    """Those that wait, or are being sent."""
    waiting_bytes: int
    """Their size, roughly."""
    dropped: Mapping[str, int]
    """Those that were not delivered, by reason."""
    messages: int
    """Messages that the collector accepted, including metrics."""
    retried: int
    """Messages that were sent again."""
    throttled: int
    """How often the collector reported overload."""
    metrics_failed: int
    """Messages of metrics that were not accepted; the next one contains the same sums."""


class Item(NamedTuple):
    """One thing to send."""

    signal: Signal
    payload: Any
    size: int
    at_ns: int
    """When it was put in, on the monotonic clock."""


Send = Callable[[Signal, Sequence[Any]], Sent]
"""Sends one message, within its timeout; never raises."""
Gather = Callable[[], Any]
"""Returns the current metrics, or None without any."""


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
        """Send with `send`, and what `gather` returns from time to time.

        Args:
            send: sends one message.
            gather: returns the metrics, or None.
            limits: the size of the queue.
            to: the destination, for messages.
            release: closes connections when nothing more will be sent.
        """
        self._send, self._gather, self._release = send, gather, release
        self._limits, self._to = limits or Limits(), to
        self._begin()
        weak = weakref.WeakMethod(self._begin)
        os.register_at_fork(after_in_child=lambda: _call(weak))

    def _begin(self) -> None:
        """Start empty: for a new process, or after a fork, because the items of the parent stay with the parent."""
        self._queues: dict[Signal, deque[Item]] = {"traces": deque(), "logs": deque()}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._bytes = self._handed = self._delivered = self._in_hand = 0
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
        """Put in one item; never waits. Return whether it was accepted."""
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
            self._run()
            if len(queue) in (1, limits.batch_items):
                self._changed.notify_all()
            return True

    def flush(self, seconds: float = 5.0) -> bool:
        """Send what is queued, and the metrics, now; return whether the collector accepted all of it in time.

        What was dropped before, because the queue was full, is not counted here but in `statistics`.
        """
        with self._changed:
            target, lost = dict(self._accepted), self._lost
            self._gathers_wanted += 1
            wanted, failed = self._gathers_wanted, self._metrics_failed
            self._run()
            self._flushing += 1
            self._changed.notify_all()
            try:
                done = self._changed.wait_for(lambda: self._has_settled(target, wanted), seconds)
            finally:
                self._flushing -= 1
            return done and self._lost == lost and self._metrics_failed == failed

    def close(self, seconds: float = 0.25) -> bool:
        """Send what is queued within that time; the rest is dropped and counted. Return whether nothing was dropped."""
        if self._is_closed:
            return True
        done = self.flush(seconds)
        with self._changed:
            self._is_closed = True
            left = self._waiting()
            self._dropped["at_exit"] += left
            for queue in self._queues.values():
                queue.clear()
            self._bytes = self._in_hand = 0
            self._changed.notify_all()
        return done and not left

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

    def _run(self) -> None:
        if self._thread is None and not self._is_closed:
            self._thread = threading.Thread(target=self._work, name="agentobs-outbox", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        try:
            self._send_all()
        finally:
            self._release()

    def _send_all(self) -> None:
        """Send what is due, until the end."""
        while True:
            with self._changed:
                while not (self._is_closed or (due := self._due()) or self._metrics_due()):
                    self._changed.wait(self._pause())
                if self._is_closed:
                    return
                batch = self._taken(due) if due else []
            if batch:
                self._deliver(batch)
            else:
                self._deliver_metrics()

    def _waiting(self) -> int:
        return sum(map(len, self._queues.values())) + self._in_hand

    def _has_settled(self, target: Mapping[Signal, int], gathers: int) -> bool:
        all_sent = all(self._settled[signal] >= count for signal, count in target.items())
        return all_sent and self._gathers_done >= gathers

    def _due(self) -> deque[Item] | None:
        """Return the queue whose oldest item has waited longest, if a message is due; or None."""
        waiting = [queue for queue in self._queues.values() if queue]
        if not waiting:
            return None
        eldest = min(waiting, key=lambda queue: queue[0].at_ns)
        waited = (world.monotonic() - eldest[0].at_ns) / 1e9
        if self._flushing or waited >= self._limits.delay_seconds:
            return eldest
        if self._bytes >= self._limits.batch_bytes:
            return eldest
        return next((q for q in waiting if len(q) >= self._limits.batch_items), None)

    def _metrics_due(self) -> bool:
        waited = (world.monotonic() - self._metrics_at) / 1e9
        return self._gathers_wanted > self._gathers_done or waited >= self._limits.metrics_seconds

    def _pause(self) -> float:
        """Return the seconds until something is due."""
        until_metrics = self._limits.metrics_seconds - (world.monotonic() - self._metrics_at) / 1e9
        eldest = min((q[0].at_ns for q in self._queues.values() if q), default=None)
        if eldest is None:
            return max(until_metrics, 0.0)
        waited = (world.monotonic() - eldest) / 1e9
        return max(min(until_metrics, self._limits.delay_seconds - waited), 0.0)

    def _taken(self, queue: deque[Item]) -> list[Item]:
        """Take the next message's items off a queue, in order."""
        batch = [queue.popleft()]
        size = batch[0].size
        while queue and len(batch) < self._limits.batch_items:
            if size + queue[0].size > self._limits.batch_bytes:
                break
            batch.append(queue.popleft())
            size += batch[-1].size
        self._in_hand = len(batch)
        return batch

    def _deliver(self, batch: Sequence[Item]) -> None:
        """Send a message until it is accepted or rejected, or the retries are exhausted."""
        for number in range(1, self._limits.tries + 1):
            sent = self._send(batch[0].signal, [item.payload for item in batch])
            if sent.outcome == "taken":
                self._took(batch, sent.rejected)
                return
            self._say(sent)
            if sent.outcome == "too_large" and len(batch) > 1:
                half = len(batch) // 2
                self._deliver(batch[:half])
                self._deliver(batch[half:])
                return
            if sent.outcome != "later":
                self._lose(batch, sent.outcome)
                return
            if number < self._limits.tries and not self._waited(number, sent):
                return
        self._lose(batch, "gave_up")

    def _deliver_metrics(self) -> None:
        """Send the metrics once: they are sums, so the next message compensates for a lost one."""
        with self._changed:
            wanted = self._gathers_wanted
        metrics = self._gather()
        sent = self._send("metrics", [metrics]) if metrics is not None else None
        with self._changed:
            self._metrics_at = world.monotonic()
            if sent is not None:
                self._messages += sent.outcome == "taken"
                self._metrics_failed += sent.outcome != "taken" or sent.rejected > 0
                self._throttled += sent.is_throttled
            self._gathers_done = wanted
            self._changed.notify_all()
        if sent is not None and sent.outcome != "taken":
            self._say(sent)

    def _waited(self, number: int, sent: Sent) -> bool:
        """Wait for the backoff; return whether to retry."""
        limits = self._limits
        backoff = min(limits.backoff_seconds * 2 ** (number - 1), limits.backoff_seconds_max)
        pause = backoff * (0.8 + 0.4 * world.chance())
        if sent.after_seconds is not None:
            pause = min(sent.after_seconds, limits.after_seconds_max)
        until = world.monotonic() + int(pause * 1e9)
        with self._changed:
            self._throttled += sent.is_throttled
            while not self._is_closed and (left := until - world.monotonic()) > 0:
                self._changed.wait(left / 1e9)
            self._retried += not self._is_closed
            return not self._is_closed

    def _took(self, batch: Sequence[Item], rejected: int) -> None:
        rejected = max(0, min(rejected, len(batch)))
        with self._changed:
            self._messages += 1
            if self._is_closed:
                # It was counted as lost at the exit, and was delivered after all.
                self._dropped["at_exit"] -= len(batch)
                self._in_hand += len(batch)
            self._delivered += len(batch) - rejected
            self._dropped["rejected"] += rejected
            self._lost += rejected
            self._settle(batch)

    def _lose(self, batch: Sequence[Item], reason: Reason | str) -> None:
        with self._changed:
            if self._is_closed:
                return
            self._dropped[reason] += len(batch)
            self._lost += len(batch)
            self._settle(batch)

    def _settle(self, batch: Sequence[Item]) -> None:
        if not self._is_closed:
            self._bytes -= sum(item.size for item in batch)
        self._in_hand -= len(batch)
        self._settled[batch[0].signal] += len(batch)
        self._changed.notify_all()

    def _say(self, sent: Sent) -> None:
        say_once(
            f"telemetry does not reach {self._to}: {sent.why}. The agent and its recording continue; "
            "what is not delivered is counted in the statistics() of the backend.",
            about=f"telemetry to {self._to}",
        )


def _call(weak: weakref.WeakMethod[Callable[[], None]]) -> None:
    if (method := weak()) is not None:
        method()
