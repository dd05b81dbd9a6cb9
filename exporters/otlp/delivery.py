"""Handing over: one batch to a collector, waited for, until it is taken or it is known why not.

For sending after the fact, where nobody is held up: the live outbox drops what does not fit, this waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from agentobs import world
from exporters.otlp.outbox import Limits, Send, Sent, Signal


class Item(Protocol):
    """One thing to hand over."""

    @property
    def payload(self) -> Any:
        """What is sent."""

    @property
    def count(self) -> int:
        """How many things the collector counts in it."""


Lost = Literal["rejected", "too_large", "refused", "unreadable"]
"""Why an item was not taken, while those around it were."""


@dataclass(slots=True)
class Handed:
    """What came of a batch."""

    settled: int = 0
    """How many of the first ones need not be sent again: they were taken, or it is known that they will not be."""
    lost: dict[Lost, int] | None = None
    """What was in them and was not taken, by reason."""
    failure: Sent | None = None
    """Why the rest was not settled."""

    def lose(self, reason: Lost, count: int) -> None:
        """Count items that were not taken."""
        if count:
            self.lost = self.lost or {}
            self.lost[reason] = self.lost.get(reason, 0) + count

    def add(self, other: Handed) -> None:
        """Add what came of the items after these."""
        self.settled += other.settled
        self.failure = other.failure
        for reason, count in (other.lost or {}).items():
            self.lose(reason, count)


class Hands:
    """Hands batches to one collector."""

    def __init__(
        self, send: Send, limits: Limits, told: Callable[[str], None] = lambda text: None
    ) -> None:
        """Send with `send`, try as the limits say, and tell of waits."""
        self._send, self._limits, self._told = send, limits, told
        self._refused_in_a_row = 0

    def hand(self, signal: Signal, items: Sequence[Item]) -> Handed:
        """Send items until they are settled, or there is no point in going on."""
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
        """Return whether a collector that refuses a message takes one with nothing in it: then it is not that we may
        not come in, or came to the wrong door, and each item is tried alone.
        """
        self._refused_in_a_row += 1
        return self._refused_in_a_row < _REFUSED and self._tried(signal, ()).outcome == "taken"

    def _tried(self, signal: Signal, payloads: Sequence[Any]) -> Sent:
        """Send one message until it is taken, refused, or tried in vain."""
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
                self._told(f"{sent.why}: asked again in {seconds:.0f} s")
            world.pause(seconds)
        return sent


_REFUSED = 64
"""How many refusals in a row make it a refusal of everything. Our choice: to find one item of a message takes ten."""
