"""The ledger of a session: what each call used and cost, how sure that is, and the sums of `agentobs cost`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dashboards.app.session_page import Pages, place, session_named
from dashboards.app.site import answer, site_of

PAGE = 100
"""Calls of a page. Our choice."""
MOST = 50
"""Rows of the small tables. Our choice."""


def ledger(request: Request) -> Response:
    """Show what a session cost, call by call."""
    with site_of(request).reader.view() as view:
        session_id = session_named(request, view)
        own = {"session_id": session_id}
        whole = view.named("cost_by_session", **own)
        [counted] = view.select(_COUNT, own)
        number, count, start = place(counted["calls"], request.query_params.get("page"), PAGE)
        rows = view.select(_CALLS, {**own, "first": start, "rows": PAGE})
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


_COUNT = "SELECT count(*) AS calls FROM sure_costs WHERE session_id = $session_id"
_CALLS = """
    SELECT costs.*, attempts.lane, attempts.turn, attempts.attempt, attempts.outcome
    FROM sure_costs AS costs
    LEFT JOIN attempts ON costs.session_id = attempts.session_id AND costs.attempt_id = attempts.attempt_id
    WHERE costs.session_id = $session_id
    ORDER BY costs.at_ns, costs.attempt_id, costs.iteration
    LIMIT $rows OFFSET $first
"""

routes = [Route("/sessions/{id:path}/ledger", ledger)]
