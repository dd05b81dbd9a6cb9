"""The application: which page answers which address, and what is answered where a page cannot be made."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

import anyio
import anyio.to_thread
import duckdb
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from agentobs.errors import AgentobsError, UsageError
from agentobs.store.duckdb.generations import first_line
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
"""An id may hold slashes: a route that ends in one comes after those that go on behind it."""
BODY_BYTES = 1024 * 1024
"""How long a form may be: a statement in SQL is the longest. Our choice."""
LOOKS = 2
"""How many requests wait for a look at once, in threads of their own: each waits a second at most. Our choice."""
RETRY_SECONDS = 5
"""After what time a page that could not be made is worth another request. Our choice."""
YEAR_SECONDS = 31_536_000
"""How long an asset may be kept; one that changes has another path."""


def application(site: Site) -> Starlette:
    """Return the application over one home, without its guard."""
    made = Starlette(
        routes=[*routes, *(route for part in _PARTS for route in part.routes)],
        exception_handlers={
            AgentobsError: _told,
            BusyError: _busy,
            duckdb.Error: _refused,
            HTTPException: _not_there,
            Exception: _broken,
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
    """Tell which state of the store would be shown now, however many pages are being made."""
    latest = site_of(request).reader.latest
    found = await anyio.to_thread.run_sync(latest, limiter=request.app.state.looks)
    return JSONResponse({"revision": found})


routes = [
    Route("/assets/{digest}/{name}", asset),
    Route("/revision", revision),
]


def _told(request: Request, error: Exception) -> Response:
    """Tell an error of ours: what was asked for does not exist, or the store cannot be read."""
    assert isinstance(error, AgentobsError)
    is_usage = isinstance(error, UsageError)
    place = f"{error.where}: " if error.where else ""
    return answer(
        request,
        "error.html",
        status=404 if is_usage else 503,
        # Where the store could not be read it may be read soon.
        revision=None if is_usage else site_of(request).reader.revision(),
        title="Not found" if is_usage else "The recordings cannot be read",
        found=f"{place}{error.found}.",
        todo=f"{error.todo}." if error.todo else "",
    )


def _busy(request: Request, error: Exception) -> Response:
    """Tell that a page takes long, and that others are being made."""
    assert isinstance(error, BusyError)
    told = answer(
        request,
        "error.html",
        status=503,
        title="Busy",
        found=f"{error.found[:1].upper()}{error.found[1:]}.",
        todo=f"{error.todo}.",
    )
    told.headers["retry-after"] = str(RETRY_SECONDS)
    return told


def _refused(request: Request, error: Exception) -> Response:
    found = f"DuckDB says: {first_line(error)}."
    return answer(
        request, "error.html", status=503, title="This cannot be shown", found=found, todo=""
    )


def _not_there(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code != 404:
        return PlainTextResponse(str(error.detail), error.status_code, dict(error.headers or {}))
    found = "There is no page at this address."
    return answer(request, "error.html", status=404, title="Not found", found=found, todo="")


def _broken(request: Request, error: Exception) -> Response:
    """Tell of a fault of ours; the terminal is told where it lies, and nobody what the data was."""
    at = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(at.filename).name}:{at.lineno}"
    print(f"agentobs: a page failed: {type(error).__name__} at {place}", file=sys.stderr)
    return answer(
        request,
        "error.html",
        status=500,
        title="This page failed",
        found=f"A fault of agentobs: {type(error).__name__} at {place}.",
        todo="Please report it. Nothing that was recorded is lost",
    )
