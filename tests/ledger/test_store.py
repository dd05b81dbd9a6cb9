"""Prices in the store: looked up once, kept for what was stored at them, renewed for what comes later."""

from __future__ import annotations

import itertools
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest

from agentobs.errors import UsageError
from agentobs.ledger import FOREVER, book_of
from agentobs.ledger.book import FILE
from agentobs.recording.home import Home
from agentobs.store import pricing
from agentobs.store.database import connect
from agentobs.store.ingest import ingest
from tests.store.making import SECOND, T0, a_home, plain, usage_row, write_facts

OWN = """
[[price]]
models = ["claude-opus-5-5"]
input = {}
source = "our contract"
checked = 2026-11-22
"""


def use(home: Home, number: int, **changes: Any) -> None:
    """Record a call of a million tokens that was sent `number` seconds after the first."""
    counts = {"input_tokens": 1_000_000, "output_tokens": 0, "cache_read_tokens": 0,
              "cache_write_5m_tokens": 0, "cache_write_1h_tokens": 0, "service_tier": None}  # fmt: skip
    row = usage_row(
        number, **{"model": "claude-opus-5-5", "at_ns": T0 + number * SECOND, **counts, **changes}
    )
    write_facts(home, [row])


def money(connection: duckdb.DuckDBPyConnection) -> list[tuple[Any, ...]]:
    return connection.execute("SELECT cost_usd, cost_status FROM costs ORDER BY at_ns").fetchall()


def costs(home: Home) -> list[tuple[Any, ...]]:
    """What calls cost in the published file."""
    with plain(home) as connection:
        return money(connection)


def live(home: Home) -> list[tuple[Any, ...]]:
    """What calls cost with those that were not ingested yet."""
    with connect(home, ingest=False) as connection:
        return money(connection)


def test_what_was_stored_keeps_its_price(tmp_path: Path) -> None:
    """Other prices hold for later calls, in the live tail as in the next generation; exactly one fits each call."""
    home = a_home(tmp_path)
    use(home, 1)
    ingest(home)
    (home.path / FILE).write_text(OWN.format(9))
    use(home, 2)
    assert live(home) == [(Decimal(4), "exact"), (Decimal(9), "exact")]
    ingest(home)
    assert costs(home) == [(Decimal(4), "exact"), (Decimal(9), "exact")]
    (home.path / FILE).write_text(OWN.format(1))
    use(home, 3)
    use(home, 0)  # sent earlier, told later
    ingest(home)
    assert costs(home) == [(Decimal(usd), "exact") for usd in (4, 4, 9, 1)]
    with plain(home) as connection:
        periods = connection.execute(
            "SELECT valid_from_ns, valid_to_ns FROM prices GROUP BY ALL ORDER BY 1"
        ).fetchall()
        versions = connection.execute("SELECT count(DISTINCT price_version) FROM costs").fetchone()
    assert (periods[0][0], periods[-1][1]) == (0, FOREVER)
    assert all(before[1] == after[0] for before, after in itertools.pairwise(periods))
    assert versions == (3,)


def test_the_store_can_be_priced_anew(tmp_path: Path) -> None:
    """`replace` gives every stored call the price that is in force now."""
    home = a_home(tmp_path)
    use(home, 1)
    use(home, 2, model="nobody")
    ingest(home)
    (home.path / FILE).write_text(OWN.format(9))
    with duckdb.connect(str(home.database.with_name("copy.duckdb"))) as connection:
        connection.execute(f"ATTACH '{home.database}' AS old (READ_ONLY)")
        connection.execute("COPY FROM DATABASE old TO copy")
        assert money(connection) == [(Decimal(4), "exact"), (None, "unknown_model")]
        assert pricing.replace(connection, book_of(home.path)) == 2
        assert money(connection) == [(Decimal(9), "exact"), (None, "unknown_model")]


def test_a_model_without_a_price_is_asked_for_again(tmp_path: Path) -> None:
    """It costs NULL, never 0, until prices of another version know it; then all its calls have a price."""
    home = a_home(tmp_path)
    use(home, 1, model="my-own-model")
    with pytest.warns(RuntimeWarning, match="no price is known for model my-own-model"):
        ingest(home)
    assert costs(home) == [(None, "unknown_model")]
    text = OWN.format(2).replace("claude-opus-5-5", "my-own-model") + "output = 3\n"
    (home.path / FILE).write_text(text)
    use(home, 2, model="my-own-model")
    ingest(home)
    assert costs(home) == [(Decimal(2), "exact")] * 2


def test_one_name_groups_all_ways_to_write_it(tmp_path: Path) -> None:
    """Aliases and dated ids of one model have one canonical name in the store."""
    home = a_home(tmp_path)
    for number, model in enumerate(
        ("claude-opus-5-5", "claude-opus-5-5-20260922", "claude-opus-5.5")
    ):
        use(home, number, model=model)
    ingest(home)
    with plain(home) as connection:
        grouped = connection.execute(
            "SELECT canonical_model, sum(cost_usd), count(*) FROM costs GROUP BY 1"
        )
        assert grouped.fetchall() == [("claude-opus-5-5", Decimal(12), 3)]


def test_prices_that_cannot_be_read(tmp_path: Path) -> None:
    """A typo in the home's prices is one error for whoever ingests or asks; what was recorded is safe."""
    home = a_home(tmp_path)
    use(home, 1)
    (home.path / FILE).write_text(OWN.format('"9"'))
    for door in (ingest, connect):
        with pytest.raises(UsageError, match="expected a number without quotes") as caught:
            door(home)
        assert caught.value.where == f"{home.path / FILE}, line 4"
    (home.path / FILE).unlink()
    ingest(home)
    assert costs(home) == [(Decimal(4), "exact")]


def test_a_call_whose_tools_have_no_price(tmp_path: Path) -> None:
    """What the provider ran beside the model and bills by time, or that we do not know, makes a lower bound."""
    home = a_home(tmp_path)
    use(home, 1, code_execution_requests=1)
    use(home, 2, server_requests={"image_requests": 2})
    use(home, 3, web_fetch_requests=2, web_search_requests=1)
    ingest(home)
    assert costs(home) == [
        (Decimal(4), "lower_bound"),
        (Decimal(4), "lower_bound"),
        (Decimal("4.01"), "exact"),
    ]
