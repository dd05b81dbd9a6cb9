"""What all pages of the application share, and how a page becomes an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse

from agentobs.recording.journal.home import Home
from agentobs.records.canonical_json import digest
from dashboards.app.query_processes import Questions
from dashboards.app.store_view import Reader
from dashboards.panels.templates import page, plotly_script

Compare = Callable[[Home, str, str], Mapping[str, Any]]
"""Compares two sessions by their ids, as `agentobs diff --json` does. Readers do not import each other: it is lent."""

_ASSETS = Path(__file__).parents[1] / "assets"
PLOTLY = "plotly.min.js"
"""Under which name plotly's own script is served."""
KINDS = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""The media type of each kind of asset."""


@dataclass(frozen=True, slots=True)
class Site:
    """What the application was started with; it is at `request.app.state.site`."""

    home: Home
    """Where the recordings are."""
    reader: Reader
    """The store, as it is now."""
    compare: Compare | None = None
    """How two sessions are compared; None where nobody lent it."""
    questions: Questions = field(default_factory=Questions)
    """What is asked in SQL."""
    is_remote: bool = False
    """Whether other machines can open it."""


def site_of(request: Request) -> Site:
    """Return what the application was started with."""
    site: Site = request.app.state.site
    return site


def answer(
    request: Request,
    template: str,
    *,
    status: int = 200,
    here: str = "",
    figures: bool = False,
    revision: int | None = None,
    **values: Any,
) -> HTMLResponse:
    """Return a page as an answer.

    Args:
        request: what is answered.
        template: a template that extends `app.html`.
        status: the HTTP status.
        here: the place in the navigation: `sessions`, `fleet`, `compare` or `sql`.
        figures: whether it has figures, for which plotly is loaded.
        revision: of which state of the store it tells; where it is given, the regions that are marked `data-live`
            are replaced when there is a newer one.
        values: what the template shows.
    """
    shared = {"here": here, "figures": figures, "revision": revision, "assets": asset_paths()}
    site = site_of(request)
    place = {"home": str(site.home.path), "is_remote": site.is_remote}
    return HTMLResponse(page(template, **shared, **place, **values), status)


def known_key(home: Home) -> bytes | None:
    """Return the home's key, or None where it has none, and so no name that is a digest; a look makes no key.

    Raises:
        HomeError: there is one, and it cannot be used.
    """
    return home.key() if (home.path / "key").exists() else None


@cache
def asset_paths() -> dict[str, str]:
    """Return the path of each asset by its name; what it holds is part of it, so that it can be kept for ever."""
    return {name: f"/assets/{digest(text)[3:15]}/{name}" for name, text in _assets().items()}


def asset_text(name: str) -> bytes:
    """Return what an asset holds.

    Raises:
        KeyError: there is none of that name.
    """
    return _assets()[name]


@cache
def _assets() -> dict[str, bytes]:
    found = {path.name: path.read_bytes() for path in _ASSETS.iterdir() if path.suffix in KINDS}
    return found | {PLOTLY: plotly_script().encode()}
