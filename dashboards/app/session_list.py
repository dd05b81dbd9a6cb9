"""The list of sessions: searched, filtered, sorted and paged by the query string of the URL."""

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
"""Sessions per page. Our choice."""
CHOICES = 100
"""The maximum number of models in the filter. Our choice."""
LONGEST = 200
"""The maximum length of an input, in characters. Our choice: IDs, names and tags have up to 128."""
FIRST_DAY, LAST_DAY = date(1970, 1, 1), date(2262, 4, 10)
"""The range of days that fit a time column: 64-bit nanoseconds since 1970."""
MOST_PAGES = 1_000_000
"""The highest page number; a higher one would not fit its column."""


@dataclass(frozen=True, slots=True)
class Column:
    """A sortable column of the list."""

    name: str
    """The name in the URL."""
    title: str
    """The label in the table header."""
    is_number: bool = True
    """Whether it is aligned to the right and sorted in descending order first."""


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
_BY_NAME = {column.name: column for column in COLUMNS}
STATUSES = ("completed", "failed", "crashed", "interrupted", "incomplete", "running")
"""The statuses of sessions, as in the view `sessions`."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The filters, order and page of the list, as in the URL."""

    q: str = ""
    """A part of an ID, a name or a tag."""
    model: str = ""
    status: str = ""
    signature: str = ""
    cost_from: str = ""
    """The minimum, in US dollars."""
    cost_to: str = ""
    """The maximum, in US dollars."""
    day_from: str = ""
    """The first day, UTC."""
    day_to: str = ""
    """The last day, UTC."""
    sort: str = "-started"
    """A column; a `-` prefix means descending order."""
    page: int = 1

    def query(self, **other: Any) -> str:
        """Return the query string, with some values replaced; defaults are omitted."""
        asked, plain = replace(self, **other), Asked()
        values = {name: getattr(asked, name) for name in self.__slots__}
        return urlencode({name: v for name, v in values.items() if v != getattr(plain, name)})

    @property
    def is_filtered(self) -> bool:
        """Whether a filter is set."""
        return replace(self, sort="", page=1) != Asked(sort="")


@dataclass(frozen=True, slots=True)
class Choice:
    """The filter as an SQL condition."""

    parameters: Mapping[str, Any] = field(default_factory=dict)
    misread: Sequence[str] = ()
    """Messages about invalid inputs."""


def asked_of(parameters: Mapping[str, str]) -> Asked:
    """Return the filters in a query string; unknown values are replaced by defaults."""
    texts = {name: parameters.get(name, "").strip()[:LONGEST] for name in Asked.__slots__}
    page = texts.pop("page")
    number = int(page) if page.isascii() and page.isdecimal() and len(page) < 8 else 1
    sort = texts.pop("sort")
    known = sort if sort.removeprefix("-") in _BY_NAME else Asked().sort
    return Asked(**texts, sort=known, page=min(max(number, 1), MOST_PAGES))


def chosen(asked: Asked, name: str | None = None) -> Choice:
    """Return the filter as an SQL condition.

    Args:
        asked: the filters in the URL.
        name: the search text as stored if it is a session name or a tag that is not a label: its digest.
    """
    values, misread = dict[str, Any](), list[str]()
    if asked.q:
        values |= {"text": asked.q.lower(), "digest": name}
    if asked.model:
        values["model"] = asked.model
    if asked.status:
        values["status"] = asked.status
    if asked.signature:
        values["signature"] = asked.signature
    for text, key in ((asked.cost_from, "cost_from"), (asked.cost_to, "cost_to")):
        if text and (usd := _usd(text)) is None:
            misread.append(f"“{text}” is not an amount in dollars, such as 0.25")
        elif text:
            values[key] = usd
    for text, key, more in ((asked.day_from, "since_ns", 0), (asked.day_to, "until_ns", 1)):
        if text and (ns := day_ns(text, more)) is None:
            misread.append(f"“{text}” is not a day, such as 2026-11-22")
        elif text:
            values[key] = ns
    return Choice(values, misread)


def rows_of(view: View, asked: Asked, choice: Choice) -> list[Row]:
    """Return the sessions of one page."""
    return view.named(
        "listing/page",
        **choice.parameters,
        sort=asked.sort.removeprefix("-"),
        descending=asked.sort.startswith("-"),
        limit=PAGE,
        offset=(asked.page - 1) * PAGE,
    )


def totals_of(view: View, choice: Choice) -> Row:
    """Return the totals of the matching sessions, and the certainty of their cost."""
    [row] = view.named("listing/totals", **choice.parameters)
    return row


def choices_of(view: View) -> dict[str, list[Row]]:
    """Return the options of the filters: models, statuses and signatures with their numbers of sessions."""
    models = view.named("listing/models", limit=CHOICES)
    statuses = view.named("listing/statuses")
    fired = view.named("listing/signatures")
    counts = {row["name"]: row["sessions"] for row in fired}
    signatures = [{"name": s.name, "sessions": counts.get(s.name, 0)} for s in SIGNATURES]
    return {"model": models, "status": statuses, "signature": signatures}


def sessions_page(request: Request) -> Response:
    """Respond with one page of the list."""
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
    """Redirect to the comparison of the two selected sessions."""
    ticked = request.query_params.getlist("of")
    if len(ticked) != 2:
        raise UsageError(
            f"select exactly two sessions to compare ({len(ticked)} are selected)",
            todo="Go back and select two sessions",
        )
    return RedirectResponse(f"/compare?{urlencode({'a': ticked[0], 'b': ticked[1]})}", 303)


routes = [Route("/", sessions_page), Route("/compare/ticked", two_of)]


def _digest(home: Home, text: str) -> str | None:
    """Return the digest that the store contains for a name that is not a label; None if the home has no key."""
    key = known_key(home) if text else None
    return None if key is None else str(label(text, key))


def _usd(text: str) -> Decimal | None:
    try:
        usd = Decimal(text.removeprefix("$"))
    except InvalidOperation:
        return None
    # The absolute value of a number that is out of range may overflow.
    fits = usd.is_finite() and usd.adjusted() < 12
    return round(usd, 12) if fits else None


def day_ns(text: str, more: int) -> int | None:
    """Return the start of a day, or of a later day, in nanoseconds since 1970; None if the text is not a day, or if it
    does not fit a time column.
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
