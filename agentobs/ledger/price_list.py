"""Combine the prices of genai-prices and of the overlays for one context.

The data of genai-prices is read as installed, even if its updater is enabled in this process. Its own `calc_price` is
not used: it raises if more tokens were read from the cache than it assumes as input, and it returns no breakdown.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import cache
from typing import NamedTuple

from genai_prices.data import providers
from genai_prices.data_snapshot import DataSnapshot
from genai_prices.types import ModelInfo, ModelPrice, StartDateConstraint, TieredPrices

from agentobs.ledger.model_names import canonical_model, same_model
from agentobs.ledger.overlay import CONTEXT, DIGITS, NEUTRAL_VALUES, Factor, Overlay, Price
from agentobs.ledger.rates import FOREVER, Certainty, Context, Rates, UnitPrices
from agentobs.provider import registry

_LIST_NAMES = {
    "input": "input_mtok",
    "output": "output_mtok",
    "cache_read": "cache_read_mtok",
    "cache_write_5m": "cache_write_5m_mtok",
    "cache_write": "cache_write_mtok",
    "cache_write_1h": "cache_write_1h_mtok",
    "web_search": "web_searches_kcount",
}
"""The price classes, each with its name in genai-prices."""


def unit_prices(
    context: Context, overlays: Sequence[Overlay], price_version: str
) -> list[UnitPrices]:
    """Return the unit prices of a context, for all time and all prompt sizes."""
    listing = _listing(context, overlays)
    note = None
    is_both = (context.service_tier, context.speed) == ("batch", "fast")
    # If no price is listed for the combination of batch and fast, the batch price is used.
    if is_both and not any(_requires_both(price) for price in listing.prices):
        note = BATCH_AND_FAST
        listing = dataclasses.replace(listing, context=dataclasses.replace(context, speed=None))
    found = [
        listing.unit_prices(period, sizes, price_version)
        for period in listing.periods()
        for sizes in listing.sizes()
    ]
    return found if note is None else [_as_estimate(unit, context, note) for unit in found]


def _requires_both(price: Price) -> bool:
    return {"service_tier", "speed"} <= price.conditions.keys()


BATCH_AND_FAST = "no price is listed for batch and fast together: taken as batch"


def _as_estimate(unit: UnitPrices, context: Context, note: str) -> UnitPrices:
    """Return the prices of a similar context as an estimate for `context`."""
    if unit.rates is None:
        return dataclasses.replace(unit, context=context)
    full_note = f"{unit.note}; {note}" if unit.note else note
    return dataclasses.replace(unit, context=context, certainty="estimated", note=full_note)


class _Listed(NamedTuple):
    """The price of one class as listed."""

    usd: Decimal
    known: frozenset[str]
    """The names of the context values that the price already includes; a factor for them would count them twice."""


@dataclass(frozen=True, slots=True)
class _Listing:
    """All listed prices and factors for a context."""

    context: Context
    model: ModelInfo | None
    """The model's entry in genai-prices; None if it has none."""
    is_canonical_match: bool
    """Whether the entry was found by the model's canonical name, not by the name in the usage record."""
    files: tuple[tuple[Price, ...], ...]
    """The prices of the overlays, by file; later files take precedence."""
    factors: tuple[Factor, ...]
    web_search: Decimal
    """USD per thousand searches, unless an entry for the model sets another price."""
    priced_values: frozenset[tuple[str, str]]
    """Context values for which a factor exists, for this or another model."""

    @property
    def prices(self) -> tuple[Price, ...]:
        """The prices of all files."""
        return tuple(itertools.chain.from_iterable(self.files))

    def periods(self) -> list[tuple[int, int]]:
        """Return the periods between the days on which a price changes, in nanoseconds since 1970."""
        days = set(_start_days(self.model))
        for entry in (*self.prices, *self.factors):
            days |= {day for day in (entry.since, entry.until) if day}
        starts = {_day_ns(day) for day in days}
        return list(itertools.pairwise([0, *sorted(n for n in starts if n > 0), FOREVER]))

    def sizes(self) -> list[tuple[int, int]]:
        """Return the ranges of prompt sizes. A tier applies to all tokens of a prompt that is larger than its start."""
        starts = {
            p.prompt_tokens_above + 1 for p in self.prices if p.prompt_tokens_above is not None
        }
        starts |= {start + 1 for start in _tier_starts(self.model)}
        return list(itertools.pairwise([0, *sorted(starts), FOREVER]))

    def unit_prices(
        self, period: tuple[int, int], sizes: tuple[int, int], price_version: str
    ) -> UnitPrices:
        """Return the prices of one period and size range. A class without a price gets the price of a similar class."""
        at = _instant(period[0])
        found, sources, substituted = self._class_prices(at, sizes[0])
        if not {"input", "output"} <= found.keys():
            unknown: Certainty = "unknown_model"
            return UnitPrices(self.context, *period, *sizes, None, unknown, None, price_version)
        multiplied: dict[str, Decimal] = {}
        notes: dict[str, None] = {}
        known: set[str] = set()
        for name, each in found.items():
            times, factor_notes, applied = self._multiplier(at, each.known)
            multiplied[name] = each.usd * (1 if name == "web_search" else times)
            notes |= dict.fromkeys(factor_notes)
            known |= each.known | applied
        assumed = [*self._unpriced_context(frozenset(known)), *substituted]
        rates, is_exact = _rates(multiplied, self.web_search)
        if not is_exact:
            assumed.append(f"rounded to {DIGITS} digits")
        certainty: Certainty = "estimated" if assumed else "exact"
        note = "; ".join((*sources, *notes, *assumed)) or None
        return UnitPrices(self.context, *period, *sizes, rates, certainty, note, price_version)

    def _class_prices(
        self, at: datetime, prompt_tokens: int
    ) -> tuple[dict[str, _Listed], list[str], list[str]]:
        """Return the prices by class, notes about their sources, and notes about substituted prices."""
        applicable, is_replaced = self._applicable_prices(at, prompt_tokens)
        terms = {} if is_replaced else _price_terms(self.context)
        known = frozenset(
            _CONTEXT_NAMES[key]
            for key, value in terms.items()
            if _has_variant(self.model, key, value, at)
        )
        listed = _listed_rates(self.model, at, terms, prompt_tokens)
        found = {name: _Listed(usd, known) for name, usd in listed.items()}
        for price in applicable:
            conditions = frozenset(price.conditions)
            found |= {name: _Listed(usd, conditions) for name, usd in price.rates.items()}
        substituted = []
        if self.is_canonical_match and not is_replaced:
            canonical = canonical_model(self.context.model)
            substituted.append(f"the listed price of {_LISTED_AS.get(canonical, canonical)}")
        substituted += _assumed_classes(
            found, has_user_price=len(self.files) > 1 and bool(self.files[-1])
        )
        return (
            found,
            list(dict.fromkeys(f"from {price.source}" for price in applicable)),
            substituted,
        )

    def _applicable_prices(self, at: datetime, prompt_tokens: int) -> tuple[list[Price], bool]:
        """Return the overlay prices that apply, in order of increasing precedence, and whether they replace the listed
        prices.

        Within a file, a price with more context conditions takes precedence, regardless of the order. A price without
        conditions also replaces all conditional prices of earlier files.
        """
        applicable: list[Price] = []
        is_replaced = False
        for prices in self.files:
            from_file = [
                price
                for price in prices
                if price.applies(self.context, at.date())
                and (price.prompt_tokens_above is None or prompt_tokens > price.prompt_tokens_above)
            ]
            if any(not price.conditions for price in from_file):
                is_replaced = True
                applicable = [price for price in applicable if not price.conditions]
            applicable += sorted(from_file, key=lambda price: len(price.conditions))
        return applicable, is_replaced

    def _multiplier(
        self, at: datetime, known: frozenset[str]
    ) -> tuple[Decimal, list[str], frozenset[str]]:
        """Return the multiplier, notes for users about its factors, and the names of the context values it covers."""
        times, notes = Decimal(1), []
        applied: set[str] = set()
        # If several factors with the same name apply, the last one is used: a discount may change over time.
        applicable = {f.name: f for f in self.factors if f.applies(self.context, at.date())}
        for factor in applicable.values():
            if factor.unless_listed and factor.conditions.keys() <= known:
                continue
            times *= factor.times
            applied |= factor.conditions.keys()
            notes.append(f"times {factor.times} ({factor.name})")
        return times, notes, frozenset(applied)

    def _unpriced_context(self, known: frozenset[str]) -> list[str]:
        """Return notes about the context values that have no price; they are priced like standard values."""
        return [
            f"no price is listed for {name} {value}: taken as standard"
            for name in CONTEXT
            if (value := getattr(self.context, name)) not in NEUTRAL_VALUES[name]
            and name not in known
            and (name, value) not in self.priced_values
        ]


def _listing(context: Context, overlays: Sequence[Overlay]) -> _Listing:
    model = _find_model(context.model) or _find_model(same_model(context.model))
    canonical = canonical_model(context.model)
    similar = None if model else _find_canonical(context.model, canonical)
    factors = [factor for overlay in overlays for factor in overlay.factor]
    searches = [o.web_search.usd_per_thousand for o in overlays if o.web_search]
    return _Listing(
        context,
        model or similar,
        similar is not None,
        tuple(tuple(p for p in overlay.price if p.covers(context.model)) for overlay in overlays),
        tuple(factor for factor in factors if factor.covers(context.model)),
        searches[-1] if searches else Decimal(0),
        frozenset(
            pair
            for factor in factors
            if not factor.covers(context.model)
            for pair in factor.conditions.items()
        ),
    )


@cache
def _snapshot() -> DataSnapshot:
    return DataSnapshot(providers=providers, from_auto_update=False)


def _find_model(name: str) -> ModelInfo | None:
    for dialect in registry.DIALECTS:
        with suppress(LookupError):
            return _snapshot().find_provider_model(name, None, dialect.name, None)[1]
    return None


def _find_canonical(name: str, canonical: str) -> ModelInfo | None:
    """Return the entry of another spelling of a model; None if there is none."""
    for spelling in (canonical, _LISTED_AS.get(canonical)):
        if spelling and spelling != name and (found := _find_model(spelling)):
            return found
    return None


_LISTED_AS = {"claude-1": "claude-v1", "claude-1.3": "claude-v1"}
"""The spelling in genai-prices 0.2.3 of canonical names. It lists version 1 as `claude-v1` only, so a revision of it is
an estimate.
"""

_CONTEXT_NAMES = {"processing": "service_tier", "speed": "speed"}
"""The names of context values in genai-prices, each with the name in `Context`."""


def _price_terms(context: Context) -> dict[str, str]:
    """Return the context in the terms of genai-prices."""
    terms = {}
    if context.service_tier == "batch":
        terms["processing"] = "batch"
    if context.speed == "fast":
        terms["speed"] = "fast"
    return terms


def _has_variant(model: ModelInfo | None, key: str, value: str, at: datetime) -> bool:
    variants = (model.price_variants if model else None) or ()
    return any(
        variant.when == {key: value}
        and (variant.constraint is None or variant.constraint.active(at))
        for variant in variants
    )


def _listed_rates(
    model: ModelInfo | None, at: datetime, terms: Mapping[str, str], prompt_tokens: int
) -> dict[str, Decimal]:
    if model is None:
        return {}
    price = model.get_prices(at, dict(terms))
    found = {
        name: _tier_price(getattr(price, list_name), prompt_tokens)
        for name, list_name in _LIST_NAMES.items()
    }
    return {name: value for name, value in found.items() if value is not None}


_CACHE_CLASSES = ("cache_read", "cache_write_5m", "cache_write_1h")
"""The price classes of the prompt cache."""


def _assumed_classes(found: Mapping[str, _Listed], *, has_user_price: bool) -> Iterable[str]:
    """Yield a note for each cache class that has no price; it is priced like another class.

    A model that is listed without any cache price is older than the prompt cache, so it has no cached tokens.
    """
    # `cache_write` in genai-prices is the price for the default lifetime, 5 minutes.
    listed = found.keys() | ({"cache_write_5m"} if "cache_write" in found else set())
    missing = [name for name in _CACHE_CLASSES if name not in listed]
    if len(missing) == len(_CACHE_CLASSES) and not has_user_price:
        return
    for name in missing:
        is_long = name == "cache_write_1h" and "cache_write" in found
        other = "cache_write_5m" if is_long else "input"
        yield f"no price for {name}: taken as {other}"


def _rates(found: Mapping[str, Decimal], web_search: Decimal) -> tuple[Rates, bool]:
    """Return the rates, and whether none of them had to be rounded."""

    def first(*names: str) -> Decimal:
        return next((found[name] for name in names if name in found), Decimal(0))

    exact = (
        first("input"),
        first("output"),
        first("cache_read", "input"),
        first("cache_write_5m", "cache_write", "input"),
        first("cache_write_1h", "cache_write", "input"),
        found.get("web_search", web_search),
    )
    rounded = tuple(round(value, DIGITS) for value in exact)
    return Rates(*(exact if exact == rounded else rounded)), exact == rounded


def _tier_price(value: Decimal | TieredPrices | None, prompt_tokens: int) -> Decimal | None:
    """Return the price of the tier that applies to a prompt size."""
    if value is None or isinstance(value, Decimal):
        return value
    matching = [tier.price for tier in value.tiers if prompt_tokens > tier.start]
    return matching[-1] if matching else value.base


def _model_prices(model: ModelInfo | None) -> Iterable[ModelPrice]:
    if model is None:
        return
    listed = [] if isinstance(model.prices, ModelPrice) else model.prices
    if isinstance(model.prices, ModelPrice):
        yield model.prices
    yield from (entry.prices for entry in (*listed, *(model.price_variants or ())))


def _tier_starts(model: ModelInfo | None) -> set[int]:
    return {
        tier.start
        for price in _model_prices(model)
        for value in vars(price).values()
        if value is not None and not isinstance(value, Decimal)
        for tier in value.tiers
    }


def _start_days(model: ModelInfo | None) -> set[date]:
    if model is None:
        return set()
    listed = [] if isinstance(model.prices, ModelPrice) else model.prices
    constraints = [entry.constraint for entry in (*listed, *(model.price_variants or ()))]
    return {c.start_date for c in constraints if isinstance(c, StartDateConstraint)}


def _day_ns(day: date) -> int:
    return int(datetime.combine(day, time(), UTC).timestamp()) * 1_000_000_000


def _instant(at_ns: int) -> datetime:
    return datetime.fromtimestamp(at_ns // 1_000_000_000, UTC)
