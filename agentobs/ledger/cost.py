"""The cost of one usage row, in six parts with an exact sum."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from agentobs.ledger.money import PARTS, CostStatus, PartName, to_usd
from agentobs.ledger.price_book import PriceBook, current_prices
from agentobs.ledger.rates import Context, UnitPrices
from agentobs.records.labels import is_label
from agentobs.records.usage import Usage


@dataclass(frozen=True, slots=True)
class Part:
    """One of the six parts of a cost."""

    units: int
    """Tokens, or web searches."""
    picodollars_each: int | None
    """The price of one unit; None if the model is unknown."""

    @property
    def picodollars(self) -> int | None:
        """The cost of the part; None if the model is unknown."""
        return None if self.picodollars_each is None else self.units * self.picodollars_each

    @property
    def usd(self) -> Decimal | None:
        """The cost of the part, in dollars."""
        return None if self.picodollars is None else to_usd(self.picodollars)

    @property
    def usd_each(self) -> Decimal | None:
        """The price of one unit, in dollars."""
        return None if self.picodollars_each is None else to_usd(self.picodollars_each)


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one billed usage row."""

    context: Context
    """The context that determines the price."""
    input: Part
    """Input neither read from nor written to the cache."""
    output: Part
    """Output, including reasoning."""
    cache_read: Part
    """Input read from the cache."""
    cache_write_5m: Part
    """Input written to the cache for 5 minutes."""
    cache_write_1h: Part
    """Input written to the cache for 1 hour."""
    server_tools: Part
    """Web searches."""
    status: CostStatus
    note: str | None
    """A text for users: which prices are not from the price list, what was assumed, which counts were unreadable."""
    price_version: str
    """The version of the prices."""

    @property
    def parts(self) -> dict[PartName, Part]:
        """The six parts by name."""
        return {name: getattr(self, name) for name in PARTS}

    @property
    def picodollars(self) -> int | None:
        """The sum of the parts; None, never 0, if the model is unknown."""
        known = [p.picodollars for p in self.parts.values() if p.picodollars is not None]
        return sum(known) if len(known) == len(PARTS) else None

    @property
    def usd(self) -> Decimal | None:
        """The sum of the parts in dollars; None, never 0, if the model is unknown."""
        return None if self.picodollars is None else to_usd(self.picodollars)


def cost_of(usage: Usage, at_ns: int, book: PriceBook | None = None) -> Cost:
    """Return the cost of a usage row, billed or not.

    Args:
        usage: one row, priced by its model, context and prompt size.
        at_ns: when the call was sent, in nanoseconds since 1970; the prices of that day apply.
        book: the prices; default: the current prices. The first use loads them, which takes 0.4 s.
    """
    unit = price_of(usage, at_ns, book)
    each = unit.picodollars_each or (None,) * len(PARTS)
    notes = [text for text in (unit.note, usage.note) if text]
    parts = map(Part, units_of(usage), each)
    return Cost(
        context=unit.context,
        **dict(zip(PARTS, parts, strict=True)),
        status=status_of(unit, usage),
        note="; ".join(notes) or None,
        price_version=unit.price_version,
    )


def price_of(usage: Usage, at_ns: int, book: PriceBook | None = None) -> UnitPrices:
    """Return the unit prices of a usage row for its context, day and prompt size."""
    return (book or current_prices()).at(context_of(usage), at_ns, usage.prompt_tokens)


def units_of(usage: Usage) -> tuple[int, ...]:
    """Return the number of units (tokens or web searches) of each part."""
    return (
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_read_tokens,
        usage.cache_write_5m_tokens,
        usage.cache_write_1h_tokens,
        usage.web_search_requests,
    )


def status_of(unit: UnitPrices, usage: Usage) -> CostStatus:
    """Return the certainty of a cost: that of the price if the price is not exact, otherwise that of the counts."""
    if unit.certainty != "exact":
        return unit.certainty
    if usage.certainty == "exact" and usage.has_unpriced_requests:
        return "lower_bound"
    return usage.certainty


UNNAMED = "unnamed"
"""Replaces a name that is not a label, such as a name of 10 kB."""


def context_of(usage: Usage) -> Context:
    """Return the context that determines the price of a usage row."""
    raw_names = (usage.model, usage.service_tier, usage.inference_geo, usage.speed)
    model, *others = (name if name is None or is_label(name) else UNNAMED for name in raw_names)
    return Context(model or UNNAMED, *others)
