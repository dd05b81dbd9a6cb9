"""`cost reconcile` with reports of the provider, written by hand in the formats of its SDK, with sums computed by hand.

Prices as published in 2026-09, in micro-dollars per token (uncached input, output, cache read, cache write for 5
minutes, for 1 hour): Sonnet 5.5 2, 10, 0.2, 2.5, 4; Opus 5.5 4, 20, 0.2, 5, 8. A batch costs half, a web search 10,000.

| call | tokens | micro-dollars |
| --- | --- | --- |
| 1, Sonnet | 100, 10, 1000, 50, 5 and 5 searches | 200 + 100 + 200 + 125 + 20 = 645, and 50,000 |
| 2, Sonnet, batch | 1000, 100, 0, 0, 0 | (2000 + 1000) / 2 = 1500 |
| 3, Opus, a day later | 1000, 100, 0, 0, 0 | 4000 + 2000 = 6000 |
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from anthropic.types.beta.organization import (
    BetaAnalyticsCostBucketedResult,
    BetaAnalyticsUsageBucketedResult,
)
from anthropic.types.beta.organization.analytics import (
    BetaAnalyticsCostItem,
    BetaAnalyticsUsageItem,
)

from agentobs.cli import main
from tests.store.recordings import MODEL, SECOND, T0, a_home, usage_row, write_facts

OPUS = "claude-opus-5-5"
NONE = {"cache_read_tokens": 0, "cache_write_5m_tokens": 0, "cache_write_1h_tokens": 0}
MANY = {**NONE, "input_tokens": 1000, "output_tokens": 100}
DAYS = ("2026-09-21T00:00:00Z", "2026-09-22T00:00:00Z", "2026-09-23T00:00:00Z")


@dataclass(frozen=True)
class Reconciliation:
    code: int
    out: str
    err: str

    @property
    def states(self) -> dict[tuple[Any, ...], str]:
        """The state of each figure, by day of the month, model and kind of figure."""
        rows = [json.loads(line) for line in self.out.splitlines()]
        return {(row["day"][-2:], row["model"], row["what"]): row["state"] for row in rows}


Reconcile = Callable[..., Reconciliation]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = a_home(tmp_path_factory.mktemp("reconcile"))
    later = T0 + 86_400 * SECOND
    write_facts(
        home,
        [
            usage_row(1, web_search_requests=5),
            usage_row(2, service_tier="batch", **MANY),
            usage_row(3, model=OPUS, at_ns=later, **MANY),
        ],
    )
    return home.path


@pytest.fixture
def reconcile(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Reconcile:
    def run(*pages: Any, options: tuple[str, ...] = ("--json",)) -> Reconciliation:
        files = []
        for number, each in enumerate(pages):
            files.append(tmp_path / f"{number}.json")
            files[-1].write_text(json.dumps(each))
        capsys.readouterr()
        code: object = 0
        try:
            main(["--home", str(home), "cost", "reconcile", *map(str, files), *options])
        except SystemExit as ended:
            code = ended.code
        printed = capsys.readouterr()
        return Reconciliation(code if isinstance(code, int) else 0, printed.out, printed.err)

    return run


def page(*entries: dict[str, Any], more: bool = False) -> dict[str, Any]:
    return {"data": list(entries), "has_more": more, "next_page": "page_2" if more else None}


def bucket(day: int, *results: dict[str, Any]) -> dict[str, Any]:
    return {"starting_at": DAYS[day], "ending_at": DAYS[day + 1], "results": list(results)}


def cost(cents: str, listed: str | None = None, **group: Any) -> dict[str, Any]:
    """Return a row of `analytics/cost_report`, checked with the type of the SDK."""
    row = {"amount": cents, "list_amount": listed or cents, "currency": "USD", **group}
    BetaAnalyticsCostBucketedResult.model_validate(row)
    return row


def item(day: int, cents: str, listed: str | None = None, **group: Any) -> dict[str, Any]:
    """Return an item of `analytics/cost`, checked with the type of the SDK."""
    money = {"amount": cents, "list_amount": listed or cents, "currency": "USD", "requests": None}
    made = {"starting_at": DAYS[day], "ending_at": DAYS[day + 1], "cost": money, "group": group}
    BetaAnalyticsCostItem.model_validate(made)
    return made


def usage(*tokens: int, searches: int = 0) -> dict[str, Any]:
    plain, output, read, five, hour = tokens
    return {
        "uncached_input_tokens": plain,
        "output_tokens": output,
        "cache_read_input_tokens": read,
        "cache_creation": {"ephemeral_5m_input_tokens": five, "ephemeral_1h_input_tokens": hour},
        "server_tool_use": {"web_search_requests": searches},
    }


def used(day: int, metrics: dict[str, Any], **group: Any) -> dict[str, Any]:
    """Return an item of `analytics/usage`, checked with the type of the SDK."""
    whole = {**metrics, "total_tokens": 0}
    made = {"starting_at": DAYS[day], "ending_at": DAYS[day + 1], "usage": whole, "group": group}
    BetaAnalyticsUsageItem.model_validate(made)
    return made


ALL_MATCH = {
    ("21", MODEL, "cost_usd"): "match",
    ("22", OPUS, "cost_usd"): "match",
}


def test_items_by_model(reconcile: Reconcile) -> None:
    """`analytics/cost` grouped by model alone includes web searches in each amount, so both are compared as one sum."""
    result = reconcile(page(item(0, "5.2145", model=MODEL), item(1, "0.6", model=OPUS)))
    assert (result.code, result.states) == (0, ALL_MATCH)


def test_buckets_by_model(reconcile: Reconcile) -> None:
    """`analytics/cost_report` grouped by model alone also includes web searches in each amount."""
    rows = cost("5.2145", model=MODEL, cost_type=None), cost("0.6", model=OPUS, cost_type=None)
    result = reconcile(page(bucket(0, rows[0]), bucket(1, rows[1])))
    assert (result.code, result.states) == (0, ALL_MATCH)


@pytest.mark.parametrize("named", [MODEL, None])
def test_searches_with_and_without_a_model(reconcile: Reconcile, named: str | None) -> None:
    """With model and cost type, web searches are compared separately, whether or not their rows have a model."""
    result = reconcile(
        page(
            bucket(
                0,
                cost("0.2145", model=MODEL, cost_type="tokens"),
                cost("5", model=named, cost_type="web_search"),
            ),
            bucket(1, cost("0.6", model=OPUS, cost_type="tokens")),
        )
    )
    assert result.states == {
        ("21", MODEL, "tokens_usd"): "match",
        ("21", named, "web_search_usd"): "match",
        ("22", OPUS, "tokens_usd"): "match",
    }


def test_cost_types_only(reconcile: Reconcile) -> None:
    """With the cost type alone, tokens and searches of a day are compared regardless of their model."""
    result = reconcile(
        page(
            item(0, "0.2145", cost_type="tokens"),
            item(0, "5", cost_type="web_search"),
            item(1, "0.6", cost_type="tokens"),
            item(1, "12", cost_type="session_usage"),
        )
    )
    assert result.states == {
        ("21", None, "tokens_usd"): "match",
        ("21", None, "web_search_usd"): "match",
        ("22", None, "tokens_usd"): "match",
        ("22", None, "session_usage_usd"): "only_in_report",
    }
    whole = reconcile(page(item(0, "5.2145"), item(1, "0.6")))
    assert set(whole.states.values()) == {"match"}


def test_token_types(reconcile: Reconcile) -> None:
    """With the token type, the amounts of a model are added up.

    Searches have no token type and are excluded with a note.
    """
    result = reconcile(
        page(
            bucket(
                0,
                cost("0.12", model=MODEL, cost_type="tokens", token_type="uncached_input_tokens"),
                cost("0.06", model=MODEL, cost_type="tokens", token_type="output_tokens"),
                cost(
                    "0.0345", model=MODEL, cost_type="tokens", token_type="cache_read_input_tokens"
                ),
            ),
            bucket(1, cost("0.6", model=OPUS, cost_type="tokens", token_type="output_tokens")),
        )
    )
    assert set(result.states.values()) == {"match"}
    assert "has no web searches: recorded web searches are excluded" in result.err


def test_discounts(reconcile: Reconcile) -> None:
    """Costs are compared by list price; discounts are reported and are not drift."""
    pages = page(item(0, "4.69305", "5.2145", model=MODEL), item(1, "0.54", "0.6", model=OPUS))
    result = reconcile(pages)
    assert (result.code, result.states) == (0, ALL_MATCH)
    message = (
        "compared at list prices: $0.0581 in total, minus $0.0058 of discounts, 10.00%; "
        "$0.0523 is billed"
    )
    assert message in result.err
    higher = reconcile(page(item(0, "5.2145", "6", model=MODEL), item(1, "0.6", model=OPUS)))
    assert higher.states[("21", MODEL, "cost_usd")] == "differs"


def test_usage_by_tier_and_workspace(reconcile: Reconcile) -> None:
    """`analytics/usage` by tier and workspace is compared per tier, for one selected workspace."""
    mine = {"workspace_id": "wrkspc_1", "model": MODEL}
    pages = page(
        used(0, usage(100, 10, 1000, 50, 5, searches=5), service_tier="standard", **mine),
        used(0, usage(1000, 100, 0, 0, 0), service_tier="batch", **mine),
        used(1, usage(1000, 100, 0, 0, 0), service_tier="standard", **{**mine, "model": OPUS}),
        used(1, usage(7, 7, 7, 7, 7), service_tier="flex", **{**mine, "workspace_id": "wrkspc_2"}),
    )
    result = reconcile(pages, options=("--workspace", "wrkspc_1"))
    assert result.code == 0
    assert "exact match: 10 of 10 figures" in result.out
    assert reconcile(pages).code == 1
    typo = reconcile(pages, options=("--workspace", "wrkspc_3"))
    assert (typo.code, typo.out) == (1, "")
    assert "no results of that workspace" in typo.err
    assert "It has wrkspc_1, wrkspc_2" in typo.err


def test_the_cost_report_of_the_admin_api(reconcile: Reconcile) -> None:
    """A cost report by description has tokens by model and tier, searches without a model, and no list prices."""
    row = {"currency": "USD", "workspace_id": None, "context_window": "0-200k"}
    result = reconcile(
        page(
            bucket(
                0,
                {**row, "amount": "0.0645", "cost_type": "tokens", "model": MODEL,
                 "service_tier": "standard", "token_type": "output_tokens"},
                {**row, "amount": "0.15", "cost_type": "tokens", "model": MODEL,
                 "service_tier": "batch", "token_type": "output_tokens"},
                {**row, "amount": "5", "cost_type": "web_search", "model": None, "service_tier": None},
            ),
            bucket(1, {**row, "amount": "0.6", "cost_type": "tokens", "model": OPUS,
                       "service_tier": "standard", "token_type": "output_tokens"}),
        )
    )  # fmt: skip
    assert result.code == 0
    assert len(result.out.splitlines()) == 4


def test_overlapping_groups_are_refused(reconcile: Reconcile) -> None:
    """Groups that overlap cannot be added up; the error suggests the grouping to request instead."""
    result = reconcile(page(item(0, "5", rbac_group_id="rbac_group_1"), item(1, "0.6")))
    assert (result.code, result.out) == (1, "")
    assert "grouped by teams, which overlap" in result.err
    assert "without group_by[]=rbac_group_id" in result.err
    by_user = {"actor": {"type": "user_actor"}, "amount": "1", "list_amount": "1"}
    assert "a report by user" in reconcile(page(by_user)).err


@pytest.mark.slow
def test_buckets_with_the_maximum_number_of_groups(reconcile: Reconcile) -> None:
    """A bucket of a hundred groups may be incomplete, which is reported; ninety-nine groups are complete."""
    full = [cost("0", model=f"m-{number}") for number in range(100)]
    message = "buckets with 100 groups, the maximum of the provider"
    assert message in reconcile(page(bucket(0, *full))).err
    assert message not in reconcile(page(bucket(0, *full[1:]))).err
    BetaAnalyticsUsageBucketedResult.model_validate({**usage(1, 1, 1, 1, 1), "requests": 1})
    counted = [{**usage(0, 0, 0, 0, 0), "requests": 1, "model": f"m-{n}"} for n in range(100)]
    assert message in reconcile(page(bucket(0, *counted))).err


@pytest.mark.slow
def test_the_order_of_pages_does_not_matter(reconcile: Reconcile) -> None:
    """An empty page covers its time range in any position, so recorded usage in this range is drift."""
    full = page(bucket(0, cost("5.2145", model=MODEL)), more=True)
    empty = page(bucket(1))
    first, last = reconcile(empty, full), reconcile(full, empty)
    assert first.states == last.states
    assert first.states[("22", OPUS, "cost_usd")] == "only_here"
    nothing = reconcile(page(bucket(0), bucket(1)))
    assert nothing.code == 1
    assert set(nothing.states.values()) == {"only_here"}


def test_repeated_data_in_two_pages_is_refused(reconcile: Reconcile) -> None:
    """A bucket, an item or a time that is in two pages is rejected, and the error names both places."""
    one, two = bucket(0, cost("5.2145", model=MODEL)), bucket(1, cost("0.6", model=OPUS))
    hour = {**one, "starting_at": "2026-09-21T03:00:00Z", "ending_at": "2026-09-21T04:00:00Z"}
    items = item(0, "5.2145", model=MODEL), item(1, "0.6", model=OPUS)
    for pages in (
        (page(one), page(one, two)),
        (page(one, two), page(hour)),
        (page(items[0]), page(*items)),
    ):
        result = reconcile(*pages)
        assert (result.code, result.out) == (1, "")
        assert re.search(r"is already covered by \S*0\.json", result.err)
    split = reconcile(page(items[0], more=True), page(items[1]))
    assert split.states == ALL_MATCH


def test_gaps_between_pages(reconcile: Reconcile) -> None:
    """Days that no page covers are listed."""
    far = {**bucket(1), "starting_at": "2026-09-25T00:00:00Z", "ending_at": "2026-09-26T00:00:00Z"}
    result = reconcile(page(bucket(0, cost("5.2145", model=MODEL))), page(far))
    assert "does not cover 2026-09-22 00:00 to 2026-09-25 00:00" in result.err


def test_the_tolerance_for_rounding_is_shown(reconcile: Reconcile) -> None:
    """A rounded amount matches within half of its last digit, at most 1% of the amount; the output shows this."""
    pages = page(bucket(0, cost("5.21", model=MODEL)), bucket(1, cost("0.6", model=OPUS)))
    rows = [json.loads(line) for line in reconcile(pages).out.splitlines()]
    assert [(row["state"], Decimal(row["tolerance"])) for row in rows] == [
        ("rounding", Decimal("0.00005")),
        ("match", Decimal("0.00006")),
    ]
    assert "(at most $0.000045" in reconcile(pages, options=()).out
