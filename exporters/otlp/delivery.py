"""Delivery of one batch to a collector. It waits until the outcome is known.

A backfill can wait for the collector, because it does not block an agent. The live outbox never waits: it drops items
that do not fit into its queue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from agentobs import world
from exporters.otlp.outbox import Limits, Send, Sent, Signal


class Item(Protocol):
    """One item to deliver."""

    @property
    def payload(self) -> Any:
        """The data to send."""

    @property
    def count(self) -> int:
        """The number of items in the payload, as the collector counts them."""


LossReason = Literal["rejected", "too_large", "refused", "unreadable"]
"""The reason for the loss of an item whose batch was otherwise accepted."""


@dataclass(slots=True)
class DeliveryResult:
    """The result of delivering a batch."""

    settled: int = 0
    """The number of settled items at the start of the batch. An item is settled if it was accepted or never will be."""
    lost: dict[LossReason, int] | None = None
    """The number of lost items among the settled items, by reason."""
    failure: Sent | None = None
    """Why the remaining items were not settled; None if all were settled."""

    def count_lost(self, reason: LossReason, count: int) -> None:
        """Count rejected items."""
        if count:
            self.lost = self.lost or {}
            self.lost[reason] = self.lost.get(reason, 0) + count

    def add(self, other: DeliveryResult) -> None:
        """Add the result of the items that follow."""
        self.settled += other.settled
        self.failure = other.failure
        for reason, count in (other.lost or {}).items():
            self.count_lost(reason, count)


class Delivery:
    """Delivers batches to one collector."""

    def __init__(
        self, send: Send, limits: Limits, report_wait: Callable[[str], None] = lambda text: None
    ) -> None:
        """Send with `send`, retry within the limits, and report waits."""
        self._send, self._limits, self._report_wait = send, limits, report_wait
        self._refused_in_a_row = 0
        self._was_reached = self._is_given_up = False
        """Whether the collector has responded, and whether the retries of a message were exhausted without a response.
        """

    def deliver(self, signal: Signal, items: Sequence[Item]) -> DeliveryResult:
        """Send items until they are settled, or further attempts are pointless."""
        sent = self._send_with_retries(signal, [item.payload for item in items])
        if sent.outcome == "accepted":
            self._refused_in_a_row = 0
            result = DeliveryResult(len(items))
            result.count_lost("rejected", max(0, min(sent.rejected, sum(i.count for i in items))))
            return result
        if sent.outcome == "later" or (
            sent.outcome == "refused" and not self._is_about_data(signal)
        ):
            return DeliveryResult(failure=sent)
        if len(items) > 1:
            half = len(items) // 2
            result = self.deliver(signal, items[:half])
            if result.failure is None:
                result.add(self.deliver(signal, items[half:]))
            return result
        result = DeliveryResult(1)
        result.count_lost(sent.outcome, items[0].count)
        return result

    def _is_about_data(self, signal: Signal) -> bool:
        """Return whether a collector that rejected a message accepts an empty one.

        If it does, the credentials and the address are right, so the items themselves cause the rejection.
        """
        self._refused_in_a_row += 1
        return (
            self._refused_in_a_row < _REFUSALS_MAX
            and self._send_with_retries(signal, ()).outcome == "accepted"
        )

    def _send_with_retries(self, signal: Signal, payloads: Sequence[Any]) -> Sent:
        """Send one message until it is accepted or rejected, or the retries are exhausted.

        A collector that has never responded probably has another address, so it is tried less often, and only once
        after all retries of a message have failed.
        """
        limits, number = self._limits, 0
        while True:
            number += 1
            sent = self._send(signal, payloads)
            self._was_reached = self._was_reached or not sent.is_unreachable
            if sent.outcome != "later" or number >= self._tries():
                break
            backoff = min(limits.backoff_seconds * 2 ** (number - 1), limits.backoff_seconds_max)
            seconds = backoff * (0.8 + 0.4 * world.chance())
            if sent.after_seconds is not None:
                seconds = min(sent.after_seconds, limits.after_seconds_max)
            if seconds >= 1:
                self._report_wait(f"{sent.why}: retrying in {seconds:.0f} s")
            world.pause(seconds)
        self._is_given_up = sent.is_unreachable
        return sent

    def _tries(self) -> int:
        """Return how many times a message is sent at most."""
        if self._was_reached:
            return self._limits.tries
        return 1 if self._is_given_up else min(_FIRST_TRIES, self._limits.tries)


_FIRST_TRIES = 4
"""The maximum number of times that a message is sent to a collector that has never responded. Our choice: about 7 s
with the default backoff, enough for a collector that is being started.
"""
_REFUSALS_MAX = 64
"""After this number of consecutive rejections, everything counts as rejected. Our choice: ten rejections are enough to
find one bad item in a message.
"""
