"""Prices in the store: the current prices of all contexts in which tokens were used.

A context is a combination of model, service tier, region and speed. The cost of a call depends only on its time and on
the current price list, not on the day of its ingest. When the version of the price list changes (a newer genai-prices,
another overlay, another user file), all contexts are looked up again for all time, and the effect on the costs is
reported once. Therefore a store that is rebuilt from its segments has the same costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb

from agentobs.errors import AgentobsError, warn_once
from agentobs.ledger import (
    FOREVER,
    Context,
    PriceBook,
    UnitPrices,
    book_of,
    canonical_model,
    warn_unknown_model,
)
from agentobs.recording.journal.home import Home
from agentobs.records.labels import DIGEST
from agentobs.store.private_models import with_digests

_CONTEXT = "model, service_tier, inference_geo, speed"


def new_contexts(
    connection: duckdb.DuckDBPyConnection, usage: str, prices: str, segment_ids: Sequence[str]
) -> list[Context]:
    """Return the contexts in the usage of these segments that have no price yet.

    Args:
        connection: the connection to the store.
        usage: the name of the usage table.
        prices: the name of the price table.
        segment_ids: the segments.
    """
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
    """Look up the prices of contexts and insert them into a table."""
    _insert(connection, [unit for context in contexts for unit in book.resolve(context)], table)


def is_stale(
    connection: duckdb.DuckDBPyConnection, book: PriceBook, prices: str = "prices"
) -> bool:
    """Return whether any stored price has another version than the price book."""
    sql = f"SELECT bool_or(price_version <> ?) FROM {prices}"
    row = connection.execute(sql, [book.version]).fetchone()
    return bool(row and row[0])


def renew(connection: duckdb.DuckDBPyConnection, book: PriceBook) -> None:
    """Look up all contexts of the table `prices` again, for all time."""
    rows = connection.execute(f"SELECT DISTINCT {_CONTEXT} FROM prices").fetchall()
    connection.execute("DELETE FROM prices")
    add(connection, [Context(*row) for row in sorted(rows, key=str)], book)


def renew_and_report(connection: duckdb.DuckDBPyConnection, book: PriceBook) -> None:
    """If the prices have another version, update them, and report once the old and the new cost of stored calls."""
    if not is_stale(connection, book):
        return
    versions = "SELECT string_agg(DISTINCT price_version, ', ' ORDER BY price_version) FROM prices"
    row = connection.execute(versions).fetchone()
    before = _money(connection)
    renew(connection, book)
    after = _money(connection)
    if row and before != after:
        usd = [
            f"${cost:,.2f}" if cost is not None else "no price" for cost in (before[1], after[1])
        ]
        warn_once(
            f"prices changed from {row[0]} to {book.version}: {after[0]:,} calls, {usd[0]} -> {usd[1]}"
        )


class _Unread(PriceBook):
    """The placeholder for a price file that cannot be read; no model has a price in it."""

    def __init__(self) -> None:
        super().__init__()
        self.version = "unread"

    def resolve(self, context: Context) -> list[UnitPrices]:
        unknown = UnitPrices(
            context, 0, FOREVER, 0, FOREVER, None, "unknown_model", _NOT_READ, self.version
        )
        return [unknown]


_NOT_READ = "own prices could not be read"


def readable_book(path: Path) -> PriceBook:
    """Return the price book of a home. If the user's price file is invalid, report it once and return a book without
    prices.

    Recording, ingest and queries continue. The cost of a new call is NULL until the file is fixed.
    """
    try:
        book = book_of(path)
        if book.has_user_file:
            book = with_digests(book, Home(path))
    except AgentobsError as error:
        warn_once(
            f"your prices are ignored: {error} Until the file is fixed, new calls have no cost (NULL).",
            about=f"own prices of {path}",
        )
        return _Unread()
    return book


def is_unread(book: PriceBook) -> bool:
    """Return whether the price file could not be read. Stored prices are then kept."""
    return isinstance(book, _Unread)


def _money(connection: duckdb.DuckDBPyConnection) -> tuple[int, Decimal | None, int]:
    """Return (calls, dollars, calls with a price)."""
    sql = "SELECT count(*), sum(cost_usd), count(cost_usd) FROM costs"
    row = connection.execute(sql).fetchone()
    assert row is not None
    return row[0], row[1], row[2]


def _insert(
    connection: duckdb.DuckDBPyConnection,
    units: Sequence[UnitPrices],
    table: str,
) -> None:
    rows = [_row(unit) for unit in units]
    for unit in units:
        is_last = unit.certainty == "unknown_model" and unit.valid_to_ns == FOREVER
        if is_last and unit.note != _NOT_READ:
            warn_unknown_model(_shown(unit.context.model))
    if rows:
        marks = ", ".join("?" * len(rows[0]))
        connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)


def _shown(model: str) -> str:
    """Return the name of a model for a message."""
    return "<private name> (see `agentobs models`)" if model.startswith(DIGEST) else model


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
        canonical_model(context.model),
    ]
