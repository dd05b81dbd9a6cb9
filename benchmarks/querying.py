"""What asking the store costs at ten million calls, beside hand-written SQL on a plain table of the same rows."""

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
from benchmarks.report import Section, Verdict

CALLS = 10_000_000
ROUNDS = 3
WARM = 7
FIRST_NS = 1_790_000_000_000_000_000
"""2026-09-21. A call each quarter of a second: 29 days."""
STEP_NS = 250_000_000
LAST_DAY_NS = FIRST_NS + (CALLS - 20_000) * STEP_NS

STORE, JOINED, WORKED_OUT = (
    "our store",
    "by hand, prices joined",
    "by hand, money worked out before",
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
    (BY_MODEL_DAY, WORKED_OUT): f"SELECT model, at_ns // 86400000000000 AS day, {_SUMS} FROM plain GROUP BY ALL",
    (CACHE, STORE): "cache_efficiency",
    (CACHE, WORKED_OUT): _RATIO.format(table="plain", written="cache_write_tokens"),
    (TODAY, STORE): "spent_today",
    (TODAY, WORKED_OUT): (
        f"SELECT sum(cost_usd), count(*) FILTER (WHERE cost_status <> 'exact') FROM plain WHERE at_ns >= {LAST_DAY_NS}"
    ),
}  # fmt: skip


def sections() -> Iterator[Section]:
    """Make the rows, ask in processes of their own, and compare."""
    with tempfile.TemporaryDirectory() as folder:
        home = open_home(Path(folder) / "home")
        _fill(home, Path(folder))
        found: dict[tuple[str, str], list[dict[str, float]]] = {key: [] for key in QUERIES}
        for _ in range(ROUNDS):
            for key in QUERIES:
                found[key].append(_asked(folder, key))
        again = [_asked(folder, (SPENT, STORE)) for _ in range(ROUNDS)]
    yield _section(found, again)


def _fill(home: Home, folder: Path) -> None:
    """Publish a store of so many calls, and write the same rows as plain tables into a file beside it."""
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


def _asked(folder: str, key: tuple[str, str]) -> dict[str, float]:
    """Ask in a new process: cold, then warm, and how much memory it took."""
    told = subprocess.run(
        [sys.executable, "-m", "benchmarks.querying", folder, json.dumps(key)],
        check=True,
        capture_output=True,
        text=True,
    )
    answer: dict[str, float] = json.loads(told.stdout)
    return answer


def _child(folder: str, key: tuple[str, str]) -> dict[str, float]:
    if key == (SPENT, STORE):
        return _child_spent(folder)
    before = _peak_kb()
    started = time.perf_counter()
    connection = _open(folder, key[1])
    _ask(connection, key)
    cold = time.perf_counter() - started
    warm = []
    for _ in range(WARM):
        at = time.perf_counter()
        _ask(connection, key)
        warm.append(time.perf_counter() - at)
    peak = _peak_kb()
    return {"cold": cold * 1e3, "warm": median(warm) * 1e3, "mb": (peak - before) / 1024}


def _peak_kb() -> int:
    """Return the most memory that this process has had. `getrusage` would tell that of its parent, too."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def _child_spent(folder: str) -> dict[str, float]:
    home = Home(Path(folder) / "home")
    at = time.perf_counter()
    spent(LAST_DAY_NS, home)
    cold = time.perf_counter() - at
    at = time.perf_counter()
    for _ in range(1000):
        spent(LAST_DAY_NS, home)
    return {"cold": cold * 1e3, "warm": time.perf_counter() - at, "mb": 0.0}


def _open(folder: str, who: str) -> duckdb.DuckDBPyConnection:
    if who == STORE:
        return connect(Path(folder) / "home", ingest=False)
    return duckdb.connect(str(Path(folder) / "plain.duckdb"), read_only=True)


def _ask(connection: duckdb.DuckDBPyConnection, key: tuple[str, str]) -> list[Any]:
    sql = QUERIES[key]
    if " " in sql:
        return connection.execute(sql).fetchall()
    chosen = {"since_ns": LAST_DAY_NS} if sql == "spent_today" else {}
    return named(connection, sql, **chosen).fetchall()


def _section(
    found: dict[tuple[str, str], list[dict[str, float]]], again: list[dict[str, float]]
) -> Section:
    def least(key: tuple[str, str], what: str) -> float:
        return float(median(each[what] for each in found[key]))

    def times(key: tuple[str, str], floor: tuple[str, str]) -> float:
        pairs = zip(found[key], found[floor], strict=True)
        return float(median(ours["warm"] / hand["warm"] for ours, hand in pairs))

    rows = tuple(
        (query, who, *(f"{least((query, who), what):,.0f}" for what in ("cold", "warm", "mb")))
        for query, who in QUERIES
    )
    kept = median(each["warm"] for each in again)
    asked = median(each["cold"] for each in again)
    rows += (
        (
            f"{SPENT}, asked anew / an answer that is kept",
            STORE,
            f"{asked:,.0f}",
            f"{kept:.4f}",
            "",
        ),
    )
    ours = (BY_MODEL_DAY, STORE)
    return Section(
        f"Asking about {CALLS:,} calls",
        f"{ROUNDS} rounds, each query in a process of its own; milliseconds. Cold: from connecting to the last row, "
        f"the file in the system's cache; warm: the median of {WARM} more. Memory beyond the interpreter with its "
        "imports, MB. Plain tables hold the same rows, once with prices to join, once with the money worked out when "
        "they were made.",
        ("query", "asked of", "cold", "warm", "memory"),
        rows,
        (
            Verdict(f"{BY_MODEL_DAY}, cold", 1000.0, least(ours, "cold"), "{:.0f} ms", _WHY),
            Verdict(f"{BY_MODEL_DAY}, memory", 500.0, least(ours, "mb"), "{:.0f} MB", _WHY),
            Verdict(
                f"{BY_MODEL_DAY}, over hand-written SQL that joins the prices, warm",
                1.2,
                times(ours, (BY_MODEL_DAY, JOINED)),
                "{:.2f}",
                _WHY,
            ),
            Verdict(
                f"{CACHE}, over hand-written SQL, warm",
                1.2,
                times((CACHE, STORE), (CACHE, WORKED_OUT)),
                "{:.2f}",
                "Ours works out what was saved and how sure that is, too.",
            ),
        ),
    )  # fmt: skip


_WHY = "Each row is joined with the price of its day and size, and connecting reads the catalog and the tail."

if __name__ == "__main__":
    print(json.dumps(_child(sys.argv[1], tuple(json.loads(sys.argv[2])))))
