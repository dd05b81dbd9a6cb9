"""Reports: the provider's own usage and cost report, as the Admin API returns them, read exactly.

    {"data": [{"starting_at": ..., "ending_at": ..., "results": [...]}], "has_more": false, "next_page": null}

A file holds one page or a list of pages. Results of the usage report (`usage_report/messages`) count tokens,
those of the cost report (`cost_report`) hold an amount in cents as a decimal string. Source: provider
documentation, 2026-11 (platform.claude.com/docs/en/api/admin/usage_report and cost_report).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Literal

from agentobs.errors import UsageError
from agentobs.ledger import canonical_model
from agentobs.records.canonical import digest

Kind = Literal["usage", "cost"]

MOST_BYTES = 512 * 1024 * 1024
"""A report of a month by minute, model and key has a few megabytes; more than this is no report."""
MOST = 10**18
"""A count or an amount beyond this is none."""
CENTS = Decimal(100)
_MISSING = "missing"

TOKENS = {
    "uncached_input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cache_read_input_tokens": "cache_read_tokens",
    "cache_creation.ephemeral_5m_input_tokens": "cache_write_5m_tokens",
    "cache_creation.ephemeral_1h_input_tokens": "cache_write_1h_tokens",
    "server_tool_use.web_search_requests": "web_search_requests",
}
"""What the usage report counts, and our names for it."""


@dataclass(frozen=True, slots=True)
class Key:
    """What a figure is about; None where the report is not grouped by it."""

    day: date
    model: str | None
    """The one name of the model."""
    service_tier: str | None
    what: str
    """A count of `TOKENS`, or `cost_usd`, or `<cost type>_usd` for what is no token."""


@dataclass(slots=True)
class Report:
    """All pages of one kind, added up."""

    kind: Kind
    figures: dict[Key, Decimal] = field(default_factory=dict)
    """Counts, or dollars."""
    rounding: dict[Key, Decimal] = field(default_factory=dict)
    """Of dollars, how much the amounts may have been rounded by: half of the last digit of each."""
    buckets: set[tuple[datetime, datetime]] = field(default_factory=set)
    """The times that it covers: their starts and ends (UTC)."""
    by_model: bool = False
    """Whether it is grouped by model."""
    by_tier: bool = False
    """Whether it is grouped by service tier."""
    workspaces: Counter[str] = field(default_factory=Counter)
    """Results of each workspace; `default` where none is named."""
    open_pages: int = 0
    """Pages that say that there is more."""
    last_pages: int = 0
    """Pages that say that there is not."""
    rows: int = 0
    """Results that were read."""

    @property
    def since(self) -> datetime:
        """When the first bucket starts."""
        return min(start for start, _ in self.buckets)

    @property
    def until(self) -> datetime:
        """When the last bucket ends."""
        return max(end for _, end in self.buckets)

    @property
    def is_complete(self) -> bool:
        """Whether no page is missing, as far as the pages say."""
        return self.open_pages == 0 or self.last_pages > 0


def read_reports(paths: list[Path], workspace: str | None = None) -> list[Report]:
    """Return the reports in some files, usage before cost.

    Args:
        paths: the pages, in any order.
        workspace: only results of this workspace.

    Raises:
        UsageError: a file is no such report; it says which file and where in it.
    """
    reports: dict[Kind, Report] = {}
    seen: dict[str, str] = {}
    for path in paths:
        for where, page in _pages(path):
            same = digest(json.dumps(page, sort_keys=True, default=str).encode())
            if same in seen and page["data"]:
                raise _bad(where, f"the same page as in {seen[same]}", "Name each page once")
            seen[same] = where
            _read_page(where, page, reports, workspace)
    found = [reports[kind] for kind in ("usage", "cost") if kind in reports]
    if not found:
        names = ", ".join(map(str, paths))
        raise _bad(
            names, "a report without any results", "Ask for a range in which something was used"
        )
    return found


def _pages(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise _bad(str(path), "larger than any report", "Name a file of the Admin API")
        parsed = json.loads(path.read_bytes(), parse_float=Decimal, parse_constant=_no_constant)
    except OSError as error:
        raise _bad(str(path), f"cannot be read: {error.strerror}", "Name a file") from error
    except (ValueError, RecursionError) as error:
        raise _bad(str(path), f"no JSON: {_first_line(error)}", _WANTED) from error
    pages = parsed if isinstance(parsed, list) else [parsed]
    if not pages:
        raise _bad(str(path), "an empty list", _WANTED)
    for number, page in enumerate(pages):
        where = f"{path}, page {number + 1}" if len(pages) > 1 else str(path)
        if isinstance(page, dict) and page.get("type") == "error":
            raise _bad(
                where, "an error of the provider, no report", "Ask it again with a key of an admin"
            )
        if not isinstance(page, dict) or not isinstance(page.get("data"), list):
            raise _bad(where, "no page of a report: it has no list `data`", _WANTED)
        yield where, page


def _read_page(
    where: str, page: Mapping[str, Any], reports: dict[Kind, Report], workspace: str | None
) -> None:
    buckets = [_bucket(bucket, f"{where}, data[{n}]") for n, bucket in enumerate(page["data"])]
    kinds: set[Kind] = set()
    for number, (start, end, results) in enumerate(buckets):
        for index, result in enumerate(results):
            at = f"{where}, data[{number}].results[{index}]"
            kind = _kind(result, at)
            kinds.add(kind)
            report = reports.setdefault(kind, Report(kind))
            report.buckets.add((start, end))
            _read_result(report, start.date(), result, at, workspace)
    for kind in kinds or set(reports):
        reports[kind].buckets.update((start, end) for start, end, _ in buckets)
        if page.get("has_more") is True:
            reports[kind].open_pages += 1
        else:
            reports[kind].last_pages += 1


def _bucket(bucket: Any, where: str) -> tuple[datetime, datetime, list[Any]]:
    if not isinstance(bucket, dict) or not isinstance(bucket.get("results"), list):
        raise _bad(where, "no bucket: it has no list `results`", _WANTED)
    start, end = _instant(bucket, "starting_at", where), _instant(bucket, "ending_at", where)
    if not timedelta() < end - start <= timedelta(days=1):
        raise _bad(
            where, "a bucket that is not at most a day", "Ask with bucket_width=1d, 1h or 1m"
        )
    return start, end, bucket["results"]


def _kind(result: Any, where: str) -> Kind:
    if isinstance(result, dict) and "amount" in result:
        return "cost"
    if isinstance(result, dict) and "uncached_input_tokens" in result:
        return "usage"
    raise _bad(where, "neither a result of the usage report nor of the cost report", _WANTED)


def _read_result(
    report: Report, day: date, result: Mapping[str, Any], where: str, workspace: str | None
) -> None:
    named = _text(result, "workspace_id", where) or "default"
    report.rows += 1
    report.workspaces[named] += 1
    if workspace is not None and named != workspace:
        return
    model, tier = _text(result, "model", where), _text(result, "service_tier", where)
    report.by_model = report.by_model or model is not None
    report.by_tier = report.by_tier or tier is not None
    name = canonical_model(model) if model else None
    if report.kind == "usage":
        for path, what in TOKENS.items():
            _add(report, Key(day, name, tier, what), Decimal(_count(result, path, where)))
        return
    currency = _text(result, "currency", where)
    if currency not in (None, "USD"):
        raise _bad(where, f"amounts in {currency}", "Only reports in USD can be compared")
    kind = _text(result, "cost_type", where)
    what = "cost_usd" if kind in (None, "tokens") else f"{kind}_usd"
    cents = _amount(result, where)
    key = Key(day, name, tier, what)
    _add(report, key, cents / CENTS)
    exponent = cents.as_tuple().exponent
    half = Decimal(5).scaleb(int(exponent) - 1) / CENTS
    report.rounding[key] = report.rounding.get(key, Decimal(0)) + half


def _add(report: Report, key: Key, value: Decimal) -> None:
    report.figures[key] = report.figures.get(key, Decimal(0)) + value


def _count(result: Mapping[str, Any], path: str, where: str) -> int:
    value: Any = result
    for name in path.split("."):
        if value is not None:
            value = value.get(name, _MISSING) if isinstance(value, dict) else _MISSING
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < MOST:
        found = "missing" if value == _MISSING else f"no count: {str(value)[:40]}"
        raise _bad(f"{where}.{path}", found, "It must be a whole number, 0 or more")
    return value


def _amount(result: Mapping[str, Any], where: str) -> Decimal:
    value = result["amount"]
    try:
        if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
            raise InvalidOperation
        cents = Decimal(value)
        if not cents.is_finite() or abs(cents) >= MOST or int(cents.as_tuple().exponent) < -18:
            raise InvalidOperation
    except InvalidOperation as error:
        found = f"no amount: {str(value)[:40]!r}"
        raise _bad(f"{where}.amount", found, "It must be cents as a decimal string") from error
    return cents


def _text(result: Mapping[str, Any], name: str, where: str) -> str | None:
    value = result.get(name)
    if value is not None and not isinstance(value, str):
        raise _bad(f"{where}.{name}", "no text", _WANTED)
    return value or None


def _instant(bucket: Mapping[str, Any], name: str, where: str) -> datetime:
    try:
        at = datetime.fromisoformat(str(bucket.get(name)))
        return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise _bad(f"{where}.{name}", "no time", "It must be an RFC 3339 time") from error


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _bad(where: str, found: str, todo: str) -> UsageError:
    return UsageError(found, where=where, todo=todo)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


_WANTED = (
    "Save the JSON of GET /v1/organizations/usage_report/messages or /v1/organizations/cost_report, "
    "page after page"
)
