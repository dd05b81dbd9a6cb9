"""The page of an attempt: its facts, and on demand the request and the response, raw and decoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentobs.errors import UsageError
from agentobs.records.exchanges import Answer, Question
from agentobs.store.analysis.lane_names import with_agents_of_sessions
from dashboards.app.content_forms import Fields, content_response, download, on_click
from dashboards.app.content_reader import CONTENT_SLOTS, Content, Withheld
from dashboards.app.site import first_of, page_response, site_of
from dashboards.app.store_view import Row, View
from dashboards.content.message_view import Message, message
from dashboards.content.visible_text import (
    Text,
    body_of,
    found_at,
    message_of,
    shown,
    text_of,
    visible,
)
from dashboards.panels.session_outcomes import content_state
from dashboards.panels.templates import segment

MOST_CHUNKS = 100
"""The maximum number of listed chunks of a response. Our choice."""
MOST_ATTEMPTS = 20
"""The maximum number of listed attempts of an LLM request. Our choice."""


@dataclass(frozen=True, slots=True)
class RequestView:
    """A request as it was sent, for a page."""

    method: str
    path: str
    headers: Mapping[str, str]
    size: int
    """The size of the recorded body, in bytes, after redaction."""
    exact: Text
    pretty: Text | None
    """The body as indented JSON; None if it is not JSON."""
    secrets: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ResponseView:
    """A response as it arrived, for a page."""

    status: int | None
    headers: Mapping[str, str]
    ending: str
    failure: str
    size: int
    exact: Text
    pretty: Text | None
    """The reassembled message as indented JSON; None if there is no message."""
    message: Message | None
    chunks: Sequence[Row]
    more_chunks: int
    secrets: Mapping[str, int]


def attempt_of(request: Request, view: View) -> Row:
    """Return the row of the attempt in the URL.

    Raises:
        UsageError: the attempt does not exist.
    """
    attempt_id = str(request.path_params["id"])
    found = view.named("internal/attempt", attempt_id=attempt_id)
    if not found:
        raise UsageError(
            "no request with this ID",
            where=attempt_id[:80],
            todo="The session page lists all requests; agentobs prune may have deleted this request",
        )
    return with_agents_of_sessions(view.store, found, view.texts.replace_in_dicts)[0]


def attempt(request: Request) -> Response:
    """Show the facts of one attempt."""
    with site_of(request).reader.view() as view:
        about = attempt_of(request, view)
        key = {"session_id": about["session_id"], "attempt_id": about["attempt_id"]}
        losses = view.named("internal/cache_losses", session_id=about["session_id"], limit=None)
        near = view.named("internal/adjacent_attempts", **key, lane=about["lane"])
        return page_response(
            request,
            "attempt.html",
            nav_item="sessions",
            about=about,
            session=first_of(view.named("internal/session_start", session_id=about["session_id"])),
            content_state=content_state(view.store, about["session_id"]),
            costs=view.named("internal/attempt_costs", **key),
            total_cost=first_of(view.named("internal/attempt_cost", **key)),
            notes=view.named("internal/usage_notes", **key),
            calls=view.named("internal/attempt_tool_calls", **key),
            other_attempts=view.named(
                "internal/other_attempts", **key, llm_request_id=about["llm_request_id"]
            ),
            loss=next((m for m in losses if m["attempt_id"] == about["attempt_id"]), None),
            previous_id=near[0]["before_id"] if near else None,
            next_id=near[0]["after_id"] if near else None,
            most_attempts=MOST_ATTEMPTS,
        )


def exchange(request: Request, fields: Fields) -> Response:
    """Show the request and the response of an attempt."""
    del fields
    with site_of(request).reader.view() as view:
        about = attempt_of(request, view)
    with CONTENT_SLOTS:
        content = Content(site_of(request).home)
        question, answer = content.question(about), content.answer(about)
        return content_response(
            request,
            "exchange.html",
            title="Request and response",
            back=f"/attempts/{segment(about['attempt_id'])}",
            about=about,
            request_view=question
            if isinstance(question, Withheld)
            else _request_view(content, about, question),
            response_view=answer
            if isinstance(answer, Withheld)
            else _response_view(content, about, answer),
        )


def text(request: Request, fields: Fields) -> Response:
    """Send the full text of one part of a request or a response."""
    with site_of(request).reader.view() as view:
        about = attempt_of(request, view)
    side = fields.get("side", "")
    with CONTENT_SLOTS:
        content = Content(site_of(request).home)
        if side == "request":
            question = content.question(about)
            value = None if isinstance(question, Withheld) else body_of(question)
        else:
            answer = content.answer(about)
            value = None if isinstance(answer, Withheld) else message_of(answer)
        try:
            full_text = text_of(found_at(value, fields.get("keys", "")))
        except LookupError as error:
            raise UsageError(
                "the text does not exist in this message", where=str(about["attempt_id"])
            ) from error
    return download(f"{about['attempt_id']}-{side}.txt", full_text.encode("utf-8", "surrogatepass"))


def raw(request: Request, fields: Fields) -> Response:
    """Send the raw recorded body of a request or a response."""
    with site_of(request).reader.view() as view:
        about = attempt_of(request, view)
    side = "request" if fields.get("side") == "request" else "response"
    with CONTENT_SLOTS:
        content = Content(site_of(request).home)
        exchanged = content.question(about) if side == "request" else content.answer(about)
    if isinstance(exchanged, Withheld):
        raise UsageError(exchanged.found, where=str(about["attempt_id"]), todo=exchanged.todo)
    return download(f"{about['attempt_id']}-{side}.txt", exchanged.body)


def _request_view(content: Content, about: Row, question: Question) -> RequestView:
    body = body_of(question)
    return RequestView(
        question.method,
        visible(question.path),
        {visible(name): visible(value) for name, value in question.headers.items()},
        len(question.body),
        shown(question.body.decode("utf-8", "replace")),
        None if body is None else shown(body, "request", ()),
        content.secrets(about, "request_content"),
    )


def _response_view(content: Content, about: Row, answer: Answer) -> ResponseView:
    body, decoded = answer.body, message_of(answer)
    chunks = answer.chunks[:MOST_CHUNKS]
    listed = [
        {"chunk": n, "bytes": len(each.data), "after_ns": each.after_ns}
        for n, each in enumerate(chunks, 1)
    ]
    failure = f"{answer.failure.name}: {answer.failure.message}" if answer.failure else ""
    return ResponseView(
        answer.status,
        {visible(name): visible(value) for name, value in answer.headers.items()},
        answer.ending,
        visible(failure),
        len(body),
        shown(body.decode("utf-8", "replace")),
        shown(decoded, "response", ()) if decoded else None,
        message(decoded, "response") if decoded.get("content") else None,
        listed,
        max(len(answer.chunks) - MOST_CHUNKS, 0),
        content.secrets(about, "response_content"),
    )


_METHODS: Any = ["GET", "POST"]
routes = [
    Route("/attempts/{id:path}/exchange", on_click(exchange), methods=_METHODS),
    Route("/attempts/{id:path}/text", on_click(text), methods=_METHODS),
    Route("/attempts/{id:path}/raw", on_click(raw), methods=_METHODS),
    Route("/attempts/{id:path}", attempt),
]
