"""The page about all sessions of a range of days: cost, failures, caching, tools and waits."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentobs import world
from dashboards.app.session_list import day_ns
from dashboards.app.site import page_response, site_of
from dashboards.app.store_view import View
from dashboards.panels.panels import Panel, fleet_panels

DEFAULT_DAYS = 30
"""The default number of days; the range ends with the last day on which a session started. Our choice."""
MOST_LIVE_NS = 1_000_000_000
"""A page that takes this long to render, or longer, has no live updates. [ns] Our choice."""
INTERRUPT_SECONDS = 0.05
"""The interval at which the queries of a request are interrupted after the client disconnected. Our choice."""
_DAY_NS = 86_400_000_000_000


async def fleet_page(request: Request) -> Response:
    """Respond with the panels of a range. If the client disconnects, the queries are interrupted."""
    views: list[View] = []
    disconnect_watch = asyncio.create_task(_interrupt_on_disconnect(request, views))
    try:
        return await run_in_threadpool(_page, request, views)
    finally:
        disconnect_watch.cancel()


async def _interrupt_on_disconnect(request: Request, views: Sequence[View]) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    # A page runs many queries in sequence, so interrupt repeatedly: the following queries must also stop.
    while True:
        for view in views:
            site_of(request).reader.stop(view)
        await asyncio.sleep(INTERRUPT_SECONDS)


def _page(request: Request, views: list[View]) -> Response:
    texts = {name: request.query_params.get(name, "")[:10] for name in ("day_from", "day_to")}
    since_ns, until_ns = day_ns(texts["day_from"], 0), day_ns(texts["day_to"], 1)
    invalid_dates = [text for text in texts.values() if text and day_ns(text, 0) is None]
    with site_of(request).reader.view() as view:
        views.append(view)
        last_ns = _last_ns(view)
        is_default_range = since_ns is None and until_ns is None
        if is_default_range and last_ns is not None:
            since_ns = (last_ns // _DAY_NS - DEFAULT_DAYS + 1) * _DAY_NS
        range_panels = view.cache.get(
            ("fleet", since_ns, until_ns), lambda: _range_panels(view, since_ns, until_ns)
        )
        return page_response(
            request,
            "fleet.html",
            nav_item="fleet",
            figures=True,
            # Live updates would render a slow page again and again.
            revision=view.revision if range_panels.took_ns < MOST_LIVE_NS else None,
            panels=range_panels.panels,
            texts=texts,
            invalid_dates=invalid_dates,
            days=DEFAULT_DAYS if is_default_range else None,
            has_sessions=last_ns is not None,
            list_query=_list_query(texts, since_ns, is_default_range),
        )


def _list_query(
    texts: Mapping[str, str], since_ns: int | None, is_default_range: bool
) -> dict[str, str]:
    """Return the parameters with which the list contains the sessions of the range."""
    if is_default_range:
        day = None if since_ns is None else datetime.fromtimestamp(since_ns // 10**9, UTC).date()
        return {"day_from": str(day)} if day else {}
    return {name: text for name, text in texts.items() if day_ns(text, 0) is not None}


@dataclass(frozen=True, slots=True)
class _RangePanels:
    """The panels of a range, and the time it took to compute them."""

    panels: Sequence[Panel]
    took_ns: int


def _range_panels(view: View, since_ns: int | None, until_ns: int | None) -> _RangePanels:
    started_ns = world.monotonic()
    panels = fleet_panels(
        view.store, since_ns=since_ns, until_ns=until_ns, restore_names=view.texts.replace_in_dicts
    )
    return _RangePanels(panels, world.monotonic() - started_ns)


def _last_ns(view: View) -> int | None:
    [row] = view.named("listing/last_start")
    last: int | None = row["last_ns"]
    return last


routes = [Route("/fleet", fleet_page)]
