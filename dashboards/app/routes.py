"""The application: routes and error pages."""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from agentobs.errors import AgentobsError, UsageError
from agentobs.store.port import QueryError
from dashboards.app import (
    attempt_page,
    call_arguments,
    causes_page,
    changes_page,
    fleet_page,
    ledger_page,
    session_list,
    session_page,
    step_content,
    transcript_page,
)
from dashboards.app.commands import command_pages
from dashboards.app.comparison import pair_page, pair_texts
from dashboards.app.queries import sql_page
from dashboards.app.site import KINDS, Site, asset_paths, asset_text, page_response, site_of
from dashboards.app.store_view import BusyError, Reader, ReaderState

_PAGES = (
    session_list,
    fleet_page,
    sql_page,
    transcript_page,
    ledger_page,
    command_pages,
    causes_page,
    call_arguments,
    session_page,
    changes_page,
    step_content,
    attempt_page,
    pair_page,
    pair_texts,
)
"""IDs may contain slashes, so a route that ends with an ID must come after the routes that continue after the ID."""
BODY_BYTES = 1024 * 1024
"""The maximum size of a form in bytes; the form with an SQL statement is the largest. Our choice."""
REVISION_THREADS = 2
"""The number of threads in which requests wait for a check for new data. Pages are rendered in other threads. Our
choice.
"""
OBSERVE_SECONDS = 0.2
"""The pause between two observations of the recordings for open pages. Our choice: a page is updated within two
seconds."""
RETRY_SECONDS = 5
"""The value of Retry-After for a page that could not be rendered. Our choice."""
YEAR_SECONDS = 31_536_000
"""How long an asset may be cached; a changed asset has a different path."""


def application(site: Site) -> Starlette:
    """Return the application for one home, without its guard."""
    app = Starlette(
        routes=[*routes, *(route for page in _PAGES for route in page.routes)],
        exception_handlers={
            AgentobsError: _agentobs_error,
            BusyError: _busy_error,
            QueryError: _query_error,
            HTTPException: _not_found,
            ClientDisconnect: _client_left,
            Exception: _internal_error,
        },
        max_body_size=BODY_BYTES,
    )
    app.state.site = site
    app.state.observer_limiter = anyio.CapacityLimiter(1)
    app.state.revision_limiter = anyio.CapacityLimiter(REVISION_THREADS)
    return app


def asset(request: Request) -> Response:
    """Return a script, a style or an icon."""
    name = request.path_params["name"]
    if request.url.path != asset_paths().get(name):
        raise HTTPException(404)
    headers = {"cache-control": f"private, max-age={YEAR_SECONDS}, immutable"}
    return Response(asset_text(name), media_type=KINDS[Path(name).suffix], headers=headers)


class Updates:
    """The state of the recordings, observed once for all open pages."""

    def __init__(self, reader: Reader, limiter: anyio.CapacityLimiter) -> None:
        """Observe nothing until a page listens."""
        self._reader, self._limiter = reader, limiter
        self._listeners = 0
        self._observer: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._state: ReaderState | None = None

    async def events(self) -> AsyncIterator[str]:
        """Yield a server-sent event for each observation, until the application closes."""
        self._listeners += 1
        if self._observer is None or self._observer.done():
            self._state = None
            self._observer = asyncio.create_task(self._observe())
        try:
            while self._state is None or not self._state.is_closed:
                changed = self._changed
                if self._state is not None:
                    age_ms = self._state.age_ns // 1_000_000
                    text = json.dumps({"revision": self._state.revision, "age_ms": age_ms})
                    yield f"data: {text}\n\n"
                await changed.wait()
        finally:
            self._listeners -= 1

    async def _observe(self) -> None:
        """Observe the reader while a page listens."""
        is_closed = False
        while self._listeners and not is_closed:
            self._state = await anyio.to_thread.run_sync(self._reader.state, limiter=self._limiter)
            is_closed = self._state.is_closed
            previous, self._changed = self._changed, asyncio.Event()
            previous.set()
            await asyncio.sleep(OBSERVE_SECONDS)


async def updates(request: Request) -> Response:
    """Send the revision and its age whenever they are observed, as server-sent events."""
    app = request.app
    if not hasattr(app.state, "updates"):
        app.state.updates = Updates(site_of(request).reader, app.state.observer_limiter)
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(
        app.state.updates.events(), media_type="text/event-stream", headers=headers
    )


async def revision(request: Request) -> Response:
    """Return the revision of the store that a page would show now. Never waits for pages that are being rendered."""
    latest = site_of(request).reader.latest
    found = await anyio.to_thread.run_sync(latest, limiter=request.app.state.revision_limiter)
    return JSONResponse({"revision": found})


routes = [
    Route("/assets/{digest}/{name}", asset),
    Route("/revision", revision),
    Route("/updates", updates),
]


def _agentobs_error(request: Request, error: Exception) -> Response:
    """Render an agentobs error: something does not exist, or the store cannot be read."""
    assert isinstance(error, AgentobsError)
    is_usage = isinstance(error, UsageError)
    place = f"{error.where}: " if error.where else ""
    return page_response(
        request,
        "error.html",
        status=404 if is_usage else 503,
        # If the store could not be read, a later attempt may succeed.
        revision=None if is_usage else site_of(request).reader.revision(),
        title="Not found" if is_usage else "The recordings cannot be read",
        found=f"{place}{error.found}.",
        todo=f"{error.todo}." if error.todo else "",
        session_id=getattr(request.state, "session_id", None),
    )


def _busy_error(request: Request, error: Exception) -> Response:
    """Render the error page for too many slow pages at the same time."""
    assert isinstance(error, BusyError)
    response = page_response(
        request,
        "error.html",
        status=503,
        title="Busy",
        found=f"{error.found[:1].upper()}{error.found[1:]}.",
        todo=f"{error.todo}.",
    )
    response.headers["retry-after"] = str(RETRY_SECONDS)
    return response


def _query_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, QueryError)
    found = f"DuckDB error: {error.found}."
    return page_response(
        request, "error.html", status=503, title="Cannot show this page", found=found, todo=""
    )


def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code != 404:
        return PlainTextResponse(str(error.detail), error.status_code, dict(error.headers or {}))
    found = "This page does not exist."
    return page_response(request, "error.html", status=404, title="Not found", found=found, todo="")


def _client_left(_request: Request, _error: Exception) -> Response:
    """Respond to a client that disconnected before it had sent its request; nobody reads the response."""
    return Response(status_code=400)


def _internal_error(request: Request, error: Exception) -> Response:
    """Render an internal error, and print its location to the terminal. Neither output contains recorded data."""
    at = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(at.filename).name}:{at.lineno}"
    print(f"agentobs: a page failed: {type(error).__name__} at {place}", file=sys.stderr)
    return page_response(
        request,
        "error.html",
        status=500,
        title="Internal error",
        found=f"agentobs failed with {type(error).__name__} at {place}.",
        todo="Please report it. No recorded data is lost",
    )
