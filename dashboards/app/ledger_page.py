"""The ledger of a session: tokens, cost and certainty of each LLM request, and the totals of `agentobs cost`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentobs.store.analysis.lane_names import names_in_session, with_agents
from dashboards.app.paging import Pages, page_position
from dashboards.app.site import page_response, session_named, site_of

PAGE_SIZE = 100
"""LLM requests per page. Our choice."""
MOST_ROWS = 50
"""Maximum rows of the small tables. Our choice."""


def ledger(request: Request) -> Response:
    """Show the cost of each LLM request of a session."""
    with site_of(request).reader.view() as view:
        session_id = session_named(request, view)
        selected = {"session_id": session_id}
        totals = view.named("cost_by_session", **selected)
        [counts] = view.named("internal/count_calls", **selected)
        number, count, start = page_position(
            counts["calls"], request.query_params.get("page"), PAGE_SIZE
        )
        rows = view.named("internal/session_ledger", **selected, offset=start, limit=PAGE_SIZE)
        names = names_in_session(view.store, session_id, view.texts.replace_in_dicts)
        return page_response(
            request,
            "ledger.html",
            nav_item="sessions",
            revision=view.revision,
            session_id=session_id,
            totals=totals[0] if totals else None,
            models=view.named("cost_by_model", **selected),
            agents=with_agents(view.named("cost_by_agent", **selected), names),
            unpriced=view.named("unpriced_models", **selected),
            calls=Pages(
                with_agents(rows, names),
                number,
                count,
                counts["calls"],
                start + 1 if rows else 0,
                {},
            ),
            most=MOST_ROWS,
        )


routes = [Route("/sessions/{id:path}/ledger", ledger)]
