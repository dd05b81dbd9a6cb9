"""The provider's usage and cost reports: exact sums over all pages of a report.

The meaning of an amount in the cost report depends on the grouping of the report. If rows have a `cost_type`, the costs
of tokens, web searches and others are separate rows; otherwise each row is a total. Money is compared at list prices:
at `list_amount` if a row has it, because `amount` is after discounts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

from agentobs.ledger import canonical_model
from agentobs.store.billing.report_pages import (
    Kind,
    Page,
    Row,
    Span,
    bad,
    cents_of,
    count_of,
    read_pages,
    text_of,
)

CENTS = Decimal(100)
TOKENS_USD, SEARCH_USD, WHOLE_USD = "tokens_usd", "web_search_usd", "cost_usd"

TOKENS = {
    "uncached_input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cache_read_input_tokens": "cache_read_tokens",
    "cache_creation.ephemeral_5m_input_tokens": "cache_write_5m_tokens",
    "cache_creation.ephemeral_1h_input_tokens": "cache_write_1h_tokens",
    "server_tool_use.web_search_requests": "web_search_requests",
}
"""The counts of the usage report, mapped to our names."""


@dataclass(frozen=True, slots=True)
class Key:
    """The dimensions of a figure; None if the report is not grouped by that dimension."""

    day: date
    model: str | None
    """The canonical name of the model."""
    service_tier: str | None
    what: str
    """The name of a count in `TOKENS`, `cost_usd` for the total cost, or `<cost type>_usd` for a part of it."""


@dataclass(slots=True)
class Report:
    """The sum of all pages of one kind."""

    kind: Kind
    figures: dict[Key, Decimal] = field(default_factory=dict)
    """Counts, or dollars at list prices."""
    rounding: dict[Key, Decimal] = field(default_factory=dict)
    """The maximum rounding error of each figure in dollars: half of the last digit of each amount that is not 0."""
    spans: set[Span] = field(default_factory=set)
    """The covered time spans, as start and end (UTC)."""
    by_model: bool = False
    """Whether it is grouped by model."""
    by_tier: bool = False
    """Whether it is grouped by service tier."""
    by_part: bool = False
    """Whether tokens, web searches and others are separate."""
    has_searches: bool = True
    """Whether it includes web searches, according to its grouping."""
    searches_by_model: bool = False
    """Whether every amount for web searches has its model."""
    searches_by_tier: bool = False
    """Whether every amount for web searches has its tier."""
    workspaces: Counter[str] = field(default_factory=Counter)
    """Number of results per workspace; `default` for results without a workspace."""
    open_pages: int = 0
    """Number of pages that are followed by another page (`has_more`)."""
    last_pages: int = 0
    """Number of pages that are not followed by another page."""
    capped_pages: int = 0
    """Number of pages with a bucket that has the maximum number of groups."""
    is_listed: bool = False
    """Whether time spans without usage are omitted."""
    has_list_prices: bool = False
    """Whether it has amounts at list prices in addition to billed amounts."""
    billed_usd: Decimal = Decimal(0)
    """The billed amount after discounts."""
    list_usd: Decimal = Decimal(0)
    """The same at list prices."""
    rows: int = 0
    """Number of results read."""

    @property
    def since(self) -> datetime:
        """The start of the first bucket."""
        return min(start for start, _ in self.spans)

    @property
    def until(self) -> datetime:
        """The end of the last bucket."""
        return max(end for _, end in self.spans)

    @property
    def is_complete(self) -> bool:
        """Whether no page is missing, according to the `has_more` of the pages."""
        return self.open_pages == 0 or self.last_pages > 0

    @property
    def holes(self) -> list[Span]:
        """The gaps between its buckets."""
        if self.is_listed:
            return []
        ordered = sorted(self.spans)
        pairs = pairwise(ordered)
        return [(before[1], after[0]) for before, after in pairs if before[1] < after[0]]


def read_reports(paths: list[Path], workspace: str | None = None) -> list[Report]:
    """Return the reports in the files, usage before cost.

    Pages without results count for each report that the other pages contain. If no page has a result, the result is one
    empty usage report.

    Args:
        paths: the pages, in any order.
        workspace: only results of this workspace.

    Raises:
        UsageError: a file is not a report; the message has the file and the position in it.
    """
    pages = read_pages(paths)
    if not any(page.spans for page in pages):
        names = ", ".join(map(str, paths))
        raise bad(
            names,
            "the report has no results, so its time range is unknown",
            "Request a range with usage",
        )
    kinds = set[Kind]().union(*(page.kinds for page in pages)) or {"usage"}
    order: tuple[Kind, ...] = ("usage", "cost")
    reports = [_report(kind, pages, workspace) for kind in order if kind in kinds]
    known = sorted(set[str]().union(*(report.workspaces for report in reports)))
    if workspace is not None and known and workspace not in known:
        raise bad(
            f"--workspace {workspace[:80]}",
            "the report has no results of that workspace",
            f"It has {', '.join(known[:20])}",
        )
    return reports


def _report(kind: Kind, pages: list[Page], workspace: str | None) -> Report:
    report = Report(kind)
    mine = [page for page in pages if kind in page.kinds or not page.kinds]
    _refuse_overlaps(kind, mine)
    searches: set[tuple[bool, bool]] = set()
    parts: set[str] = set()
    has_token_types = False
    for page in mine:
        report.spans |= page.spans
        report.is_listed = report.is_listed or page.is_listed
        report.capped_pages += page.is_capped
        report.open_pages += page.has_more
        report.last_pages += not page.has_more
        for row in page.rows:
            if row.kind != kind:
                continue
            named = text_of(row, "workspace_id") or "default"
            report.rows += 1
            report.workspaces[named] += 1
            if workspace is not None and named != workspace:
                continue
            key = _key(report, row)
            if kind == "usage":
                _add_counts(report, row, key)
                continue
            _add_money(report, row, key)
            parts.add(key.what)
            has_token_types = has_token_types or text_of(row, "token_type") is not None
            if key.what == SEARCH_USD:
                searches.add((key.model is not None, key.service_tier is not None))
    report.by_model = report.by_model or not report.rows
    report.by_part = bool(parts - {WHOLE_USD})
    report.has_searches = not (has_token_types and parts == {TOKENS_USD})
    report.searches_by_model = bool(searches) and all(model for model, _ in searches)
    report.searches_by_tier = bool(searches) and all(tier for _, tier in searches)
    _gather_searches(report)
    return report


def _key(report: Report, row: Row) -> Key:
    model, tier = text_of(row, "model"), text_of(row, "service_tier")
    report.by_model = report.by_model or model is not None
    report.by_tier = report.by_tier or tier is not None
    part = text_of(row, "cost_type") or ("tokens" if text_of(row, "token_type") else None)
    what = f"{part}_usd" if part else WHOLE_USD
    return Key(row.span[0].date(), canonical_model(model) if model else None, tier, what)


def _add_counts(report: Report, row: Row, key: Key) -> None:
    for path, what in TOKENS.items():
        _add(report.figures, replace(key, what=what), Decimal(count_of(row, path)))


def _add_money(report: Report, row: Row, key: Key) -> None:
    currency = text_of(row, "currency")
    if currency not in (None, "USD"):
        raise bad(
            row.where, f"the amounts are in {currency}", "Only reports in USD can be compared"
        )
    billed, listed = cents_of(row, "amount"), cents_of(row, "list_amount")
    assert billed is not None
    cents = billed if listed is None else listed
    report.has_list_prices = report.has_list_prices or listed is not None
    report.billed_usd += billed / CENTS
    report.list_usd += cents / CENTS
    _add(report.figures, key, cents / CENTS)
    if cents:
        last = min(int(cents.as_tuple().exponent), 0)
        _add(report.rounding, key, Decimal(5).scaleb(last - 1) / CENTS)


def _gather_searches(report: Report) -> None:
    """Merge the web searches of all models (or tiers) if only some web searches have a model (or tier)."""
    for sums in (report.figures, report.rounding):
        for key in [key for key in sums if key.what == SEARCH_USD]:
            value = sums.pop(key)
            model = key.model if report.searches_by_model else None
            tier = key.service_tier if report.searches_by_tier else None
            _add(sums, replace(key, model=model, service_tier=tier), value)


def _add(sums: dict[Key, Decimal], key: Key, value: Decimal) -> None:
    sums[key] = sums.get(key, Decimal(0)) + value


def _refuse_overlaps(kind: Kind, pages: list[Page]) -> None:
    """Refuse pages that cover the same time, because their sum would be too high.

    Raises:
        UsageError: two pages have the same bucket or item, or overlapping time spans.
    """
    holders: dict[object, Page] = {}
    spans: dict[Span, str] = {}
    for page in pages:
        for row in page.rows:
            if row.kind != kind:
                continue
            same = (row.span, row.group()) if page.is_listed else row.span
            holder = holders.setdefault(same, page)
            if holder is not page:
                raise _twice(row.where, row.span, holder.where)
        for span in page.spans if kind in page.kinds else ():
            spans.setdefault(span, page.where)
    ordered = sorted(spans)
    for before, after in pairwise(ordered):
        if after[0] < before[1]:
            raise _twice(spans[after], after, spans[before])


def _twice(where: str, span: Span, other: str) -> Exception:
    return bad(
        where,
        f"{span[0]:%Y-%m-%d %H:%M} to {span[1]:%Y-%m-%d %H:%M} is already covered by {other}",
        "Pass the pages of one request only",
    )
