"""The meter: the spending so far, updated while an agent runs.

A call that is added is only queued. It is priced when the meter is read, or when many calls are pending. The sums are
integers, so they do not depend on the order of the calls. Concurrent additions from several threads are never lost.
"""

from __future__ import annotations

import dataclasses
import operator
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from agentobs.errors import warn_once
from agentobs.ledger.cost import UNNAMED, price_of, status_of, units_of
from agentobs.ledger.model_names import canonical_model
from agentobs.ledger.money import PARTS, CostStatus, PartName, to_usd
from agentobs.ledger.price_book import PriceBook, current_prices
from agentobs.ledger.rates import Context
from agentobs.provider.registry import ANTHROPIC
from agentobs.records.facts import UsageRow
from agentobs.records.usage import Certainty, Usage

PENDING_MAX = 64
"""Above this number of pending rows, `add_rows` prices them."""


@dataclass(frozen=True, slots=True)
class Spent:
    """A sum of costs, and its certainty."""

    calls: int = 0
    """Number of billed usage rows; a response with iterations has one row per iteration."""
    picodollars: Mapping[PartName, int] = field(default_factory=lambda: dict.fromkeys(PARTS, 0))
    """The cost of the priced rows, by part."""
    tokens: Mapping[PartName, int] = field(default_factory=lambda: dict.fromkeys(PARTS, 0))
    """Tokens (and web searches) of all rows, by part."""
    uncertain: Mapping[CostStatus, int] = field(default_factory=dict)
    """Number of rows that are not exact, by status."""
    by_model: Mapping[str, Spent] = field(default_factory=dict)
    """The sums per model, by canonical name, most expensive first; empty in the sum of a single model."""
    lost: int = 0
    """Records that were not written, or are not written yet; their cost is not included."""

    @property
    def unpriced_calls(self) -> int:
        """Rows of models without a price, which `usd` leaves out."""
        return self.uncertain.get("unknown_model", 0)

    @property
    def calls_not_exact(self) -> int:
        """Rows whose cost is not exact, including unpriced rows; lost records are not counted."""
        return sum(self.uncertain.values())

    @property
    def status(self) -> CostStatus:
        """The certainty of the sum.

        `unknown_model` if no row has a price; else `estimated` if a row is estimated; else `lower_bound` if rows are
        lower bounds, or if unpriced rows or lost records are left out; else `exact`.
        """
        if self.calls and self.calls == self.unpriced_calls:
            return "unknown_model"
        if self.uncertain.get("estimated"):
            return "estimated"
        return "lower_bound" if self.calls_not_exact or self.lost else "exact"

    @property
    def usd(self) -> Decimal | None:
        """The cost of the priced rows, in dollars; None, never 0, if no row has a price."""
        if self.status == "unknown_model":
            return None
        return to_usd(sum(self.picodollars.values()))

    @property
    def usd_by_part(self) -> dict[PartName, Decimal]:
        """The cost of the priced rows, in dollars, by part."""
        return {name: to_usd(self.picodollars[name]) for name in PARTS}

    def __add__(self, other: Spent) -> Spent:
        """Return the sum of two totals."""
        both = _Sum()
        for each in (self, other):
            both.calls += each.calls
            both.picodollars = _add_each(both.picodollars, each.picodollars.values())
            both.tokens = _add_each(both.tokens, each.tokens.values())
            for status, count in each.uncertain.items():
                both.uncertain[status] = both.uncertain.get(status, 0) + count
        return dataclasses.replace(both.frozen(), lost=self.lost + other.lost)


@dataclass(slots=True)
class _Sum:
    """A mutable `Spent`."""

    calls: int = 0
    picodollars: list[int] = field(default_factory=lambda: [0] * len(PARTS))
    tokens: list[int] = field(default_factory=lambda: [0] * len(PARTS))
    uncertain: dict[CostStatus, int] = field(default_factory=dict)

    def frozen(self) -> Spent:
        """Return the current sum."""
        picodollars = dict(zip(PARTS, self.picodollars, strict=True))
        tokens = dict(zip(PARTS, self.tokens, strict=True))
        return Spent(self.calls, picodollars, tokens, dict(self.uncertain))


class Meter:
    """Adds up usage by model; thread-safe."""

    def __init__(
        self, book: PriceBook | None = None, seen: set[tuple[str, int]] | None = None
    ) -> None:
        """Start at zero.

        Args:
            book: the prices; default: the current ones.
            seen: the batch results that were counted so far. Meters that share this set count each result once in
                total.
        """
        self._book = book
        self._pending: deque[tuple[Usage, int]] = deque()
        self._sums: dict[str, _Sum] = {}
        self._seen = set() if seen is None else seen
        self._lost = 0
        self._included: list[Meter] = []
        # Reentrant: while the meter is read, garbage collection may end an exchange, which adds its usage.
        self._lock = threading.RLock()

    def add(
        self,
        model: str,
        usage: Mapping[str, Any],
        at_ns: int,
        certainty: Certainty = "exact",
    ) -> None:
        """Add the usage object of one response of the provider of the agent loop.

        Args:
            model: the model of the response.
            usage: the provider's object, including iterations.
            at_ns: when the call was sent, in nanoseconds since 1970.
            certainty: `lower_bound` if the stream ended before its last counts.
        """
        rows = ANTHROPIC.usage_rows(model, usage, certainty)
        self.add_rows((row, at_ns) for row in rows)

    def add_rows(self, rows: Iterable[tuple[Usage, int]]) -> None:
        """Add usage rows, each with the time when its call was sent; unbilled rows are ignored."""
        self._pending.extend(row for row in rows if row[0].billed and self._is_new(row[0]))
        if len(self._pending) > PENDING_MAX:
            self._price_pending()

    def total(self) -> Spent:
        """Return the total, including the sums by model."""
        by_model = self.by_model()
        total = sum(by_model.values(), Spent())
        return dataclasses.replace(total, by_model=by_model, lost=self._lost)

    def add_lost_records(self, records: int = 1) -> None:
        """Count records that were not written, which makes the spending a lower bound."""
        with self._lock:
            self._lost += records

    def add_facts(self, facts: Iterable[UsageRow]) -> None:
        """Add recorded usage, either live or from the store when a session is resumed."""
        self.add_rows((_usage_of(fact), fact.at_ns) for fact in facts)

    def by_model(self) -> dict[str, Spent]:
        """Return the sums by canonical model name, most expensive first."""
        with self._lock:
            self._price_pending()
            spent = {name: each.frozen() for name, each in self._sums.items()}
        for meter in self._included:
            for name, each in meter.by_model().items():
                spent[name] = spent.get(name, Spent()) + each
        return dict(sorted(spent.items(), key=lambda item: (-_total_picodollars(item[1]), item[0])))

    def include(self, meter: Meter) -> None:
        """Include the current and future usage of another meter."""
        self._included.append(meter)

    def reset_lock(self) -> None:
        """Replace the lock in a forked child process, because a thread of the parent may have held it."""
        self._lock = threading.RLock()

    def _price_pending(self) -> None:
        with self._lock:
            while self._pending:
                self._price(*self._pending.popleft())

    def _is_new(self, usage: Usage) -> bool:
        """Return False for a result of the batch API that was counted before, otherwise True."""
        if usage.batch_result_id is None:
            return True
        key = (usage.batch_result_id, usage.iteration)
        with self._lock:
            before = len(self._seen)
            self._seen.add(key)
            return len(self._seen) > before

    def _price(self, usage: Usage, at_ns: int) -> None:
        """Add the cost of a row to the sum of its model. Faster than `cost_of`, which also returns the details."""
        unit = price_of(usage, at_ns, self._book)
        status, name = status_of(unit, usage), canonical_model(unit.context.model)
        if status == "unknown_model":
            warn_unknown_model(name)
        found = self._sums.setdefault(name, _Sum())
        units, each = units_of(usage), unit.picodollars_each or _NO_PRICE
        found.calls += 1
        found.tokens = _add_each(found.tokens, units)
        found.picodollars = _add_each(found.picodollars, map(operator.mul, units, each))
        if status != "exact":
            found.uncertain[status] = found.uncertain.get(status, 0) + 1


_NO_PRICE = (0,) * len(PARTS)


def _add_each(sums: Iterable[int], addends: Iterable[int]) -> list[int]:
    return list(map(operator.add, sums, addends))


def warn_unknown_model(model: str) -> None:
    """Warn once that a model has no price."""
    warn_once(
        f"no price is known for model {model}: its calls cost NULL, not 0, and sums leave them out. "
        "Give it a price in prices.toml, or install a newer genai-prices.",
        about=f"no price for {model}",
    )


def load_prices() -> None:
    """Load the price list, which takes 0.4 s once per process. Call this early, in a thread."""
    current_prices().resolve(Context(UNNAMED))


_FIELDS = tuple(each.name for each in dataclasses.fields(Usage))


def _usage_of(fact: UsageRow) -> Usage:
    values = {name: getattr(fact, name) for name in _FIELDS}
    maps = {name: values[name] or {} for name in ("server_requests", "other_counts")}
    return Usage(**{**values, **maps})


def _total_picodollars(spent: Spent) -> int:
    return sum(spent.picodollars.values())
