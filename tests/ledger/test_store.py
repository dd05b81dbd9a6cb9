"""Prices in the store: the current prices apply to all stored calls, whenever they were ingested."""

from __future__ import annotations

import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest

from agentobs.ledger import book_of
from agentobs.ledger.price_book import FILE
from agentobs.recording.journal.home import Home
from agentobs.store.duckdb.connection import connect
from agentobs.store.duckdb.ingest import ingest
from tests.store.recordings import SECOND, T0, a_home, plain, usage_row, write_facts

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
    """Return the cost of the calls in the published file."""
    with plain(home) as connection:
        return money(connection)


def live(home: Home) -> list[tuple[Any, ...]]:
    """Return the cost of all calls, including those that are not ingested yet."""
    with connect(home, ingest=False) as connection:
        return money(connection)


@pytest.mark.slow
def test_new_prices_apply_to_stored_calls(tmp_path: Path) -> None:
    """New prices apply to every stored call: immediately in live queries, and after the next ingest in the published
    file.

    This holds even if there are no new records. The change is reported once.
    """  # fmt: skip
    home = a_home(tmp_path)
    use(home, 1)
    use(home, 2, model="nobody")
    ingest(home)
    assert costs(home) == [(Decimal(4), "exact"), (None, "unknown_model")]
    (home.path / FILE).write_text(OWN.format(9))
    assert live(home) == [(Decimal(9), "exact"), (None, "unknown_model")]
    with pytest.warns(
        RuntimeWarning, match=r"prices changed from .* to .*: 2 calls, \$4.00 -> \$9.00"
    ):
        assert ingest(home).published
    assert costs(home) == live(home) == [(Decimal(9), "exact"), (None, "unknown_model")]
    assert not ingest(home).published
    with plain(home) as connection:
        versions = connection.execute("SELECT DISTINCT price_version FROM costs").fetchall()
    assert versions == [(book_of(home.path).version,)]


@pytest.mark.slow
def test_costs_do_not_depend_on_the_time_of_the_ingest(tmp_path: Path) -> None:
    """A price with a period applies to calls that were sent in the period, and a rebuilt store has the same costs."""
    home = a_home(tmp_path)
    use(home, 1)
    ingest(home)
    (home.path / FILE).write_text(OWN.format(9).replace("input", "until = 2026-10-01\ninput"))
    use(home, 3, at_ns=T0 + 30 * 86_400 * SECOND)
    use(home, 0)  # this call was sent earlier and recorded later
    ingest(home)
    found = costs(home)
    assert found == [(Decimal(usd), "exact") for usd in (9, 9, 4)]
    rebuilt = a_home(tmp_path / "again")
    shutil.copytree(home.segments, rebuilt.segments, dirs_exist_ok=True)
    shutil.copy(home.path / FILE, rebuilt.path)
    ingest(rebuilt)
    assert costs(rebuilt) == found


def test_a_model_gets_a_price_from_a_later_version(tmp_path: Path) -> None:
    """Calls of a model without a price cost NULL, never 0; when a later version of the prices includes the model, all
    its calls have a cost.
    """
    home = a_home(tmp_path)
    use(home, 1, model="my-own-model")
    with pytest.warns(RuntimeWarning, match="no price is known for model my-own-model"):
        ingest(home)
    assert costs(home) == [(None, "unknown_model")]
    text = (
        OWN.format(2).replace("claude-opus-5-5", "my-own-model")
        + "output = 3\ncache_read = 1\ncache_write_5m = 1\ncache_write_1h = 1\n"
    )
    (home.path / FILE).write_text(text)
    use(home, 2, model="my-own-model")
    ingest(home)
    assert costs(home) == [(Decimal(2), "exact")] * 2


def test_all_spellings_of_a_model_have_one_name(tmp_path: Path) -> None:
    """Aliases and dated IDs of one model have one canonical name in the store."""
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


@pytest.mark.slow
def test_an_invalid_price_file_is_reported(tmp_path: Path) -> None:
    """A typo in the home's price file is reported, and stops neither the ingest nor a query.

    Until the file is fixed, calls that have a price keep it, and other calls cost NULL, never a wrong price.
    """  # fmt: skip
    home = a_home(tmp_path)
    use(home, 1)
    ingest(home)
    (home.path / FILE).write_text(OWN.format('"9"'))
    use(home, 2, model="claude-opus-5-5-20260922")
    with pytest.warns(
        RuntimeWarning, match="line 4: input is '9'; expected a number without quotes"
    ):
        ingest(home)
    use(home, 3, model="claude-opus-5.5")
    missing = (None, "unknown_model")
    assert costs(home) == [(Decimal(4), "exact"), missing]
    assert live(home) == [(Decimal(4), "exact"), missing, missing]
    (home.path / FILE).write_text(OWN.format("9"))
    ingest(home)
    assert costs(home) == [(Decimal(9), "exact")] * 3


def test_a_call_whose_tools_have_no_price(tmp_path: Path) -> None:
    """If a call uses server tools without a known price, such as tools that are billed by time, its cost is a lower
    bound.
    """
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
