"""The page of what a request changed against the one before it in its lane: by facts, and on a click word by word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dashboards.app.attempt_page import attempt_of
from dashboards.app.content_forms import Fields, on_click, revealed
from dashboards.app.content_reader import AT_ONCE, Content, Withheld
from dashboards.app.edits import edits
from dashboards.app.site import answer, site_of
from dashboards.app.store_view import Row, View
from dashboards.content.visible_text import body_of
from dashboards.panels.session_outcomes import kept_of
from dashboards.panels.templates import segment

ZONES = {
    "betas": "beta headers",
    "model": "the model",
    "tools": "the tools",
    "system": "the system prompt up to its first mark of the cache",
    "parameters": "what stands beside the messages (tool choice, thinking)",
    "system_dynamic": "the system prompt behind that mark",
    "messages": "earlier messages",
}
"""The zones of a prompt, in the order in which it is cached, and what each is called here."""


def change(request: Request) -> Response:
    """Show what a request changed, without what was said."""
    with site_of(request).reader.view() as view:
        about = attempt_of(request, view)
        before = before_of(view, about)
        zones, compared = _zones(view, about)
        return answer(
            request,
            "change.html",
            here="sessions",
            about=about,
            before=before,
            compared=compared,
            zones=zones,
            facts=_facts(before, about) if before else (),
            kept=kept_of(view.connection, about["session_id"]),
        )


def words(request: Request, fields: Fields) -> Response:
    """Show what a request changed, with what was said."""
    del fields
    with site_of(request).reader.view() as view:
        about = attempt_of(request, view)
        before = before_of(view, about)
    with AT_ONCE:
        content = Content(site_of(request).home)
        new = content.question(about)
        old = content.question(before) if before else None
        found: Any = None
        withheld = next((each for each in (new, old) if isinstance(each, Withheld)), None)
        if withheld is None and not isinstance(new, Withheld):
            former = None if old is None or isinstance(old, Withheld) else body_of(old)
            found = edits(former if before else {}, body_of(new))
        return revealed(
            request,
            "edits.html",
            title="What the request changed",
            back=f"/attempts/{segment(about['attempt_id'])}/diff",
            about=about,
            withheld=withheld,
            edits=found,
        )


def before_of(view: View, about: Row) -> Row | None:
    """Return the attempt before another one in its lane, of the same call or of the one before; None for the first."""
    own = {name: about[name] for name in ("session_id", "lane", "started_ns", "attempt_id")}
    found = view.select(_BEFORE, {**own, "endpoint": about["endpoint"]})
    return found[0] if found else None


def _zones(view: View, about: Row) -> tuple[list[tuple[str, bool]] | None, Row | None]:
    """Return which zones changed, by name, and against which attempt; None where nothing was compared."""
    own = {"session_id": about["session_id"], "attempt_id": about["attempt_id"]}
    found = view.select(_ZONES, own)
    if not found:
        return None, None
    changed = str(found[0]["zones_changed"] or "").split(", ")
    return [(told, name in changed) for name, told in ZONES.items()], found[0]


def _facts(before: Row, about: Row) -> Sequence[tuple[str, Any, Any]]:
    """Return what is known of both without content: names, values before and now."""
    named = (
        ("model", "model_requested"),
        ("messages", "message_count"),
        ("request_bytes", "request_bytes"),
        ("streamed", "streamed"),
        ("secrets taken out", "redactions"),
        ("outcome", "outcome"),
    )
    return [(told, before[name], about[name]) for told, name in named]


_BEFORE = """
    SELECT * FROM attempts
    WHERE session_id = $session_id AND lane = $lane AND endpoint = $endpoint
        AND (started_ns, attempt_id) < ($started_ns, $attempt_id)
    ORDER BY started_ns DESC, attempt_id DESC
    LIMIT 1
"""
_ZONES = """
    SELECT * FROM zone_changes WHERE session_id = $session_id AND attempt_id = $attempt_id
"""

routes = [
    Route("/attempts/{id:path}/diff", change),
    Route("/attempts/{id:path}/diff/words", on_click(words), methods=["GET", "POST"]),
]
