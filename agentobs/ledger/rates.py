"""Rates: the price of a token of each class, and its certainty."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Literal

from agentobs.ledger.money import price_of_one

Certainty = Literal["exact", "estimated", "unknown_model"]
"""`exact`: published for this context; `estimated`: see the note; `unknown_model`: no price at all."""


FOREVER = 2**63 - 1
"""The end of an unlimited period or range of prompt sizes: the largest BIGINT."""


@dataclass(frozen=True, slots=True)
class Context:
    """The context that determines the price of a token, as in a usage record."""

    model: str
    service_tier: str | None = None
    """`standard`, `priority` or `batch`."""
    inference_geo: str | None = None
    """Where inference ran, such as `global` or `us`."""
    speed: str | None = None
    """`standard` or `fast`."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Prices per token class in USD per million, and of web searches in USD per thousand."""

    input: Decimal
    """Input neither read from nor written to the cache."""
    output: Decimal
    """Output, including reasoning."""
    cache_read: Decimal
    cache_write_5m: Decimal
    cache_write_1h: Decimal
    web_search: Decimal


@dataclass(frozen=True, slots=True)
class UnitPrices:
    """The rates of one context, in one period and for one range of prompt sizes."""

    context: Context
    valid_from_ns: int
    """First instant of the period, nanoseconds since 1970; 0 for unlimited."""
    valid_to_ns: int
    """First instant after the period; `FOREVER` if unlimited."""
    prompt_tokens_from: int
    """The smallest prompt in the range: input, cache reads and cache writes."""
    prompt_tokens_to: int
    """The smallest prompt beyond the range; `FOREVER` if unlimited."""
    rates: Rates | None
    """None if the model is unknown."""
    certainty: Certainty
    note: str | None
    """What was added to the price list or assumed, as text for users."""
    price_version: str
    """The version of the prices, see `PriceBook.version`."""
    picodollars_each: tuple[int, ...] | None = field(init=False, repr=False, compare=False)
    """The price of one unit of each of the six parts; None if the model is unknown."""

    def __post_init__(self) -> None:
        """Compute the prices of single units."""
        each = _prices_of_one(self.rates) if self.rates else None
        object.__setattr__(self, "picodollars_each", each)

    def holds(self, at_ns: int, prompt_tokens: int) -> bool:
        """Return whether these prices apply to an instant and a prompt size."""
        in_time = self.valid_from_ns <= at_ns < self.valid_to_ns
        return in_time and self.prompt_tokens_from <= prompt_tokens < self.prompt_tokens_to


def _prices_of_one(rates: Rates) -> tuple[int, ...]:
    """Return the price of one unit of each part, in picodollars."""
    tokens = (
        rates.input,
        rates.output,
        rates.cache_read,
        rates.cache_write_5m,
        rates.cache_write_1h,
    )
    each = [price_of_one(price, 1_000_000) for price in tokens]
    return (*each, price_of_one(rates.web_search, 1000))
