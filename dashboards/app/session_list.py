"""The list of sessions. The query string of the URL contains the search text, filters, order and page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from agentobs import world
from agentobs.errors import AgentobsError, UsageError
from agentobs.recording.journal.home import Home
from agentobs.records.request_failures import UNFINISHED_OUTCOMES, request_failure
from agentobs.records.words import ATTENTION_ORDER
from agentobs.store.analysis.attention import unnamed_classes
from agentobs.store.analysis.diagnosis import SIGNATURES
from agentobs.store.analysis.failed_steps import FailedCalls, failed_calls
from agentobs.store.analysis.session_search import SessionTexts
from dashboards.app.list_search import ListSearch, found_classes, list_search
from dashboards.app.queries.downloads import csv_download, json_download
from dashboards.app.queries.saved_items import MOST_NAME, delete, save, shown_items
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
    is_default: bool = True
    """Whether the column is shown if no columns are chosen."""


COLUMNS = (
    Column("name", "Session", is_number=False),
    Column("status", "Status", is_number=False),
    Column("started", "Started"),
    Column("duration", "Duration"),
    Column("model", "Models", is_number=False),
    Column("turns", "Turns"),
    Column("requests", "Requests", is_default=False),
    Column("tools", "Tool calls"),
    Column("tokens", "Tokens"),
    Column("input", "Uncached input", is_default=False),
    Column("cache_read", "Cache read", is_default=False),
    Column("cache_write", "Cache write", is_default=False),
    Column("output", "Output tokens", is_default=False),
    Column("cost", "Cost"),
    Column("signatures", "Signatures"),
)
"""The columns, in order. The first one is always shown."""
ATTENTION = "-attention"
"""The order of `ATTENTION_ORDER`."""
FAILED = {"failed": "failed", "crashed": "crashed", "incomplete": "ended without a record"}
"""The statuses that come first in this order, in words."""
ENDINGS = {
    "crashed": "the process ended without an end of the session",
    "incomplete": "the end of the session was not recorded",
}
"""Why sessions without an error have these statuses, as in the view `failures`."""
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
    "session_id", "name", "status", "reason", "started", "started_ns", "duration_ns", "models", "turns",
    "tool_calls", "failed_calls", "denied_calls",
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
    columns: str = ""
    """The names of the chosen columns, separated by commas; empty for the default columns."""
    page: int = 1

    def query_string(self, **changes: Any) -> str:
        """Return the query string, with some values replaced; defaults are omitted."""
        changed, defaults = replace(self, **changes), ListQuery()
        values = {name: getattr(changed, name) for name in self.__slots__}
        set_values = {name: v for name, v in values.items() if v != getattr(defaults, name)}
        # A recorded name that is not valid Unicode opens a search without results instead of failing the page.
        return urlencode(set_values, safe=",", errors="replace")

    @property
    def is_filtered(self) -> bool:
        """Whether a filter is set."""
        return replace(self, sort="", columns="", page=1) != ListQuery(sort="")

    @property
    def cleared(self) -> str:
        """The query string without filters: the order and the columns are kept."""
        return ListQuery(sort=self.sort, columns=self.columns).query_string()

    @property
    def fields(self) -> dict[str, str]:
        """The values other than columns and page that are not defaults, as fields of a form."""
        return dict(parse_qsl(self.query_string(columns="", page=1)))

    @property
    def shown_columns(self) -> tuple[Column, ...]:
        """The columns to show, in the order of COLUMNS."""
        names = set(self.columns.split(","))
        first, *others = COLUMNS
        shown = (
            each for each in others if (each.name in names if self.columns else each.is_default)
        )
        return (first, *shown)


@dataclass(frozen=True, slots=True)
class Filter:
    """The filter as parameters of the named queries."""

    parameters: Mapping[str, Any] = field(default_factory=dict)
    input_errors: Sequence[str] = ()
    """Messages about invalid inputs."""


def list_query(parameters: Mapping[str, str]) -> ListQuery:
    """Return the filters in a query string; unknown values are replaced by defaults.

    Columns may be given as several parameters or as one, because a form without a script sends several.
    """
    texts = {
        name: parameters.get(name, "").strip()[:MOST_CHARACTERS] for name in ListQuery.__slots__
    }
    several = parameters.getlist("columns") if isinstance(parameters, ImmutableMultiDict) else ()
    texts["columns"] = _known_columns(",".join(several) or texts["columns"])
    page = texts.pop("page")
    number = int(page) if page.isascii() and page.isdecimal() and len(page) < 8 else 1
    requested_sort = texts.pop("sort")
    sort_column = requested_sort if requested_sort.removeprefix("-") in _SORTS else ListQuery().sort
    return ListQuery(**texts, sort=sort_column, page=min(max(number, 1), MOST_PAGES))


def _known_columns(text: str) -> str:
    """Return the known columns in a list of names, in the order of COLUMNS; empty if they are the default columns."""
    names = set(text.split(","))
    chosen = [each for each in COLUMNS[1:] if each.name in names]
    is_default = chosen == [each for each in COLUMNS[1:] if each.is_default]
    return "" if is_default else ",".join(each.name for each in chosen)


def filter_of(query: ListQuery, search: Mapping[str, Any] = MappingProxyType({})) -> Filter:
    """Return the filter as parameters of the named queries.

    Args:
        query: the filters in the URL.
        search: the parameters of the search text, see `list_search`.
    """
    values, input_errors = dict[str, Any](search), list[str]()
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


def rows_of(
    view: View, query: ListQuery, chosen_filter: Filter, limit: int = PAGE_SIZE
) -> list[Row]:
    """Return the sessions of one page, or the first ones of it, each with its last error
    in words as `error_parts` and `error_text`.
    """
    rows = view.named(
        "listing/page",
        **chosen_filter.parameters,
        sort=query.sort.removeprefix("-"),
        descending=query.sort.startswith("-"),
        limit=limit,
        offset=(query.page - 1) * PAGE_SIZE,
    )
    return _with_errors(rows)


def _with_errors(rows: Sequence[Row]) -> list[Row]:
    """Return rows of the list, each with its last error in words."""
    parts = [_error_parts(row) for row in rows]
    return [
        {**row, "error_parts": found, "error_text": "".join(text for text, _ in found)}
        for row, found in zip(rows, parts, strict=True)
    ]


def _error_parts(row: Row) -> Sequence[tuple[str, str | None]]:
    """Return the last error of a session in words, in parts: each with the text that finds sessions with the same part,
    the class of the error or the name of the step; None for connecting words.
    """
    error, name, outcome = row["error"], row["error_name"], row["error_outcome"]
    is_request, is_outcome = row["error_kind"] == "attempt", error == outcome
    if not error:
        return ()
    if is_request and outcome in UNFINISHED_OUTCOMES:
        words = request_failure(outcome, None if is_outcome else error, None)
        return (
            ((words, error), (" (", None), (name, name), (")", None)) if name else ((words, error),)
        )
    words = error
    if is_outcome:
        words = "timed out" if error == "timeout" else error.replace("_", " ")
    if not name:
        return ((words, error),)
    if is_outcome and not is_request:
        return ("call ", None), (name, name), (" ", None), (words, error)
    return (words, error), (" from " if is_request else " in ", None), (name, name)


def first_to_open(
    view: View, query: ListQuery, chosen_filter: Filter, rows: Sequence[Row], totals: Row
) -> Row | None:
    """Return the failed session that comes first in the order ATTENTION, in words why it ended and why it comes first,
    and the newest failed session with why it ended; None as the newest one if it is the same session.

    None if the list has this order, or if no failed session is on its page.
    """
    if query.sort == ATTENTION or not any(each["status"] in FAILED for each in rows):
        return None
    [first] = rows_of(view, replace(query, sort=ATTENTION, page=1), chosen_filter, limit=1)
    failed, newest = totals["failed"], totals["newest_failed"]
    is_newest = newest == first["session_id"]
    rank = "the only failed session"
    if failed > 1:
        known = "most expensive" if first["cost_usd"] is not None else "first"
        rank = f"the {known} of the last day with failures; {failed:,} sessions failed in all"
        rank = f"the newest of {failed:,} failed sessions" if is_newest else rank
    return {
        **first,
        "why": _why(first),
        "rank": rank,
        "newest": None if is_newest else _newest(view, newest, rows),
    }


def _newest(view: View, session_id: str, rows: Sequence[Row]) -> Row:
    """Return the newest failed session and in words why it ended; it is read if it is not one of the rows."""
    key = {"session_id": session_id, "sort": "started", "limit": 1, "offset": 0}
    listed = [row for row in rows if row["session_id"] == session_id]
    [newest] = listed or _with_errors(view.named("listing/page", **key))
    return {**newest, "why": _why(newest)}


def _why(row: Row) -> str:
    """Return in words why a failed session ended."""
    error, reason = row["error_text"], row["reason"]
    is_limit = (row["signature"] or "").startswith("result:")
    cause = reason if is_limit and reason else error or reason or ENDINGS.get(row["status"])
    words = FAILED.get(str(row["status"]), str(row["status"]))
    return f"{words}: {cause}" if cause else words


def _unnamed_classes(view: View, rows: Sequence[Row], text: str) -> dict[str, list[str]]:
    """Return the error classes that the search for a text found and that the row of their session does not name, by
    session ID.
    """
    found = found_classes(view, [row["session_id"] for row in rows], text)
    return {
        row["session_id"]: unnamed_classes(
            found[row["session_id"]], f"{row['error_text'] or ''} {row['reason'] or ''}"
        )
        for row in rows
        if row["session_id"] in found
    }


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
    query = list_query(request.query_params)
    if len(request.query_params.getlist("columns")) > 1:
        return RedirectResponse(f"/?{query.query_string()}", 303)  # a shorter address to share
    return _list_page(request, query)


def _list_page(request: Request, query: ListQuery, notice: str = "") -> Response:
    """Respond with one page of the list; `notice` is an error of the button that was pressed."""
    site = site_of(request)
    saved = shown_items(site.home, "views")
    with site.reader.view() as view:
        search = _search(view, query, site.home)
        chosen_filter = filter_of(query, search.parameters)
        all_totals = view.summary("totals", lambda: totals_of(view, Filter()))
        totals = totals_of(view, chosen_filter) if query.is_filtered else all_totals
        pages = max(1, -(-totals["sessions"] // PAGE_SIZE))
        query = replace(query, page=min(query.page, pages))
        rows = rows_of(view, query, chosen_filter)
        ids = [row["session_id"] for row in rows]
        return page_response(
            request,
            "sessions.html",
            nav_item="sessions",
            revision=view.revision,
            status=409 if notice else 200,
            query=query,
            columns=COLUMNS,
            shown={column.name for column in query.shown_columns},
            views={
                name: list_query(dict(parse_qsl(text))).query_string()
                for name, text in saved.texts.items()
            },
            saved_error="" if notice else saved.error,
            notice=notice,
            most_name=MOST_NAME,
            rows=rows,
            failed_calls=failed_calls(view.store, ids, view.texts.replace_in_dicts),
            found_classes=_unnamed_classes(view, rows, query.q),
            first_to_open=first_to_open(view, query, chosen_filter, rows, totals),
            endings=ENDINGS,
            failed_statuses=FAILED,
            titles=SessionTexts(view.store, view.texts).titles(ids),
            unsearched=search.unread,
            unreadable=search.unreadable,
            totals=totals,
            every=all_totals["sessions"],
            pages=pages,
            first=(query.page - 1) * PAGE_SIZE + 1,
            choices=view.summary("filter options", lambda: filter_options(view)),
            input_errors=chosen_filter.input_errors,
            has_signatures=view.has_signatures,
            ranges={name: label for name, (label, _) in RANGES.items()},
            attention=ATTENTION,
            attention_order=ATTENTION_ORDER,
            most_exported=MOST_EXPORTED,
            meanings={each.name: each.meaning for each in SIGNATURES},
        )


def _search(view: View, query: ListQuery, home: Home) -> ListSearch:
    return list_search(view, query.q, all_text=bool(query.all_text), key=known_key(home))


def _exported(request: Request) -> tuple[list[dict[str, Any]], int]:
    """Return the matching sessions for an export, and the number of those that are left out.

    Names and reasons that people wrote are digests, as in the store: an export contains facts only. Titles are
    content, so it has none.
    """
    site = site_of(request)
    query = list_query(request.query_params)
    with site.reader.view() as view:
        search = _search(view, query, site.home)
        chosen = filter_of(query, search.parameters)
        total = totals_of(view, chosen)["sessions"]
        rows = view.store.rows(
            "listing/page",
            **chosen.parameters,
            sort=query.sort.removeprefix("-"),
            descending=query.sort.startswith("-"),
            limit=MOST_EXPORTED,
            offset=0,
        ).dicts()
        ids = [row["session_id"] for row in rows]
        failed = failed_calls(view.store, ids)
        found_rows = [
            {
                **row,
                "signatures": row["fired"] if row["is_checked"] else None,
                "started": _iso(row["started_ns"]),
                "failed_calls": calls.count,
                "denied_calls": calls.denied,
            }
            for row in rows
            for calls in [failed.get(row["session_id"], FailedCalls())]
        ]
    return [{name: row[name] for name in EXPORTED} for row in found_rows], max(
        total - MOST_EXPORTED, 0
    )


def _iso(at_ns: int) -> str:
    """Return an instant as ISO 8601 text in UTC, to the millisecond."""
    at = datetime.fromtimestamp(at_ns // 1_000_000_000, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at_ns // 1_000_000 % 1_000:03}Z"


def export_json(request: Request) -> Response:
    """Send the matching sessions as JSON."""
    rows, more = _exported(request)
    return json_download("sessions", {"sessions": rows, "not_included": more})


def export_csv(request: Request) -> Response:
    """Send the matching sessions as CSV."""
    rows, _ = _exported(request)
    return csv_download("sessions", EXPORTED, ([*row.values()] for row in rows))


async def save_view(request: Request) -> Response:
    """Save the filters, order and columns of the list under a name, or delete a saved view."""
    async with request.form(max_files=0, max_fields=5) as form:
        fields = {key: value for key, value in form.items() if isinstance(value, str)}
    query = list_query(dict(parse_qsl(fields.get("query", ""))))
    home, name = site_of(request).home, fields.get("name", "")

    def respond() -> Response:
        try:
            if "delete" in fields:
                delete(home, "views", name)
            else:
                save(home, "views", name, query.query_string(page=1))
        except AgentobsError as error:
            return _list_page(request, query, str(error))
        return RedirectResponse(f"/?{query.query_string()}", 303)

    return await run_in_threadpool(respond)


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
    Route("/views", save_view, methods=["POST"]),
]


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
