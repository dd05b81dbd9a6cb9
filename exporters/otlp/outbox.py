"""The outbox: what waits to be sent, on a thread of its own, so that no collector can hold anybody up.

It is bounded in bytes and in items; what does not fit is dropped and counted by its reason, and so is what a collector
refuses. Handed in = delivered + waiting + dropped, at any moment. A collector that is away is tried again, later and
later; one that says when to come back is taken at its word.

OpenTelemetry's own batch processor lost half of a burst that came in a second, and held the exit of a program up for
30 seconds where the collector was gone; that is why this exists.
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
"""What kind of telemetry; each goes to an address of its own."""

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
"""Why something was not delivered: the queue was full; the collector refused the message, or told that it did not take
a part of it; one item alone was too large for it; it was tried in vain; the program ended; it came after the end; we
could not write it."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What came of sending one message."""

    outcome: Literal["taken", "later", "too_large", "refused", "unreadable"]
    """Taken; worth another try; worth another try in halves; not worth one; not sent, for it cannot be written."""
    rejected: int = 0
    """Of a message that was taken, the items that were not."""
    after_seconds: float | None = None
    """When the collector wants to be asked again; None: it did not say."""
    is_throttled: bool = False
    """Whether the collector says that it has too much to do."""
    why: str = ""
    """Why it was not taken, for people: never what somebody else wrote."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may wait, and how it is sent."""

    queue_bytes: int = 16 * 1024 * 1024
    """What may wait, what is being sent included. Our choice."""
    queue_items: int = 20_000
    """How many items may wait. Our choice: a burst of 10,000 must fit."""
    batch_items: int = 512
    """How many go into one message, as in OpenTelemetry's batch processor."""
    batch_bytes: int = 2 * 1024 * 1024
    """How large one message may get, roughly; gRPC takes 4 MiB."""
    delay_seconds: float = 1.0
    """How long an item waits at most for others to go with. Our choice."""
    metrics_seconds: float = 60.0
    """How often metrics are sent, as in OpenTelemetry's periodic reader."""
    timeout_seconds: float = 10.0
    """How long one message may take, as in OpenTelemetry's exporters."""
    tries: int = 6
    """How often one message is tried. Our choice: with the waits below, for a minute."""
    backoff_seconds: float = 1.0
    """How long the first wait between two tries is; each is twice as long as the one before. Our choice."""
    backoff_seconds_max: float = 30.0
    """How long such a wait is at most. Our choice."""
    after_seconds_max: float = 300.0
    """How far the word of a collector is taken that wants to be left alone. Our choice."""


@dataclass(frozen=True, slots=True)
class DeliveryStatistics:
    """What became of what was handed in."""

    handed: int
    """Spans and events that were handed in."""
    delivered: int
    """Those that the collector took."""
    waiting: int
    """Those that wait, or are being sent."""
    waiting_bytes: int
    """Their size, roughly."""
    dropped: Mapping[str, int]
    """Those that were not delivered, by reason."""
    messages: int
    """Messages that the collector took, those of metrics included."""
    retried: int
    """Messages that were sent again."""
    throttled: int
    """How often the collector said that it had too much to do."""
    metrics_failed: int
    """Messages of metrics that were not taken; the next one holds the same sums."""


class Item(NamedTuple):
    """One thing to send."""

    signal: Signal
    payload: Any
    size: int
    at_ns: int
    """When it was handed in, on the clock that never goes back."""


Send = Callable[[Signal, Sequence[Any]], Sent]
"""Sends one message, within its time; never raises."""
Gather = Callable[[], Any]
"""Returns the metrics as they are now, or None where there are none."""


class Outbox:
    """Sends what it is handed, in order, on one thread."""

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
            limits: how much may wait.
            to: whom it goes to, for people.
            release: closes what is open, when nothing more will be sent.
        """
        self._send, self._gather, self._release = send, gather, release
        self._limits, self._to = limits or Limits(), to
        self._begin()
        weak = weakref.WeakMethod(self._begin)
        os.register_at_fork(after_in_child=lambda: _call(weak))

    def _begin(self) -> None:
        """Start empty: a new process, or the child of one, to which nothing belongs that waits in its parent."""
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
        """Hand in one item; never waits. Returns whether it was taken in."""
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
        """Send what waits, and the metrics, at once; returns whether the collector took all of it in that time.

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
        """Send what waits, within that time; what is left then is dropped and counted. Returns whether nothing was."""
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
        """Return the queue of which a message is to be sent now, the one that has waited longest, or None."""
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
        """Return how long nothing is due, in seconds."""
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
        """Send a message until it is taken, refused, or tried in vain."""
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
        """Send the metrics once: they are sums, so the next message makes up for one that was lost."""
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
        """Wait before the next try; returns whether there is to be one."""
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
                # It was counted as lost at the exit, and has arrived after all.
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
            f"telemetry does not reach {self._to}: {sent.why}. The agent and its recording go on; "
            "what is not delivered is counted in the statistics() of the backend.",
            about=f"telemetry to {self._to}",
        )


def _call(weak: weakref.WeakMethod[Callable[[], None]]) -> None:
    if (method := weak()) is not None:
        method()
