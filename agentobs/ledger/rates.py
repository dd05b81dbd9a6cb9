"""Rates: the price of each token class, and its certainty."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Literal

from agentobs.ledger.money import price_of_one

Certainty = Literal["exact", "estimated", "unknown_model"]
"""`exact`: the price is published for this context; `estimated`: the note has the reason; `unknown_model`: no price."""


FOREVER = 2**63 - 1
"""The end of a period or of a range of prompt sizes that is unlimited: the largest BIGINT."""


@dataclass(frozen=True, slots=True)
class Context:
    """The context that determines the price of a token, with the values of a usage record."""

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
    """Start of the period, in nanoseconds since 1970; 0 if it has no start."""
    valid_to_ns: int
    """End of the period (exclusive); `FOREVER` if it has no end."""
    prompt_tokens_from: int
    """The smallest prompt size in the range. A prompt is the input, including cache reads and cache writes. [tokens]"""
    prompt_tokens_to: int
    """The end of the range (exclusive); `FOREVER` if it has no end. [tokens]"""
    rates: Rates | None
    """None if the model is unknown."""
    certainty: Certainty
    note: str | None
    """A text for users: which prices are not from the price list, and what was assumed."""
    price_version: str
    """The version of the prices, see `PriceBook.version`."""
    picodollars_each: tuple[int, ...] | None = field(init=False, repr=False, compare=False)
    """The price of one unit of each of the six parts; None if the model is unknown."""

    def __post_init__(self) -> None:
        """Compute the price of one unit of each part."""
        each = _prices_of_one(self.rates) if self.rates else None
        object.__setattr__(self, "picodollars_each", each)

    def applies(self, at_ns: int, prompt_tokens: int) -> bool:
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
