"""The form that selects two sessions: the latest sessions with titles and times, and the previous run of a name."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from agentobs.errors import UsageError
from agentobs.records import display
from agentobs.store.analysis.session_search import SessionTexts
from dashboards.app.site import page_response
from dashboards.app.store_view import Row, View

MOST_OFFERED = 100
"""The number of sessions that the form suggests; others are selected by ID. Our choice."""
TITLE_LENGTH = 60
"""The number of characters of a title in a suggestion. Our choice."""


def form(
    request: Request,
    view: View,
    names: Sequence[str],
    ids: Sequence[str],
    error: UsageError | None,
    previous: Row,
) -> Response:
    """Show the form.

    Args:
        request: the request.
        view: the view of the store.
        names: what was entered for session A and session B.
        ids: the IDs of the sessions that were found for them.
        error: why one of them was not found.
        previous: the previous session of the same name, from `previous_session`; empty if no session was found.
    """
    latest = view.named("sessions", limit=MOST_OFFERED, causes=False)
    given = _session(view, ids[0]) if ids else None
    if given is not None:
        # The latest sessions of the same name come first, because they are most likely runs of the same agent.
        latest = sorted(latest, key=lambda each: each["name"] != given["name"])
    wanted = [
        *(str(each["session_id"]) for each in latest),
        *ids,
        *(str(previous.get(each)) for each in ("previous", "next")),
    ]
    titles = SessionTexts(view.store, view.texts).titles(wanted)
    return page_response(
        request,
        "pair_form.html",
        status=404 if error else 200,
        nav_item="compare",
        a=names[0],
        b=names[1],
        error=error,
        given=given,
        previous=_session(view, previous["previous"]) if previous.get("previous") else None,
        previous_kind=previous.get("previous_kind"),
        next=_session(view, previous["next"]) if previous.get("next") and not names[0] else None,
        next_kind=previous.get("next_kind"),
        without_previous=_without_previous(view, given, previous, is_b=not names[0]),
        latest=latest,
        titles=titles,
        suggestion=lambda row: _suggestion(row, titles.get(row["session_id"], "")),
    )


def _session(view: View, session_id: str) -> Row | None:
    rows = view.named("sessions", session_ids=[session_id], telemetry=True, causes=False)
    return next(iter(rows), None)


def _suggestion(row: Row, title: str) -> str:
    """Return a session in one line: its name, start, status and title."""
    parts = (
        row["name"],
        display.instant(row["started_ns"]),
        row["status"],
        shortened(title, TITLE_LENGTH),
    )
    return ", ".join(str(each) for each in parts if each)


def shortened(title: str, length: int) -> str:
    """Return the start of a title, with at most `length` characters."""
    return title if len(title) <= length else f"{title[: length - 1].rstrip()}…"


def _without_previous(view: View, given: Row | None, previous: Row, *, is_b: bool) -> str:
    """Return why session B has no previous run, in a sentence; empty if it has one, or if only A is given."""
    if given is None or previous.get("previous") or not is_b:
        return ""
    name = given["name"]
    if not name:
        return "This session has no name, so no earlier session can be a run of the same agent."
    [stored] = view.store.rows("internal/session_summary", session_id=given["session_id"]).dicts()
    count = len(view.named("sessions", name=stored["name"], causes=False))
    place = "it is the only one" if count < 2 else f"it is the first of {count:,}"
    return f"There is no earlier session named {name}: {place}."
