"""Recompute the cost of stored calls with other prices, or with another model, cache lifetime or mode.

Stored data does not change: the other prices are a parameter of a query that does the same calculation. The assumptions
of a scenario are listed with its result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

from agentobs.ledger import Context, PriceBook, UnitPrices, canonical_model
from agentobs.store.port import Store
from agentobs.store.private_models import with_digests

if TYPE_CHECKING:
    from agentobs.ledger.overlay import Overlay

Lifetime = Literal["5m", "1h"]


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The calls to reprice, and the changes to apply."""

    session_ids: tuple[str, ...] = ()
    """Only these sessions; empty for all."""
    since_ns: int | None = None
    """Only calls sent at or after this time, nanoseconds since 1970."""
    until_ns: int | None = None
    """Only calls sent before this time, nanoseconds since 1970."""
    model: str | None = None
    """Price all calls as if they had used this model."""
    cache_lifetime: Lifetime | None = None
    """Price all cache writes as if they had this lifetime."""
    batch: bool = False
    """Price all calls as batch API calls."""
    fast: bool = False
    """Price all calls as fast mode calls."""


class LayeredPriceBook(PriceBook):
    """A price book with an additional price file that takes precedence."""

    def __init__(self, base: PriceBook, file_text: bytes, where: str) -> None:
        """Create the book from its base, and from the text and the path of the additional file."""
        super().__init__(file_text, where)
        self._base = base
        self.version = f"{base.version}+{self.version.rpartition('+')[2]}"

    def overlays(self) -> tuple[Overlay, ...]:
        """Return the parsed price files of the base book, and the additional file.

        Raises:
            UsageError: a file is malformed.
        """
        return (*self._base.overlays(), super().overlays()[-1])


@dataclass(frozen=True, slots=True)
class Repriced:
    """Stored and recomputed cost of the calls of one model; `model` is None for the total."""

    model: str | None
    """The canonical name of the billed model."""
    calls: int
    stored_usd: Decimal | None
    """The stored cost; None if no call has a price."""
    what_if_usd: Decimal | None
    """The recomputed cost; None if no call has a price."""
    difference_usd: Decimal | None
    """Recomputed minus stored cost of the calls that have both prices; None if there are no such calls."""
    stored_unpriced_calls: int
    """Calls without a stored price."""
    what_if_unpriced_calls: int
    """Calls that would have no price."""
    stored_not_exact_calls: int
    """Calls whose stored cost is not exact, including calls without a price."""
    what_if_not_exact_calls: int
    """Calls whose recomputed cost would not be exact; all calls if token counts are assumed."""


def reprice(store: Store, what_if: WhatIf, book: PriceBook) -> list[Repriced]:
    """Return the stored and recomputed cost of calls by model, most expensive first, then the total.

    Args:
        store: the store that contains the calls.
        what_if: the calls to reprice, and the changes to apply.
        book: the prices.
    """
    book = with_digests(book, store.home)
    chosen: dict[str, Any] = {
        "session_ids": list(what_if.session_ids) or None,
        "since_ns": what_if.since_ns,
        "until_ns": what_if.until_ns,
    }
    found = store.rows(
        "internal/repriced_costs",
        **chosen,
        prices=_price_rows(store, what_if, book, chosen),
        lifetime=what_if.cache_lifetime,
        is_assumed=bool(what_if.model or what_if.cache_lifetime),
    )
    return [Repriced(*row) for row in found.rows]


def assumptions(what_if: WhatIf) -> list[str]:
    """Return the assumptions of a scenario as sentences for users."""
    sentences = []
    if what_if.model:
        sentences.append(
            f"the same token counts on {canonical_model(what_if.model)}: another model counts tokens, thinks "
            "and answers differently"
        )
    if what_if.cache_lifetime:
        sentences.append(
            f"the same tokens read and written, the writes at the price of {what_if.cache_lifetime}: agentobs "
            "cache also considers the gaps between calls"
        )
    if what_if.batch:
        sentences.append(
            "every call as a batch: cache hits are unchanged, although batches run in any order"
        )
    if what_if.fast:
        sentences.append("every call in fast mode, whether or not its model offers that")
    return sentences


def _price_rows(
    store: Store, what_if: WhatIf, book: PriceBook, chosen: dict[str, Any]
) -> list[dict[str, object]]:
    """Return the changed prices of all contexts in the selected calls, as rows for `internal/repriced_costs`."""
    used = store.rows("internal/price_contexts", **chosen).rows
    contexts = [Context(*row) for row in used if row[0] is not None]
    return [
        {**_key(context), **_prices(unit)}
        for context in contexts
        for unit in book.resolve(_changed(context, what_if))
    ]


def _changed(context: Context, what_if: WhatIf) -> Context:
    return replace(
        context,
        model=what_if.model or context.model,
        service_tier="batch" if what_if.batch else context.service_tier,
        speed="fast" if what_if.fast else context.speed,
    )


def _key(context: Context) -> dict[str, object]:
    return {
        "model": context.model,
        "service_tier": context.service_tier,
        "inference_geo": context.inference_geo,
        "speed": context.speed,
    }


def _prices(unit: UnitPrices) -> dict[str, object]:
    rates = unit.rates
    return {
        "valid_from_ns": unit.valid_from_ns,
        "valid_to_ns": unit.valid_to_ns,
        "prompt_tokens_from": unit.prompt_tokens_from,
        "prompt_tokens_to": unit.prompt_tokens_to,
        # As text, because a list of DECIMAL values of different scales has no exact type.
        **{name: None if rates is None else str(getattr(rates, name)) for name in _RATES},
        "certainty": unit.certainty,
    }


_RATES = ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h", "web_search")
