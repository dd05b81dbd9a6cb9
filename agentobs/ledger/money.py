"""Exact money: integers internally, decimals at the interface.

An amount is an integer number of picodollars (10^-12 USD), the last digit of the store's DECIMAL(38,12). A price per
million tokens has at most six decimal places. The price of one token is therefore a whole number of picodollars, and so
is every product and sum. Floats are never used.
"""

from __future__ import annotations

import decimal
from decimal import Decimal
from typing import Literal, get_args

PICODOLLARS = 10**12
"""Picodollars per dollar."""

PartName = Literal[
    "input", "output", "cache_read", "cache_write_5m", "cache_write_1h", "server_tools"
]
PARTS: tuple[PartName, ...] = get_args(PartName)
"""The parts of a cost, in display order."""

CostStatus = Literal["exact", "lower_bound", "estimated", "unknown_model"]
"""The certainty of a cost.

`exact`: all counts and prices are known; `lower_bound`: a stream ended before its last counts, or the provider ran
something without a known price; `estimated`: a count was unreadable, or no price is published for the context;
`unknown_model`: the model has no price.
"""

_CONTEXT = decimal.Context(prec=200)
"""Has enough digits for any sum that fits in a column; the default of 28 digits would round."""


def to_usd(picodollars: int) -> Decimal:
    """Convert picodollars to dollars, exactly."""
    return _CONTEXT.scaleb(Decimal(picodollars), -12)


def price_of_one(price: Decimal, per: int) -> int:
    """Return the price of one unit in picodollars.

    Args:
        price: the price of `per` units, in dollars.
        per: the number of units that the price covers: a million tokens, or a thousand searches.

    Raises:
        ValueError: the price of one unit is not a whole number of picodollars.
    """
    whole, rest = _CONTEXT.divmod(_CONTEXT.multiply(price, Decimal(PICODOLLARS)), Decimal(per))
    if rest:
        raise ValueError(
            f"a price of ${price} for {per} units is not a whole number of picodollars per unit"
        )
    return int(whole)
