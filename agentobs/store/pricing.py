"""Prices in the store: those of every context in which tokens were used, looked up once.

A context that was looked up stays as it was found. One without a price is remembered too, and asked for
again only when the price list has another version.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import duckdb

from agentobs import ledger
from agentobs.ledger import Context, UnitPrices

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


def forget_unknown(connection: duckdb.DuckDBPyConnection) -> list[Context]:
    """Delete the contexts that an other version of the price list did not know, and return them."""
    rows = connection.execute(
        f"""
        DELETE FROM prices WHERE certainty = 'unknown_model' AND price_version <> ?
        RETURNING {_CONTEXT}
        """,
        [ledger.price_version()],
    ).fetchall()
    return [Context(*row) for row in rows]


def add(
    connection: duckdb.DuckDBPyConnection, contexts: Iterable[Context], table: str = "prices"
) -> None:
    """Look contexts up and insert what they cost."""
    rows = [_row(unit) for context in contexts for unit in ledger.resolve(context)]
    if rows:
        marks = ", ".join("?" * len(rows[0]))
        connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)


def _row(unit: UnitPrices) -> list[Any]:
    context, rates = unit.context, unit.rates
    return [
        context.model,
        context.service_tier,
        context.inference_geo,
        context.speed,
        unit.valid_from_ns,
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
    ]
