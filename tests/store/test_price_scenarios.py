"""Price scenarios and today's spending: other prices for the same calls, without changes to stored data."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest

from agentobs import wiring, world
from agentobs.ledger import PriceBook, book_of
from agentobs.recording.journal.home import Home
from agentobs.runtime import process
from agentobs.store.backend import open_store
from agentobs.store.billing import daily_spend
from agentobs.store.billing.price_scenarios import Repriced, WhatIf, assumptions, reprice
from agentobs.store.duckdb import price_tables
from agentobs.store.duckdb.connection import connect
from agentobs.store.duckdb.ingest import ingest
from agentobs.store.duckdb.store import DuckStore
from tests.store.recordings import MODEL, SECOND, T0, a_home, session_id, usage_row, write_facts

PLAIN = {"cache_read_tokens": 0, "cache_write_5m_tokens": 0, "cache_write_1h_tokens": 0}
MILLION = 1_000_000


def repriced(home: Home, book: PriceBook | None = None, **what_if: Any) -> list[Repriced]:
    with open_store(home, ingest=False) as store:
        return reprice(store, WhatIf(**what_if), book or book_of(home.path))


def usd(home: Home, **what_if: Any) -> Decimal | None:
    return repriced(home, **what_if)[-1].what_if_usd


def test_the_same_prices_give_the_same_costs(tmp_path: Path) -> None:
    """The same prices give the same costs, by model and in total, to the last digit."""
    home = a_home(tmp_path)
    write_facts(
        home, [usage_row(1), usage_row(2, model="claude-opus-5-5"), usage_row(3, model="nobody")]
    )
    rows = repriced(home)
    assert [row.model for row in rows] == ["claude-opus-5-5", MODEL, "nobody", None]
    assert all(row.stored_usd == row.what_if_usd for row in rows)
    assert [row.difference_usd for row in rows] == [0, 0, None, 0]
    assert (rows[-1].calls, rows[-1].stored_unpriced_calls, rows[-1].what_if_unpriced_calls) == (
        3,
        1,
        1,
    )


@pytest.mark.slow
def test_each_scenario_calculated_by_hand(tmp_path: Path) -> None:
    """A scenario with another model, lifetime, batch or fast mode uses the prices that were published on the day of the
    call.
    """
    home = a_home(tmp_path)
    write_facts(home, [usage_row(1, model="claude-opus-5-5", **{**PLAIN, "input_tokens": MILLION, "output_tokens": 0,
                                                                "cache_write_5m_tokens": MILLION})])  # fmt: skip
    assert usd(home) == Decimal("4") + Decimal("5")
    assert usd(home, model=MODEL) == Decimal("2") + Decimal("2.5")
    assert usd(home, cache_lifetime="1h") == Decimal("4") + Decimal("8")
    assert usd(home, batch=True) == (Decimal("4") + Decimal("5")) / 2
    assert usd(home, fast=True) == 2 * (Decimal("4") + Decimal("5"))


def test_price_tiers_of_the_other_model(tmp_path: Path) -> None:
    """Each call is priced at the tier of its own prompt, not at the tier of the sum."""
    home = a_home(tmp_path)
    sizes = (60_000, 60_000, 120_000)
    write_facts(
        home,
        [
            usage_row(n, **{**PLAIN, "input_tokens": size, "output_tokens": 0})
            for n, size in enumerate(sizes)
        ],
    )
    small, large = Decimal("0.1") / MILLION, Decimal("0.5") / MILLION
    assert usd(home, model="claude-haiku-5-5") == 120_000 * small + 120_000 * large


def test_calls_are_selected_by_time_and_session(tmp_path: Path) -> None:
    """Only the calls of the chosen range and session are repriced."""
    home = a_home(tmp_path)
    write_facts(
        home,
        [usage_row(n, at_ns=T0 + n * SECOND, session_id=session_id(1 + n % 2)) for n in range(6)],
    )
    assert repriced(home, since_ns=T0 + 2 * SECOND)[-1].calls == 4
    assert repriced(home, until_ns=T0 + 2 * SECOND)[-1].calls == 2
    assert repriced(home, session_ids=(session_id(2),))[-1].calls == 3
    assert (
        repriced(
            home, since_ns=T0 + SECOND, until_ns=T0 + 5 * SECOND, session_ids=(session_id(1),)
        )[-1].calls
        == 2
    )
    assert repriced(home, since_ns=T0 + 99 * SECOND)[-1].calls == 0


def test_stored_data_is_unchanged(tmp_path: Path) -> None:
    """A scenario does not change the store file, the prices or the costs."""
    home = a_home(tmp_path)
    write_facts(home, [usage_row(1)])
    ingest(home)
    before = home.database.read_bytes()
    with connect(home, ingest=False) as connection:
        costs = connection.execute("FROM costs").fetchall()
        reprice(
            DuckStore(connection, home),
            WhatIf(model="claude-opus-5-5", batch=True),
            book_of(home.path),
        )
        assert connection.execute("FROM costs").fetchall() == costs
        assert connection.execute(
            "SELECT count(*) FROM duckdb_tables() WHERE temporary"
        ).fetchone() == (0,)
    assert home.database.read_bytes() == before


def test_certainty_and_assumptions(tmp_path: Path) -> None:
    """Calls that are not exact are not exact in a scenario; on another model, the token counts of all calls are
    assumptions.
    """
    home = a_home(tmp_path)
    write_facts(home, [usage_row(1), usage_row(2, certainty="lower_bound")])
    assert repriced(home, batch=True)[-1].what_if_not_exact_calls == 1
    assert repriced(home, model="claude-opus-5-5")[-1].what_if_not_exact_calls == 2
    assert assumptions(WhatIf()) == []
    [assumption] = assumptions(WhatIf(model="claude-opus-5-5"))
    assert assumption.startswith("the same token counts on claude-opus-5-5")
    assert len(assumptions(WhatIf(cache_lifetime="1h", batch=True, fast=True))) == 3


@pytest.fixture
def today(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A clock that a test can move, in seconds since T0."""
    clock = [0]
    monkeypatch.setattr(world, "now", lambda: T0 + clock[0] * SECOND)
    monkeypatch.setattr(world, "monotonic", lambda: clock[0] * SECOND)
    process.state(daily_spend.State).known.clear()
    return clock


def test_spending_of_all_processes_today(tmp_path: Path, today: list[int]) -> None:
    """The spending of this day (UTC) includes records of other processes and records that are not ingested yet."""
    home = a_home(tmp_path)
    midnight = T0 - T0 % (86_400 * SECOND)
    rows = [
        usage_row(1, at_ns=midnight - 1),
        usage_row(2, at_ns=midnight),
        usage_row(3, at_ns=T0, model="nobody"),
    ]
    write_facts(home, rows)
    with connect(home, ingest=False) as connection:
        [(one,)] = connection.execute(
            "SELECT cost_usd FROM costs WHERE cost_usd > 0 LIMIT 1"
        ).fetchall()
    assert daily_spend.spent(midnight, home) == (one, 1)
    write_facts(home, [usage_row(4, at_ns=T0)], close=False)
    assert wiring.spent_today(home.path) == one  # the result is cached
    today[0] += 3
    assert wiring.spent_today(home.path) == 2 * one
    today[0] += 86_400
    assert wiring.spent_today(home.path) == 0


def test_spent_today_never_raises(
    tmp_path: Path, today: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without recordings, the spending is 0; if the store cannot be queried, the last result is returned with a
    warning.
    """
    assert wiring.spent_today(tmp_path / "nowhere") == 0
    home = a_home(tmp_path)
    write_facts(home, [usage_row(1, at_ns=T0)])
    known = wiring.spent_today(home.path)
    assert known > 0
    today[0] += 3
    home.database.chmod(0o600)
    home.database.write_bytes(b"somebody else's file")
    home.manifest.unlink()
    with pytest.warns(RuntimeWarning, match="today's spending is unknown"):
        assert wiring.spent_today(home.path) == known


@pytest.mark.parametrize(
    ("versions", "stale"), [([], False), (["now"], False), (["now", "old"], True)]
)
def test_stored_prices_of_another_version_are_stale(versions: list[str], stale: bool) -> None:
    """Stored prices are stale if any of them has another version than the price book."""
    book = PriceBook()
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE prices (price_version VARCHAR)")
        for each in versions:
            version = book.version if each == "now" else each
            connection.execute("INSERT INTO prices VALUES (?)", [version])
        assert price_tables.is_stale(connection, book) is stale
