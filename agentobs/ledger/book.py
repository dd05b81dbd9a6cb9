"""The ledger: what a model's tokens cost, as exact unit prices that SQL can multiply with.

The prices come from genai-prices, which is pinned, dated and works offline. What it lacks stands here
as constants with their source: the geography factor, and batch prices where it lists none. Its own
`calc_price` is never asked: it raises where more was read from the cache than it takes the input to be,
and it gives no split. Nothing here reads a clock: a price list is a set of periods.
"""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Literal

from agentobs.ledger.money import price_of_one

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice, TieredPrices

PROVIDER = "anthropic"
"""The provider's id in genai-prices."""

Certainty = Literal["exact", "estimated", "unknown_model"]
"""`exact`: published for this context; `estimated`: see the note; `unknown_model`: no price at all."""

FOREVER = 2**63 - 1
"""The end of a period, or of a range of prompt sizes, that has none: the largest BIGINT."""

DIGITS = 6
"""Digits after the point that a price per million has room for: twelve for a single token."""

US_FACTOR = Decimal("1.1")
"""Token prices with `inference_geo: "us"` against those without.

Source: provider documentation, 2026-11 (platform.claude.com/docs/en/manage-claude/data-residency). It
holds for Opus 4.6, Sonnet 4.6 and all later models; web searches keep their price.
"""
ANYWHERE = (None, "global", "not_available")
"""Values of `inference_geo` that cost nothing extra."""
WITHOUT_GEOGRAPHY = frozenset(
    (
        "claude-v1",
        "claude-2",
        "claude-3-haiku",
        "claude-3-sonnet",
        "claude-3-opus-latest",
        "claude-3-5-haiku-latest",
        "claude-3-5-sonnet",
        "claude-3-7-sonnet-latest",
        "claude-sonnet-4-0",
        "claude-opus-4-0",
        "claude-opus-4-1",
        "claude-sonnet-4-5",
        "claude-haiku-4-5",
        "claude-opus-4-5",
    )
)
"""Models older than the geography factor, by their id in genai-prices. Source as for `US_FACTOR`."""

BATCH_FACTOR = Decimal("0.5")
"""Token prices of the batch API against the standard ones, where genai-prices lists no batch price.

Source: provider documentation, 2026-11 (platform.claude.com/docs/en/build-with-claude/batch-processing).
"""
WEB_SEARCH_USD_PER_THOUSAND = Decimal(10)
"""What web searches cost where genai-prices does not say.

Source: provider documentation, 2026-11 (platform.claude.com/docs/en/about-claude/pricing).
"""


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
    """The version of genai-prices that was asked."""
    picodollars_each: tuple[int, ...] | None = field(init=False, repr=False, compare=False)
    """What one unit of each of the six parts costs; None where the model is unknown."""

    def __post_init__(self) -> None:
        """Work out the prices of single units."""
        each = prices_of_one(self.rates) if self.rates else None
        object.__setattr__(self, "picodollars_each", each)


@cache
def price_version() -> str:
    """Return the version of the price list, without loading it."""
    return version("genai-prices")


def resolve(context: Context) -> list[UnitPrices]:
    """Return the unit prices of a context: one for each period and range of prompt sizes, without gaps.

    An unknown model has one entry without rates, so that it need not be looked up again. Loads
    genai-prices, which takes 0.4 s the first time.
    """
    model = _find(context.model)
    if model is None:
        unknown: Certainty = "unknown_model"
        return [UnitPrices(context, 0, FOREVER, 0, FOREVER, None, unknown, None, price_version())]
    found = []
    for period in _periods(model):
        listed = _listed(model, context, _instant(period[0]))
        found += [_unit_prices(context, period, sizes, listed) for sizes in _sizes(listed.price)]
    return found


class PriceBook:
    """The prices of every context that was asked for, each looked up once."""

    def __init__(self) -> None:
        """Know nothing yet; the first lookup loads the price list."""
        self._found: dict[Context, list[UnitPrices]] = {}

    @property
    def version(self) -> str:
        """The version of the prices."""
        return price_version()

    def resolve(self, context: Context) -> list[UnitPrices]:
        """Return the unit prices of a context: one for each period and range of prompt sizes, without gaps."""
        found = self._found.get(context)
        if found is None:
            found = resolve(context)
            if len(self._found) < KNOWN_CONTEXTS:
                self._found[context] = found
        return found

    def at(self, context: Context, at_ns: int, prompt_tokens: int) -> UnitPrices:
        """Return the unit prices that hold at an instant for a prompt of this size."""
        at_ns = min(max(at_ns, 0), FOREVER - 1)
        return next(
            unit
            for unit in self.resolve(context)
            if unit.valid_from_ns <= at_ns < unit.valid_to_ns
            and unit.prompt_tokens_from <= prompt_tokens < unit.prompt_tokens_to
        )


KNOWN_CONTEXTS = 4096
"""How many contexts a book remembers; a provider that names a new model each time fills no memory."""


@cache
def in_force() -> PriceBook:
    """Return the prices of this process."""
    return PriceBook()


def prices_of_one(rates: Rates) -> tuple[int, ...]:
    """Return what one unit of each part costs, in picodollars."""
    million = (
        rates.input,
        rates.output,
        rates.cache_read,
        rates.cache_write_5m,
        rates.cache_write_1h,
    )
    tokens = [price_of_one(price, 1_000_000) for price in million]
    return (*tokens, price_of_one(rates.web_search, 1000))


@dataclass(frozen=True, slots=True)
class _Listed:
    """What the price list says for a context at an instant, and what has to be added."""

    price: ModelPrice
    factor: Decimal
    """What every token price is multiplied with."""
    is_exact: bool
    notes: tuple[str, ...]


def _find(name: str) -> ModelInfo | None:
    from genai_prices.data_snapshot import get_snapshot

    try:
        return get_snapshot().find_provider_model(name, None, PROVIDER, None)[1]
    except LookupError:
        return None


def _periods(model: ModelInfo) -> list[tuple[int, int]]:
    """Return the periods between the days on which some price of the model starts."""
    from genai_prices.types import ModelPrice, StartDateConstraint

    listed = [] if isinstance(model.prices, ModelPrice) else model.prices
    constraints = [entry.constraint for entry in (*listed, *(model.price_variants or ()))]
    days = {_day_ns(c.start_date) for c in constraints if isinstance(c, StartDateConstraint)}
    return list(itertools.pairwise([0, *sorted(day for day in days if day > 0), FOREVER]))


def _listed(model: ModelInfo, context: Context, at: datetime) -> _Listed:
    asked = _asked(context)
    factor, notes = Decimal(1), []
    if context.inference_geo == "us" and model.id not in WITHOUT_GEOGRAPHY:
        factor *= US_FACTOR
        notes.append(f"times {US_FACTOR} for inference in the US")
    if "processing" in asked and not _has_variant(model, "processing", "batch", at):
        factor *= BATCH_FACTOR
        notes.append(f"times {BATCH_FACTOR} for the batch API")
    assumed = [
        f"no price is listed for {name} {value}: taken as standard"
        for name, value, known in (
            ("service_tier", context.service_tier, (None, "standard", "batch")),
            ("inference_geo", context.inference_geo, (*ANYWHERE, "us")),
            ("speed", context.speed, (None, "standard", "fast")),
        )
        if value not in known
    ]
    if "speed" in asked and not _has_variant(model, "speed", "fast", at):
        assumed.append("no price is listed for speed fast: taken as standard")
    if len(asked) > 1:
        assumed.append("no price is listed for batch and fast together: taken as batch")
    price = model.get_prices(at, asked)
    return _Listed(price, factor, not assumed, (*notes, *assumed))


def _asked(context: Context) -> dict[str, str]:
    """Return the context in the words of genai-prices."""
    asked = {}
    if context.service_tier == "batch":
        asked["processing"] = "batch"
    if context.speed == "fast":
        asked["speed"] = "fast"
    return asked


def _has_variant(model: ModelInfo, key: str, value: str, at: datetime) -> bool:
    return any(
        variant.when == {key: value}
        and (variant.constraint is None or variant.constraint.active(at))
        for variant in model.price_variants or ()
    )


def _sizes(price: ModelPrice) -> list[tuple[int, int]]:
    """Return the ranges of prompt sizes. A tier is a cliff: it holds for whole prompts beyond its start."""
    starts = {
        tier.start + 1
        for value in vars(price).values()
        if value is not None and not isinstance(value, Decimal)
        for tier in value.tiers
    }
    return list(itertools.pairwise([0, *sorted(starts), FOREVER]))


def _unit_prices(
    context: Context, period: tuple[int, int], sizes: tuple[int, int], listed: _Listed
) -> UnitPrices:
    rates, is_exact, notes = _rates(listed, sizes[0]), listed.is_exact, listed.notes
    if not _fits(rates):
        rates = Rates(*(round(value, DIGITS) for value in dataclasses.astuple(rates)))
        is_exact, notes = False, (*notes, f"rounded to {DIGITS} digits")
    certainty: Certainty = "exact" if is_exact else "estimated"
    note = "; ".join(notes) or None
    return UnitPrices(context, *period, *sizes, rates, certainty, note, price_version())


def _rates(listed: _Listed, prompt_tokens: int) -> Rates:
    """Return the rates; a class that has no price of its own takes that of the class around it."""
    price, factor = listed.price, listed.factor

    def first(*names: str) -> Decimal:
        found = (_at(getattr(price, name), prompt_tokens) for name in names)
        return next((value for value in found if value is not None), Decimal(0)) * factor

    web_search = _at(price.web_searches_kcount, prompt_tokens)
    return Rates(
        input=first("input_mtok"),
        output=first("output_mtok"),
        cache_read=first("cache_read_mtok", "input_mtok"),
        cache_write_5m=first("cache_write_5m_mtok", "cache_write_mtok", "input_mtok"),
        cache_write_1h=first("cache_write_1h_mtok", "cache_write_mtok", "input_mtok"),
        web_search=WEB_SEARCH_USD_PER_THOUSAND if web_search is None else web_search,
    )


def _at(value: Decimal | TieredPrices | None, prompt_tokens: int) -> Decimal | None:
    """Return a price for a prompt of this size."""
    if value is None or isinstance(value, Decimal):
        return value
    fitting = [tier.price for tier in value.tiers if prompt_tokens > tier.start]
    return fitting[-1] if fitting else value.base


def _fits(rates: Rates) -> bool:
    return all(value == round(value, DIGITS) for value in dataclasses.astuple(rates))


def _day_ns(day: date) -> int:
    return int(datetime.combine(day, time(), UTC).timestamp()) * 1_000_000_000


def _instant(at_ns: int) -> datetime:
    return datetime.fromtimestamp(at_ns // 1_000_000_000, UTC)
