"""The page that compares two sessions: their steps, and the cost, tokens and time of each step and in total."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from agentobs.errors import UsageError
from agentobs.store.session_lookup import find_session
from dashboards import figures
from dashboards.app.session_page import Pages, paged
from dashboards.app.site import answer, known_key, site_of
from dashboards.app.store_view import Row, View
from dashboards.panels.pair_summary import changes, row, totals
from dashboards.panels.panels import Panel, panel

PAGE = 100
"""Steps per page. Our choice."""
LATEST = 100
"""The number of sessions offered in the form; others are selected by ID. Our choice."""


def pair(request: Request) -> Response:
    """Show the comparison of two sessions, or a form that selects them."""
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
    """Return the IDs of the named sessions, and the error about the first invalid one."""
    key = known_key(site_of(request).home)
    ids: list[str] = []
    for text in named:
        if text:
            try:
                ids.append(find_session(view.store, text, key=key))
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
        raise UsageError("sessions cannot be compared here", todo="Run agentobs diff A B instead")
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
        steps=_table_rows(paged(chosen, request.query_params.get("page"), choice, PAGE)),
    )


def _panel(found: Mapping[str, Any]) -> Panel:
    drawn = figures.two_sessions(found)
    says = changes(found["steps"])
    return panel("two-sessions", "Steps", says, drawn, (), (), is_wide=True)


def _table_rows(steps: Pages) -> Pages:
    """Return the steps of a page in the form that the table shows."""
    rows = [row(step) for step in steps.rows]
    return Pages(rows, steps.number, steps.count, steps.total, steps.first, steps.choice)


routes = [Route("/compare", pair)]
