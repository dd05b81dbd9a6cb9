"""The transcript of a session: new input and the response of each turn, read on demand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentobs.provider.registry import turn_paths
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
"""Requests per page. Our choice."""
MOST_LANES = 200
"""The maximum number of lanes to choose from. Our choice."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """One request with its new messages, and its response."""

    about: Row
    heard: Heard | Withheld
    said: Message | Withheld | None
    """None if no part of a response arrived."""
    ran: Sequence[Block]
    """Results of its tool calls that no request contains."""


def transcript(request: Request, fields: Fields) -> Response:
    """Show one page of the content of one lane of a session."""
    with site_of(request).reader.view() as view:
        session_id = session_named(request, view)
        endpoints = turn_paths()
        lanes = view.named("internal/session_lanes", session_id=session_id, endpoints=endpoints)
        lane = _lane(lanes, fields.get("lane"))
        total = next((row["requests"] for row in lanes if row["lane"] == lane), 0)
        number, count, start = place(total, fields.get("page"), PAGE)
        rows = view.named(
            "internal/lane_requests",
            session_id=session_id,
            lane=lane,
            endpoints=endpoints,
            offset=max(start - 1, 0),
            limit=PAGE + 1 if start else PAGE,
        )
        ran = _last_results(view, rows[-1]) if rows and number == count else []
        kept = kept_of(view.store, session_id)
    with AT_ONCE:
        spoken = list(_spoken(Content(site_of(request).home), rows, ran, skip=bool(start)))
        return revealed(
            request,
            "transcript.html",
            title="Transcript",
            back=f"/sessions/{segment(session_id)}",
            session_id=session_id,
            lanes=[row["lane"] for row in lanes[:MOST_LANES]],
            more_lanes=max(len(lanes) - MOST_LANES, 0),
            lane=lane,
            spoken=spoken,
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
    """Return the tool results of the last response of a lane, if the agent loop of agentobs executed them."""
    own = {"session_id": row["session_id"], "attempt_id": row["attempt_id"]}
    return view.named("internal/recorded_results", **own)


def _spoken(
    content: Content, rows: Sequence[Row], ran: Sequence[Row], *, skip: bool
) -> list[Spoken]:
    """Read requests and responses one after the other. If the first row is before the page, it is only used for the
    comparison with the next one. Only two bodies are in memory at a time.
    """
    spoken: list[Spoken] = []
    before: Json = None
    answer: dict[str, Any] | None = None
    for at, row in enumerate(rows):
        question, got = content.question(row), content.answer(row)
        body = None if isinstance(question, Withheld) else body_of(question)
        new = {} if isinstance(got, Withheld) else message_of(got)
        if at or not skip:
            spoken.append(
                Spoken(
                    row,
                    question if isinstance(question, Withheld) else heard(before, answer, body),
                    got if isinstance(got, Withheld) else _response_message(new),
                    [_ran(content, each) for each in ran] if at == len(rows) - 1 else [],
                )
            )
        before, answer = body, new
    return spoken


def _response_message(value: dict[str, Any]) -> Message | None:
    if value.get("content"):
        return message(value, "answer")
    if "error" in value:
        failed = Block("other", "Provider error", shown(value["error"], "answer", ("error",)), True)
        return Message("assistant", (failed,))
    return None


def _ran(content: Content, row: Row) -> Block:
    executed = content.ran(row)
    failed = bool(row["is_error"])
    title = f"{'Error' if failed else 'Result'} of {visible(str(row['name']))}"
    if isinstance(executed, Withheld):
        return Block("result", title, shown(f"Not available: {executed.found}."), failed)
    return Block("result", title, shown(executed.get("result")), failed)


routes = [
    Route("/sessions/{id:path}/transcript", on_click(transcript), methods=["GET", "POST"]),
]
