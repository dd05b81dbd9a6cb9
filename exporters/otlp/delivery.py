"""Delivery of one batch to a collector, waiting until it is accepted or the reason of its failure is known.

For backfills, where nothing is blocked: the live outbox drops what does not fit, this waits.
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
        """What is sent."""

    @property
    def count(self) -> int:
        """How many items the collector counts in it."""


Lost = Literal["rejected", "too_large", "refused", "unreadable"]
"""Why an item was rejected, while those around it were accepted."""


@dataclass(slots=True)
class Handed:
    """The result of a batch."""

    settled: int = 0
    """How many of the first ones are settled: they were accepted, or will never be."""
    lost: dict[Lost, int] | None = None
    """The rejected items among them, by reason."""
    failure: Sent | None = None
    """Why the rest was not settled."""

    def lose(self, reason: Lost, count: int) -> None:
        """Count rejected items."""
        if count:
            self.lost = self.lost or {}
            self.lost[reason] = self.lost.get(reason, 0) + count

    def add(self, other: Handed) -> None:
        """Add the result of the items after these."""
        self.settled += other.settled
        self.failure = other.failure
        for reason, count in (other.lost or {}).items():
            self.lose(reason, count)


class Hands:
    """Delivers batches to one collector."""

    def __init__(
        self, send: Send, limits: Limits, told: Callable[[str], None] = lambda text: None
    ) -> None:
        """Send with `send`, retry within the limits, and report waits."""
        self._send, self._limits, self._told = send, limits, told
        self._refused_in_a_row = 0

    def hand(self, signal: Signal, items: Sequence[Item]) -> Handed:
        """Send items until they are settled, or further attempts are pointless."""
        sent = self._tried(signal, [item.payload for item in items])
        if sent.outcome == "taken":
            self._refused_in_a_row = 0
            handed = Handed(len(items))
            handed.lose("rejected", max(0, min(sent.rejected, sum(i.count for i in items))))
            return handed
        if sent.outcome == "later" or (
            sent.outcome == "refused" and not self._is_about_data(signal)
        ):
            return Handed(failure=sent)
        if len(items) > 1:
            half = len(items) // 2
            handed = self.hand(signal, items[:half])
            if handed.failure is None:
                handed.add(self.hand(signal, items[half:]))
            return handed
        handed = Handed(1)
        handed.lose(sent.outcome, items[0].count)
        return handed

    def _is_about_data(self, signal: Signal) -> bool:
        """Return whether a collector that rejects a message accepts an empty one. If so, the credentials and the
        address are right, and each item is tried alone.
        """
        self._refused_in_a_row += 1
        return self._refused_in_a_row < _REFUSED and self._tried(signal, ()).outcome == "taken"

    def _tried(self, signal: Signal, payloads: Sequence[Any]) -> Sent:
        """Send one message until it is accepted or rejected, or the retries are exhausted."""
        limits = self._limits
        for number in range(1, limits.tries + 1):
            sent = self._send(signal, payloads)
            if sent.outcome != "later" or number == limits.tries:
                break
            backoff = min(limits.backoff_seconds * 2 ** (number - 1), limits.backoff_seconds_max)
            seconds = backoff * (0.8 + 0.4 * world.chance())
            if sent.after_seconds is not None:
                seconds = min(sent.after_seconds, limits.after_seconds_max)
            if seconds >= 1:
                self._told(f"{sent.why}: next try in {seconds:.0f} s")
            world.pause(seconds)
        return sent


_REFUSED = 64
"""How many consecutive rejections count as a rejection of everything. Our choice: finding one item of a message takes
ten.
"""
