"""The application: routes, and error pages."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from agentobs.errors import AgentobsError, UsageError
from agentobs.store.port import QueryError
from dashboards.app import (
    attempt_page,
    changes_page,
    fleet_page,
    ledger_page,
    pair_page,
    session_list,
    session_page,
    sql_page,
    transcript_page,
)
from dashboards.app.site import KINDS, Site, answer, asset_paths, asset_text, site_of
from dashboards.app.store_view import BusyError

_PARTS = (
    session_list,
    fleet_page,
    sql_page,
    transcript_page,
    ledger_page,
    session_page,
    changes_page,
    attempt_page,
    pair_page,
)
"""IDs may contain slashes, so routes that end in an ID come after routes with a suffix behind the ID."""
BODY_BYTES = 1024 * 1024
"""The maximum size of a form; an SQL statement is the longest. Our choice."""
LOOKS = 2
"""The number of requests that may wait for a check for new data, in threads of their own. Our choice."""
RETRY_SECONDS = 5
"""The value of Retry-After for a page that could not be rendered. Our choice."""
YEAR_SECONDS = 31_536_000
"""How long an asset may be cached; a changed asset has another path."""


def application(site: Site) -> Starlette:
    """Return the application over one home, without its guard."""
    made = Starlette(
        routes=[*routes, *(route for part in _PARTS for route in part.routes)],
        exception_handlers={
            AgentobsError: _agentobs_error,
            BusyError: _busy,
            QueryError: _refused,
            HTTPException: _not_found,
            Exception: _internal_error,
        },
        max_body_size=BODY_BYTES,
    )
    made.state.site = site
    made.state.looks = anyio.CapacityLimiter(LOOKS)
    return made


def asset(request: Request) -> Response:
    """Return a script, a style or an icon."""
    name = request.path_params["name"]
    if request.url.path != asset_paths().get(name):
        raise HTTPException(404)
    kept = {"cache-control": f"private, max-age={YEAR_SECONDS}, immutable"}
    return Response(asset_text(name), media_type=KINDS[Path(name).suffix], headers=kept)


async def revision(request: Request) -> Response:
    """Return the revision of the store that would be shown now. Never waits for pages that are being rendered."""
    latest = site_of(request).reader.latest
    found = await anyio.to_thread.run_sync(latest, limiter=request.app.state.looks)
    return JSONResponse({"revision": found})


routes = [
    Route("/assets/{digest}/{name}", asset),
    Route("/revision", revision),
]


def _agentobs_error(request: Request, error: Exception) -> Response:
    """Render an agentobs error: something does not exist, or the store cannot be read."""
    assert isinstance(error, AgentobsError)
    is_usage = isinstance(error, UsageError)
    place = f"{error.where}: " if error.where else ""
    return answer(
        request,
        "error.html",
        status=404 if is_usage else 503,
        # If the store could not be read, a later attempt may succeed.
        revision=None if is_usage else site_of(request).reader.revision(),
        title="Not found" if is_usage else "The recordings cannot be read",
        found=f"{place}{error.found}.",
        todo=f"{error.todo}." if error.todo else "",
    )


def _busy(request: Request, error: Exception) -> Response:
    """Render the error that too many slow pages are being rendered."""
    assert isinstance(error, BusyError)
    response = answer(
        request,
        "error.html",
        status=503,
        title="Busy",
        found=f"{error.found[:1].upper()}{error.found[1:]}.",
        todo=f"{error.todo}.",
    )
    response.headers["retry-after"] = str(RETRY_SECONDS)
    return response


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, QueryError)
    found = f"Error of DuckDB: {error.found}."
    return answer(
        request, "error.html", status=503, title="This cannot be shown", found=found, todo=""
    )


def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code != 404:
        return PlainTextResponse(str(error.detail), error.status_code, dict(error.headers or {}))
    found = "This page does not exist."
    return answer(request, "error.html", status=404, title="Not found", found=found, todo="")


def _internal_error(request: Request, error: Exception) -> Response:
    """Render an internal error, and print its location to the terminal; recorded data is shown in neither."""
    at = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(at.filename).name}:{at.lineno}"
    print(f"agentobs: a page failed: {type(error).__name__} at {place}", file=sys.stderr)
    return answer(
        request,
        "error.html",
        status=500,
        title="This page failed",
        found=f"Internal error of agentobs: {type(error).__name__} at {place}.",
        todo="Please report it. No recorded data is lost",
    )
