"""The ledger of a session: tokens, cost and certainty of each call, and the totals of `agentobs cost`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dashboards.app.session_page import Pages, place, session_named
from dashboards.app.site import answer, site_of

PAGE = 100
"""Calls per page. Our choice."""
MOST = 50
"""Maximum rows of the small tables. Our choice."""


def ledger(request: Request) -> Response:
    """Show the cost of each call of a session."""
    with site_of(request).reader.view() as view:
        session_id = session_named(request, view)
        own = {"session_id": session_id}
        whole = view.named("cost_by_session", **own)
        [counted] = view.named("internal/count_calls", **own)
        number, count, start = place(counted["calls"], request.query_params.get("page"), PAGE)
        rows = view.named("internal/session_ledger", **own, offset=start, limit=PAGE)
        return answer(
            request,
            "ledger.html",
            here="sessions",
            revision=view.revision,
            session_id=session_id,
            whole=whole[0] if whole else None,
            models=view.named("cost_by_model", **own),
            agents=view.named("cost_by_agent", **own),
            unpriced=view.named("unpriced_models", **own),
            calls=Pages(rows, number, count, counted["calls"], start + 1 if rows else 0, {}),
            most=MOST,
        )


routes = [Route("/sessions/{id:path}/ledger", ledger)]
