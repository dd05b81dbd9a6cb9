"""The cost of queries of ten million calls, compared with hand-written SQL on plain tables with the same rows."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import duckdb

from agentobs.ledger import book_of
from agentobs.recording.journal.home import Home, open_home
from agentobs.store.billing.daily_spend import spent
from agentobs.store.duckdb import generations, price_tables
from agentobs.store.duckdb.connection import connect, named
from agentobs.store.duckdb.schema import SETTINGS, migrate
from benchmarks.measure import peak_kb
from benchmarks.report import Section, Verdict

CALLS = 10_000_000
ROUNDS = 3
WARM = 7
FIRST_NS = 1_790_000_000_000_000_000
"""2026-09-21. The calls span 29 days, with one call every quarter of a second."""
STEP_NS = 250_000_000
LAST_DAY_NS = FIRST_NS + (CALLS - 20_000) * STEP_NS

STORE, JOINED, PRECOMPUTED = (
    "agentobs store",
    "plain table, joined with prices",
    "plain table, precomputed costs",
)
BY_MODEL_DAY = "cost by model and day"
CACHE, TODAY, SPENT = "cache hit ratio, worst 100 sessions", "spent since yesterday", "spent()"

_TOKENS = "count(*), sum(input_tokens), sum(output_tokens), sum(cache_read_tokens), sum(cache_write_tokens)"
_SUMS = f"{_TOKENS}, sum(cost_usd), count(*) FILTER (WHERE cost_status <> 'exact')"
_RATIO = (
    "SELECT session_id, sum(cache_read_tokens) / sum(input_tokens + cache_read_tokens + {written}) AS ratio "
    "FROM {table} GROUP BY session_id ORDER BY ratio NULLS LAST, session_id LIMIT 100"
)
_BY_HAND = f"""
    WITH priced AS (
        SELECT u.model, u.at_ns, input_tokens, output_tokens, cache_read_tokens,
            cache_write_5m_tokens + cache_write_1h_tokens AS cache_write_tokens,
            input_tokens * p.input_each + output_tokens * p.output_each + cache_read_tokens * p.read_each
            + cache_write_5m_tokens * p.write_5m_each + cache_write_1h_tokens * p.write_1h_each
            + web_search_requests * p.search_each AS cost_usd,
            CASE WHEN p.certainty = 'exact' THEN u.certainty ELSE p.certainty END AS cost_status
        FROM plain_usage AS u LEFT JOIN plain_prices AS p
            ON u.model = p.model AND u.service_tier IS NOT DISTINCT FROM p.service_tier
            AND u.inference_geo IS NOT DISTINCT FROM p.inference_geo AND u.speed IS NOT DISTINCT FROM p.speed
            AND u.at_ns >= p.valid_from_ns AND u.at_ns < p.valid_to_ns
            AND input_tokens + cache_read_tokens + cache_write_5m_tokens + cache_write_1h_tokens >= p.prompt_tokens_from
            AND input_tokens + cache_read_tokens + cache_write_5m_tokens + cache_write_1h_tokens < p.prompt_tokens_to
    )
    SELECT model, at_ns // 86400000000000 AS day, {_SUMS} FROM priced GROUP BY ALL
"""
QUERIES: dict[tuple[str, str], str] = {
    (BY_MODEL_DAY, STORE): "cost_by_model_and_day",
    (BY_MODEL_DAY, JOINED): _BY_HAND,
    (BY_MODEL_DAY, PRECOMPUTED): f"SELECT model, at_ns // 86400000000000 AS day, {_SUMS} FROM plain GROUP BY ALL",
    (CACHE, STORE): "cache_efficiency",
    (CACHE, PRECOMPUTED): _RATIO.format(table="plain", written="cache_write_tokens"),
    (TODAY, STORE): "spent_today",
    (TODAY, PRECOMPUTED): (
        f"SELECT sum(cost_usd), count(*) FILTER (WHERE cost_status <> 'exact') FROM plain WHERE at_ns >= {LAST_DAY_NS}"
    ),
}  # fmt: skip


def sections() -> Iterator[Section]:
    """Create the rows, run the queries in separate processes, and compare."""
    with tempfile.TemporaryDirectory() as folder:
        home = open_home(Path(folder) / "home")
        _fill(home, Path(folder))
        found: dict[tuple[str, str], list[dict[str, float]]] = {key: [] for key in QUERIES}
        for _ in range(ROUNDS):
            for key in QUERIES:
                found[key].append(_measured(folder, key))
        spent_results = [_measured(folder, (SPENT, STORE)) for _ in range(ROUNDS)]
    yield _section(found, spent_results)


def _fill(home: Home, folder: Path) -> None:
    """Publish a store with `CALLS` calls, and write the same rows as plain tables into another file."""
    path = folder / "draft.duckdb"
    with duckdb.connect(str(path), config=SETTINGS) as connection:
        migrate(connection)
        connection.execute(_ROWS)
        price_tables.add(
            connection,
            price_tables.new_contexts(connection, "usage", "prices", ["made"]),
            book_of(home.path),
        )
        connection.execute(f"ATTACH '{folder / 'plain.duckdb'}' AS other")
        connection.execute(
            f"CREATE TABLE other.plain AS SELECT session_id, model, at_ns, {_NAMES}, cost_usd, cost_status FROM costs"
        )
        connection.execute("CREATE TABLE other.plain_usage AS SELECT * FROM usage WHERE billed")
        connection.execute(
            "CREATE TABLE other.plain_prices AS SELECT * EXCLUDE (certainty), certainty, "
            + ", ".join(
                f"{name} * 0.000001::DECIMAL(7, 6) AS {short}_each" for name, short in _EACH
            )
            + ", web_search_usd_per_thousand * 0.001000::DECIMAL(7, 6) AS search_each FROM prices"
        )
        connection.execute("CHECKPOINT")
        connection.execute("CHECKPOINT other")
    with generations.locked(home, 10):
        generations.publish(home, path, 0, None)


_NAMES = "input_tokens, output_tokens, cache_read_tokens, cache_write_tokens"
_EACH = (
    ("input_usd_per_million", "input"),
    ("output_usd_per_million", "output"),
    ("cache_read_usd_per_million", "read"),
    ("cache_write_5m_usd_per_million", "write_5m"),
    ("cache_write_1h_usd_per_million", "write_1h"),
)
_ROWS = f"""
    INSERT INTO usage BY NAME SELECT
        'made' AS segment_id, i AS sequence, md5((i // 60)::VARCHAR) AS session_id, md5(i::VARCHAR) AS attempt_id,
        {FIRST_NS} + i * {STEP_NS} AS at_ns, 0 AS iteration, 'message' AS kind, true AS billed,
        ['claude-sonnet-5-5', 'claude-opus-5-5', 'claude-haiku-5-5', 'claude-fable-5-2', 'in-house-1'][1 + i % 97 % 5]
            AS model,
        hash(i) % 3000 AS input_tokens, hash(i + 1) % 2000 AS output_tokens, hash(i + 2) % 120000 AS cache_read_tokens,
        hash(i + 3) % 3000 AS cache_write_5m_tokens, hash(i + 4) % 1000 AS cache_write_1h_tokens,
        0 AS web_search_requests, 'standard' AS service_tier, 'exact' AS certainty
    FROM range({CALLS}) AS made(i)
"""


def _measured(folder: str, key: tuple[str, str]) -> dict[str, float]:
    """Run a query in a new process; return its cold time, warm time and memory."""
    completed = subprocess.run(
        [sys.executable, "-m", "benchmarks.queries", folder, json.dumps(key)],
        check=True,
        capture_output=True,
        text=True,
    )
    result: dict[str, float] = json.loads(completed.stdout)
    return result


def _child(folder: str, key: tuple[str, str]) -> dict[str, float]:
    if key == (SPENT, STORE):
        return _child_spent(folder)
    before = peak_kb()
    started = time.perf_counter()
    connection = _open(folder, key[1])
    _query(connection, key)
    cold = time.perf_counter() - started
    warm = []
    for _ in range(WARM):
        started = time.perf_counter()
        _query(connection, key)
        warm.append(time.perf_counter() - started)
    peak = peak_kb()
    return {"cold": cold * 1e3, "warm": median(warm) * 1e3, "mb": (peak - before) / 1024}


def _child_spent(folder: str) -> dict[str, float]:
    home = Home(Path(folder) / "home")
    started = time.perf_counter()
    spent(LAST_DAY_NS, home)
    cold = time.perf_counter() - started
    started = time.perf_counter()
    for _ in range(1000):
        spent(LAST_DAY_NS, home)
    return {"cold": cold * 1e3, "warm": time.perf_counter() - started, "mb": 0.0}


def _open(folder: str, source: str) -> duckdb.DuckDBPyConnection:
    if source == STORE:
        return connect(Path(folder) / "home", ingest=False)
    return duckdb.connect(str(Path(folder) / "plain.duckdb"), read_only=True)


def _query(connection: duckdb.DuckDBPyConnection, key: tuple[str, str]) -> list[Any]:
    sql = QUERIES[key]
    if " " in sql:
        return connection.execute(sql).fetchall()
    parameters = {"since_ns": LAST_DAY_NS} if sql == "spent_today" else {}
    return named(connection, sql, **parameters).fetchall()


def _section(
    found: dict[tuple[str, str], list[dict[str, float]]], spent_results: list[dict[str, float]]
) -> Section:
    def median_of(key: tuple[str, str], part: str) -> float:
        return float(median(each[part] for each in found[key]))

    def warm_ratio(key: tuple[str, str], floor: tuple[str, str]) -> float:
        pairs = zip(found[key], found[floor], strict=True)
        return float(median(a["warm"] / b["warm"] for a, b in pairs))

    rows = tuple(
        (
            query,
            source,
            *(f"{median_of((query, source), part):,.0f}" for part in ("cold", "warm", "mb")),
        )
        for query, source in QUERIES
    )
    cached = median(each["warm"] for each in spent_results)
    uncached = median(each["cold"] for each in spent_results)
    rows += (
        (
            f"{SPENT}, uncached / cached",
            STORE,
            f"{uncached:,.0f}",
            f"{cached:.4f}",
            "",
        ),
    )
    measured = (BY_MODEL_DAY, STORE)
    return Section(
        f"Queries with {CALLS:,} calls",
        f"{ROUNDS} rounds, each query in a separate process; milliseconds. Cold: from connecting until the last row, "
        f"with the file in the system's cache. Warm: the median of {WARM} more queries. Memory: MB in addition to "
        "the interpreter and its imports. The plain tables contain the same rows: one is joined with prices, the "
        "other contains precomputed costs.",
        ("query", "source", "cold", "warm", "memory"),
        rows,
        (
            Verdict(f"{BY_MODEL_DAY}, cold", 1000.0, median_of(measured, "cold"), "{:.0f} ms", _WHY),
            Verdict(f"{BY_MODEL_DAY}, memory", 500.0, median_of(measured, "mb"), "{:.0f} MB", _WHY),
            Verdict(
                f"{BY_MODEL_DAY}, warm, divided by hand-written SQL that joins the prices",
                1.2,
                warm_ratio(measured, (BY_MODEL_DAY, JOINED)),
                "{:.2f}",
                _WHY,
            ),
            Verdict(
                f"{CACHE}, warm, divided by hand-written SQL",
                1.2,
                warm_ratio((CACHE, STORE), (CACHE, PRECOMPUTED)),
                "{:.2f}",
                "The query of agentobs also calculates the savings and their certainty.",
            ),
        ),
    )  # fmt: skip


_WHY = "Each row is joined with the price of its day and size, and connecting reads the catalog and new records."

if __name__ == "__main__":
    print(json.dumps(_child(sys.argv[1], tuple(json.loads(sys.argv[2])))))
