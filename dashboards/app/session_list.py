"""The list of sessions: searched, filtered, sorted and paged by what stands in the address, one page at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from agentobs.errors import UsageError
from agentobs.recording.journal.home import Home
from agentobs.records.labels import label
from agentobs.store.analysis.diagnosis import SIGNATURES
from dashboards.app.site import answer, known_key, site_of
from dashboards.app.store_view import Row, View

PAGE = 50
"""How many sessions stand on a page. Our choice: what can be looked through."""
CHOICES = 100
"""How many models can be chosen from; the rest is found by the search of another tool. Our choice."""
LONGEST = 200
"""How much of what was typed is used, characters. Our choice: ids, names and tags are 128 at most."""
FIRST_DAY, LAST_DAY = date(1970, 1, 1), date(2262, 4, 10)
"""The days that are whole in a column of times, which holds nanoseconds since 1970 in 64 bits."""
MOST_PAGES = 1_000_000
"""The last page that can be asked for; beyond it a number would not fit its column."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the list, by which it can be sorted."""

    name: str
    """As in the address."""
    title: str
    """As in the head of the table."""
    sql: str
    """What it is sorted by."""
    is_number: bool = True
    """Whether it stands to the right, and the largest come first."""


COLUMNS = (
    Column("name", "Session", "name", is_number=False),
    Column("status", "Status", "status", is_number=False),
    Column("started", "Started", "started_ns"),
    Column("duration", "Duration", "duration_ns"),
    Column("model", "Models", "models[1]", is_number=False),
    Column("turns", "Turns", "turns"),
    Column("tools", "Tool calls", "tool_calls"),
    Column(
        "tokens",
        "Tokens",
        "input_tokens + cache_read_tokens + cache_write_tokens + output_tokens",
    ),
    Column("cost", "Cost", "cost_usd"),
    Column("signatures", "Signatures", "len(coalesce(told.fired, []))"),
)
"""The columns, in their order."""
_BY_NAME = {column.name: column for column in COLUMNS}
STATUSES = ("completed", "failed", "crashed", "interrupted", "incomplete", "running")
"""What can have become of a session, as in the view `sessions`."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of the list: what stands in the address."""

    q: str = ""
    """A part of an id, a name or a tag."""
    model: str = ""
    status: str = ""
    signature: str = ""
    cost_from: str = ""
    """US dollars, this or more."""
    cost_to: str = ""
    """US dollars, this or less."""
    day_from: str = ""
    """The first day, UTC."""
    day_to: str = ""
    """The last day, UTC."""
    sort: str = "-started"
    """A column, with `-` before it for the largest first."""
    page: int = 1

    def query(self, **other: Any) -> str:
        """Return it as it stands in an address, with something else in places; what is as always is left out."""
        asked, plain = replace(self, **other), Asked()
        told = {name: getattr(asked, name) for name in self.__slots__}
        return urlencode({name: v for name, v in told.items() if v != getattr(plain, name)})

    @property
    def is_filtered(self) -> bool:
        """Whether some sessions may be left out."""
        return replace(self, sort="", page=1) != Asked(sort="")


@dataclass(frozen=True, slots=True)
class Choice:
    """Which rows were asked for, as a condition in SQL."""

    sql: str = "true"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    misread: Sequence[str] = ()
    """What was typed and means nothing, in words."""


def asked_of(parameters: Mapping[str, str]) -> Asked:
    """Return what an address asks for; what it does not know is as always."""
    texts = {name: parameters.get(name, "").strip()[:LONGEST] for name in Asked.__slots__}
    page = texts.pop("page")
    number = int(page) if page.isascii() and page.isdecimal() and len(page) < 8 else 1
    sort = texts.pop("sort")
    known = sort if sort.removeprefix("-") in _BY_NAME else Asked().sort
    return Asked(**texts, sort=known, page=min(max(number, 1), MOST_PAGES))


def chosen(asked: Asked, name: str | None = None) -> Choice:
    """Return which rows are asked for.

    Args:
        asked: what stands in the address.
        name: what is searched as it stands in a row where it is the name of a session, or a tag, and no label.
    """
    parts, values, misread = ["true"], dict[str, Any](), list[str]()
    if asked.q:
        parts.append("(contains(words, $q) OR contains(words, $digest))")
        values |= {"q": asked.q.lower(), "digest": name}
    if asked.model:
        parts.append("list_contains(models, $model)")
        values["model"] = asked.model
    if asked.status:
        parts.append("status = $status")
        values["status"] = asked.status
    if asked.signature:
        parts.append(
            "session_id IN (SELECT session_id FROM app.fired WHERE signature = $signature)"
        )
        values["signature"] = asked.signature
    for text, sign, key in ((asked.cost_from, ">=", "least"), (asked.cost_to, "<=", "most")):
        if text and (usd := _usd(text)) is None:
            misread.append(f"“{text}” is no amount in dollars, such as 0.25")
        elif text:
            parts.append(f"cost_usd {sign} ${key}")
            values[key] = usd
    for text, sign, key, more in (
        (asked.day_from, ">=", "since", 0),
        (asked.day_to, "<", "until", 1),
    ):
        if text and (ns := day_ns(text, more)) is None:
            misread.append(f"“{text}” is no day, such as 2026-11-22")
        elif text:
            parts.append(f"started_ns {sign} ${key}")
            values[key] = ns
    return Choice(" AND ".join(parts), values, misread)


def rows_of(view: View, asked: Asked, choice: Choice) -> list[Row]:
    """Return the sessions of one page."""
    column = _BY_NAME[asked.sort.removeprefix("-")]
    way = "DESC" if asked.sort.startswith("-") else "ASC"
    sql = f"""
        WITH told AS (
            SELECT session_id, list(signature ORDER BY signature) AS fired FROM app.fired GROUP BY session_id
        )
        SELECT listing.* EXCLUDE (words, fingerprint), coalesce(told.fired, []) AS fired
        FROM app.listing AS listing
        LEFT JOIN told USING (session_id)
        WHERE {choice.sql}
        ORDER BY {column.sql} {way} NULLS LAST, session_id {way}
        LIMIT {PAGE} OFFSET {(asked.page - 1) * PAGE}
    """
    return view.select(sql, choice.parameters)


def totals_of(view: View, choice: Choice) -> Row:
    """Return what all sessions that were chosen come to, and how sure the money is."""
    [row] = view.select(_TOTALS.format(choice.sql), choice.parameters)
    return row


def choices_of(view: View) -> dict[str, list[Row]]:
    """Return what can be chosen: each model, status and signature with the number of its sessions."""
    models = view.select(
        "SELECT model AS name, count(*) AS sessions FROM (SELECT unnest(models) AS model FROM app.listing) "
        f"GROUP BY model ORDER BY sessions DESC, name LIMIT {CHOICES}"
    )
    statuses = view.select(
        "SELECT status AS name, count(*) AS sessions FROM app.listing GROUP BY status ORDER BY name"
    )
    fired = view.select(
        "SELECT signature AS name, count(*) AS sessions FROM app.fired GROUP BY ALL"
    )
    counts = {row["name"]: row["sessions"] for row in fired}
    signatures = [{"name": s.name, "sessions": counts.get(s.name, 0)} for s in SIGNATURES]
    return {"model": models, "status": statuses, "signature": signatures}


def sessions_page(request: Request) -> Response:
    """Answer with a page of the list."""
    site = site_of(request)
    asked = asked_of(request.query_params)
    choice = chosen(asked, _digest(site.home, asked.q))
    with site.reader.view() as view:
        every = totals_of(view, Choice())
        totals = totals_of(view, choice) if asked.is_filtered else every
        pages = max(1, -(-totals["sessions"] // PAGE))
        asked = replace(asked, page=min(asked.page, pages))
        return answer(
            request,
            "sessions.html",
            here="sessions",
            revision=view.revision,
            asked=asked,
            columns=COLUMNS,
            rows=rows_of(view, asked, choice),
            totals=totals,
            every=every["sessions"],
            pages=pages,
            first=(asked.page - 1) * PAGE + 1,
            choices=choices_of(view),
            misread=choice.misread,
            has_signatures=view.has_signatures,
            meanings={each.name: each.fires for each in SIGNATURES},
        )


def two_of(request: Request) -> Response:
    """Go to the comparison of the two sessions that were ticked in the list."""
    ticked = request.query_params.getlist("of")
    if len(ticked) != 2:
        raise UsageError(
            f"{len(ticked)} sessions are ticked, and two can be compared",
            todo="Go back, and tick two of the list",
        )
    return RedirectResponse(f"/compare?{urlencode({'a': ticked[0], 'b': ticked[1]})}", 303)


routes = [Route("/", sessions_page), Route("/compare/ticked", two_of)]

_TOTALS = """
    SELECT
        count(*) AS sessions,
        coalesce(sum(turns), 0)::BIGINT AS turns,
        coalesce(sum(tool_calls), 0)::BIGINT AS tool_calls,
        coalesce(sum(input_tokens), 0)::BIGINT AS input_tokens,
        coalesce(sum(cache_read_tokens), 0)::BIGINT AS cache_read_tokens,
        coalesce(sum(cache_write_tokens), 0)::BIGINT AS cache_write_tokens,
        coalesce(sum(output_tokens), 0)::BIGINT AS output_tokens,
        sum(cost_usd) AS cost_usd,
        coalesce(sum(unpriced_calls), 0)::BIGINT AS unpriced_calls,
        CASE
            WHEN count(*) FILTER (WHERE cost_status = 'estimated') > 0 THEN 'estimated'
            WHEN count(*) FILTER (WHERE cost_status <> 'exact') > 0 THEN 'lower_bound'
            ELSE 'exact'
        END AS cost_status,
        coalesce(sum(lower_bound_calls), 0)::BIGINT AS lower_bound_calls,
        coalesce(sum(estimated_calls), 0)::BIGINT AS estimated_calls,
        count(*) FILTER (WHERE status IN ('failed', 'crashed', 'incomplete')) AS failed,
        count(*) FILTER (WHERE status = 'running') AS running
    FROM app.listing
    WHERE {}
"""


def _digest(home: Home, text: str) -> str | None:
    """Return how a name that is no label stands in the store; None where the home has no key, and so no such name."""
    key = known_key(home) if text else None
    return None if key is None else str(label(text, key))


def _usd(text: str) -> Decimal | None:
    try:
        usd = Decimal(text.removeprefix("$"))
    except InvalidOperation:
        return None
    # Of a number that is out of reach not even the absolute value can be told.
    fits = usd.is_finite() and usd.adjusted() < 12
    return round(usd, 12) if fits else None


def day_ns(text: str, more: int) -> int | None:
    """Return when a day begins, or one so many days after it, nanoseconds since 1970; None for what is no day, or
    none that a column of times can hold.
    """
    try:
        day = date.fromisoformat(text)
    except ValueError:
        return None
    if not FIRST_DAY <= day <= LAST_DAY:
        return None
    day += timedelta(days=more)
    at = datetime(day.year, day.month, day.day, tzinfo=UTC)
    return int(at.timestamp()) * 1_000_000_000
