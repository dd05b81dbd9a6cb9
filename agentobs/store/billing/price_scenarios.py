"""Recompute the cost of stored calls with other prices, another model, cache lifetime or mode.

Stored data does not change: the other prices are in a temporary table of the connection, and the
same calculation is done with them. The assumptions are listed with the result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Literal

import duckdb

from agentobs.ledger import Context, PriceBook, UnitPrices, canonical_model

if TYPE_CHECKING:
    from agentobs.ledger.overlay import Overlay

Lifetime = Literal["5m", "1h"]


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The calls to reprice, and the changes to apply."""

    session_id: str | None = None
    """Only this session."""
    since_ns: int | None = None
    """Only calls sent then or later, nanoseconds since 1970."""
    until_ns: int | None = None
    """Only calls sent before then."""
    model: str | None = None
    """Price all calls as this model."""
    cache_lifetime: Lifetime | None = None
    """Price all cache writes with this lifetime."""
    batch: bool = False
    """Price all calls as batch API calls."""
    fast: bool = False
    """Price all calls as fast mode calls."""


class OnTop(PriceBook):
    """A price book with an additional price file that takes precedence."""

    def __init__(self, base: PriceBook, own: bytes, where: str) -> None:
        """Take the base book and the text of the file."""
        super().__init__(own, where)
        self._base = base
        self.version = f"{base.version}+{self.version.rpartition('+')[2]}"

    def overlays(self) -> tuple[Overlay, ...]:
        """Return the files of the book and the additional one.

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
    """The stored cost; None if nothing has a price."""
    what_if_usd: Decimal | None
    """The recomputed cost; None if nothing has a price."""
    difference_usd: Decimal | None
    """Recomputed minus stored cost, over the calls that have a price in both; None if there are none."""
    stored_unpriced_calls: int
    """Calls without a stored price."""
    what_if_unpriced_calls: int
    """Calls that would have no price."""
    stored_not_exact_calls: int
    """Calls whose stored cost is not exact, including calls without a price."""
    what_if_not_exact_calls: int
    """Calls whose recomputed cost would not be exact; all calls if token counts are assumed."""


def reprice(
    connection: duckdb.DuckDBPyConnection, what_if: WhatIf, book: PriceBook
) -> list[Repriced]:
    """Return the stored and recomputed cost of calls by model, most expensive first, then the
    total.

    Args:
        connection: from `connect`; it gets a temporary table for a moment.
        what_if: the calls and the changes.
        book: the prices.
    """
    chosen: dict[str, object] = {
        "session_id": what_if.session_id,
        "since_ns": what_if.since_ns,
        "until_ns": what_if.until_ns,
    }
    connection.execute(_TABLE)
    try:
        _fill_from_book(connection, what_if, book, chosen)
        parameters = {
            **chosen,
            "lifetime": what_if.cache_lifetime,
            "is_assumed": bool(what_if.model or what_if.cache_lifetime),
        }
        found = connection.execute(_REPRICED, parameters).fetchall()
    finally:
        connection.execute("DROP TABLE what_if_prices")
    return [Repriced(*row) for row in found]


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
            f"the same tokens read and written, the writes at the price of {what_if.cache_lifetime}: "
            "agentobs cache weighs the gaps between calls, too"
        )
    if what_if.batch:
        sentences.append(
            "every call as a batch: cache hits are as they were, though batches run in any order"
        )
    if what_if.fast:
        sentences.append("every call in fast mode, whether or not its model offers that")
    return sentences


def _fill_from_book(
    connection: duckdb.DuckDBPyConnection,
    what_if: WhatIf,
    book: PriceBook,
    chosen: dict[str, object],
) -> None:
    used = connection.execute(f"SELECT DISTINCT {_KEYS} FROM costs {_WHERE}", chosen).fetchall()
    contexts = [Context(*row) for row in used if row[0] is not None]
    rows = [
        [*_key(context), *_prices(unit)]
        for context in contexts
        for unit in book.resolve(_changed(context, what_if))
    ]
    if rows:
        marks = ", ".join("?" * len(rows[0]))
        connection.executemany(f"INSERT INTO what_if_prices VALUES ({marks})", rows)


def _changed(context: Context, what_if: WhatIf) -> Context:
    return replace(
        context,
        model=what_if.model or context.model,
        service_tier="batch" if what_if.batch else context.service_tier,
        speed="fast" if what_if.fast else context.speed,
    )


def _key(context: Context) -> list[str | None]:
    return [context.model, context.service_tier, context.inference_geo, context.speed]


def _prices(unit: UnitPrices) -> list[object]:
    rates = unit.rates
    known = (
        [rates.input, rates.output, rates.cache_read, rates.cache_write_5m, rates.cache_write_1h, rates.web_search]
        if rates
        else [None] * 6
    )  # fmt: skip
    sizes = [unit.prompt_tokens_from, unit.prompt_tokens_to]
    return [unit.valid_from_ns, unit.valid_to_ns, *sizes, *known, unit.certainty]


_KEYS = "model, service_tier, inference_geo, speed"
_WHERE = """
    WHERE ($session_id::VARCHAR IS NULL OR session_id = $session_id::VARCHAR)
        AND ($since_ns::BIGINT IS NULL OR at_ns >= $since_ns::BIGINT)
        AND ($until_ns::BIGINT IS NULL OR at_ns < $until_ns::BIGINT)
"""
_TABLE = """
    CREATE OR REPLACE TEMP TABLE what_if_prices (
        model VARCHAR, service_tier VARCHAR, inference_geo VARCHAR, speed VARCHAR,
        valid_from_ns BIGINT, valid_to_ns BIGINT, prompt_tokens_from BIGINT, prompt_tokens_to BIGINT,
        input DECIMAL(18, 6), output DECIMAL(18, 6), cache_read DECIMAL(18, 6),
        cache_write_5m DECIMAL(18, 6), cache_write_1h DECIMAL(18, 6), web_search DECIMAL(18, 6),
        certainty VARCHAR
    )
"""
_REPRICED = f"""
    WITH calls AS (
        SELECT
            *,
            input_tokens::HUGEINT + cache_read_tokens + cache_write_tokens AS prompt_tokens,
            CASE $lifetime::VARCHAR WHEN '5m' THEN cache_write_tokens WHEN '1h' THEN 0
                ELSE cache_write_5m_tokens END::BIGINT AS write_5m,
            CASE $lifetime::VARCHAR WHEN '1h' THEN cache_write_tokens WHEN '5m' THEN 0
                ELSE cache_write_1h_tokens END::BIGINT AS write_1h
        FROM costs {_WHERE}
    ), priced AS (
        SELECT
            c.canonical_model AS model,
            c.cost_usd AS stored_usd,
            c.cost_status,
            (
                (c.input_tokens * (p.input * 0.000001::DECIMAL(7, 6)))::DECIMAL(38, 12)
                + (c.output_tokens * (p.output * 0.000001::DECIMAL(7, 6)))::DECIMAL(38, 12)
                + (c.cache_read_tokens * (p.cache_read * 0.000001::DECIMAL(7, 6)))::DECIMAL(38, 12)
                + (c.write_5m * (p.cache_write_5m * 0.000001::DECIMAL(7, 6)))::DECIMAL(38, 12)
                + (c.write_1h * (p.cache_write_1h * 0.000001::DECIMAL(7, 6)))::DECIMAL(38, 12)
                + (c.web_search_requests * (p.web_search * 0.001000::DECIMAL(7, 6)))::DECIMAL(38, 12)
            ) AS what_if_usd,
            coalesce(p.certainty, 'unknown_model') <> 'exact'
                OR c.counts_status <> 'exact' OR $is_assumed::BOOLEAN AS is_doubtful
        FROM calls AS c
        LEFT JOIN what_if_prices AS p
            ON c.model = p.model
            AND c.service_tier IS NOT DISTINCT FROM p.service_tier
            AND c.inference_geo IS NOT DISTINCT FROM p.inference_geo
            AND c.speed IS NOT DISTINCT FROM p.speed
            AND c.at_ns >= p.valid_from_ns AND c.at_ns < p.valid_to_ns
            AND c.prompt_tokens >= p.prompt_tokens_from AND c.prompt_tokens < p.prompt_tokens_to
    )
    SELECT
        model,
        count(*),
        sum(stored_usd),
        sum(what_if_usd),
        sum(what_if_usd - stored_usd),
        count(*) FILTER (WHERE stored_usd IS NULL),
        count(*) FILTER (WHERE what_if_usd IS NULL),
        count(*) FILTER (WHERE cost_status <> 'exact'),
        count(*) FILTER (WHERE is_doubtful)
    FROM priced
    GROUP BY GROUPING SETS ((model), ())
    ORDER BY grouping(model), sum(stored_usd) DESC NULLS LAST, model
"""
