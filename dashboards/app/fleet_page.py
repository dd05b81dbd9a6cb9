"""The page about all sessions of a range of days: money, failures, caches, tools and waits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentobs import world
from dashboards.app.session_list import day_ns
from dashboards.app.site import answer, site_of
from dashboards.app.store_view import View
from dashboards.panels.panels import Panel, fleet_panels

DAYS = 30
"""The default number of days, up to the last day on which a session started. Our choice."""
FOLLOWED_NS = 1_000_000_000
"""The maximum time to render the page with live updates. Our choice."""
STOP_SECONDS = 0.05
"""The interval at which the queries of an abandoned request are interrupted. Our choice."""
_DAY_NS = 86_400_000_000_000


async def fleet_page(request: Request) -> Response:
    """Respond with the panels of a range; stop if the client disconnects."""
    reading: list[View] = []
    watching = asyncio.create_task(_stop_when_left(request, reading))
    try:
        return await run_in_threadpool(_page, request, reading)
    finally:
        watching.cancel()


async def _stop_when_left(request: Request, reading: Sequence[View]) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    # A page runs many queries one after the other, so that each following query is interrupted, too.
    while True:
        for view in reading:
            site_of(request).reader.stop(view)
        await asyncio.sleep(STOP_SECONDS)


def _page(request: Request, reading: list[View]) -> Response:
    texts = {name: request.query_params.get(name, "")[:10] for name in ("day_from", "day_to")}
    since_ns, until_ns = day_ns(texts["day_from"], 0), day_ns(texts["day_to"], 1)
    misread = [text for text in texts.values() if text and day_ns(text, 0) is None]
    with site_of(request).reader.view() as view:
        reading.append(view)
        last_ns = _last_ns(view)
        is_usual = since_ns is None and until_ns is None
        if is_usual and last_ns is not None:
            since_ns = (last_ns // _DAY_NS - DAYS + 1) * _DAY_NS
        made = view.kept.get(("fleet", since_ns, until_ns), lambda: _made(view, since_ns, until_ns))
        return answer(
            request,
            "fleet.html",
            here="fleet",
            figures=True,
            # A slow page is rendered on request only, not on each new event.
            revision=view.revision if made.took_ns < FOLLOWED_NS else None,
            panels=made.panels,
            texts=texts,
            misread=misread,
            days=DAYS if is_usual else None,
            has_sessions=last_ns is not None,
        )


@dataclass(frozen=True, slots=True)
class _Made:
    """The panels of a range."""

    panels: Sequence[Panel]
    took_ns: int


def _made(view: View, since_ns: int | None, until_ns: int | None) -> _Made:
    started_ns = world.monotonic()
    panels = fleet_panels(
        view.store, since_ns=since_ns, until_ns=until_ns, in_words=view.texts.shown_dicts
    )
    return _Made(panels, world.monotonic() - started_ns)


def _last_ns(view: View) -> int | None:
    [row] = view.named("listing/last_start")
    last: int | None = row["last_ns"]
    return last


routes = [Route("/fleet", fleet_page)]
