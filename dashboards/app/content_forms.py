"""Endpoints that show content. Content is requested with POST, and returned as a part of a page or as a file."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from agentobs.store.analysis.session_search import SessionTexts
from dashboards.app.site import first_of, page_response
from dashboards.app.store_view import Row, View
from dashboards.panels.templates import page

PART = "x-agentobs"
"""The header with which `content.js` requests a part of a page; forms without a script get a full page."""
MOST_FIELDS = 10
"""The maximum number of fields of a form; our forms have up to four."""

Fields = Mapping[str, str]


def on_click(
    show: Callable[[Request, Fields], Response],
) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint of a button that shows content. A GET, from a link or a reload, is redirected to the page
    that contains the button.
    """

    async def endpoint(request: Request) -> Response:
        if request.method != "POST":
            return RedirectResponse(
                request.scope["raw_path"].decode("ascii").rpartition("/")[0], 303
            )
        async with request.form(max_files=0, max_fields=MOST_FIELDS) as form:
            fields = {key: str(value) for key, value in form.items()}
        return await run_in_threadpool(show, request, fields)

    return endpoint


def content_response(
    request: Request,
    template: str,
    *,
    title: str,
    back: str,
    session: Row | None = None,
    **values: Any,
) -> Response:
    """Return content as a part of a page, or as a full page if the script did not request it.

    Args:
        request: the HTTP request.
        template: the template of the part.
        title: the title of the full page.
        back: the path of the page that contains the button.
        session: the ID, the name and the title of the session that the full page names; None if it names none.
        values: the values of the template.
    """
    if request.headers.get(PART) == "part":
        return HTMLResponse(page(template, session=session, **values))
    return page_response(
        request,
        "content_page.html",
        nav_item="sessions",
        title=title,
        back=back,
        session=session,
        part=template,
        **values,
    )


def named_session(request: Request, view: View, session_id: str) -> Row | None:
    """Return the ID, the name and the title of a session, for the head of a full page with a part of its content.

    None if only the part was requested: its page names the session.
    """
    if request.headers.get(PART) == "part":
        return None
    about = first_of(view.named("internal/session_start", session_id=session_id))
    title = SessionTexts(view.store, view.texts).titles([session_id]).get(session_id)
    return {"session_id": session_id, "name": about and about["name"], "title": title}


def download(name: str, data: bytes) -> Response:
    """Return bytes as a file that a browser downloads and never displays."""
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", name)[:100]
    return Response(
        data,
        media_type="text/plain; charset=utf-8",
        headers={
            "content-disposition": f'attachment; filename="{safe}"',
            "x-content-type-options": "nosniff",
        },
    )
