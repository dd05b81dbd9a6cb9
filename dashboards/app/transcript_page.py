"""The transcript of a session: what came in and what the model said, turn by turn, read when somebody asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentobs.records.canonical_json import Json
from dashboards.app.content_forms import Fields, on_click, revealed
from dashboards.app.content_reader import AT_ONCE, Content, Withheld
from dashboards.app.session_page import place, session_named
from dashboards.app.site import site_of
from dashboards.app.store_view import Row, View
from dashboards.content.message_view import Block, Heard, Message, heard, message
from dashboards.content.visible_text import body_of, message_of, shown, visible
from dashboards.panels.session_outcomes import kept_of
from dashboards.panels.templates import segment

PAGE = 20
"""Requests of a page of a transcript. Our choice."""
MOST_LANES = 200
"""How many lanes can be chosen from. Our choice."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """One request for a message, with what it says that was not said before, and its answer."""

    about: Row
    heard: Heard | Withheld
    said: Message | Withheld | None
    """None where nothing of an answer came."""
    ran: Sequence[Block]
    """Results of its calls that no request carries."""


def transcript(request: Request, fields: Fields) -> Response:
    """Show a page of what was said in one lane of a session."""
    with site_of(request).reader.view() as view:
        session_id = session_named(request, view)
        lanes = view.select(_LANES, {"session_id": session_id})
        lane = _lane(lanes, fields.get("lane"))
        total = next((row["requests"] for row in lanes if row["lane"] == lane), 0)
        number, count, start = place(total, fields.get("page"), PAGE)
        chosen = {"session_id": session_id, "lane": lane}
        rows = view.select(
            _PART, {**chosen, "first": max(start - 1, 0), "rows": PAGE + 1 if start else PAGE}
        )
        ran = _last_results(view, rows[-1]) if rows and number == count else []
        kept = kept_of(view.connection, session_id)
    with AT_ONCE:
        told = list(_spoken(Content(site_of(request).home), rows, ran, skip=bool(start)))
        return revealed(
            request,
            "transcript.html",
            title="What was said",
            back=f"/sessions/{segment(session_id)}",
            session_id=session_id,
            lanes=[row["lane"] for row in lanes[:MOST_LANES]],
            more_lanes=max(len(lanes) - MOST_LANES, 0),
            lane=lane,
            spoken=told,
            number=number,
            count=count,
            total=total,
            first=start + 1,
            kept=kept,
        )


def _lane(lanes: Sequence[Row], asked: str | None) -> str:
    names = [row["lane"] for row in lanes]
    if asked in names:
        return str(asked)
    return "main" if "main" in names or not names else str(names[0])


def _last_results(view: View, row: Row) -> list[Row]:
    """Return the results of the calls of the last answer of a lane, where our own loop ran them."""
    own = {"session_id": row["session_id"], "attempt_id": row["attempt_id"]}
    return view.select(_RESULTS, own)


def _spoken(
    content: Content, rows: Sequence[Row], ran: Sequence[Row], *, skip: bool
) -> list[Spoken]:
    """Read requests and answers one after the other; of the first only what the next is compared with, where it lies
    before the page. Two bodies are held at a time.
    """
    told: list[Spoken] = []
    before: Json = None
    answer: dict[str, Any] | None = None
    for at, row in enumerate(rows):
        question, got = content.question(row), content.answer(row)
        body = None if isinstance(question, Withheld) else body_of(question)
        new = {} if isinstance(got, Withheld) else message_of(got)
        if at or not skip:
            told.append(
                Spoken(
                    row,
                    question if isinstance(question, Withheld) else heard(before, answer, body),
                    got if isinstance(got, Withheld) else _said(new),
                    [_ran(content, each) for each in ran] if at == len(rows) - 1 else [],
                )
            )
        before, answer = body, new
    return told


def _said(value: dict[str, Any]) -> Message | None:
    if value.get("content"):
        return message(value, "answer")
    if "error" in value:
        failed = Block(
            "other", "Error of the provider", shown(value["error"], "answer", ("error",)), True
        )
        return Message("assistant", (failed,))
    return None


def _ran(content: Content, row: Row) -> Block:
    told = content.ran(row)
    failed = bool(row["is_error"])
    title = f"{'Error' if failed else 'Result'} of {visible(str(row['name']))}"
    if isinstance(told, Withheld):
        return Block("result", title, shown(f"Not there: {told.found}."), failed)
    return Block("result", title, shown(told.get("result")), failed)


_LANES = """
    SELECT lane, count(*) AS requests, min(started_ns) AS started_ns
    FROM attempts
    WHERE session_id = $session_id AND endpoint = '/v1/messages'
    GROUP BY lane
    ORDER BY started_ns, lane
"""
_PART = """
    SELECT * FROM attempts
    WHERE session_id = $session_id AND lane = $lane AND endpoint = '/v1/messages'
    ORDER BY started_ns, attempt_id
    LIMIT $rows OFFSET $first
"""
_RESULTS = """
    SELECT results.*, uses.name
    FROM answered_calls AS answered
    JOIN tool_results AS results
        ON answered.segment_id = results.segment_id AND answered.sequence = results.sequence
    JOIN tool_uses AS uses
        ON answered.session_id = uses.session_id AND answered.attempt_id = uses.attempt_id
        AND answered.ordinal = uses.ordinal
    WHERE answered.session_id = $session_id AND answered.attempt_id = $attempt_id
        AND results.source = 'run' AND results.content IS NOT NULL
    ORDER BY answered.ordinal
    LIMIT 100
"""

routes = [
    Route("/sessions/{id:path}/transcript", on_click(transcript), methods=["GET", "POST"]),
]
