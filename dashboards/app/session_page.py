"""The page of a session: outcome, cost, time, and its steps with links to their requests."""

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
from agentobs.runtime import process
from agentobs.store.session_lookup import find_session
from dashboards.app.site import answer, known_key, site_of
from dashboards.app.store_view import Row, View
from dashboards.panels.panels import session_panels
from dashboards.panels.session_outcomes import kept_of, steps_of, verdicts_of
from dashboards.panels.templates import segment

T = TypeVar("T")

PAGE = 50
"""Steps per page. Our choice: a screen or two."""
MOST = 20
"""Maximum rows of the small tables: sessions of the conversation, evidence, unfinished operations. Our choice."""
KEPT = 24
"""The number of cached results about ended sessions: figures, steps and diagnoses of 8 sessions. Figures take about
400 kB, a thousand steps 2 MB. Our choice."""
MOST_KEPT = 2_000
"""Results with more rows than this are not cached. Our choice."""
WINDOW = 25
"""The number of turns in the first and last part of the waterfall that are offered for longer sessions."""


@dataclass(frozen=True, slots=True)
class Pages:
    """One page of rows, and the links to the other pages."""

    rows: Sequence[Row]
    number: int
    """The page number, from 1."""
    count: int
    """The number of pages, at least 1."""
    total: int
    """The total number of rows."""
    first: int
    """The number of the first row of the page, from 1; 0 if there are no rows."""
    choice: Mapping[str, str]
    """The other parameters of the URL."""

    def link(self, number: int) -> str:
        """Return the query string of another page."""
        return f"?{urlencode({**self.choice, 'page': number})}"


def paged(rows: Sequence[Row], asked: str | None, choice: Mapping[str, str], size: int) -> Pages:
    """Return the requested page of rows, or the nearest existing page."""
    number, count, start = place(len(rows), asked, size)
    part = rows[start : start + size]
    return Pages(part, number, count, len(rows), start + 1 if part else 0, choice)


def place(total: int, asked: str | None, size: int) -> tuple[int, int, int]:
    """Return the number of an existing page, the number of pages, and the index of its first row, from 0."""
    count = max(-(-total // size), 1)
    number = min(max(number_in(asked) or 1, 1), count)
    return number, count, (number - 1) * size


def number_in(text: str | None) -> int | None:
    """Return a number in the URL; None if it is not a number."""
    is_number = text is not None and text.isascii() and text.isdigit() and len(text) <= 9
    return int(text) if is_number and text is not None else None


def session_named(request: Request, view: View) -> str:
    """Return the ID of the session in the URL.

    Raises:
        UsageError: no session matches, or several do.
    """
    name = str(request.path_params["id"])
    return find_session(view.store, name, key=known_key(site_of(request).home))


def session(request: Request) -> Response:
    """Show one session."""
    with site_of(request).reader.view() as view:
        session_id = session_named(request, view)
        if session_id != request.path_params["id"]:
            path = f"/sessions/{segment(session_id)}?{request.url.query}".rstrip("?")
            return RedirectResponse(path, 303)
        query = request.query_params
        [about] = view.named("internal/session", session_id=session_id)
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
            kept=kept_of(view.store, session_id),
            losses=_losses(view, session_id),
            conversation=view.named(
                "listing/conversation", conversation_id=about["conversation_id"]
            ),
            verdicts=ended.get("verdicts", lambda: verdicts_of(view.store, session_id, MOST)),
            panels=ended.get(
                ("panels", instants),
                lambda: session_panels(
                    view.store, session_id, window=instants, in_words=view.texts.shown_dicts
                ),
            ),
            turns=len(turns),
            window=window,
            windows=_windows(len(turns), window),
            steps=paged(
                [
                    step
                    for step in ended.get("steps", lambda: steps_of(view.store, session_id))
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
            decisions=view.named("internal/permission_decisions", session_id=session_id),
            most=MOST,
        )


def _way(choice: Mapping[str, str], **other: Any) -> str:
    """Return the query string with some values replaced; None removes a name."""
    values = {**choice, **other}
    return f"?{urlencode({name: value for name, value in values.items() if value is not None})}"


class Kept:
    """Answers about sessions that have ended, the last used one last."""

    def __init__(self) -> None:
        self.answers: OrderedDict[tuple[Any, ...], Any] = OrderedDict()


_keeping = Lock()


@dataclass(frozen=True, slots=True)
class Ended:
    """A cache of slow results about an ended session. Without it, live updates would compute them again each time that
    another agent records something.
    """

    key: tuple[Any, ...] | None
    """The home, the session and its fingerprint; None if the session is running and nothing is cached."""

    @classmethod
    def of(cls, home: Home, view: View, about: Row) -> Ended:
        """Return the cache for a session, from its row of `sessions`."""
        rows = view.named("listing/fingerprint", session_id=about["session_id"])
        if about["status"] == "running" or not rows:
            return cls(None)
        return cls((home.path, about["session_id"], rows[0]["fingerprint"]))

    def get(self, what: Any, ask: Callable[[], T]) -> T:
        """Return the cached result, or compute it; long results are not cached."""
        kept = process.part(Kept)
        if self.key is None:
            return ask()
        key = (*self.key, what)
        with _keeping:
            if key in kept.answers:
                kept.answers.move_to_end(key)
                known: T = kept.answers[key]
                return known
        found = ask()
        if isinstance(found, Sized) and len(found) > MOST_KEPT:
            return found
        with _keeping:
            kept.answers[key] = found
            while len(kept.answers) > KEPT:
                kept.answers.popitem(last=False)
        return found


def _never_ended(view: View, about: Row) -> Sequence[Row]:
    """Return the unfinished operations; queried only if there can be any, because the query is slow."""
    own = {"session_id": about["session_id"]}
    if about["status"] == "crashed" or view.named("internal/orphaned_span", **own):
        return view.named("open_at_death", **own)
    return ()


def _losses(view: View, session_id: str) -> Sequence[Row]:
    return view.named("losses", session_id=session_id)


def _window(turns: Sequence[Row], first: str | None, last: str | None) -> tuple[int, int] | None:
    """Return the requested range of turns of the waterfall, counted from 1; None for all."""
    start, end = number_in(first), number_in(last)
    if not turns or (start is None and end is None):
        return None
    start = min(max(start or 1, 1), len(turns))
    return start, min(max(end or len(turns), start), len(turns))


def _instants(turns: Sequence[Row], window: tuple[int, int]) -> tuple[int, int]:
    """Return the start and the end of a range of turns, with the calls of its last turn."""
    part = turns[window[0] - 1 : window[1]]
    start = min(row["started_ns"] for row in part)
    end = max(row["started_ns"] + row["duration_ns"] for row in part)
    if window[1] < len(turns):
        end = max(end, turns[window[1]]["started_ns"])
    return start, end


def _windows(count: int, window: tuple[int, int] | None) -> dict[str, tuple[int, int]]:
    """Return the other ranges of turns to offer, by label."""
    if count <= WINDOW and window is None:
        return {}
    if window is None:
        return {"First turns": (1, WINDOW), "Last turns": (count - WINDOW + 1, count)}
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


routes = [Route("/sessions/{id:path}", session)]
