"""Exact money: integers inside, decimals at the interface.

An amount is an integer of picodollars, 10^-12 USD: the last digit of the store's DECIMAL(38,12). A
price per million tokens has at most six decimal places, so the price of one token is a whole number
of picodollars, and so is every product and sum. Floats are never used.
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
"""`exact`; `lower_bound`: a stream ended before its last counts, or something without a known price ran; `estimated`: a
count was unreadable or no price is published for the context; `unknown_model`: no price.
"""

_WIDE = decimal.Context(prec=200)
"""Enough for any sum that fits a column; the default of 28 digits would round."""


def to_usd(picodollars: int) -> Decimal:
    """Convert picodollars to dollars, exactly."""
    return _WIDE.scaleb(Decimal(picodollars), -12)


def price_of_one(price: Decimal, per: int) -> int:
    """Return the price of one unit in picodollars.

    Args:
        price: dollars for `per` units, with no more digits than divide evenly.
        per: the number of units that the price is for: a million tokens, a thousand searches.

    Raises:
        ValueError: one unit would not cost a whole number of picodollars.
    """
    whole, rest = _WIDE.divmod(_WIDE.multiply(price, Decimal(PICODOLLARS)), Decimal(per))
    if rest:
        raise ValueError(f"{price} for {per} is not a whole number of picodollars each")
    return int(whole)
