"""The page of a session: its outcome, cost and time, and its steps with links to their requests."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, TypeVar
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from agentobs.recording.journal.home import Home
from agentobs.runtime import process
from agentobs.store.analysis.failure import explain_failure
from agentobs.store.analysis.session_search import SessionTexts
from agentobs.store.session_lookup import find_session
from dashboards.app.site import known_key, page_response, site_of
from dashboards.app.store_view import Row, View
from dashboards.panels.panels import session_panels
from dashboards.panels.session_outcomes import (
    content_state,
    scores_of,
    shown_failure,
    steps_of,
    verdicts_of,
    with_texts,
)
from dashboards.panels.templates import segment

T = TypeVar("T")

PAGE_SIZE = 50
"""Steps per page. Our choice: one or two screens."""
MOST_ROWS = 20
"""The maximum number of rows of small tables, such as the evidence of a failure signature. Our choice."""
MOST_RESULTS = 24
"""The number of cached results about ended sessions: figures, steps and diagnoses of 8 sessions. The figures of a
session take about 400 kB, a thousand steps 2 MB. Our choice."""
MOST_RESULT_ROWS = 2_000
"""Results with more rows than this are not cached. Our choice."""
WINDOW_TURNS = 25
"""The number of turns per part of the waterfall. If a session is longer, its page links to the parts."""


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
    parameters: Mapping[str, str]
    """The other parameters of the URL, which the links keep."""

    def link(self, number: int) -> str:
        """Return the query string of another page."""
        return f"?{urlencode({**self.parameters, 'page': number})}"


def page_of(
    rows: Sequence[Row], requested: str | None, parameters: Mapping[str, str], size: int
) -> Pages:
    """Return the requested page of rows, or the nearest existing page."""
    number, count, start = page_position(len(rows), requested, size)
    page_rows = rows[start : start + size]
    return Pages(page_rows, number, count, len(rows), start + 1 if page_rows else 0, parameters)


def page_position(total: int, requested: str | None, size: int) -> tuple[int, int, int]:
    """Return the number of the nearest existing page, the number of pages, and the index (from 0) of its first row."""
    count = max(-(-total // size), 1)
    number = min(max(number_in(requested) or 1, 1), count)
    return number, count, (number - 1) * size


def number_in(text: str | None) -> int | None:
    """Return a number from the URL; None if the text is not a number."""
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
        time_range = _time_range(turns, window) if window else None
        cache = EndedSessionCache.of(site_of(request).home, view, about)
        parameters = {"from": str(window[0]), "to": str(window[1])} if window else {}
        parameters |= {"failed": "1"} if "failed" in query else {}
        listed = page_of(
            [
                step
                for step in cache.get("steps", lambda: steps_of(view.store, session_id))
                if step["is_failed"] or "failed" not in query
            ],
            query.get("page"),
            parameters,
            PAGE_SIZE,
        )
        # Texts are read for each request, because they may be deleted while the steps are cached.
        steps = replace(listed, rows=view.texts.replace_in_dicts(listed.rows))
        failure = None
        if about["status"] != "running":
            failure = cache.get("failure", lambda: explain_failure(view.store, session_id))
        verdicts = cache.get("verdicts", lambda: verdicts_of(view.store, session_id, MOST_ROWS))
        return page_response(
            request,
            "session.html",
            nav_item="sessions",
            figures=True,
            revision=view.revision,
            about=about,
            failure=shown_failure(failure, view.texts.replace_in_dicts),
            session_title=SessionTexts(view.store, view.texts).titles([session_id]).get(session_id),
            git=first_of(view.named("internal/session_git", session_id=session_id)),
            spent=first_of(view.named("cost_by_session", session_id=session_id)),
            content_state=content_state(view.store, session_id),
            losses=_losses(view, session_id),
            conversation=view.named(
                "listing/conversation", conversation_id=about["conversation_id"]
            ),
            verdicts=with_texts(verdicts, view.texts.replace_in_dicts),
            panels=cache.get(
                ("panels", time_range),
                lambda: session_panels(
                    view.store,
                    session_id,
                    window=time_range,
                    restore_names=view.texts.replace_in_dicts,
                ),
            ),
            turns=len(turns),
            window=window,
            windows=_windows(len(turns), window),
            steps=steps,
            only_failed="failed" in query,
            parameters={**parameters, **({"page": query["page"]} if "page" in query else {})},
            link=_link,
            unfinished=_unfinished_operations(view, about),
            hooks=view.named("hook_outcomes", session_id=session_id),
            decisions=view.named("internal/permission_decisions", session_id=session_id),
            scores=scores_of(view.named("session_scores", session_id=session_id)),
            most=MOST_ROWS,
        )


def _link(parameters: Mapping[str, str], **changes: Any) -> str:
    """Return the query string with some parameters replaced; the value None removes a parameter."""
    values = {**parameters, **changes}
    return f"?{urlencode({name: value for name, value in values.items() if value is not None})}"


class CachedResults:
    """The cached results about ended sessions, least recently used first."""

    def __init__(self) -> None:
        self.results: OrderedDict[tuple[Any, ...], Any] = OrderedDict()


_cache_lock = Lock()


@dataclass(frozen=True, slots=True)
class EndedSessionCache:
    """A cache of slow results about an ended session. Without it, live updates would compute them again each time
    another agent records something.
    """

    key: tuple[Any, ...] | None
    """The home, the session and its fingerprint. None if the session is running; in that case nothing is cached."""

    @classmethod
    def of(cls, home: Home, view: View, about: Row) -> EndedSessionCache:
        """Return the cache for a session, from its row of `sessions`."""
        rows = view.named("listing/fingerprint", session_id=about["session_id"])
        if about["status"] == "running" or not rows:
            return cls(None)
        return cls((home.path, about["session_id"], rows[0]["fingerprint"]))

    def get(self, name: Any, compute: Callable[[], T]) -> T:
        """Return the cached result with this name, or compute it; long results are not cached."""
        cached = process.state(CachedResults)
        if self.key is None:
            return compute()
        key = (*self.key, name)
        with _cache_lock:
            if key in cached.results:
                cached.results.move_to_end(key)
                cached_result: T = cached.results[key]
                return cached_result
        result = compute()
        if isinstance(result, Sized) and len(result) > MOST_RESULT_ROWS:
            return result
        with _cache_lock:
            cached.results[key] = result
            while len(cached.results) > MOST_RESULTS:
                cached.results.popitem(last=False)
        return result


def _unfinished_operations(view: View, about: Row) -> Sequence[Row]:
    """Return the unfinished operations. The query is slow, so it runs only if there may be unfinished operations."""
    key = {"session_id": about["session_id"]}
    if about["status"] == "crashed" or view.named("internal/orphaned_span", **key):
        return view.named("open_at_death", **key)
    return ()


def _losses(view: View, session_id: str) -> Sequence[Row]:
    return view.named("losses", session_id=session_id)


def _window(turns: Sequence[Row], first: str | None, last: str | None) -> tuple[int, int] | None:
    """Return the requested range of turns of the waterfall, counted from 1; None for all turns."""
    start, end = number_in(first), number_in(last)
    if not turns or (start is None and end is None):
        return None
    start = min(max(start or 1, 1), len(turns))
    return start, min(max(end or len(turns), start), len(turns))


def _time_range(turns: Sequence[Row], window: tuple[int, int]) -> tuple[int, int]:
    """Return the start and the end of a range of turns, including the tool calls of its last turn."""
    shown_turns = turns[window[0] - 1 : window[1]]
    start = min(row["started_ns"] for row in shown_turns)
    end = max(row["started_ns"] + row["duration_ns"] for row in shown_turns)
    if window[1] < len(turns):
        end = max(end, turns[window[1]]["started_ns"])
    return start, end


def _windows(count: int, window: tuple[int, int] | None) -> dict[str, tuple[int, int]]:
    """Return the ranges of turns to link to, by label."""
    if count <= WINDOW_TURNS and window is None:
        return {}
    if window is None:
        return {"First turns": (1, WINDOW_TURNS), "Last turns": (count - WINDOW_TURNS + 1, count)}
    first, last = window
    size = last - first + 1
    ranges = {}
    if first > 1:
        ranges["Earlier"] = (max(first - size, 1), first - 1)
    if last < count:
        ranges["Later"] = (last + 1, min(last + size, count))
    return ranges


def first_of(rows: Sequence[Row]) -> Row | None:
    """Return the first row, or None if there are no rows."""
    return rows[0] if rows else None


routes = [Route("/sessions/{id:path}", session)]
