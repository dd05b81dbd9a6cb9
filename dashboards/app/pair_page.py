"""The page that sets two sessions side by side: what they did step by step, and what each step and all of it took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from agentobs.errors import UsageError
from agentobs.store.named_queries import find_session
from dashboards import figures
from dashboards.app.session_page import Pages, paged
from dashboards.app.site import answer, known_key, site_of
from dashboards.app.store_view import Row, View
from dashboards.panels.pair_summary import changes, row, totals
from dashboards.panels.panels import Panel, panel

PAGE = 100
"""Steps of a page. Our choice."""
LATEST = 100
"""How many sessions can be picked from a list; any other is named by its id. Our choice."""


def pair(request: Request) -> Response:
    """Show two sessions side by side; without two, a form to name them."""
    query = request.query_params
    named = (query.get("a", "").strip(), query.get("b", "").strip())
    with site_of(request).reader.view() as view:
        ids, found = _ids(request, view, named)
        if len(ids) == 2 and (query.get("a"), query.get("b")) != ids:
            return RedirectResponse(f"/compare?{urlencode({'a': ids[0], 'b': ids[1]})}", 303)
        if len(ids) < 2:
            return _form(request, view, named, found)
    return _compared(request, ids)


def _ids(
    request: Request, view: View, named: Sequence[str]
) -> tuple[tuple[str, ...], UsageError | None]:
    """Return the ids of the sessions that were named, and what is wrong with the first that is none."""
    key = known_key(site_of(request).home)
    ids: list[str] = []
    for text in named:
        if text:
            try:
                ids.append(find_session(view.connection, text, key=key))
            except UsageError as error:
                return tuple(ids), error
    return tuple(ids), None


def _form(request: Request, view: View, named: Sequence[str], error: UsageError | None) -> Response:
    return answer(
        request,
        "pair_form.html",
        status=404 if error else 200,
        here="compare",
        a=named[0],
        b=named[1],
        error=error,
        latest=view.named("sessions", limit=LATEST),
    )


def _compared(request: Request, ids: Sequence[str]) -> Response:
    compare = site_of(request).compare
    if compare is None:
        raise UsageError("sessions cannot be compared here", todo="agentobs diff A B compares them")
    found = compare(site_of(request).home, ids[0], ids[1])
    steps: list[Row] = list(found["steps"])
    only = "changed" in request.query_params
    chosen = [step for step in steps if step["change"] != "same"] if only else steps
    choice = {"a": ids[0], "b": ids[1], **({"changed": "1"} if only else {})}
    return answer(
        request,
        "pair.html",
        here="compare",
        figures=True,
        a=found["a"],
        b=found["b"],
        totals=totals(found["a"], found["b"]),
        panel=_panel(found),
        changes=sum(step["change"] != "same" for step in steps),
        all_steps=len(steps),
        only=only,
        steps=_told(paged(chosen, request.query_params.get("page"), choice, PAGE)),
    )


def _panel(found: Mapping[str, Any]) -> Panel:
    drawn = figures.two_sessions(found)
    says = changes(found["steps"])
    return panel("two-sessions", "Step by step", says, drawn, (), (), is_wide=True)


def _told(steps: Pages) -> Pages:
    """Return the steps of a page as its table shows them."""
    rows = [row(step) for step in steps.rows]
    return Pages(rows, steps.number, steps.count, steps.total, steps.first, steps.choice)


routes = [Route("/compare", pair)]
