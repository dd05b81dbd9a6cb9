"""The page that compares two sessions: their steps, and cost, tokens and time, per step and in total."""

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
from dashboards.app.paging import Pages, page_of
from dashboards.app.site import known_key, page_response, site_of
from dashboards.app.store_view import Row, View
from dashboards.panels.pair_summary import changes, row, totals
from dashboards.panels.panels import Panel, panel

PAGE_SIZE = 100
"""Steps per page. Our choice."""
MOST_OFFERED = 100
"""The number of sessions that the form suggests; others are selected by ID. Our choice."""


def pair(request: Request) -> Response:
    """Show the comparison of two sessions, or a form that selects them."""
    query = request.query_params
    names = (query.get("a", "").strip(), query.get("b", "").strip())
    with site_of(request).reader.view() as view:
        ids, found = _ids(request, view, names)
        if len(ids) == 2 and (query.get("a"), query.get("b")) != ids:
            return RedirectResponse(f"/compare?{urlencode({'a': ids[0], 'b': ids[1]})}", 303)
        if len(ids) < 2:
            return _form(request, view, names, found)
    return _compared(request, ids)


def _ids(
    request: Request, view: View, names: Sequence[str]
) -> tuple[tuple[str, ...], UsageError | None]:
    """Return the IDs of the named sessions, and the error about the first invalid one."""
    key = known_key(site_of(request).home)
    ids: list[str] = []
    for text in names:
        if text:
            try:
                ids.append(find_session(view.store, text, key=key))
            except UsageError as error:
                return tuple(ids), error
    return tuple(ids), None


def _form(request: Request, view: View, names: Sequence[str], error: UsageError | None) -> Response:
    return page_response(
        request,
        "pair_form.html",
        status=404 if error else 200,
        nav_item="compare",
        a=names[0],
        b=names[1],
        error=error,
        latest=view.named("sessions", limit=MOST_OFFERED, causes=False),
    )


def _compared(request: Request, ids: Sequence[str]) -> Response:
    compare = site_of(request).compare
    if compare is None:
        raise UsageError("sessions cannot be compared here", todo="Run agentobs diff A B instead")
    comparison = compare(site_of(request).home, ids[0], ids[1])
    steps: list[Row] = list(comparison["steps"])
    is_only_changed = "changed" in request.query_params
    shown_steps = [step for step in steps if step["change"] != "same"] if is_only_changed else steps
    parameters = {"a": ids[0], "b": ids[1], **({"changed": "1"} if is_only_changed else {})}
    return page_response(
        request,
        "pair.html",
        nav_item="compare",
        figures=True,
        a=comparison["a"],
        b=comparison["b"],
        totals=totals(comparison["a"], comparison["b"]),
        panel=_panel(comparison),
        changes=sum(step["change"] != "same" for step in steps),
        all_steps=len(steps),
        is_only_changed=is_only_changed,
        steps=_table_rows(
            page_of(shown_steps, request.query_params.get("page"), parameters, PAGE_SIZE)
        ),
    )


def _panel(comparison: Mapping[str, Any]) -> Panel:
    figure = figures.two_sessions(comparison)
    summary = changes(comparison["steps"])
    return panel("two-sessions", "Steps", summary, figure, (), (), is_wide=True)


def _table_rows(steps: Pages) -> Pages:
    """Return the steps of a page as table rows."""
    rows = [row(step) for step in steps.rows]
    return Pages(rows, steps.number, steps.count, steps.total, steps.first, steps.parameters)


routes = [Route("/compare", pair)]
