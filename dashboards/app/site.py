"""The shared state of the application, its assets, and the rendering of pages as responses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse

from agentobs.recording.journal.home import Home
from agentobs.records.canonical_json import digest
from agentobs.store.port import Store
from agentobs.store.session_lookup import find_session
from dashboards.app.commands.command_jobs import JobRunner
from dashboards.app.queries.query_processes import QueryRunner
from dashboards.app.store_view import Reader, Row, View
from dashboards.panels.templates import page, plotly_script

Compare = Callable[[Store, str, str], Mapping[str, Any]]
"""Compares two sessions by ID, as `agentobs diff --json` does. It is injected, because packages that read recordings do
not import each other.
"""

_ASSETS = Path(__file__).parents[1] / "assets"
PLOTLY = "plotly.min.js"
"""The name of the asset that contains plotly."""
KINDS = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""The media types of assets, by file name extension."""


@dataclass(frozen=True, slots=True)
class Site:
    """The state of the application, at `request.app.state.site`."""

    home: Home
    """The home with the recordings."""
    reader: Reader
    """The reader of the current store."""
    compare: Compare | None = None
    """The function that compares two sessions; None if sessions cannot be compared."""
    queries: QueryRunner = field(default_factory=QueryRunner)
    """The runner of SQL queries."""
    is_remote: bool = False
    """Whether other machines can connect."""
    jobs: JobRunner = field(default_factory=lambda: JobRunner(None))
    """The runner of the commands that session pages start."""


def site_of(request: Request) -> Site:
    """Return the state of the application."""
    site: Site = request.app.state.site
    return site


def session_named(request: Request, view: View) -> str:
    """Return the ID of the session in the URL.

    Raises:
        UsageError: no session matches, or several do.
    """
    name = str(request.path_params["id"])
    return find_session(view.store, name, key=known_key(site_of(request).home))


def first_of(rows: Sequence[Row]) -> Row | None:
    """Return the first row, or None if there are no rows."""
    return rows[0] if rows else None


def page_response(
    request: Request,
    template: str,
    *,
    status: int = 200,
    nav_item: str = "",
    figures: bool = False,
    revision: int | None = None,
    **values: Any,
) -> HTMLResponse:
    """Return a page as a response.

    Args:
        request: the HTTP request.
        template: a template that extends `app.html`.
        status: the HTTP status.
        nav_item: the current item of the navigation: `sessions`, `fleet`, `compare`, `sql` or empty.
        figures: whether the page has figures, which need plotly.
        revision: the revision of the store that the page shows. If given, the script replaces the regions with the
            attribute `data-live` when there is a newer revision.
        values: the values of the template.
    """
    shared = {
        "nav_item": nav_item,
        "figures": figures,
        "revision": revision,
        "assets": asset_paths(),
    }
    site = site_of(request)
    path = str(site.home.path)
    home_values = {"home": path, "home_key": digest(path.encode()), "is_remote": site.is_remote}
    return HTMLResponse(page(template, **shared, **home_values, **values), status)


def known_key(home: Home) -> bytes | None:
    """Return the key of the home, or None if it has no key yet. Never creates a key.

    Raises:
        HomeError: the key cannot be used.
    """
    return home.key() if (home.path / "key").exists() else None


@cache
def asset_paths() -> dict[str, str]:
    """Return the path of each asset by name. The path contains a digest, so browsers can cache it permanently."""
    return {name: f"/assets/{digest(text)[3:15]}/{name}" for name, text in _assets().items()}


def asset_text(name: str) -> bytes:
    """Return the content of an asset.

    Raises:
        KeyError: no asset has this name.
    """
    return _assets()[name]


@cache
def _assets() -> dict[str, bytes]:
    found = {path.name: path.read_bytes() for path in _ASSETS.iterdir() if path.suffix in KINDS}
    return found | {PLOTLY: plotly_script().encode()}
