"""The list of sessions. The query string of the URL contains the search text, filters, order and page."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from agentobs import world
from agentobs.errors import AgentobsError, UsageError
from agentobs.recording.journal.home import Home
from agentobs.records.labels import digest_label
from agentobs.runtime import process
from agentobs.store.analysis.diagnosis import SIGNATURES
from agentobs.store.analysis.session_search import Found, SessionTexts
from dashboards.app.site import known_key, page_response, site_of
from dashboards.app.store_view import Row, View

PAGE_SIZE = 50
"""Sessions per page. Our choice."""
MOST_MODELS = 100
"""The maximum number of models that the filter offers. Our choice."""
MOST_CHARACTERS = 200
"""The maximum length of an input, in characters. Our choice: IDs, names and tags have up to 128 characters."""
FIRST_DAY, LAST_DAY = date(1970, 1, 1), date(2262, 4, 10)
"""The range of days that fit a time column: 64-bit nanoseconds since 1970."""
SEARCH_SECONDS = 3.0
"""How long a search reads the texts of sessions that were not searched before, in seconds. The page shows how many are
left, and the next search continues. Our choice.
"""
RECENT_SECONDS = 10.0
"""How long the result of the last search in all texts is shown again, in seconds. Our choice."""
MOST_PAGES = 1_000_000
"""The highest page number; a much higher number would not fit the integer type of the query."""


@dataclass(frozen=True, slots=True)
class Column:
    """A sortable column of the list."""

    name: str
    """The name in the URL."""
    title: str
    """The label in the table header."""
    is_number: bool = True
    """Whether the column is aligned to the right and first sorted in descending order."""


COLUMNS = (
    Column("name", "Session", is_number=False),
    Column("status", "Status", is_number=False),
    Column("started", "Started"),
    Column("duration", "Duration"),
    Column("model", "Models", is_number=False),
    Column("turns", "Turns"),
    Column("tools", "Tool calls"),
    Column("tokens", "Tokens"),
    Column("cost", "Cost"),
    Column("signatures", "Signatures"),
)
"""The columns, in order."""
ATTENTION = "-attention"
"""The order in which failed sessions come first, then sessions with failure signatures, the most expensive first."""
_SORTS = {*(column.name for column in COLUMNS), ATTENTION.removeprefix("-")}
RANGES = {
    "1h": ("1 hour", 3_600),
    "24h": ("24 hours", 86_400),
    "7d": ("7 days", 7 * 86_400),
    "30d": ("30 days", 30 * 86_400),
}
"""The relative time ranges by their name in the URL: the label and the length in seconds."""
MOST_EXPORTED = 10_000
"""The maximum number of sessions in an export. Our choice: about 5 MB; use SQL for more."""
EXPORTED = (
    "session_id", "name", "status", "reason", "started_ns", "duration_ns", "models", "turns", "tool_calls",
    "input_tokens", "cache_read_tokens", "cache_write_tokens", "output_tokens", "cost_usd", "cost_status", "signatures",
    "error_kind", "error_name", "error", "error_file", "error_line",
)  # fmt: skip
"""The columns of an export."""
STATUSES = ("completed", "failed", "crashed", "interrupted", "incomplete", "running")
"""The statuses of sessions, as in the view `sessions`."""


@dataclass(frozen=True, slots=True)
class ListQuery:
    """The filters, order and page of the list, as in the URL."""

    q: str = ""
    """A part of an ID, a name, a title or a tag; the search text."""
    all_text: str = ""
    """Not empty if the search text is also searched in prompts, responses and tool data."""
    model: str = ""
    status: str = ""
    signature: str = ""
    cost_from: str = ""
    """The minimum, in US dollars."""
    cost_to: str = ""
    """The maximum, in US dollars."""
    since: str = ""
    """A relative time range, of RANGES."""
    day_from: str = ""
    """The first day, UTC."""
    day_to: str = ""
    """The last day, UTC."""
    sort: str = "-started"
    """The column to sort by; the prefix `-` means descending order."""
    page: int = 1

    def query_string(self, **changes: Any) -> str:
        """Return the query string, with some values replaced; defaults are omitted."""
        changed, defaults = replace(self, **changes), ListQuery()
        values = {name: getattr(changed, name) for name in self.__slots__}
        return urlencode({name: v for name, v in values.items() if v != getattr(defaults, name)})

    @property
    def is_filtered(self) -> bool:
        """Whether a filter is set."""
        return replace(self, sort="", page=1) != ListQuery(sort="")


@dataclass(frozen=True, slots=True)
class Filter:
    """The filter as parameters of the named queries."""

    parameters: Mapping[str, Any] = field(default_factory=dict)
    input_errors: Sequence[str] = ()
    """Messages about invalid inputs."""


def list_query(parameters: Mapping[str, str]) -> ListQuery:
    """Return the filters in a query string; unknown values are replaced by defaults."""
    texts = {
        name: parameters.get(name, "").strip()[:MOST_CHARACTERS] for name in ListQuery.__slots__
    }
    page = texts.pop("page")
    number = int(page) if page.isascii() and page.isdecimal() and len(page) < 8 else 1
    requested_sort = texts.pop("sort")
    sort_column = requested_sort if requested_sort.removeprefix("-") in _SORTS else ListQuery().sort
    return ListQuery(**texts, sort=sort_column, page=min(max(number, 1), MOST_PAGES))


def filter_of(
    query: ListQuery, name: str | None = None, found: Sequence[str] | None = None
) -> Filter:
    """Return the filter as parameters of the named queries.

    Args:
        query: the filters in the URL.
        found: the IDs of the sessions in whose title or texts the search text occurs.
        name: the digest of the search text. The store contains this digest if the text is a name or tag that is not a
            label.
    """
    values, input_errors = dict[str, Any](), list[str]()
    if query.q:
        values |= {"text": query.q.lower(), "digest": name, "found": found}
    if query.model:
        values["model"] = query.model
    if query.status:
        values["status"] = query.status
    if query.signature:
        values["signature"] = query.signature
    for text, key in ((query.cost_from, "cost_from"), (query.cost_to, "cost_to")):
        if text and (usd := _usd(text)) is None:
            input_errors.append(f"“{text}”: expected an amount in dollars, such as 0.25")
        elif text:
            values[key] = usd
    for text, key, days_later in ((query.day_from, "since_ns", 0), (query.day_to, "until_ns", 1)):
        if text and (ns := day_ns(text, days_later)) is None:
            input_errors.append(f"“{text}”: expected a date, such as 2026-11-22")
        elif text:
            values[key] = ns
    if query.since in RANGES:
        values["since_ns"] = max(
            world.now() - RANGES[query.since][1] * 1_000_000_000, values.get("since_ns", 0)
        )
    elif query.since:
        input_errors.append(f"“{query.since}”: expected one of {', '.join(RANGES)}")
    return Filter(values, input_errors)


def rows_of(view: View, query: ListQuery, chosen_filter: Filter) -> list[Row]:
    """Return the sessions of one page."""
    return view.named(
        "listing/page",
        **chosen_filter.parameters,
        sort=query.sort.removeprefix("-"),
        descending=query.sort.startswith("-"),
        limit=PAGE_SIZE,
        offset=(query.page - 1) * PAGE_SIZE,
    )


def totals_of(view: View, chosen_filter: Filter) -> Row:
    """Return the totals of the matching sessions, and the certainty of their cost."""
    [row] = view.named("listing/totals", **chosen_filter.parameters)
    return row


def filter_options(view: View) -> dict[str, list[Row]]:
    """Return the options of the filters: models, statuses and signatures, with their numbers of sessions."""
    models = view.named("listing/models", limit=MOST_MODELS)
    statuses = view.named("listing/statuses")
    found = view.named("listing/signatures")
    counts = {row["name"]: row["sessions"] for row in found}
    signatures = [{"name": s.name, "sessions": counts.get(s.name, 0)} for s in SIGNATURES]
    return {"model": models, "status": statuses, "signature": signatures}


def sessions_page(request: Request) -> Response:
    """Respond with one page of the list."""
    site = site_of(request)
    query = list_query(request.query_params)
    with site.reader.view() as view:
        texts = SessionTexts(view.store, view.texts)
        found = _search(texts, query, site.home)
        chosen_filter = filter_of(
            query, _digest(site.home, query.q), found.session_ids if found else None
        )
        all_totals = totals_of(view, Filter())
        totals = totals_of(view, chosen_filter) if query.is_filtered else all_totals
        pages = max(1, -(-totals["sessions"] // PAGE_SIZE))
        query = replace(query, page=min(query.page, pages))
        rows = rows_of(view, query, chosen_filter)
        return page_response(
            request,
            "sessions.html",
            nav_item="sessions",
            revision=view.revision,
            query=query,
            columns=COLUMNS,
            rows=rows,
            titles=texts.titles([row["session_id"] for row in rows]),
            unsearched=found.unread if found else 0,
            unreadable=found.unreadable if found else 0,
            totals=totals,
            every=all_totals["sessions"],
            pages=pages,
            first=(query.page - 1) * PAGE_SIZE + 1,
            choices=filter_options(view),
            input_errors=chosen_filter.input_errors,
            has_signatures=view.has_signatures,
            ranges={name: label for name, (label, _) in RANGES.items()},
            attention=ATTENTION,
            most_exported=MOST_EXPORTED,
            meanings={each.name: each.meaning for each in SIGNATURES},
        )


def _exported(request: Request) -> tuple[list[dict[str, Any]], int]:
    """Return the matching sessions for an export, and the number of those that are left out.

    Names and reasons that people wrote are digests, as in the store: an export contains facts only.
    """
    site = site_of(request)
    query = list_query(request.query_params)
    with site.reader.view() as view:
        found = _search(SessionTexts(view.store, view.texts), query, site.home)
        session_ids = found.session_ids if found else None
        chosen = filter_of(query, _digest(site.home, query.q), session_ids)
        total = totals_of(view, chosen)["sessions"]
        rows = view.store.rows(
            "listing/page",
            **chosen.parameters,
            sort=query.sort.removeprefix("-"),
            descending=query.sort.startswith("-"),
            limit=MOST_EXPORTED,
            offset=0,
        ).dicts()
        found_rows = [{**row, "signatures": row["fired"]} for row in rows]
    return [{name: row[name] for name in EXPORTED} for row in found_rows], max(
        total - MOST_EXPORTED, 0
    )


def export_json(request: Request) -> Response:
    """Send the matching sessions as JSON."""
    rows, more = _exported(request)
    # Amounts are exact decimals, so they are texts.
    text = json.dumps({"sessions": rows, "not_included": more}, default=str, ensure_ascii=False)
    return _export("json", "application/json", text)


def export_csv(request: Request) -> Response:
    """Send the matching sessions as CSV, which spreadsheets open without running formulas in it."""
    rows, _ = _exported(request)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(EXPORTED)
    writer.writerows([_cell(value) for value in row.values()] for row in rows)
    return _export("csv", "text/csv; charset=utf-8", text.getvalue())


def _cell(value: Any) -> Any:
    text = " ".join(map(str, value)) if isinstance(value, list | tuple) else value
    # Spreadsheets run texts that start with these signs, some also after white space.
    is_formula = isinstance(text, str) and text.lstrip().startswith(("=", "+", "-", "@"))
    return f"'{text}" if is_formula else text


def _export(ending: str, media_type: str, text: str) -> Response:
    headers = {"content-disposition": f'attachment; filename="sessions.{ending}"'}
    return Response(text.encode("utf-8", "replace"), media_type=media_type, headers=headers)


def compare_selected(request: Request) -> Response:
    """Redirect to the comparison of the two selected sessions."""
    selected = request.query_params.getlist("of")
    if len(selected) != 2:
        raise UsageError(
            f"select exactly two sessions to compare ({len(selected)} are selected)",
            todo="Go back and select two sessions",
        )
    return RedirectResponse(f"/compare?{urlencode({'a': selected[0], 'b': selected[1]})}", 303)


routes = [
    Route("/", sessions_page),
    Route("/sessions.csv", export_csv),
    Route("/sessions.json", export_json),
    Route("/compare/ticked", compare_selected),
]


class RecentSearches:
    """The last results of searches in all texts, with their times; a live page repeats its search with each update."""

    def __init__(self) -> None:
        self.found: dict[tuple[Path, str], tuple[int, Found]] = {}


def _search(texts: SessionTexts, query: ListQuery, home: Home) -> Found | None:
    """Return the sessions in which the search text occurs; None without a text, or if the index cannot be used."""
    if not query.q:
        return None
    recent, key = process.state(RecentSearches).found, (home.path, query.q)
    at_ns, found = recent.get(key, (0, None))
    is_recent = world.monotonic() - at_ns < RECENT_SECONDS * 1e9
    if query.all_text and found is not None and is_recent and not found.unread:
        return found
    try:
        found = texts.search(query.q, all_text=bool(query.all_text), seconds=SEARCH_SECONDS)
    except (AgentobsError, OSError):
        return None  # the index cannot be used, for example because the home is read-only
    if query.all_text:
        recent.clear()
        recent[key] = world.monotonic(), found
    return found


def _digest(home: Home, text: str) -> str | None:
    """Return the digest with which the store replaces a text that is not a declared name.

    Return None if the text is empty or the home has no key.
    """
    key = known_key(home) if text else None
    return None if key is None else str(digest_label(text, key))


def _usd(text: str) -> Decimal | None:
    try:
        usd = Decimal(text.removeprefix("$"))
    except InvalidOperation:
        return None
    # Check the exponent, because computing the absolute value of a huge number may overflow.
    fits = usd.is_finite() and usd.adjusted() < 12
    return round(usd, 12) if fits else None


def day_ns(text: str, days_later: int) -> int | None:
    """Return the start of a day, or of the day that is `days_later` days later, in nanoseconds since 1970.

    None if the text is not a day, or if the day does not fit a time column.
    """
    try:
        day = date.fromisoformat(text)
    except ValueError:
        return None
    if not FIRST_DAY <= day <= LAST_DAY:
        return None
    day += timedelta(days=days_later)
    at = datetime(day.year, day.month, day.day, tzinfo=UTC)
    return int(at.timestamp()) * 1_000_000_000
