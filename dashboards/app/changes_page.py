"""The page of the changes between a request and the previous one in its lane: facts, and the text on a click."""

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
    "model": "model",
    "tools": "tools",
    "system": "system prompt, up to the first cache breakpoint",
    "parameters": "other parameters (tool choice, thinking)",
    "system_dynamic": "system prompt, after the first cache breakpoint",
    "messages": "earlier messages",
}
"""The zones of a prompt in the order in which they are cached, with their labels."""


def change(request: Request) -> Response:
    """Show the changes of a request, without content."""
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
            kept=kept_of(view.store, about["session_id"]),
        )


def words(request: Request, fields: Fields) -> Response:
    """Show the changes of a request, with content."""
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
            title="Changes in the request",
            back=f"/attempts/{segment(about['attempt_id'])}/diff",
            about=about,
            withheld=withheld,
            edits=found,
        )


def before_of(view: View, about: Row) -> Row | None:
    """Return the previous attempt in the lane, of the same call or of the previous one; None for the first."""
    own = {name: about[name] for name in ("session_id", "lane", "started_ns", "attempt_id")}
    found = view.named("internal/previous_attempt", **own, endpoint=about["endpoint"])
    return found[0] if found else None


def _zones(view: View, about: Row) -> tuple[list[tuple[str, bool]] | None, Row | None]:
    """Return whether each zone changed, and the attempt compared with; None if nothing was compared."""
    own = {"session_id": about["session_id"], "attempt_id": about["attempt_id"]}
    found = view.named("internal/zone_changes", **own)
    if not found:
        return None, None
    changed = str(found[0]["zones_changed"] or "").split(", ")
    return [(told, name in changed) for name, told in ZONES.items()], found[0]


def _facts(before: Row, about: Row) -> Sequence[tuple[str, Any, Any]]:
    """Return the facts of both requests: name, value before and value now."""
    named = (
        ("model", "model_requested"),
        ("messages", "message_count"),
        ("request_bytes", "request_bytes"),
        ("streamed", "streamed"),
        ("secrets redacted", "redactions"),
        ("outcome", "outcome"),
    )
    return [(told, before[name], about[name]) for told, name in named]


routes = [
    Route("/attempts/{id:path}/diff", change),
    Route("/attempts/{id:path}/diff/words", on_click(words), methods=["GET", "POST"]),
]
