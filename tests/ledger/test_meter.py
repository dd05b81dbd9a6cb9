"""Costs and sums are exact to the last digit, for any order of calls, in the meter and in the store."""

from __future__ import annotations

import datetime as dt
import random
import threading
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentobs.ledger import Meter, cost_of, to_usd
from agentobs.provider.anthropic.usage import usage_rows
from agentobs.recording.journal.home import Home
from agentobs.records.usage import Usage
from agentobs.store.duckdb.connection import connect
from tests.ledger import published_prices
from tests.store.recordings import SECOND, T0, usage_row, write_facts

MODELS = ["claude-opus-5-5", "claude-sonnet-5", "claude-haiku-5-5", "claude-sonnet-4-5-20250929",
          "claude-3-haiku-20240307", "claude-2.1", "nobody-knows-it"]  # fmt: skip

tokens = st.integers(0, 300_000)
usages: st.SearchStrategy[Usage] = st.builds(
    Usage,
    iteration=st.just(0),
    kind=st.just("message"),
    billed=st.just(True),
    model=st.sampled_from(MODELS),
    input_tokens=tokens,
    output_tokens=tokens,
    reasoning_tokens=st.none(),
    cache_read_tokens=tokens,
    cache_write_5m_tokens=tokens,
    cache_write_1h_tokens=tokens,
    web_search_requests=st.integers(0, 9),
    service_tier=st.sampled_from([None, "standard", "batch", "priority"]),
    inference_geo=st.sampled_from([None, "global", "us", "moon"]),
    speed=st.sampled_from([None, "standard", "fast"]),
    certainty=st.sampled_from(["exact", "lower_bound", "estimated"]),
    code_execution_requests=st.integers(0, 1),
)
calls = st.lists(
    st.tuples(usages, st.integers(0, 400).map(lambda day: T0 - day * 86_400 * SECOND)), max_size=12
)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(calls)
def test_the_parts_add_up_to_the_cost(found: list[tuple[Usage, int]]) -> None:
    """The six parts of a cost add up to the cost, and each part is exactly units times price."""
    for usage, at_ns in found:
        cost = cost_of(usage, at_ns)
        if cost.status == "unknown_model":
            assert cost.usd is None
            assert {part.usd for part in cost.parts.values()} == {None}
            continue
        parts = [part.usd for part in cost.parts.values()]
        assert cost.usd is not None
        assert Fraction(cost.usd) == sum(Fraction(usd) for usd in parts if usd is not None)
        for part in cost.parts.values():
            assert part.usd is not None
            assert part.usd_each is not None
            assert Fraction(part.usd) == part.units * Fraction(part.usd_each)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(calls, st.randoms(use_true_random=False))
def test_totals_do_not_depend_on_the_order_of_calls(
    found: list[tuple[Usage, int]], chance: random.Random
) -> None:
    """Totals, by model and overall, do not depend on the order of the calls."""
    there, shuffled = Meter(), Meter()
    there.add_rows(found)
    again = list(found)
    chance.shuffle(again)
    for each in again:
        shuffled.add_rows([each])
        shuffled.total()  # reading the meter in between has no effect
    assert shuffled.total() == there.total()


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(calls, st.integers(0, 12))
def test_splitting_a_session_does_not_change_the_sum(
    found: list[tuple[Usage, int]], at: int
) -> None:
    """Splitting a session into two does not change the sum."""
    whole, first, second = Meter(), Meter(), Meter()
    whole.add_rows(found)
    first.add_rows(found[:at])
    second.add_rows(found[at:])
    both = first.total() + second.total()
    total = whole.total()
    assert (both.picodollars, both.calls, both.uncertain) == (
        total.picodollars,
        total.calls,
        total.uncertain,
    )
    assert both.status == total.status


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(st.lists(calls, max_size=6).map(lambda lists: [call for each in lists for call in each]))
def test_the_meter_agrees_with_the_store(
    tmp_path_factory: Any, found: list[tuple[Usage, int]]
) -> None:
    """A meter, the SQL view, and the sum of the costs of the single calls agree to the last digit and in certainty."""
    home = Home(tmp_path_factory.mktemp("home"))
    home.segments.mkdir()
    rows = [
        usage_row(number, at_ns=at_ns, **{name: getattr(usage, name) for name in (
            "model", "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_5m_tokens",
            "cache_write_1h_tokens", "web_search_requests", "service_tier", "inference_geo", "speed",
            "certainty", "code_execution_requests")})
        for number, (usage, at_ns) in enumerate(found)
    ]  # fmt: skip
    write_facts(home, rows)
    meter = Meter()
    meter.add_facts(rows)
    with connect(home) as connection:
        stored = connection.execute(
            "SELECT canonical_model, sum(cost_usd), count(*) FILTER (cost_status <> 'exact'), count(*) "
            "FROM costs GROUP BY canonical_model"
        ).fetchall()
    spent = meter.total()
    assert {row[0]: row[1:] for row in stored} == {
        model: (each.usd, each.calls_not_exact, each.calls)
        for model, each in spent.by_model.items()
    }
    single = [cost_of(usage, at_ns).picodollars or 0 for usage, at_ns in found]
    assert to_usd(sum(single)) == (spent.usd or Decimal(0))


MADE: list[tuple[str, dict[str, Any], dt.date]] = [
    *(
        (
            model,
            {"input_tokens": 7, "output_tokens": 9, "cache_read_input_tokens": 5},
            dt.date(2026, 11, 2),
        )
        for model in sorted(set(published_prices.table()) - {"claude-2.1"})
    ),
    (
        "claude-sonnet-4-20250514",
        {"input_tokens": 1, "output_tokens": 9, "cache_read_input_tokens": 200_000},
        dt.date(2025, 12, 1),
    ),
    ("claude-haiku-5-5", {"input_tokens": 100_000, "output_tokens": 9}, dt.date(2026, 11, 2)),
    ("claude-haiku-5-5", {"input_tokens": 100_001, "output_tokens": 9}, dt.date(2026, 11, 2)),
    ("claude-haiku-5-5", {"input_tokens": 1, "output_tokens": 9, "cache_read_input_tokens": 99_999,
                          "cache_creation_input_tokens": 1}, dt.date(2026, 11, 2)),
    ("claude-sonnet-4-5-20250929", {"input_tokens": 200_001, "output_tokens": 1}, dt.date(2025, 12, 1)),
    ("claude-opus-5", {"input_tokens": 7, "output_tokens": 9, "cache_read_input_tokens": 5, "speed": "fast"},
     dt.date(2026, 11, 2)),
    ("claude-opus-4-6", {"input_tokens": 7, "output_tokens": 9, "cache_read_input_tokens": 5, "speed": "fast"},
     dt.date(2026, 4, 2)),
    ("claude-opus-5-5", {"input_tokens": 7, "output_tokens": 9, "inference_geo": "us",
                         "server_tool_use": {"web_search_requests": 3}}, dt.date(2026, 11, 2)),
    ("claude-opus-5-5", {"input_tokens": 7, "output_tokens": 9, "inference_geo": "us", "service_tier": "batch"},
     dt.date(2026, 11, 2)),
    ("claude-sonnet-5-5", {"input_tokens": 7, "output_tokens": 9, "cache_read_input_tokens": 11},
     dt.date(2026, 10, 6)),
    ("claude-sonnet-5-5", {"input_tokens": 7, "output_tokens": 9, "cache_read_input_tokens": 11},
     dt.date(2026, 10, 7)),
    ("claude-sonnet-5", {"input_tokens": 0, "output_tokens": 0, "iterations": [
        {"type": "message", "input_tokens": 3, "output_tokens": 4},
        {"type": "compaction", "input_tokens": 55_000, "output_tokens": 900},
        {"type": "advisor_message", "model": "claude-opus-4-8", "input_tokens": 3, "output_tokens": 4}]},
     dt.date(2026, 11, 2)),
]  # fmt: skip
"""Synthetic calls of classes that no recorded call has.

They have every model of the table, size tiers, fast mode, geography, the day of a price change, and iterations of three
models with different prices.
"""


@pytest.mark.parametrize(("model", "usage", "day"), MADE)
def test_costs_of_synthetic_calls(model: str, usage: dict[str, Any], day: dt.date) -> None:
    """Each part of a synthetic call is exactly tokens times the published price for its day, tier, speed and
    location.
    """
    at = dt.datetime.combine(day, dt.time(), dt.UTC)
    at_ns = int(at.timestamp()) * SECOND
    expected = published_prices.rows({"model": model, "usage": usage}, day)
    billed = [row for row in usage_rows(model, usage, "exact") if row.billed]
    found = [
        [Fraction(part.usd or 0) for part in cost_of(row, at_ns).parts.values()] for row in billed
    ]
    assert found == [list(row.values()) for row in expected]
    assert {cost_of(row, at_ns).status for row in billed} == {"exact"}
    meter = Meter()
    meter.add(model, usage, at_ns)
    assert Fraction(meter.total().usd or 0) == sum(sum(row.values()) for row in expected)


def test_concurrent_additions_are_all_counted() -> None:
    """Calls that threads add while other threads read the meter are all counted."""
    meter = Meter()
    usage = {"input_tokens": 1, "output_tokens": 0}

    def add() -> None:
        for _ in range(1_000):
            meter.add("claude-opus-5-5", usage, T0)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        meter.total()
    for thread in threads:
        thread.join()
    assert (meter.total().calls, meter.total().usd) == (4_000, Decimal("0.016"))


def test_the_certainty_of_a_sum() -> None:
    """A sum without calls is exactly zero; a model without a price costs None, and makes a sum a lower bound."""
    usage = {"input_tokens": 1_000_000, "output_tokens": 0}
    meter = Meter()
    assert (meter.total().usd, meter.total().status) == (Decimal(0), "exact")
    meter.add("nobody-knows-it", usage, T0)
    assert (meter.total().usd, meter.total().status) == (None, "unknown_model")
    meter.add("claude-opus-5-5", usage, T0)
    spent = meter.total()
    assert (spent.usd, spent.status, spent.unpriced_calls) == (Decimal(4), "lower_bound", 1)
    meter.add("claude-opus-5-5", {"input_tokens": None, "output_tokens": 0}, T0)
    assert (meter.total().status, meter.total().calls_not_exact) == ("estimated", 2)


def test_a_model_without_a_price_is_reported_once() -> None:
    """The user gets one warning per model without a price, with a suggested fix, even if the model has many calls."""
    meter = Meter()
    usage = {"input_tokens": 1, "output_tokens": 1}
    with pytest.warns(
        RuntimeWarning, match="no price is known for model once-and-never-again"
    ) as warned:
        for _ in range(3):
            meter.add("once-and-never-again", usage, T0)
            meter.total()
    assert len(warned) == 1


def test_a_model_name_of_ten_kilobytes() -> None:
    """A model name of ten kilobytes is invalid: it is not shown and not cached, and the model has no known cost."""
    meter = Meter()
    meter.add("claude-opus-5-5" * 700, {"input_tokens": 1, "output_tokens": 1}, T0)
    spent = meter.total()
    assert set(spent.by_model) == {"unnamed"}
    assert spent.usd is None


def test_huge_sums_keep_every_digit() -> None:
    """A sum is not rounded, even if it has more digits than the default precision of a decimal."""
    assert str(to_usd(10**40 + 1)) == "1" + "0" * 28 + "." + "0" * 11 + "1"


@pytest.mark.parametrize("at_ns", [-1, 0, 2**63 - 1, 2**70])
def test_every_time_has_a_price(at_ns: int) -> None:
    """If the clock is wrong by decades, the prices of the nearest day are used."""
    [row] = usage_rows("claude-opus-5-5", {"input_tokens": 1, "output_tokens": 1}, "exact")
    assert cost_of(row, at_ns).usd == Decimal("0.000024")


def test_a_batch_result_is_counted_once(tmp_path: Path) -> None:
    """A meter counts the result of each custom_id once, including all its iterations."""
    meter = Meter()
    usage = {"input_tokens": 1, "output_tokens": 0, "service_tier": "batch"}
    for _ in range(3):
        rows = usage_rows("claude-opus-5-5", usage, "exact", "msgbatch_1/a")
        meter.add_rows((row, T0) for row in rows)
    assert meter.total().calls == 1
