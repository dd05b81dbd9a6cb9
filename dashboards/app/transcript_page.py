"""The transcript of a session: the new input and the response of each turn, read on demand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentobs.records.canonical_json import Json
from dashboards.app.content_forms import Fields, content_response, on_click
from dashboards.app.content_reader import CONTENT_SLOTS, Content, Withheld
from dashboards.app.session_page import page_position, session_named
from dashboards.app.site import site_of
from dashboards.app.store_view import Row, View
from dashboards.content.message_view import Block, Message, NewInput, message, new_input
from dashboards.content.visible_text import body_of, message_of, shown, visible
from dashboards.panels.session_outcomes import content_state
from dashboards.panels.templates import segment

PAGE_SIZE = 20
"""Requests per page. Our choice."""
MOST_LANES = 200
"""The maximum number of lanes that can be selected. Our choice."""


@dataclass(frozen=True, slots=True)
class TranscriptEntry:
    """One request with its new messages, and its response."""

    about: Row
    new_input: NewInput | Withheld
    response: Message | Withheld | None
    """The response; None if no part of a response arrived."""
    tool_results: Sequence[Block]
    """The results of its tool calls, if no request contains them."""
    changed_inputs: Sequence[Block] = ()
    """The inputs with which its tool calls ran, if hooks or a person changed them."""


def transcript(request: Request, fields: Fields) -> Response:
    """Show one page of the content of one lane of a session."""
    with site_of(request).reader.view() as view:
        session_id = session_named(request, view)
        lanes = view.named("internal/session_lanes", session_id=session_id)
        lane = _lane(lanes, fields.get("lane"))
        total = next((row["requests"] for row in lanes if row["lane"] == lane), 0)
        number, count, start = page_position(total, fields.get("page"), PAGE_SIZE)
        rows = view.named(
            "internal/lane_requests",
            session_id=session_id,
            lane=lane,
            offset=max(start - 1, 0),
            limit=PAGE_SIZE + 1 if start else PAGE_SIZE,
        )
        tool_results = _last_results(view, rows[-1]) if rows and number == count else []
        changed = view.named("internal/changed_inputs", session_id=session_id, lane=lane)
        kept = content_state(view.store, session_id)
    with CONTENT_SLOTS:
        entries = list(
            _entries(Content(site_of(request).home), rows, tool_results, changed, skip=bool(start))
        )
        return content_response(
            request,
            "transcript.html",
            title="Transcript",
            back=f"/sessions/{segment(session_id)}",
            session_id=session_id,
            lanes=[row["lane"] for row in lanes[:MOST_LANES]],
            more_lanes=max(len(lanes) - MOST_LANES, 0),
            lane=lane,
            entries=entries,
            number=number,
            count=count,
            total=total,
            first=start + 1,
            content_state=kept,
        )


def _lane(lanes: Sequence[Row], requested: str | None) -> str:
    names = [row["lane"] for row in lanes]
    if requested in names:
        return str(requested)
    return "main" if "main" in names or not names else str(names[0])


def _last_results(view: View, row: Row) -> list[Row]:
    """Return the results for the last response of a lane, if the agent loop of agentobs executed the tool calls."""
    key = {"session_id": row["session_id"], "attempt_id": row["attempt_id"]}
    return view.named("internal/recorded_results", **key)


def _entries(
    content: Content,
    rows: Sequence[Row],
    tool_results: Sequence[Row],
    changed: Sequence[Row],
    *,
    skip: bool,
) -> list[TranscriptEntry]:
    """Return the entries of a page. With `skip`, the first row is only compared with the second one.

    Requests and responses are read in sequence, so that only two bodies are in memory at a time.
    """
    entries: list[TranscriptEntry] = []
    previous_body: Json = None
    previous_response: dict[str, Any] | None = None
    for at, row in enumerate(rows):
        question, answer = content.question(row), content.answer(row)
        body = None if isinstance(question, Withheld) else body_of(question)
        response = {} if isinstance(answer, Withheld) else message_of(answer)
        if at or not skip:
            entries.append(
                TranscriptEntry(
                    row,
                    question
                    if isinstance(question, Withheld)
                    else new_input(previous_body, previous_response, body),
                    answer if isinstance(answer, Withheld) else _response_message(response),
                    [_result_block(content, each) for each in tool_results]
                    if at == len(rows) - 1
                    else [],
                    [
                        _input_block(content, each)
                        for each in changed
                        if each["attempt_id"] == row["attempt_id"]
                    ],
                )
            )
        previous_body, previous_response = body, response
    return entries


def _response_message(value: dict[str, Any]) -> Message | None:
    if value.get("content"):
        return message(value, "response")
    if "error" in value:
        failed = Block(
            "other", "Provider error", shown(value["error"], "response", ("error",)), True
        )
        return Message("assistant", (failed,))
    return None


def _input_block(content: Content, row: Row) -> Block:
    title = f"{visible(str(row['name']))} ran with this input, which a {row['changed_by']} changed"
    executed = content.tool_execution(row)
    if isinstance(executed, Withheld):
        return Block("call", title, shown(f"Not available: {executed.found}."))
    return Block("call", title, shown(executed.get("input")))


def _result_block(content: Content, row: Row) -> Block:
    executed = content.tool_execution(row)
    failed = bool(row["is_error"])
    title = f"{'Error' if failed else 'Result'} from {visible(str(row['name']))}"
    if isinstance(executed, Withheld):
        return Block("result", title, shown(f"Not available: {executed.found}."), failed)
    return Block("result", title, shown(executed.get("result")), failed)


routes = [
    Route("/sessions/{id:path}/transcript", on_click(transcript), methods=["GET", "POST"]),
]
