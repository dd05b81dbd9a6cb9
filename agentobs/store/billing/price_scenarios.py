"""Repricing: what stored calls would have cost with other prices, another model, lifetime or mode.

Nothing that is stored changes: the other prices lie in a table of the connection's own, and the same
multiplication is done with them. What is assumed is said beside the result.
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
    """Which calls are priced again, and what is different."""

    session_id: str | None = None
    """Only this session."""
    since_ns: int | None = None
    """Only calls sent then or later, nanoseconds since 1970."""
    until_ns: int | None = None
    """Only calls sent before then."""
    model: str | None = None
    """All calls at the prices of this model."""
    cache_lifetime: Lifetime | None = None
    """All cache writes at the price of this lifetime."""
    batch: bool = False
    """All calls at the prices of the batch API."""
    fast: bool = False
    """All calls at the prices of fast mode."""


class OnTop(PriceBook):
    """The prices of a book, with a file of prices that goes before all of them."""

    def __init__(self, base: PriceBook, own: bytes, where: str) -> None:
        """Take the book and the text of the file."""
        super().__init__(own, where)
        self._base = base
        self.version = f"{base.version}+{self.version.rpartition('+')[2]}"

    def overlays(self) -> tuple[Overlay, ...]:
        """Return the files of the book and the one on top.

        Raises:
            UsageError: one of them does not fit the format.
        """
        return (*self._base.overlays(), super().overlays()[-1])


@dataclass(frozen=True, slots=True)
class Repriced:
    """What the calls of one model cost and would have cost; `model` is None for all together."""

    model: str | None
    """The one name of the model that was billed."""
    calls: int
    stored_usd: Decimal | None
    """What is stored; None where nothing has a price."""
    what_if_usd: Decimal | None
    """What it would be; None where nothing has a price."""
    difference_usd: Decimal | None
    """The second less the first, over the calls that have a price in both; None where none has."""
    stored_unpriced_calls: int
    """Calls without a stored price."""
    what_if_unpriced_calls: int
    """Calls that would have no price."""
    stored_not_exact_calls: int
    """Calls whose stored cost is not exact, those without a price among them."""
    what_if_not_exact_calls: int
    """Calls whose other cost would not be exact; where something is assumed of the counts that is all."""


def reprice(
    connection: duckdb.DuckDBPyConnection, what_if: WhatIf, book: PriceBook
) -> list[Repriced]:
    """Return what stored calls cost and would have cost, by model, the dearest first, then all together.

    Args:
        connection: from `connect`; a table of its own for a moment is all that it gets.
        what_if: which calls, and what is different.
        book: the prices to ask.
    """
    chosen: dict[str, object] = {
        "session_id": what_if.session_id,
        "since_ns": what_if.since_ns,
        "until_ns": what_if.until_ns,
    }
    connection.execute(_TABLE)
    try:
        _fill_from_book(connection, what_if, book, chosen)
        asked = {
            **chosen,
            "lifetime": what_if.cache_lifetime,
            "is_assumed": bool(what_if.model or what_if.cache_lifetime),
        }
        found = connection.execute(_REPRICED, asked).fetchall()
    finally:
        connection.execute("DROP TABLE what_if_prices")
    return [Repriced(*row) for row in found]


def assumptions(what_if: WhatIf) -> list[str]:
    """Return what a what-if takes for granted, for people."""
    said = []
    if what_if.model:
        said.append(
            f"the same token counts on {canonical_model(what_if.model)}: another model counts tokens, thinks "
            "and answers differently"
        )
    if what_if.cache_lifetime:
        said.append(
            f"the same tokens read and written, the writes at the price of {what_if.cache_lifetime}: "
            "agentobs cache weighs the gaps between calls, too"
        )
    if what_if.batch:
        said.append(
            "every call as a batch: cache hits are as they were, though batches run in any order"
        )
    if what_if.fast:
        said.append("every call in fast mode, whether or not its model offers that")
    return said


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
