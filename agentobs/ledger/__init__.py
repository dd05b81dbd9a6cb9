"""The ledger: the exact cost of a model's tokens, and how certain it is.

`cost_of` prices one usage row, a `Meter` adds up costs while an agent runs, and the store multiplies the same unit
prices in SQL. Prices come from genai-prices, which is pinned, dated and works offline. An overlay of agentobs adds the
prices that genai-prices lacks. Nothing here reads a clock: each price is valid for a period.
"""

from __future__ import annotations

from agentobs.ledger.cost import Cost, Part, cost_of
from agentobs.ledger.meter import Meter, Spent, load_prices, warn_unknown_model
from agentobs.ledger.model_names import canonical_model
from agentobs.ledger.money import PARTS, CostStatus, PartName, to_usd
from agentobs.ledger.price_book import (
    PriceBook,
    book_of,
    current_prices,
    price_version,
    resolve,
    use_home,
)
from agentobs.ledger.rates import FOREVER, Context, Rates, UnitPrices
from agentobs.ledger.runaway import RISING_TURNS, Runaway, runaway

__all__ = [
    "FOREVER",
    "PARTS",
    "RISING_TURNS",
    "Context",
    "Cost",
    "CostStatus",
    "Meter",
    "Part",
    "PartName",
    "PriceBook",
    "Rates",
    "Runaway",
    "Spent",
    "UnitPrices",
    "book_of",
    "canonical_model",
    "cost_of",
    "current_prices",
    "load_prices",
    "price_version",
    "resolve",
    "runaway",
    "to_usd",
    "use_home",
    "warn_unknown_model",
]
