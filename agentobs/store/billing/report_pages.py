"""Parse pages of the provider's reports, and refuse anything else.

A page is `{"data": [...], "has_more": ..., "next_page": ...}`; a file holds one page or a list of
pages. Its entries have one of two shapes (source: the types of the provider's SDK and its
documentation, 2026-11):

- buckets: `{"starting_at", "ending_at", "results": [row, ...]}` (`usage_report/messages`,
  `cost_report`, `analytics/usage_report`, `analytics/cost_report`);
- items, each a single row: `{"starting_at", "ending_at", "group": {...}, "cost": {...}}`, or
  `"usage"` for `"cost"` (`analytics/usage`, `analytics/cost`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Literal

from agentobs.errors import UsageError
from agentobs.records.canonical_json import digest

Kind = Literal["usage", "cost"]
Span = tuple[datetime, datetime]
"""The start and end of a bucket or an item (UTC)."""

MOST_BYTES = 512 * 1024 * 1024
"""The maximum size of a file. Even a monthly report by minute, model and key has only a few megabytes."""
MOST = 10**18
"""Counts and amounts from this value on are invalid."""
CAPPED_AT = 100
"""The maximum number of groups in a bucket of the `analytics` reports; other groups are left out."""

_MEASURES = {
    "amount", "list_amount", "currency", "requests", "uncached_input_tokens", "output_tokens",
    "cache_read_input_tokens", "cache_creation", "server_tool_use", "total_tokens",
}  # fmt: skip
_COMPONENTS = {"cost_type", "token_type"}
"""The dimensions that only split the money of a group into parts."""
_MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a report, of either shape."""

    where: str
    """The file, and the position in it."""
    span: Span
    values: Mapping[str, Any]
    """Dimensions and measures together."""

    @property
    def kind(self) -> Kind:
        """Whether it counts tokens or money."""
        return "cost" if "amount" in self.values else "usage"

    def group(self, *, with_components: bool = True) -> str:
        """Return its dimensions as one text. Without the dimension of the component, all parts of a group's money have
        the same text.
        """
        omitted = _MEASURES if with_components else _MEASURES | _COMPONENTS
        named = {name: value for name, value in self.values.items() if name not in omitted}
        return json.dumps(named, sort_keys=True, default=str)


@dataclass(frozen=True, slots=True)
class Page:
    """One parsed page."""

    where: str
    rows: list[Row]
    spans: set[Span]
    """The covered time spans, including spans without rows."""
    is_listed: bool
    """Whether its entries are items; time spans without usage are then omitted."""
    has_more: bool
    is_capped: bool
    """Whether a bucket has the maximum number of groups."""

    @property
    def kinds(self) -> set[Kind]:
        """The kinds of its rows; empty if it has none."""
        return {row.kind for row in self.rows}


def read_pages(paths: list[Path]) -> list[Page]:
    """Return the pages in the files.

    Raises:
        UsageError: a file is not a report; the message has the file and the position in it.
    """
    pages: list[Page] = []
    seen: dict[str, str] = {}
    for path in paths:
        for where, page in _parsed(path):
            same = digest(json.dumps(page, sort_keys=True, default=str).encode())
            if same in seen and page["data"]:
                raise bad(where, f"the same page as in {seen[same]}", "Pass each page once")
            seen[same] = where
            pages.append(_page(where, page))
    return pages


def text_of(row: Row, name: str) -> str | None:
    """Return a text field of a row; None if it is missing, null or empty."""
    value = row.values.get(name)
    if value is not None and not isinstance(value, str):
        raise bad(f"{row.where}.{name}", "expected a string", WANTED)
    return value or None


def count_of(row: Row, path: str) -> int:
    """Return a count of a row, given its dotted path; 0 if it is null."""
    value: Any = row.values
    for name in path.split("."):
        if value is not None:
            value = value.get(name, _MISSING) if isinstance(value, dict) else _MISSING
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < MOST:
        found = "missing" if value == _MISSING else f"not a count: {str(value)[:40]}"
        raise bad(f"{row.where}.{path}", found, "It must be a whole number, 0 or more")
    return value


def cents_of(row: Row, name: str) -> Decimal | None:
    """Return an amount of a row in cents; None if it is missing, unless it is `amount`."""
    value = row.values.get(name)
    if value is None and name != "amount":
        return None
    try:
        if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
            raise InvalidOperation
        cents = Decimal(value)
        if not cents.is_finite() or abs(cents) >= MOST or int(cents.as_tuple().exponent) < -18:
            raise InvalidOperation
    except InvalidOperation as error:
        found = f"not an amount: {str(value)[:40]!r}"
        raise bad(f"{row.where}.{name}", found, "It must be cents as a decimal string") from error
    return cents


def bad(where: str, found: str, todo: str) -> UsageError:
    """Return an error about a position in a file."""
    return UsageError(found, where=where, todo=todo)


def _parsed(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise bad(
                str(path),
                "the file is too large to be a report",
                "Pass a file with a report of the Admin API",
            )
        parsed = json.loads(path.read_bytes(), parse_float=Decimal, parse_constant=_no_constant)
    except OSError as error:
        raise bad(str(path), f"cannot be read: {error.strerror}", "Pass a readable file") from error
    except (ValueError, RecursionError) as error:
        raise bad(str(path), f"not JSON: {_first_line(error)}", WANTED) from error
    pages = parsed if isinstance(parsed, list) else [parsed]
    if not pages:
        raise bad(str(path), "an empty list", WANTED)
    for number, page in enumerate(pages):
        where = f"{path}, page {number + 1}" if len(pages) > 1 else str(path)
        if isinstance(page, dict) and page.get("type") == "error":
            raise bad(
                where,
                "an error of the provider, not a report",
                "Request it again with an admin key",
            )
        if not isinstance(page, dict) or not isinstance(page.get("data"), list):
            raise bad(where, "not a page of a report: it has no list `data`", WANTED)
        yield where, page


def _page(where: str, page: Mapping[str, Any]) -> Page:
    rows: list[Row] = []
    spans: set[Span] = set()
    is_listed = is_capped = False
    for number, entry in enumerate(page["data"]):
        at = f"{where}, data[{number}]"
        if isinstance(entry, dict) and isinstance(entry.get("group"), dict):
            row = _item(entry, at)
            is_listed = True
            spans.add(row.span)
            rows.append(row)
        else:
            span, found = _bucket(entry, at)
            spans.add(span)
            rows += found
            is_capped = is_capped or _is_capped(found)
    return Page(where, rows, spans, is_listed, page.get("has_more") is True, is_capped)


def _item(entry: Mapping[str, Any], where: str) -> Row:
    for name in ("cost", "usage"):
        measures = entry.get(name)
        if isinstance(measures, dict):
            row = Row(f"{where}.{name}", _span(entry, where), {**entry["group"], **measures})
            _check(row)
            return row
    raise bad(where, "neither an item of the usage report nor of the cost report", WANTED)


def _bucket(bucket: Any, where: str) -> tuple[Span, list[Row]]:
    if isinstance(bucket, dict) and "actor" in bucket:
        raise bad(where, "a report by user, which omits usage without a user", WANTED)
    if not isinstance(bucket, dict) or not isinstance(bucket.get("results"), list):
        raise bad(where, "not a bucket: it has no list `results`", WANTED)
    span = _span(bucket, where)
    rows = []
    for index, result in enumerate(bucket["results"]):
        at = f"{where}.results[{index}]"
        if not isinstance(result, dict):
            raise bad(at, _NEITHER, WANTED)
        row = Row(at, span, result)
        _check(row)
        rows.append(row)
    return span, rows


def _check(row: Row) -> None:
    if "amount" not in row.values and "uncached_input_tokens" not in row.values:
        raise bad(row.where, _NEITHER, WANTED)
    if row.values.get("rbac_group_id") is not None:
        raise bad(
            f"{row.where}.rbac_group_id",
            "grouped by teams, which overlap: members of two teams are counted twice",
            "Request it again without group_by[]=rbac_group_id",
        )


def _is_capped(rows: list[Row]) -> bool:
    """Return whether an `analytics` bucket has the maximum number of groups."""
    known = {"list_amount", "requests", "product"}
    if len(rows) < CAPPED_AT or not known & rows[0].values.keys():
        return False
    return len({row.group(with_components=False) for row in rows}) >= CAPPED_AT


def _span(entry: Mapping[str, Any], where: str) -> Span:
    start, end = _instant(entry, "starting_at", where), _instant(entry, "ending_at", where)
    if not timedelta() < end - start <= timedelta(days=1):
        raise bad(
            where,
            "a time range that is longer than a day",
            "Use bucket_width (analytics/cost, analytics/usage: time_bucket_width) 1d, 1h or 1m",
        )
    return start, end


def _instant(entry: Mapping[str, Any], name: str, where: str) -> datetime:
    try:
        at = datetime.fromisoformat(str(entry.get(name)))
        return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise bad(f"{where}.{name}", "not a time", "It must be an RFC 3339 time") from error


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


_NEITHER = "neither a result of the usage report nor of the cost report"
WANTED = (
    "Save the JSON of GET /v1/organizations/analytics/cost or analytics/usage with time_bucket_width=1d (or of "
    "usage_report/messages, cost_report), page after page"
)
"""The expected input, for error messages."""
