"""Compare our counts and prices with the counts and charges that the provider reports.

Figures are compared per day (UTC), per model and service tier if the report is grouped by them, and tokens separately
from web searches if the report separates them. Recordings do not contain the workspace, so all workspaces of a report
are compared together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Literal

from agentobs.ledger import canonical_model
from agentobs.store.billing.provider_report import (
    SEARCH_USD,
    TOKENS,
    TOKENS_USD,
    WHOLE_USD,
    Key,
    Report,
)
from agentobs.store.billing.report_pages import CAPPED_AT, Kind
from agentobs.store.port import Store

State = Literal["match", "rounding", "differs", "only_in_report", "only_here"]
"""`match`: identical to the last digit; `rounding`: within the tolerance."""

MOST_TOLERANCE = Decimal("0.01")
"""The maximum tolerance for rounding, as a share of the reported amount."""

STANDARD = "standard"
"""The service tier of a call whose usage does not name a tier."""


@dataclass(frozen=True, slots=True)
class Line:
    """One figure of the report, and our figure for the same key."""

    report: Kind
    day: date
    model: str | None
    """The canonical name of the model; None if the report is not grouped by model."""
    service_tier: str | None
    """The service tier; None if the report is not grouped by tier."""
    what: str
    """The name of the count, such as `input_tokens`, or of the amount, such as `cost_usd`."""
    ours: Decimal | None
    """None if nothing was recorded, or a call has no price."""
    theirs: Decimal | None
    """None if the report has no such figure."""
    difference: Decimal | None
    """Ours minus theirs."""
    tolerance: Decimal
    """The difference that rounding can explain: half of the last digit of each reported amount, and at most a
    hundredth of their sum.
    """
    state: State
    not_exact_calls: int
    """Number of our calls in this figure that are not exact. If there is a difference, check them first."""


@dataclass(frozen=True, slots=True)
class Reconciled:
    """The comparison with one report."""

    report: Report
    lines: list[Line]
    """All figures, matching or not, by day and model."""
    notes: list[str]
    """The limitations of the comparison, as sentences for users."""

    @property
    def matches(self) -> bool:
        """Whether there are no differences."""
        return all(line.state in ("match", "rounding") for line in self.lines)


def reconcile(store: Store, report: Report) -> Reconciled:
    """Compare the stored calls with one report, for the time that the report covers.

    Args:
        store: the store that contains the calls.
        report: all pages of one kind, from `read_reports`.
    """
    ours, doubts, calls = _ours(store, report)
    keys = sorted(
        {key for key, value in report.figures.items() if value}
        | {k for k, v in ours.items() if v != 0},
        key=lambda key: (key.day, key.model or "", key.service_tier or "", key.what),
    )
    lines = [_line(key, report, ours, doubts, calls) for key in keys]
    return Reconciled(report, lines, list(_notes(report, ours)))


def span_ns(report: Report) -> dict[str, int]:
    """Return the time that a report covers, as query parameters."""
    return {"since_ns": _ns(report.since), "until_ns": _ns(report.until)}


def _ours(
    store: Store, report: Report
) -> tuple[dict[Key, Decimal | None], dict[Key, int], set[Key]]:
    """Return our figures, the number of inexact calls in each, and the keys that have calls."""
    figures: dict[Key, Decimal | None] = {}
    doubts: dict[Key, int] = {}
    calls: set[Key] = set()
    for row in store.rows("usage_by_model_day", **span_ns(report)).dicts():
        for key, value in _figures(row, report):
            known = figures.get(key)
            figures[key] = value if known is None else known if value is None else known + value
            doubts[key] = doubts.get(key, 0) + row["calls"] - row["exact_calls"]
            calls.add(key)
    return figures, doubts, calls


def _figures(row: dict[str, Any], report: Report) -> Iterable[tuple[Key, Decimal | None]]:
    """Yield the figures of one of our rows, keyed by the report's grouping."""
    tier = row["service_tier"] or STANDARD
    model = canonical_model(row["model"]) if report.by_model and row["model"] else None
    shown = tier if report.by_tier else None
    if report.kind == "usage":
        for what in TOKENS.values():
            yield Key(row["day"], model, shown, what), Decimal(row[what])
        return
    if tier == "priority" and not report.has_list_prices:
        return
    cost, tools = row["cost_usd"], row["server_tools_usd"]
    if not report.by_part:
        yield Key(row["day"], model, shown, WHOLE_USD), cost
        return
    yield Key(row["day"], model, shown, TOKENS_USD), None if cost is None else cost - tools
    if report.has_searches and row["web_search_requests"]:
        named = model if report.searches_by_model else None
        of_tier = shown if report.searches_by_tier else None
        yield Key(row["day"], named, of_tier, SEARCH_USD), tools


def _line(
    key: Key,
    report: Report,
    ours: dict[Key, Decimal | None],
    doubts: dict[Key, int],
    calls: set[Key],
) -> Line:
    mine, theirs = ours.get(key), report.figures.get(key)
    most = abs(theirs or Decimal(0)) * MOST_TOLERANCE
    tolerance = min(report.rounding.get(key, Decimal(0)), most)
    if theirs is None and key in calls:
        state: State = "only_here"
    elif key not in calls:
        state = "only_in_report"
    else:
        apart = None if mine is None or theirs is None else abs(mine - theirs)
        state = "match" if apart == 0 else "differs"
        if apart and apart <= tolerance:
            state = "rounding"
    difference = None
    if not (key in calls and mine is None):
        difference = (mine or Decimal(0)) - (theirs or Decimal(0))
    return Line(
        report.kind,
        key.day,
        key.model,
        key.service_tier,
        key.what,
        mine,
        theirs,
        difference,
        tolerance,
        state,
        doubts.get(key, 0),
    )


def _notes(report: Report, ours: dict[Key, Decimal | None]) -> Iterable[str]:
    kind = f"the {report.kind} report"
    if not report.is_complete:
        yield f"{kind} has more pages (has_more): also pass the files of the next pages"
    for start, end in report.holes[:5]:
        yield f"{kind} does not cover {start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M}: also pass the missing pages"
    if len(report.holes) > 5:
        yield f"{kind} has {len(report.holes) - 5} more such gaps"
    if report.capped_pages:
        yield (
            f"{kind} has buckets with {CAPPED_AT} groups, the maximum of the provider, so groups may be missing; "
            f"use analytics/{report.kind}, which returns all groups"
        )
    if report.is_listed:
        yield (
            f"{kind} lists only periods with usage, so periods before the first and after the last one are not "
            "compared"
        )
    if len(report.workspaces) > 1:
        names = ", ".join(sorted(report.workspaces))
        yield f"{kind} covers {len(report.workspaces)} workspaces ({names}): choose with --workspace"
    if not report.by_model:
        yield f"{kind} is not grouped by model: days are compared as a whole"
    if report.kind == "cost":
        yield from _notes_of_money(report)
    without = sorted(
        {key.model or "" for key, value in ours.items() if value is None and key.model}
    )
    if without:
        yield f"no price is known for {', '.join(without)}"


def _notes_of_money(report: Report) -> Iterable[str]:
    if report.has_list_prices:
        off = report.list_usd - report.billed_usd
        share = f", {off / report.list_usd:.2%}" if report.list_usd else ""
        yield (
            f"compared at list prices: ${report.list_usd:,.4f} in total, minus ${off:,.4f} of discounts{share}; "
            f"${report.billed_usd:,.4f} is billed"
        )
    else:
        yield "the cost report has no priority tier: recorded calls of that tier are excluded"
    if not report.by_part and report.rows:
        yield "the cost report is not grouped by cost_type: tokens and web searches are compared as one sum"
    if not report.has_searches:
        yield "the cost report is grouped by token_type and has no web searches: recorded web searches are excluded"


def _ns(at: datetime) -> int:
    since = at - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400_000_000 + since.seconds * 1_000_000 + since.microseconds) * 1000
