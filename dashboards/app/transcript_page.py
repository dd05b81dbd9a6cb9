"""The transcript of a session: the new input and the response of each turn, read on demand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentobs.records.canonical_json import Json
from agentobs.records.whole_numbers import whole_number
from agentobs.store.analysis.lane_names import name_of_lane, names_in_session
from dashboards.app.content_forms import Fields, content_response, named_session, on_click
from dashboards.app.content_reader import CONTENT_SLOTS, Content, Withheld
from dashboards.app.paging import page_position
from dashboards.app.site import session_named, site_of
from dashboards.app.store_view import Row, View
from dashboards.content.json_tree import parsed
from dashboards.content.message_view import (
    Block,
    Message,
    NewInput,
    new_input,
    recorded_result_block,
    response_message,
)
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
    results: Mapping[str, tuple[Block, str]] = field(default_factory=dict)
    """The results of its tool calls, by call ID, each with the attempt whose request contains it."""


def transcript(request: Request, fields: Fields) -> Response:
    """Show one page of the content of one lane of a session."""
    with site_of(request).reader.view() as view:
        session_id = session_named(request, view)
        lanes = view.named("internal/session_lanes", session_id=session_id)
        lane = _lane(lanes, fields.get("lane"))
        names = names_in_session(view.store, session_id, view.texts.replace_in_dicts)
        total = next((row["requests"] for row in lanes if row["lane"] == lane), 0)
        turn, requested_page = whole_number(fields.get("turn")), fields.get("page")
        if turn is not None:
            key = {"session_id": session_id, "lane": lane}
            [before] = view.named("internal/requests_before_turn", **key, turn=turn)
            requested_page = str(before["requests"] // PAGE_SIZE + 1)
        number, count, start = page_position(total, requested_page, PAGE_SIZE)
        rows = view.named(
            "internal/lane_requests",
            session_id=session_id,
            lane=lane,
            offset=max(start - 1, 0),
            # The request before the page shows what is new, and the one after it contains the last results.
            limit=PAGE_SIZE + 2 if start else PAGE_SIZE + 1,
        )
        tool_results = _last_results(view, rows[-1]) if rows and number == count else []
        changed = view.named("internal/changed_inputs", session_id=session_id, lane=lane)
        kept = content_state(view.store, session_id)
        session = named_session(request, view, session_id)
    is_raw = bool(fields.get("raw"))
    with CONTENT_SLOTS:
        content = Content(site_of(request).home)
        entries = _entries(content, rows, tool_results, changed)
        # As sent, the results are in the next request.
        entries = entries if is_raw else paired(entries)
        entries = entries[bool(start) :][:PAGE_SIZE]
        return content_response(
            request,
            "transcript.html",
            title="Transcript",
            back=f"/sessions/{segment(session_id)}",
            session_id=session_id,
            lanes=[row["lane"] for row in lanes[:MOST_LANES]],
            more_lanes=max(len(lanes) - MOST_LANES, 0),
            lane=lane,
            agents={
                each: name_of_lane(each, names) for each in (lane, *(row["lane"] for row in lanes))
            },
            entries=entries,
            is_raw=is_raw,
            turn=turn,
            number=number,
            count=count,
            total=total,
            first=start + 1,
            content_state=kept,
            session=session,
        )


def paired(entries: Sequence[TranscriptEntry]) -> list[TranscriptEntry]:
    """Return the entries with each result at its call; the messages of later entries no longer contain it."""
    calls = {
        block.call_id: at
        for at, entry in enumerate(entries)
        if isinstance(entry.response, Message)
        for block in entry.response.blocks
        if block.kind == "call" and block.call_id
    }
    results: list[dict[str, tuple[Block, str]]] = [{} for _ in entries]
    found = []
    for at, entry in enumerate(entries):
        if isinstance(entry.new_input, Withheld):
            found.append(entry)
            continue
        messages = []
        for message in entry.new_input.messages:
            kept = []
            for block in message.blocks:
                call_id = (block.call_id if block.kind == "result" else None) or ""
                called_at = calls.get(call_id, at)
                if called_at < at and call_id not in results[called_at]:
                    results[called_at][call_id] = block, str(entry.about["attempt_id"])
                else:
                    kept.append(block)
            if kept or message.more or not message.blocks:
                messages.append(replace(message, blocks=tuple(kept)))
        found.append(replace(entry, new_input=entry.new_input._replace(messages=tuple(messages))))
    return [replace(entry, results=matched) for entry, matched in zip(found, results, strict=True)]


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
) -> list[TranscriptEntry]:
    """Return the entries of some requests.

    Requests and responses are read in sequence, so that only two bodies are in memory at a time.
    """
    entries: list[TranscriptEntry] = []
    previous_body: Json = None
    previous_response: dict[str, Any] | None = None
    for at, row in enumerate(rows):
        question, answer = content.question(row), content.answer(row)
        body = None if isinstance(question, Withheld) else body_of(question)
        response = {} if isinstance(answer, Withheld) else message_of(answer)
        entries.append(
            TranscriptEntry(
                row,
                question
                if isinstance(question, Withheld)
                else new_input(previous_body, previous_response, body),
                answer if isinstance(answer, Withheld) else response_message(response),
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


def _input_block(content: Content, row: Row) -> Block:
    title = f"{visible(str(row['name']))} ran with this input, which a {row['changed_by']} changed"
    executed = content.tool_execution(row)
    if isinstance(executed, Withheld):
        return Block("call", title, shown(f"Not available: {executed.found}."))
    return Block("call", title, shown(executed.get("input")), tree=parsed(executed.get("input")))


def _result_block(content: Content, row: Row) -> Block:
    executed = content.tool_execution(row)
    failed = bool(row["is_error"])
    title = f"{'Error' if failed else 'Result'} from {visible(str(row['name']))}"
    if isinstance(executed, Withheld):
        return Block("result", title, shown(f"Not available: {executed.found}."), failed)
    return recorded_result_block(title, executed.get("result"), is_error=failed)


routes = [
    Route("/sessions/{id:path}/transcript", on_click(transcript), methods=["GET", "POST"]),
]
