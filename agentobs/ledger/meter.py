"""The meter: the spending so far, updated while an agent runs.

Adding a call only appends it; it is priced when the meter is read, or when many calls are pending.
Sums of integers do not depend on the order of the calls, and concurrent additions from several
threads are never lost.
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

from agentobs.errors import say_once
from agentobs.ledger.cost import UNNAMED, price_of, status_of, units_of
from agentobs.ledger.model_names import canonical_model
from agentobs.ledger.money import PARTS, CostStatus, PartName, to_usd
from agentobs.ledger.price_book import PriceBook, in_force
from agentobs.ledger.rates import Context
from agentobs.provider.registry import ANTHROPIC
from agentobs.records.facts import UsageRow
from agentobs.records.usage import Certainty, Usage

WAITING = 64
"""Maximum pending rows before `add_rows` prices them."""


@dataclass(frozen=True, slots=True)
class Spent:
    """A sum of costs, and its certainty."""

    calls: int = 0
    """Billed usage rows: a response with iterations has one per iteration."""
    picodollars: Mapping[PartName, int] = field(default_factory=lambda: dict.fromkeys(PARTS, 0))
    """The cost of the priced rows, by part."""
    tokens: Mapping[PartName, int] = field(default_factory=lambda: dict.fromkeys(PARTS, 0))
    """Tokens (and web searches) of all rows, by part."""
    uncertain: Mapping[CostStatus, int] = field(default_factory=dict)
    """Number of rows that are not exact, by status."""
    by_model: Mapping[str, Spent] = field(default_factory=dict)
    """The same per model by canonical name, most expensive first; empty in a model's own sum."""
    lost: int = 0
    """Records that were not written, or wait to be written; their cost is not included."""

    @property
    def unpriced_calls(self) -> int:
        """Rows of models without a price; `usd` leaves them out."""
        return self.uncertain.get("unknown_model", 0)

    @property
    def calls_not_exact(self) -> int:
        """Rows whose cost is not exact, unpriced ones included; lost records are not counted."""
        return sum(self.uncertain.values())

    @property
    def status(self) -> CostStatus:
        """`unknown_model` if nothing has a price, else the least certain of: exact, lower_bound,
        estimated.

        A sum is a lower bound if it leaves out unpriced rows or lost records.
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
        """The six parts of `usd`, in dollars."""
        return {name: to_usd(self.picodollars[name]) for name in PARTS}

    def __add__(self, other: Spent) -> Spent:
        """Return the sum of both."""
        both = _Sum()
        for each in (self, other):
            both.calls += each.calls
            both.picodollars = _added(both.picodollars, each.picodollars.values())
            both.tokens = _added(both.tokens, each.tokens.values())
            for status, count in each.uncertain.items():
                both.uncertain[status] = both.uncertain.get(status, 0) + count
        return dataclasses.replace(both.spent(), lost=self.lost + other.lost)


@dataclass(slots=True)
class _Sum:
    """A mutable `Spent`."""

    calls: int = 0
    picodollars: list[int] = field(default_factory=lambda: [0] * len(PARTS))
    tokens: list[int] = field(default_factory=lambda: [0] * len(PARTS))
    uncertain: dict[CostStatus, int] = field(default_factory=dict)

    def spent(self) -> Spent:
        """Return the current sum."""
        picodollars = dict(zip(PARTS, self.picodollars, strict=True))
        tokens = dict(zip(PARTS, self.tokens, strict=True))
        return Spent(self.calls, picodollars, tokens, dict(self.uncertain))


class Meter:
    """Adds up usage by model; thread-safe."""

    def __init__(
        self, book: PriceBook | None = None, seen: set[tuple[str, int]] | None = None
    ) -> None:
        """Start at zero, with the current prices or with others.

        Args:
            book: the prices; defaults to the current ones.
            seen: the batch results counted so far; meters that share this set count each result
                once in total.
        """
        self._book = book
        self._waiting: deque[tuple[Usage, int]] = deque()
        self._sums: dict[str, _Sum] = {}
        self._seen = set() if seen is None else seen
        self._lost = 0
        self._parts: list[Meter] = []
        # Reentrant: garbage collection may end an exchange, and thereby add it, while the meter is
        # read.
        self._lock = threading.RLock()

    def add(
        self,
        model: str,
        usage: Mapping[str, Any],
        at_ns: int,
        certainty: Certainty = "exact",
    ) -> None:
        """Add the usage object of one response, as the agent's provider reported it.

        Args:
            model: the model of the response.
            usage: the provider's object, including iterations.
            at_ns: when the call was sent, nanoseconds since 1970.
            certainty: `lower_bound` for a stream that ended before its last counts.
        """
        rows = ANTHROPIC.usage_rows(model, usage, certainty)
        self.add_rows((row, at_ns) for row in rows)

    def add_rows(self, rows: Iterable[tuple[Usage, int]]) -> None:
        """Add usage rows with the instants of their calls; unbilled rows are ignored."""
        self._waiting.extend(row for row in rows if row[0].billed and self._is_new(row[0]))
        if len(self._waiting) > WAITING:
            self._settle()

    def total(self) -> Spent:
        """Return the total, including the sums by model."""
        by_model = self.by_model()
        whole = sum(by_model.values(), Spent())
        return dataclasses.replace(whole, by_model=by_model, lost=self._lost)

    def lose(self, records: int = 1) -> None:
        """Record that records were not written, which makes the spending a lower bound."""
        with self._lock:
            self._lost += records

    def add_facts(self, facts: Iterable[UsageRow]) -> None:
        """Add recorded usage: live, or from the store when a session is resumed."""
        self.add_rows((_usage(fact), fact.at_ns) for fact in facts)

    def by_model(self) -> dict[str, Spent]:
        """Return the sums by the model's canonical name, most expensive first."""
        with self._lock:
            self._settle()
            spent = {name: each.spent() for name, each in self._sums.items()}
        for part in self._parts:
            for name, each in part.by_model().items():
                spent[name] = spent.get(name, Spent()) + each
        return dict(sorted(spent.items(), key=lambda item: (-_size(item[1]), item[0])))

    def include(self, part: Meter) -> None:
        """Include the current and future usage of another meter."""
        self._parts.append(part)

    def forked(self) -> None:
        """In a child process, replace the lock, because another thread of the parent may have held it."""
        self._lock = threading.RLock()

    def _settle(self) -> None:
        with self._lock:
            while self._waiting:
                self._price(*self._waiting.popleft())

    def _is_new(self, usage: Usage) -> bool:
        """Return whether a batch API result was not counted before."""
        if usage.batch_result_id is None:
            return True
        key = (usage.batch_result_id, usage.iteration)
        with self._lock:
            before = len(self._seen)
            self._seen.add(key)
            return len(self._seen) > before

    def _price(self, usage: Usage, at_ns: int) -> None:
        """Price a row like `cost_of`, without the details."""
        unit = price_of(usage, at_ns, self._book)
        status, name = status_of(unit, usage), canonical_model(unit.context.model)
        if status == "unknown_model":
            say_unknown(name)
        found = self._sums.setdefault(name, _Sum())
        units, each = units_of(usage), unit.picodollars_each or _NO_PRICE
        found.calls += 1
        found.tokens = _added(found.tokens, units)
        found.picodollars = _added(found.picodollars, map(operator.mul, units, each))
        if status != "exact":
            found.uncertain[status] = found.uncertain.get(status, 0) + 1


_NO_PRICE = (0,) * len(PARTS)


def _added(sums: Iterable[int], more: Iterable[int]) -> list[int]:
    return list(map(operator.add, sums, more))


def say_unknown(model: str) -> None:
    """Warn once that a model has no price."""
    say_once(
        f"no price is known for model {model}: its calls cost NULL, not 0, and sums leave them out. "
        "Give it a price in prices.toml, or install a newer genai-prices.",
        about=f"no price for {model}",
    )


def warm() -> None:
    """Load the price list, which takes 0.4 s once per process; call it early, in a thread."""
    in_force().resolve(Context(UNNAMED))


_FIELDS = tuple(each.name for each in dataclasses.fields(Usage))


def _usage(fact: UsageRow) -> Usage:
    values = {name: getattr(fact, name) for name in _FIELDS}
    maps = {name: values[name] or {} for name in ("server_requests", "other_counts")}
    return Usage(**{**values, **maps})


def _size(spent: Spent) -> int:
    return sum(spent.picodollars.values())
