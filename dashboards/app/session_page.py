"""The page of a session: how it went, what it cost, where the time went, and each step with a way to its request."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeVar
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from agentobs.recording.journal.home import Home
from agentobs.store.named_queries import find_session
from dashboards.app.site import answer, known_key, site_of
from dashboards.app.store_view import Row, View
from dashboards.panels.panels import session_panels
from dashboards.panels.session_outcomes import kept_of, steps_of, verdicts_of
from dashboards.panels.templates import segment

T = TypeVar("T")

PAGE = 50
"""Rows of a page of steps. Our choice: a screen or two."""
MOST = 20
"""Rows of the small tables of the page: sessions of the conversation, evidence, what was open. Our choice."""
KEPT = 24
"""How many answers about sessions that have ended are kept in memory: figures, steps and diagnoses of 8. Figures take
some 400 kB, a thousand steps 2 MB. Our choice."""
MOST_KEPT = 2_000
"""Of how many steps at most they are kept. Our choice."""
WINDOW = 25
"""Turns of the part of the waterfall that is offered first where a session has more."""


@dataclass(frozen=True, slots=True)
class Pages:
    """A part of many rows, and how to get to the others."""

    rows: Sequence[Row]
    number: int
    """Of the page, from 1."""
    count: int
    """Of pages, at least 1."""
    total: int
    """Rows in all."""
    first: int
    """The number of the first row of the page, from 1; 0 where there is none."""
    choice: Mapping[str, str]
    """What else the address says."""

    def link(self, number: int) -> str:
        """Return the query string of another page."""
        return f"?{urlencode({**self.choice, 'page': number})}"


def paged(rows: Sequence[Row], asked: str | None, choice: Mapping[str, str], size: int) -> Pages:
    """Return the page of some rows that was asked for; the nearest where there is none of that number."""
    number, count, start = place(len(rows), asked, size)
    part = rows[start : start + size]
    return Pages(part, number, count, len(rows), start + 1 if part else 0, choice)


def place(total: int, asked: str | None, size: int) -> tuple[int, int, int]:
    """Return the number of a page that is there, how many there are, and the first of its rows, from 0."""
    count = max(-(-total // size), 1)
    number = min(max(number_in(asked) or 1, 1), count)
    return number, count, (number - 1) * size


def number_in(text: str | None) -> int | None:
    """Return the number that somebody typed into an address; None for anything else."""
    is_number = text is not None and text.isascii() and text.isdigit() and len(text) <= 9
    return int(text) if is_number and text is not None else None


def session_named(request: Request, view: View) -> str:
    """Return the id of the session that the address means.

    Raises:
        UsageError: none, or more than one.
    """
    told = str(request.path_params["id"])
    return find_session(view.connection, told, key=known_key(site_of(request).home))


def session(request: Request) -> Response:
    """Show one session."""
    with site_of(request).reader.view() as view:
        session_id = session_named(request, view)
        if session_id != request.path_params["id"]:
            path = f"/sessions/{segment(session_id)}?{request.url.query}".rstrip("?")
            return RedirectResponse(path, 303)
        query = request.query_params
        [about] = view.select("SELECT * FROM sessions WHERE session_id = ?", [session_id])
        turns = view.named("session_turns", session_id=session_id)
        window = _window(turns, query.get("from"), query.get("to"))
        instants = _instants(turns, window) if window else None
        ended = Ended.of(site_of(request).home, view, about)
        choice = {"from": str(window[0]), "to": str(window[1])} if window else {}
        choice |= {"failed": "1"} if "failed" in query else {}
        return answer(
            request,
            "session.html",
            here="sessions",
            figures=True,
            revision=view.revision,
            about=about,
            spent=first_of(view.named("cost_by_session", session_id=session_id)),
            kept=kept_of(view.connection, session_id),
            losses=_losses(view, session_id),
            conversation=view.select(_CONVERSATION, [about["conversation_id"]]),
            verdicts=ended.get("verdicts", lambda: verdicts_of(view.connection, session_id, MOST)),
            panels=ended.get(
                ("panels", instants),
                lambda: session_panels(
                    view.connection, session_id, window=instants, in_words=view.texts.shown_dicts
                ),
            ),
            turns=len(turns),
            window=window,
            windows=_windows(len(turns), window),
            steps=paged(
                [
                    step
                    for step in ended.get("steps", lambda: steps_of(view.connection, session_id))
                    if step["is_failed"] or "failed" not in query
                ],
                query.get("page"),
                choice,
                PAGE,
            ),
            only_failed="failed" in query,
            choice={**choice, **({"page": query["page"]} if "page" in query else {})},
            way=_way,
            open=_never_ended(view, about),
            hooks=view.named("hook_outcomes", session_id=session_id),
            decisions=view.select(_DECISIONS, [session_id]),
            most=MOST,
        )


def _way(choice: Mapping[str, str], **other: Any) -> str:
    """Return the query of an address that says something else in places; None leaves a name out."""
    told = {**choice, **other}
    return f"?{urlencode({name: value for name, value in told.items() if value is not None})}"


_kept: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
_keeping = Lock()


@dataclass(frozen=True, slots=True)
class Ended:
    """What takes long to ask of a session. Of one that has ended it is kept for a while: whoever looks at it while
    other agents run gets it anew each time that there is anything new.
    """

    key: tuple[Any, ...] | None
    """Of which home, which session and what it is like; None where it runs, and nothing is kept."""

    @classmethod
    def of(cls, home: Home, view: View, about: Row) -> Ended:
        """Return what is kept of a session, from its row of `sessions`."""
        told = view.select(_FINGERPRINT, [about["session_id"]])
        if about["status"] == "running" or not told:
            return cls(None)
        return cls((home.path, about["session_id"], told[0]["fingerprint"]))

    def get(self, what: Any, ask: Callable[[], T]) -> T:
        """Return what was asked before, or ask; rows are kept only where they are few."""
        if self.key is None:
            return ask()
        key = (*self.key, what)
        with _keeping:
            if key in _kept:
                _kept.move_to_end(key)
                known: T = _kept[key]
                return known
        found = ask()
        if isinstance(found, Sized) and len(found) > MOST_KEPT:
            return found
        with _keeping:
            _kept[key] = found
            while len(_kept) > KEPT:
                _kept.popitem(last=False)
        return found


def _never_ended(view: View, about: Row) -> Sequence[Row]:
    """Return what nobody ended; looked for only where there can be some, for the look costs much in a large store."""
    own = {"session_id": about["session_id"]}
    if about["status"] == "crashed" or view.select(_ORPHANS, own):
        return view.named("open_at_death", **own)
    return ()


def _losses(view: View, session_id: str) -> Sequence[Row]:
    return view.named("losses", session_id=session_id)


def _window(turns: Sequence[Row], first: str | None, last: str | None) -> tuple[int, int] | None:
    """Return which turns of the session the waterfall is wanted of, counted from 1; None for all."""
    start, end = number_in(first), number_in(last)
    if not turns or (start is None and end is None):
        return None
    start = min(max(start or 1, 1), len(turns))
    return start, min(max(end or len(turns), start), len(turns))


def _instants(turns: Sequence[Row], window: tuple[int, int]) -> tuple[int, int]:
    """Return when a window of turns begins and ends, with the calls of its last turn."""
    part = turns[window[0] - 1 : window[1]]
    start = min(row["started_ns"] for row in part)
    end = max(row["started_ns"] + row["duration_ns"] for row in part)
    if window[1] < len(turns):
        end = max(end, turns[window[1]]["started_ns"])
    return start, end


def _windows(count: int, window: tuple[int, int] | None) -> dict[str, tuple[int, int]]:
    """Return the windows that are offered beside this one, by their names."""
    if count <= WINDOW and window is None:
        return {}
    if window is None:
        return {"The first turns": (1, WINDOW), "The last turns": (count - WINDOW + 1, count)}
    first, last = window
    size = last - first + 1
    offered = {}
    if first > 1:
        offered["Earlier"] = (max(first - size, 1), first - 1)
    if last < count:
        offered["Later"] = (last + 1, min(last + size, count))
    return offered


def first_of(rows: Sequence[Row]) -> Row | None:
    """Return the first of some rows, or None."""
    return rows[0] if rows else None


_CONVERSATION = """
    FROM app.listing WHERE conversation_id = ? ORDER BY started_ns, session_id
"""
_ORPHANS = """
    SELECT 1 FROM spans WHERE session_id = $session_id AND status = 'orphaned' LIMIT 1
"""
_FINGERPRINT = "SELECT fingerprint FROM app.listing WHERE session_id = ?"
_DECISIONS = """
    SELECT tool, behaviour, reason_type AS reason, resolver, count(*) AS decisions,
        count(*) FILTER (WHERE asked) AS asked, sum(waited_ns)::BIGINT AS waited_ns
    FROM permissions
    WHERE session_id = ?
    GROUP BY ALL
    ORDER BY decisions DESC, tool, behaviour, reason, resolver
"""

routes = [Route("/sessions/{id:path}", session)]
