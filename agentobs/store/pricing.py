"""Prices in the store: those of every context in which tokens were used, looked up once.

A context that was looked up stays as it was found. When the prices are of another version (a newer
genai-prices, another overlay, the user's own file), what was used until then keeps its price, and what is
used from then on gets the new one: the old price ends where the newest call that had it was sent. A model
without a price is asked for again, for all time. `replace` forgets what was found, for those who ask for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import duckdb

from agentobs.ledger import FOREVER, Context, PriceBook, UnitPrices, canonical_model, say_unknown

_CONTEXT = "model, service_tier, inference_geo, speed"


def new_contexts(
    connection: duckdb.DuckDBPyConnection, usage: str, prices: str, segment_ids: Sequence[str]
) -> list[Context]:
    """Return the contexts in these segments' usage that the table `prices` does not know."""
    rows = connection.execute(
        f"""
        SELECT DISTINCT {_CONTEXT} FROM {usage}
        WHERE billed AND model IS NOT NULL AND segment_id IN (SELECT unnest($segment_ids))
        EXCEPT
        SELECT {_CONTEXT} FROM {prices}
        """,
        {"segment_ids": list(segment_ids)},
    ).fetchall()
    return [Context(*row) for row in sorted(rows, key=str)]


def add(
    connection: duckdb.DuckDBPyConnection,
    contexts: Iterable[Context],
    book: PriceBook,
    table: str = "prices",
) -> None:
    """Look contexts up and insert what they cost."""
    _insert(connection, [unit for context in contexts for unit in book.resolve(context)], table)


def is_stale(
    connection: duckdb.DuckDBPyConnection, book: PriceBook, prices: str = "prices"
) -> bool:
    """Return whether some context has prices of another version only."""
    return bool(_stale(connection, book, prices))


def renew(
    connection: duckdb.DuckDBPyConnection,
    book: PriceBook,
    usage: str = "usage",
    prices: str = "prices",
) -> None:
    """Look up anew what has prices of another version; what was used until now keeps the price that it has.

    Call it before new usage is loaded.
    """
    stale = _stale(connection, book, prices)
    if not stale:
        return
    newest = _newest(connection, usage)
    for context, was_known in stale.items():
        since = newest.get(context, -1) + 1 if was_known else 0
        same = f"({_CONTEXT}) IS NOT DISTINCT FROM (?, ?, ?, ?)"
        asked = [context.model, context.service_tier, context.inference_geo, context.speed]
        connection.execute(
            f"DELETE FROM {prices} WHERE {same} AND valid_from_ns >= ?", [*asked, since]
        )
        connection.execute(
            f"UPDATE {prices} SET valid_to_ns = ?, canonical_model = ? WHERE {same} AND valid_to_ns > ?",
            [since, canonical_model(context.model), *asked, since],
        )
        later = (unit for unit in book.resolve(context) if unit.valid_to_ns > since)
        _insert(connection, list(later), prices, since)


def replace(connection: duckdb.DuckDBPyConnection, book: PriceBook) -> int:
    """Look every context up anew, for all time: stored calls get other prices. Returns how many there are."""
    rows = connection.execute(f"SELECT DISTINCT {_CONTEXT} FROM prices").fetchall()
    connection.execute("DELETE FROM prices")
    add(connection, [Context(*row) for row in sorted(rows, key=str)], book)
    return len(rows)


def _stale(
    connection: duckdb.DuckDBPyConnection, book: PriceBook, prices: str
) -> dict[Context, bool]:
    """Return the contexts whose last prices are of another version, and whether they had any."""
    rows = connection.execute(
        f"""
        SELECT {_CONTEXT}, bool_or(certainty <> 'unknown_model') FROM {prices}
        WHERE valid_to_ns = ? AND price_version <> ?
        GROUP BY ALL
        """,
        [FOREVER, book.version],
    ).fetchall()
    return {Context(*row[:4]): row[4] for row in sorted(rows, key=str)}


def _newest(connection: duckdb.DuckDBPyConnection, usage: str) -> dict[Context, int]:
    rows = connection.execute(
        f"SELECT {_CONTEXT}, max(at_ns) FROM {usage} WHERE billed GROUP BY {_CONTEXT}"
    ).fetchall()
    return {Context(*row[:4]): row[4] for row in rows if row[4] is not None}


def _insert(
    connection: duckdb.DuckDBPyConnection,
    units: Sequence[UnitPrices],
    table: str,
    since_ns: int = 0,
) -> None:
    rows = [_row(unit, since_ns) for unit in units]
    for unit in units:
        if unit.certainty == "unknown_model" and unit.valid_to_ns == FOREVER:
            say_unknown(unit.context.model)
    if rows:
        marks = ", ".join("?" * len(rows[0]))
        connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)


def _row(unit: UnitPrices, since_ns: int) -> list[Any]:
    context, rates = unit.context, unit.rates
    return [
        context.model,
        context.service_tier,
        context.inference_geo,
        context.speed,
        max(unit.valid_from_ns, since_ns),
        unit.valid_to_ns,
        unit.prompt_tokens_from,
        unit.prompt_tokens_to,
        rates.input if rates else None,
        rates.output if rates else None,
        rates.cache_read if rates else None,
        rates.cache_write_5m if rates else None,
        rates.cache_write_1h if rates else None,
        rates.web_search if rates else None,
        unit.certainty,
        unit.note,
        unit.price_version,
        canonical_model(context.model),
    ]
