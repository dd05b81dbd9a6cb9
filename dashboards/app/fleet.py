"""The page about all sessions of a range of days: money, failures, caches, tools and waits."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dashboards.app.listing import day_ns
from dashboards.app.reading import View
from dashboards.app.site import answer, site_of
from dashboards.panels import fleet_panels

DAYS = 30
"""How many days are shown where none are named: up to the last one on which a session started. Our choice."""
_DAY_NS = 86_400_000_000_000


def fleet_page(request: Request) -> Response:
    """Answer with the panels of a range."""
    texts = {name: request.query_params.get(name, "")[:10] for name in ("day_from", "day_to")}
    since_ns, until_ns = day_ns(texts["day_from"], 0), day_ns(texts["day_to"], 1)
    misread = [text for text in texts.values() if text and day_ns(text, 0) is None]
    with site_of(request).reader.view() as view:
        last_ns = _last_ns(view)
        is_usual = since_ns is None and until_ns is None
        if is_usual and last_ns is not None:
            since_ns = (last_ns // _DAY_NS - DAYS + 1) * _DAY_NS
        return answer(
            request,
            "fleet.html",
            here="fleet",
            figures=True,
            revision=view.revision,
            panels=fleet_panels(view.connection, since_ns=since_ns, until_ns=until_ns),
            texts=texts,
            misread=misread,
            days=DAYS if is_usual else None,
            has_sessions=last_ns is not None,
        )


def _last_ns(view: View) -> int | None:
    [row] = view.select("SELECT max(started_ns) AS last_ns FROM app.listing")
    last: int | None = row["last_ns"]
    return last


routes = [Route("/fleet", fleet_page)]
