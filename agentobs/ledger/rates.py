"""Rates: what a token of each class costs, and how certain that is."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Literal

from agentobs.ledger.money import price_of_one

Certainty = Literal["exact", "estimated", "unknown_model"]
"""`exact`: published for this context; `estimated`: see the note; `unknown_model`: no price at all."""


FOREVER = 2**63 - 1
"""The end of a period, or of a range of prompt sizes, that has none: the largest BIGINT."""


@dataclass(frozen=True, slots=True)
class Context:
    """What decides the price of a token, as a usage record names it."""

    model: str
    service_tier: str | None = None
    """`standard`, `priority` or `batch`."""
    inference_geo: str | None = None
    """Where inference ran, such as `global` or `us`."""
    speed: str | None = None
    """`standard` or `fast`."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What each class of tokens costs, in USD per million, and web searches, in USD per thousand."""

    input: Decimal
    """Input neither read from nor written to the cache."""
    output: Decimal
    """Output, reasoning included."""
    cache_read: Decimal
    cache_write_5m: Decimal
    cache_write_1h: Decimal
    web_search: Decimal


@dataclass(frozen=True, slots=True)
class UnitPrices:
    """The rates of one context, in one period and for one range of prompt sizes."""

    context: Context
    valid_from_ns: int
    """First instant of the period, nanoseconds since 1970; 0 for ever before."""
    valid_to_ns: int
    """First instant after the period; `FOREVER` where it has no end."""
    prompt_tokens_from: int
    """The smallest prompt in the range: input, cache reads and cache writes."""
    prompt_tokens_to: int
    """The smallest prompt beyond the range; `FOREVER` where it has no end."""
    rates: Rates | None
    """None where the model is unknown."""
    certainty: Certainty
    note: str | None
    """What was added to the price list or assumed, for people."""
    price_version: str
    """The version of the prices that were asked, see `PriceBook.version`."""
    picodollars_each: tuple[int, ...] | None = field(init=False, repr=False, compare=False)
    """What one unit of each of the six parts costs; None where the model is unknown."""

    def __post_init__(self) -> None:
        """Work out the prices of single units."""
        each = _prices_of_one(self.rates) if self.rates else None
        object.__setattr__(self, "picodollars_each", each)

    def holds(self, at_ns: int, prompt_tokens: int) -> bool:
        """Return whether these are the prices at an instant for a prompt of this size."""
        in_time = self.valid_from_ns <= at_ns < self.valid_to_ns
        return in_time and self.prompt_tokens_from <= prompt_tokens < self.prompt_tokens_to


def _prices_of_one(rates: Rates) -> tuple[int, ...]:
    """Return what one unit of each part costs, in picodollars."""
    tokens = (
        rates.input,
        rates.output,
        rates.cache_read,
        rates.cache_write_5m,
        rates.cache_write_1h,
    )
    each = [price_of_one(price, 1_000_000) for price in tokens]
    return (*each, price_of_one(rates.web_search, 1000))
