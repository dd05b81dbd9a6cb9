"""Unit prices are exact and have no gaps in any context, and costs are computed from them in SQL."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import genai_prices
import pytest
from genai_prices.data_snapshot import get_snapshot
from hypothesis import given, settings
from hypothesis import strategies as st

from agentobs.ledger import FOREVER, Context, UnitPrices, price_version, resolve
from agentobs.store.duckdb.connection import connect
from agentobs.store.duckdb.ingest import ingest
from tests.store.recordings import SECOND, T0, a_home, plain, usage_row, write_facts

MODELS = [m.id for p in get_snapshot().providers if p.id == "anthropic" for m in p.models]
CLASSES = ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h")


def at_instant(prices: list[UnitPrices], at_ns: int, prompt: int) -> UnitPrices:
    """Return the only price that applies, or fail."""
    [found] = [
        p
        for p in prices
        if p.valid_from_ns <= at_ns < p.valid_to_ns
        and p.prompt_tokens_from <= prompt < p.prompt_tokens_to
    ]
    return found


def money(unit: UnitPrices, counts: dict[str, int], searches: int) -> Decimal:
    assert unit.rates is not None
    total = sum((getattr(unit.rates, name) * counts[name] for name in CLASSES), Decimal(0))
    return total / 1_000_000 + unit.rates.web_search * searches / 1000


tokens = st.integers(0, 400_000)


@settings(max_examples=150, deadline=None)
@given(
    model=st.sampled_from(MODELS),
    counts=st.fixed_dictionaries(dict.fromkeys(CLASSES, tokens)),
    searches=st.integers(0, 5),
    at_ns=st.integers(1_740_000_000, 1_800_000_000).map(lambda s: s * SECOND),
    tier=st.sampled_from([None, "standard", "batch"]),
    speed=st.sampled_from([None, "standard", "fast"]),
)
def test_costs_equal_those_of_genai_prices(
    model: str,
    counts: dict[str, int],
    searches: int,
    at_ns: int,
    tier: str | None,
    speed: str | None,
) -> None:
    """For all prices that genai-prices lists, unit prices times tokens exactly equal the sums of genai-prices."""
    prompt = sum(counts[name] for name in CLASSES) - counts["output"]
    unit = at_instant(resolve(Context(model, tier, None, speed)), at_ns, prompt)
    if unit.note is not None:
        return
    context = (
        {"processing": "batch"} if tier == "batch" else {"speed": "fast"} if speed == "fast" else {}
    )
    lists_searches = get_snapshot().find_provider_model(model, None, "anthropic", None)[1]
    list_usage: dict[str, Any] = {
        "input_tokens": prompt,
        "output_tokens": counts["output"],
        "cache_read_tokens": counts["cache_read"],
        "cache_write_tokens": counts["cache_write_5m"] + counts["cache_write_1h"],
        "cache_write_1h_tokens": counts["cache_write_1h"],
        "web_searches": searches,
    }
    expected = genai_prices.calc_price(
        genai_prices.Usage(**list_usage),
        model,
        provider_id="anthropic",
        genai_request_timestamp=datetime.fromtimestamp(at_ns // SECOND, UTC),
        price_context=context,
    ).total_price
    price = lists_searches.get_prices(datetime.fromtimestamp(at_ns // SECOND, UTC), context)
    if price.web_searches_kcount is None:
        expected += Decimal(10) * searches / 1000
    assert money(unit, counts, searches) == expected


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("geo", [None, "us"])
@pytest.mark.parametrize("tier", [None, "batch", "priority"])
def test_unit_prices_have_no_gaps_and_are_not_rounded(
    model: str, geo: str | None, tier: str | None
) -> None:
    """The periods and sizes of a context cover everything exactly once, and their prices fit their columns without
    rounding.
    """
    prices = resolve(Context(model, tier, geo))
    periods = sorted({(p.valid_from_ns, p.valid_to_ns) for p in prices})
    assert periods[0][0] == 0
    assert periods[-1][1] == FOREVER
    for (_, before), (after, _) in itertools.pairwise(periods):
        assert before == after
    for period in periods:
        sizes = sorted(
            (p.prompt_tokens_from, p.prompt_tokens_to)
            for p in prices
            if (p.valid_from_ns, p.valid_to_ns) == period
        )
        assert sizes[0][0] == 0
        assert sizes[-1][1] == FOREVER
        assert all(a[1] == b[0] for a, b in itertools.pairwise(sizes))
    assert not any("rounded" in (p.note or "") for p in prices)
    assert {p.price_version for p in prices} == {price_version()}


def test_a_tier_applies_to_the_whole_prompt() -> None:
    """One token beyond the size of a tier makes the whole prompt cost the price of the next tier."""
    prices = resolve(Context("claude-haiku-5-5"))
    small, large = at_instant(prices, T0, 100_000), at_instant(prices, T0, 100_001)
    assert small.rates is not None
    assert large.rates is not None
    assert (small.rates.input, large.rates.input) == (Decimal("0.1"), Decimal("0.5"))
    assert (small.rates.output, large.rates.output) == (Decimal("0.5"), Decimal("2.5"))


@pytest.mark.parametrize(
    ("context", "input_price", "certainty", "note"),
    [
        (Context("claude-opus-5-5"), "4", "exact", None),
        (Context("claude-opus-5-5", "standard", "global", "standard"), "4", "exact", None),
        (
            Context("claude-opus-5-5", None, "us"),
            "4.4",
            "exact",
            "times 1.1 (us)",
        ),
        (Context("claude-opus-4-5", None, "us"), "5", "exact", None),
        (Context("claude-opus-4-5", None, "not_available"), "5", "exact", None),
        (Context("claude-opus-5[1m]"), "5", "exact", None),
        (Context("claude-opus-4-latest"), "15", "exact", None),
        (
            Context("anthropic/claude-opus-4.6"),
            "5",
            "estimated",
            "the listed price of claude-opus-4-6",
        ),
        (Context("claude-v1.3"), "8", "estimated", "the listed price of claude-v1"),
        (Context("bedrock/us.anthropic.claude-sonnet-4-5-20250929-v1:0"), "3.3", "exact", None),
        (Context("claude-opus-5-5", "batch"), "2", "exact", "times 0.5 (batch)"),
        (Context("claude-fable-5-2", "batch"), "4", "exact", None),
        (Context("claude-opus-5-5", None, None, "fast"), "8", "exact", None),
        (
            Context("claude-sonnet-5", None, None, "fast"),
            "2",
            "estimated",
            "no price is listed for speed fast: taken as standard",
        ),
        (
            Context("claude-opus-5-5", "priority", "eu"),
            "4",
            "estimated",
            "no price is listed for service_tier priority: taken as standard; "
            "no price is listed for inference_geo eu: taken as standard",
        ),
        (
            Context("claude-fable-5-2", "batch", None, "fast"),
            "4",
            "estimated",
            "no price is listed for batch and fast together: taken as batch",
        ),
        (
            Context("claude-opus-5-5", "batch", "us"),
            "2.2",
            "exact",
            "times 1.1 (us); times 0.5 (batch)",
        ),
    ],
)
def test_the_context_changes_the_rate(
    context: Context, input_price: str, certainty: str, note: str | None
) -> None:
    """Geography, batch and speed change the unit price; if a context has no listed price, the price is an estimate with
    a note.
    """
    unit = at_instant(resolve(context), T0, 1)
    assert unit.rates is not None
    assert (unit.rates.input, unit.certainty, unit.note) == (Decimal(input_price), certainty, note)
    assert unit.rates.web_search == 10


def test_a_listed_batch_price_replaces_the_factor() -> None:
    """A batch price is used from the day on which it is listed; before, the price is half of the standard price."""
    prices = resolve(Context("claude-opus-5-5", "batch"))
    assert [(str(p.rates and p.rates.input), p.note) for p in prices] == [
        ("2.0", "times 0.5 (batch)"),
        ("2", None),
    ]


def test_an_unknown_model_has_no_price() -> None:
    """A model that is not listed has no known cost."""
    assert resolve(Context("nobody")) == [
        UnitPrices(
            Context("nobody"),
            0,
            FOREVER,
            0,
            FOREVER,
            None,
            "unknown_model",
            None,
            price_version(),
        )
    ]


def test_the_cost_of_every_call_in_sql(tmp_path: Path) -> None:
    """The cost of each call in SQL is exactly the unit prices in the file times the units, for each part."""
    home = a_home(tmp_path)
    rows = [
        usage_row(
            number,
            model=model,
            at_ns=T0 + number * 12 * 3600 * SECOND,
            input_tokens=number * 977 % 150_000,
            output_tokens=number * 31 % 9_000,
            cache_read_tokens=number * 7_919 % 120_000,  # more than the uncached input
            cache_write_5m_tokens=number * 13 % 700,
            cache_write_1h_tokens=number * 17 % 300,
            web_search_requests=number % 3,
            service_tier=("standard", "batch", None)[number % 3],
            inference_geo=(None, "us", "global")[number // 3 % 3],
            speed=(None, "fast")[number // 9 % 2],
        )
        for number, model in enumerate(MODELS * 4)
    ]
    write_facts(home, rows)
    ingest(home)
    with plain(home) as connection:
        found = connection.execute("FROM prices")
        names = [column[0] for column in found.description]
        prices = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
        found = connection.execute("FROM costs ORDER BY at_ns")
        names = [column[0] for column in found.description]
        costs = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
    assert len(costs) == len(rows)
    for row, cost in zip(rows, costs, strict=True):
        expected = by_hand(row, prices)
        assert {name: cost[name] for name in expected} == expected
        assert cost["cost_usd"] == sum(expected.values())
        assert cost["cache_write_tokens"] == row.cache_write_5m_tokens + row.cache_write_1h_tokens


def by_hand(row: Any, prices: list[dict[str, Any]]) -> dict[str, Decimal]:
    prompt = (
        row.input_tokens
        + row.cache_read_tokens
        + row.cache_write_5m_tokens
        + row.cache_write_1h_tokens
    )
    context = ("model", "service_tier", "inference_geo", "speed")
    [price] = [
        price
        for price in prices
        if all(price[name] == getattr(row, name) for name in context)
        and price["valid_from_ns"] <= row.at_ns < price["valid_to_ns"]
        and price["prompt_tokens_from"] <= prompt < price["prompt_tokens_to"]
    ]
    parts = {
        f"{name}_usd": price[f"{name}_usd_per_million"] * getattr(row, f"{name}_tokens") / 1_000_000
        for name in CLASSES
    }
    searches = price["web_search_usd_per_thousand"] * row.web_search_requests / 1000
    return {**parts, "server_tools_usd": searches}


def test_money_is_never_a_float(tmp_path: Path) -> None:
    """Every money column in the views is DECIMAL(38,12), and sums keep all twelve decimal places."""
    home = a_home(tmp_path)
    write_facts(home, [usage_row(n, input_tokens=1, output_tokens=0, cache_read_tokens=0,
                                 cache_write_5m_tokens=0, cache_write_1h_tokens=0,
                                 model="claude-haiku-5-5") for n in range(3)])  # fmt: skip
    with connect(home) as connection:
        kinds = connection.execute(
            "SELECT DISTINCT data_type FROM duckdb_columns() WHERE column_name LIKE '%\\_usd' ESCAPE '\\'"
        )
        assert kinds.fetchall() == [("DECIMAL(38,12)",)]
        total = connection.execute("SELECT sum(cost_usd) FROM costs").fetchone()
        assert total == (Decimal("0.000000300000"),)
