"""The page that compares a request with the previous one in its lane: facts, and on demand the changed text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dashboards.app.attempt_page import attempt_of
from dashboards.app.content_forms import Fields, content_response, on_click
from dashboards.app.content_reader import CONTENT_SLOTS, Content, Withheld
from dashboards.app.site import page_response, site_of
from dashboards.app.store_view import Row, View
from dashboards.content.edits import edits
from dashboards.content.visible_text import body_of
from dashboards.panels.session_outcomes import content_state
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


def changes_page(request: Request) -> Response:
    """Show the changes of a request, without content."""
    with site_of(request).reader.view() as view:
        about = attempt_of(request, view)
        previous = previous_attempt(view, about)
        zones, compared = _zones(view, about)
        return page_response(
            request,
            "change.html",
            nav_item="sessions",
            about=about,
            previous=previous,
            compared=compared,
            zones=zones,
            fields=_field_comparison(previous, about) if previous else (),
            content_state=content_state(view.store, about["session_id"]),
        )


def changed_text(request: Request, fields: Fields) -> Response:
    """Show the changes of a request, with content."""
    del fields
    with site_of(request).reader.view() as view:
        about = attempt_of(request, view)
        previous = previous_attempt(view, about)
    with CONTENT_SLOTS:
        content = Content(site_of(request).home)
        content_of_new = content.question(about)
        content_of_previous = content.question(previous) if previous else None
        found: Any = None
        withheld = next(
            (each for each in (content_of_new, content_of_previous) if isinstance(each, Withheld)),
            None,
        )
        if withheld is None and not isinstance(content_of_new, Withheld):
            previous_body = (
                None
                if content_of_previous is None or isinstance(content_of_previous, Withheld)
                else body_of(content_of_previous)
            )
            found = edits(previous_body if previous else {}, body_of(content_of_new))
        return content_response(
            request,
            "edits.html",
            title="Changes in the request",
            back=f"/attempts/{segment(about['attempt_id'])}/diff",
            about=about,
            withheld=withheld,
            edits=found,
        )


def previous_attempt(view: View, about: Row) -> Row | None:
    """Return the previous attempt in the lane, of this LLM request or the previous one; None for the first attempt."""
    key = {name: about[name] for name in ("session_id", "lane", "started_ns", "attempt_id")}
    found = view.named("internal/previous_attempt", **key, endpoint=about["endpoint"])
    return found[0] if found else None


def _zones(view: View, about: Row) -> tuple[list[tuple[str, bool]] | None, Row | None]:
    """Return the zones, each with a flag that is true if it changed, and the compared attempt.

    Both are None if nothing was compared.
    """
    key = {"session_id": about["session_id"], "attempt_id": about["attempt_id"]}
    found = view.named("internal/zone_changes", **key)
    if not found:
        return None, None
    changed = str(found[0]["zones_changed"] or "").split(", ")
    return [(title, name in changed) for name, title in ZONES.items()], found[0]


def _field_comparison(previous: Row, about: Row) -> Sequence[tuple[str, Any, Any]]:
    """Return facts of both requests: the name, the previous value, and the current value."""
    named = (
        ("model", "model_requested"),
        ("messages", "message_count"),
        ("request_bytes", "request_bytes"),
        ("streamed", "streamed"),
        ("secrets redacted", "redactions"),
        ("outcome", "outcome"),
    )
    return [(title, previous[name], about[name]) for title, name in named]


routes = [
    Route("/attempts/{id:path}/diff", changes_page),
    Route("/attempts/{id:path}/diff/words", on_click(changed_text), methods=["GET", "POST"]),
]
