"""The page of an attempt: its facts, and on a click the request and the response, byte by byte and as they read."""

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
"""How many pieces of a response are listed. Our choice."""
MOST_TRIES = 20
"""How many tries of a call are listed; who retries more often has another trouble. Our choice."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it was sent, for a page."""

    method: str
    path: str
    headers: Mapping[str, str]
    size: int
    """Bytes of its body as it was written, after redaction."""
    exact: Text
    pretty: Text | None
    """Its JSON, indented; None where it is none."""
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
    """The message that it adds up to, as indented JSON; None where there is none."""
    message: Message | None
    chunks: Sequence[Row]
    more_chunks: int
    secrets: Mapping[str, int]


def attempt_of(request: Request, view: View) -> Row:
    """Return the row of the attempt that the address means.

    Raises:
        UsageError: there is none.
    """
    attempt_id = str(request.path_params["id"])
    found = view.select(_ATTEMPT, [attempt_id])
    if not found:
        raise UsageError(
            "no request of that id",
            where=attempt_id[:80],
            todo="The page of its session lists those that there are; agentobs prune may have deleted it",
        )
    return found[0]


def attempt(request: Request) -> Response:
    """Show the facts of one attempt."""
    with site_of(request).reader.view() as view:
        about = attempt_of(request, view)
        own = {"session_id": about["session_id"], "attempt_id": about["attempt_id"]}
        misses = view.named("cache_misses", session_id=about["session_id"])
        near = view.select(_NEAR, {**own, "lane": about["lane"]})
        return answer(
            request,
            "attempt.html",
            here="sessions",
            about=about,
            session=first_of(view.select(_SESSION, [about["session_id"]])),
            kept=kept_of(view.connection, about["session_id"]),
            spent=view.select(_SPENT, own),
            whole=first_of(view.select(_WHOLE, own)),
            notes=view.select(_NOTES, own),
            calls=view.select(_CALLS, own),
            tries=view.select(_TRIES, {**own, "llm_request_id": about["llm_request_id"]}),
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
    """Send one text of a request or an answer whole."""
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
            raise UsageError("no such text in it", where=str(about["attempt_id"])) from error
    return saved(f"{about['attempt_id']}-{side}.txt", told.encode("utf-8", "surrogatepass"))


def raw(request: Request, fields: Fields) -> Response:
    """Send the body of a request or a response, byte by byte as it was recorded."""
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
        {"piece": n, "bytes": len(each.data), "after_ns": each.after_ns}
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


_ATTEMPT = "SELECT * FROM attempts WHERE attempt_id = ? ORDER BY started_ns LIMIT 1"
_SESSION = "SELECT session_id, name, started_ns FROM session_starts WHERE session_id = ? LIMIT 1"
_SPENT = """
    SELECT * FROM sure_costs WHERE session_id = $session_id AND attempt_id = $attempt_id ORDER BY iteration
"""
_WHOLE = """
    SELECT
        sum(cost_usd) AS cost_usd, count(*) FILTER (WHERE cost_usd IS NULL) AS unpriced_calls,
        count(*) FILTER (WHERE cost_status = 'lower_bound') AS lower_bound_calls,
        summed_status(cost_usd, cost_status) AS cost_status
    FROM sure_costs
    WHERE session_id = $session_id AND attempt_id = $attempt_id
    HAVING count(*) > 0
"""
_NOTES = """
    SELECT DISTINCT note FROM usage
    WHERE session_id = $session_id AND attempt_id = $attempt_id AND note IS NOT NULL
"""
_CALLS = """
    SELECT * FROM tool_calls WHERE session_id = $session_id AND attempt_id = $attempt_id ORDER BY ordinal LIMIT 200
"""
_TRIES = """
    SELECT attempt_id, attempt, started_ns, duration_ns, outcome, status, error_type, retry_after_ms
    FROM attempts
    WHERE session_id = $session_id AND llm_request_id = $llm_request_id AND attempt_id <> $attempt_id
    ORDER BY attempt, started_ns
"""
_NEAR = """
    WITH lane AS (
        SELECT
            attempt_id,
            lag(attempt_id) OVER (ORDER BY started_ns, attempt_id) AS before_id,
            lead(attempt_id) OVER (ORDER BY started_ns, attempt_id) AS after_id
        FROM attempts
        WHERE session_id = $session_id AND lane = $lane
    )
    FROM lane WHERE attempt_id = $attempt_id
"""

_POST: Any = ["GET", "POST"]
routes = [
    Route("/attempts/{id:path}/exchange", on_click(exchange), methods=_POST),
    Route("/attempts/{id:path}/text", on_click(text), methods=_POST),
    Route("/attempts/{id:path}/raw", on_click(raw), methods=_POST),
    Route("/attempts/{id:path}", attempt),
]
