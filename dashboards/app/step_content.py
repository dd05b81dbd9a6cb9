"""The content of one step of a session: the messages of a request, a call with its result, the text of an error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentobs.errors import UsageError
from agentobs.provider.registry import dialect_of_body
from agentobs.records.labels import DIGEST
from agentobs.records.whole_numbers import whole_number
from dashboards.app.attempt_page import attempt_of
from dashboards.app.changes_page import previous_attempt
from dashboards.app.content_forms import Fields, content_response, named_session, on_click
from dashboards.app.content_reader import CONTENT_SLOTS, Content, Withheld
from dashboards.app.site import site_of
from dashboards.app.store_view import Row, View
from dashboards.content.message_view import (
    Block,
    Message,
    NewInput,
    called,
    earlier_messages,
    message,
    messages_of,
    new_input,
    recorded_result_block,
    response_message,
)
from dashboards.content.visible_text import body_of, message_of, shown, visible
from dashboards.panels.session_outcomes import content_state
from dashboards.panels.templates import segment

MOST_EARLIER = 10
"""The maximum number of earlier messages that are shown at once. Our choice: a few screens."""
MOST_RETRIES = 20
"""The maximum number of attempts of a request that are skipped to find the previous request. Our choice."""
_Part = tuple[Block | Withheld, str | None]
"""A block of content, and the attempt from which its full text can be downloaded."""


def messages(request: Request, fields: Fields) -> Response:
    """Show the new messages of a request, and its response."""
    with site_of(request).reader.view() as view:
        about = attempt_of(request, view)
        read = request_parts_of(view, about)
        source = content_state(view.store, about["session_id"])["source"]
        session = named_session(request, view, about["session_id"])
    with CONTENT_SLOTS:
        added, response = read(Content(site_of(request).home))
        return content_response(
            request,
            "messages.html",
            title="Messages",
            back=f"/attempts/{segment(about['attempt_id'])}",
            about=about,
            new_input=added,
            response=response,
            is_raw=bool(fields.get("raw")),
            is_imported=source not in (None, "recorded"),
            most_earlier=MOST_EARLIER,
            session=session,
        )


def earlier(request: Request, fields: Fields) -> Response:
    """Show the last messages of a request before a position: the field `before`."""
    with site_of(request).reader.view() as view:
        about = attempt_of(request, view)
        session = named_session(request, view, about["session_id"])
    with CONTENT_SLOTS:
        question = Content(site_of(request).home).question(about)
        before, start, shown_messages = 0, 0, list[Message]()
        if not isinstance(question, Withheld):
            before = whole_number(fields.get("before")) or 0
            start, shown_messages = earlier_messages(body_of(question), before, MOST_EARLIER)
        return content_response(
            request,
            "earlier.html",
            title="Earlier messages",
            back=f"/attempts/{segment(about['attempt_id'])}",
            about=about,
            why=question if isinstance(question, Withheld) else None,
            start=start,
            messages=shown_messages,
            most_earlier=MOST_EARLIER,
            session=session,
        )


def request_parts_of(
    view: View, about: Row
) -> Callable[[Content], tuple[NewInput | Withheld, Message | Withheld | None]]:
    """Return the function that reads the new messages of a request, and its response.

    They are new since the previous request of the lane; a retry sends the same messages as the failed attempt.
    """
    previous = previous_attempt(view, about)
    for _ in range(MOST_RETRIES):
        if previous is None or previous["llm_request_id"] != about["llm_request_id"]:
            break
        previous = previous_attempt(view, previous)

    def read(content: Content) -> tuple[NewInput | Withheld, Message | Withheld | None]:
        old_question = content.question(previous) if previous else None
        old_answer = content.answer(previous) if previous else None
        question, answer = content.question(about), content.answer(about)
        is_old_known = old_question is not None and not isinstance(old_question, Withheld)
        previous_body = body_of(old_question) if is_old_known else None  # type: ignore[arg-type]
        previous_response = (
            {} if old_answer is None or isinstance(old_answer, Withheld) else message_of(old_answer)
        )
        added = (
            question
            if isinstance(question, Withheld)
            else new_input(previous_body, previous_response, body_of(question))
        )
        response = answer if isinstance(answer, Withheld) else response_message(message_of(answer))
        return added, response

    return read


def call_blocks_of(
    view: View, about: Row, ordinal: str
) -> Callable[[Content], list[Block | Withheld]]:
    """Return the function that reads the input and the result of a tool call.

    Raises:
        UsageError: the response has no such call.
    """
    row = _call_row(view, about, ordinal)
    recorded, following = _result_rows(view, about, row)
    return lambda content: [
        each for each, _ in _call_blocks(content, about, row, recorded, following)
    ]


def call(request: Request, fields: Fields) -> Response:
    """Show the input and the result of a tool call."""
    with site_of(request).reader.view() as view:
        about = attempt_of(request, view)
        row = _call_row(view, about, fields.get("ordinal", ""))
        recorded, following = _result_rows(view, about, row)
    with CONTENT_SLOTS:
        blocks = _call_blocks(Content(site_of(request).home), about, row, recorded, following)
        return _blocks_response(request, about, "Input and result", blocks)


def error(request: Request, fields: Fields) -> Response:
    """Show the text of an error: of a tool call, or of a request."""
    step_id = fields.get("step", "")
    with site_of(request).reader.view() as view:
        about = attempt_of(request, view)
        parts = step_id.split(" ", 2)
        is_call = len(parts) == 3 and parts[0] == about["attempt_id"]
        row = _call_row(view, about, parts[1]) if is_call else None
        recorded, following = _result_rows(view, about, row) if row else ([], None)
    with CONTENT_SLOTS:
        content = Content(site_of(request).home)
        if row:
            blocks = _call_blocks(content, about, row, recorded, following)
            results = [
                (each, attempt_id)
                for each, attempt_id in blocks
                if isinstance(each, Withheld) or each.kind == "result"
            ]
            return _blocks_response(request, about, "Error", results)
        answer = content.answer(about)
        if isinstance(answer, Withheld):
            return _blocks_response(request, about, "Error", [(answer, None)])
        found = response_message(message_of(answer))
        errors = [each for each in found.blocks if each.is_error] if found else []
        if answer.failure and not errors:
            text = shown(f"{answer.failure.name}: {answer.failure.message}")
            errors = [Block("result", "Error", text, True)]
        attempt_id = str(about["attempt_id"])
        return _blocks_response(request, about, "Error", [(each, attempt_id) for each in errors])


def _blocks_response(request: Request, about: Row, title: str, blocks: Sequence[_Part]) -> Response:
    return content_response(
        request,
        "blocks.html",
        title=title,
        back=f"/attempts/{segment(about['attempt_id'])}",
        about=about,
        blocks=blocks,
    )


def _call_row(view: View, about: Row, ordinal: str) -> Row:
    """Return the row of a tool call, with the original name.

    Raises:
        UsageError: the response has no such call.
    """
    key = {"session_id": about["session_id"], "attempt_id": about["attempt_id"]}
    calls = view.store.rows("internal/attempt_tool_calls", **key).dicts()
    found = [each for each in calls if str(each["ordinal"]) == ordinal]
    if not found:
        raise UsageError("no such tool call in this response", where=str(about["attempt_id"]))
    [named] = view.texts.replace_in_dicts([{"name": found[0]["name"]}])
    return {**found[0], **named}


def _result_rows(view: View, about: Row, call: Row) -> tuple[list[Row], Row | None]:
    """Return the rows of a result that was recorded when the tool ran, and of the next attempt in the lane."""
    key = {"session_id": about["session_id"], "attempt_id": about["attempt_id"]}
    recorded = [
        row
        for row in view.store.rows("internal/recorded_results", **key).dicts()
        if row["tool_use_id"] == call["tool_use_id"]
    ]
    near = view.store.rows("internal/adjacent_attempts", **key, lane=about["lane"]).dicts()
    next_id = near[0]["after_id"] if near else None
    following = view.named("internal/attempt", attempt_id=next_id) if next_id else []
    return recorded, (following[0] if following else None)


def _call_blocks(
    content: Content, about: Row, row: Row, recorded: Sequence[Row], following: Row | None
) -> list[_Part]:
    """Return the requested call, the actual input if it differs, and the result."""
    answer = content.answer(about)
    if isinstance(answer, Withheld):
        return [(answer, None)]
    found: list[_Part] = []
    response = message(message_of(answer), "response")
    calls = [each for each in response.blocks if each.kind == "call"]
    place = int(row["ordinal"]) - 1
    requested = calls[place] if 0 <= place < len(calls) else None
    if requested:
        found.append((requested, str(about["attempt_id"])))
    if recorded:
        executed = content.tool_execution(recorded[0])
        if isinstance(executed, Withheld):
            found.append((executed, None))
        else:
            found.append((_executed(row, executed), None))
    elif following is not None and requested is not None:
        question = content.question(following)
        if isinstance(question, Withheld):
            found.append((question, None))
        else:
            result = _sent_result(body_of(question), requested.call_id)
            found += [(result, str(following["attempt_id"]))] if result else []
    return found


def _executed(row: Row, executed: dict[str, Any]) -> Block:
    title, name = "Error" if row["is_error"] else "Result", str(row["name"] or "")
    if name and not name.startswith(DIGEST):
        title += f" from {visible(name)}"
    return recorded_result_block(title, executed.get("result"), is_error=bool(row["is_error"]))


def _sent_result(body: Any, call_id: str | None) -> Block | None:
    """Return the result of a call in the messages of the next request; None if it is not there."""
    dialect = dialect_of_body(body)
    sent = messages_of(body)
    names = called(sent, dialect)
    for at in range(len(sent) - 1, -1, -1):
        keys = (dialect.history_key, at)
        for block in message(sent[at], "request", keys, names, dialect).blocks:
            if block.kind == "result" and block.call_id == call_id:
                return block
    return None


_METHODS: Any = ["GET", "POST"]
routes = [
    Route("/attempts/{id:path}/messages", on_click(messages), methods=_METHODS),
    Route("/attempts/{id:path}/earlier", on_click(earlier), methods=_METHODS),
    Route("/attempts/{id:path}/call", on_click(call), methods=_METHODS),
    Route("/attempts/{id:path}/error", on_click(error), methods=_METHODS),
]
