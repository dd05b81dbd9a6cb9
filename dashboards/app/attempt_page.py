"""The page of an attempt: its facts, and on a click the request and the response, raw and decoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentobs.errors import UsageError
from agentobs.records.exchanges import Answer, Question
from dashboards.app.content_forms import Fields, on_click, revealed, saved
from dashboards.app.content_reader import AT_ONCE, Content, Withheld
from dashboards.app.session_page import first_of
from dashboards.app.site import answer, site_of
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
from dashboards.panels.session_outcomes import kept_of
from dashboards.panels.templates import segment

MOST_CHUNKS = 100
"""The maximum number of listed chunks of a response. Our choice."""
MOST_TRIES = 20
"""The maximum number of listed attempts of a call. Our choice."""


@dataclass(frozen=True, slots=True)
class Asked:
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
class Answered:
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
            todo="The page of its session lists all requests; agentobs prune may have deleted this one",
        )
    return found[0]


def attempt(request: Request) -> Response:
    """Show the facts of one attempt."""
    with site_of(request).reader.view() as view:
        about = attempt_of(request, view)
        own = {"session_id": about["session_id"], "attempt_id": about["attempt_id"]}
        misses = view.named("cache_misses", session_id=about["session_id"])
        near = view.named("internal/adjacent_attempts", **own, lane=about["lane"])
        return answer(
            request,
            "attempt.html",
            here="sessions",
            about=about,
            session=first_of(view.named("internal/session_start", session_id=about["session_id"])),
            kept=kept_of(view.store, about["session_id"]),
            spent=view.named("internal/attempt_costs", **own),
            whole=first_of(view.named("internal/attempt_cost", **own)),
            notes=view.named("internal/usage_notes", **own),
            calls=view.named("internal/attempt_tool_calls", **own),
            tries=view.named(
                "internal/other_attempts", **own, llm_request_id=about["llm_request_id"]
            ),
            miss=next((m for m in misses if m["attempt_id"] == about["attempt_id"]), None),
            before=near[0]["before_id"] if near else None,
            after=near[0]["after_id"] if near else None,
            most_tries=MOST_TRIES,
        )


def exchange(request: Request, fields: Fields) -> Response:
    """Show the request and the response of an attempt."""
    del fields
    with site_of(request).reader.view() as view:
        about = attempt_of(request, view)
    with AT_ONCE:
        content = Content(site_of(request).home)
        question, got = content.question(about), content.answer(about)
        return revealed(
            request,
            "exchange.html",
            title="Request and response",
            back=f"/attempts/{segment(about['attempt_id'])}",
            about=about,
            asked=question if isinstance(question, Withheld) else _asked(content, about, question),
            answered=got if isinstance(got, Withheld) else _answered(content, about, got),
        )


def text(request: Request, fields: Fields) -> Response:
    """Send the full text of one part of a request or a response."""
    with site_of(request).reader.view() as view:
        about = attempt_of(request, view)
    side = fields.get("side", "")
    with AT_ONCE:
        content = Content(site_of(request).home)
        if side == "request":
            question = content.question(about)
            value = None if isinstance(question, Withheld) else body_of(question)
        else:
            got = content.answer(about)
            value = None if isinstance(got, Withheld) else message_of(got)
        try:
            told = text_of(found_at(value, fields.get("keys", "")))
        except LookupError as error:
            raise UsageError(
                "the text does not exist in this message", where=str(about["attempt_id"])
            ) from error
    return saved(f"{about['attempt_id']}-{side}.txt", told.encode("utf-8", "surrogatepass"))


def raw(request: Request, fields: Fields) -> Response:
    """Send the raw recorded body of a request or a response."""
    with site_of(request).reader.view() as view:
        about = attempt_of(request, view)
    side = "request" if fields.get("side") == "request" else "response"
    with AT_ONCE:
        content = Content(site_of(request).home)
        got = content.question(about) if side == "request" else content.answer(about)
    if isinstance(got, Withheld):
        raise UsageError(got.found, where=str(about["attempt_id"]), todo=got.todo)
    return saved(f"{about['attempt_id']}-{side}.txt", got.body)


def _asked(content: Content, about: Row, question: Question) -> Asked:
    body = body_of(question)
    return Asked(
        question.method,
        visible(question.path),
        {visible(name): visible(value) for name, value in question.headers.items()},
        len(question.body),
        shown(question.body.decode("utf-8", "replace")),
        None if body is None else shown(body, "request", ()),
        content.secrets(about, "request_content"),
    )


def _answered(content: Content, about: Row, got: Answer) -> Answered:
    body, told = got.body, message_of(got)
    pieces = got.chunks[:MOST_CHUNKS]
    listed = [
        {"chunk": n, "bytes": len(each.data), "after_ns": each.after_ns}
        for n, each in enumerate(pieces, 1)
    ]
    failure = f"{got.failure.name}: {got.failure.message}" if got.failure else ""
    return Answered(
        got.status,
        {visible(name): visible(value) for name, value in got.headers.items()},
        got.ending,
        visible(failure),
        len(body),
        shown(body.decode("utf-8", "replace")),
        shown(told, "answer", ()) if told else None,
        message(told, "answer") if told.get("content") else None,
        listed,
        max(len(got.chunks) - MOST_CHUNKS, 0),
        content.secrets(about, "response_content"),
    )


_POST: Any = ["GET", "POST"]
routes = [
    Route("/attempts/{id:path}/exchange", on_click(exchange), methods=_POST),
    Route("/attempts/{id:path}/text", on_click(text), methods=_POST),
    Route("/attempts/{id:path}/raw", on_click(raw), methods=_POST),
    Route("/attempts/{id:path}", attempt),
]
