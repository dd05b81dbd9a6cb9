"""The main arguments of tool calls, such as a command or a path, and the prompts of interactions: content, so it is
only read after a click.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from agentobs.records.canonical_json import Json
from agentobs.records.display import printable
from agentobs.records.whole_numbers import whole_number
from dashboards.app.content_forms import Fields, on_click
from dashboards.app.content_reader import CONTENT_SLOTS, Content, Withheld
from dashboards.app.opened_session import OpenedSession, open_session
from dashboards.app.site import session_named, site_of
from dashboards.app.store_view import Row
from dashboards.app.trace import MOST_CHARACTERS, matching_nodes
from dashboards.content.message_view import message
from dashboards.content.visible_text import message_of
from dashboards.panels.templates import page
from dashboards.panels.trace_tree import Node

MAIN_ARGUMENTS = (
    "command", "cmd", "file_path", "path", "notebook_path", "pattern", "query", "url", "code", "prompt", "description",
)  # fmt: skip
"""The names of arguments that identify a call, the most important first."""
_CHANGE_DIRECTORY = re.compile(r"cd (?:\S+|'[^']*'|\"[^\"]*\") *(?:&&|;) *")
LENGTH = 60
"""The maximum length of a shown argument, in characters. Our choice: the rest of a row."""
MOST_SHOWN = 200
"""The maximum number of calls whose arguments one request shows. Our choice: more than the visible rows."""
MOST_SEARCHED = 500
"""The maximum number of responses that a filter reads. Our choice: about a second."""


def main_argument(value: Json) -> str:
    """Return the argument that identifies a tool call; empty if the input has none.

    Args:
        value: the input of the call.
    """
    if not isinstance(value, Mapping):
        return ""
    values = [value[name] for name in MAIN_ARGUMENTS if name in value]
    for each in [*values, *value.values()]:
        if isinstance(each, str | int | float) and not isinstance(each, bool) and str(each).strip():
            return " ".join(str(each)[: 20 * LENGTH].split())
    return ""


def shown_argument(text: str) -> str:
    """Return the first characters of an argument, with invisible and bidirectional characters as escapes."""
    # Commands often start with the same change of the directory.
    shown = printable(_without_directory(text)[: LENGTH + 1])
    return shown if len(shown) <= LENGTH else f"{shown[: LENGTH - 1]}…"


def _without_directory(text: str) -> str:
    found = _CHANGE_DIRECTORY.match(text)
    return text[found.end() :] if found and found.end() < len(text) else text


def arguments_of(opened: OpenedSession, nodes: Iterable[Node], home: Content) -> dict[int, str]:
    """Return the main arguments of tool calls and the prompts of interactions by the numbers of their nodes; those that
    cannot be read are left out.
    """
    nodes = list(nodes)
    found = _prompts_of(opened, nodes, home)
    calls: dict[str, list[Node]] = {}
    for node in nodes:
        if node.kind in ("tool", "agent") and node.step is not None and node.step["attempt_id"]:
            calls.setdefault(str(node.step["attempt_id"]), []).append(node)
    for row in _places(opened, calls):
        answer = home.answer(row)
        if isinstance(answer, Withheld):
            continue
        blocks = message(message_of(answer), "response").blocks
        requested = [each for each in blocks if each.kind == "call"]
        for node in calls[row["attempt_id"]]:
            assert node.step is not None
            place = int(node.step["ordinal"] or 0) - 1
            text = main_argument(requested[place].tree) if 0 <= place < len(requested) else ""
            if text:
                found[node.number] = text
    return found


def _prompts_of(opened: OpenedSession, nodes: Iterable[Node], home: Content) -> dict[int, str]:
    """Return the prompts of interactions by the numbers of their nodes: the last prompt in their first request."""
    first: dict[str, int] = {}
    for node in nodes:
        if node.kind == "interaction" and (request := _first_request(opened, node)) is not None:
            first[request] = node.number
    prompts = {first[row["attempt_id"]]: home.prompt(row) for row in _places(opened, first)}
    return {number: text for number, text in prompts.items() if isinstance(text, str) and text}


def _first_request(opened: OpenedSession, interaction: Node) -> str | None:
    """Return the ID of the first request of the agent itself in an interaction; None if there is none."""
    pending = list(interaction.children)
    requests = []
    while pending:
        node = opened.tree.node(pending.pop())
        if node.kind == "request" and node.lane == interaction.lane and node.turn is not None:
            requests.append(node)
        elif node.kind == "group":
            pending += node.children
    return min(requests, key=lambda each: each.number).step_id if requests else None


def _places(opened: OpenedSession, attempt_ids: Collection[str]) -> Iterable[Row]:
    """Return where the content of attempts is."""
    if not attempt_ids:
        return ()
    key: dict[str, Any] = {"session_id": opened.session_id, "attempt_ids": list(attempt_ids)}
    return opened.view.store.rows("internal/responses", **key).dicts()


def arguments(request: Request, fields: Fields) -> Response:
    """Return the first characters of the main arguments of calls and of prompts, by the numbers of their nodes."""
    with CONTENT_SLOTS, site_of(request).reader.view() as view:
        opened = open_session(request, view, session_named(request, view))
        wanted = map(whole_number, fields.get("numbers", "").split(",")[:MOST_SHOWN])
        known = (_node(opened, each) for each in wanted if each is not None)
        nodes = [node for node in known if node is not None]
        texts = arguments_of(opened, nodes, Content(site_of(request).home))
    return JSONResponse(
        {str(number): shown_argument(text) for number, text in texts.items()},
        headers={"x-content-type-options": "nosniff"},
    )


def matches(request: Request, fields: Fields) -> Response:
    """Return the steps that match a filter, which also searches the main arguments of tool calls, and prompts."""
    with CONTENT_SLOTS, site_of(request).reader.view() as view:
        opened = open_session(request, view, session_named(request, view))
        tree, searched, left_out = opened.tree, list[Node](), False
        attempts: set[str] = set()
        interactions = [each for each in map(tree.node, tree.order) if each.kind == "interaction"]
        searched += interactions[:MOST_SEARCHED]
        left_out = len(interactions) > MOST_SEARCHED
        for node in map(tree.node, tree.order):
            if node.kind in ("tool", "agent") and node.step is not None:
                attempt_id = str(node.step["attempt_id"])
                left_out = left_out or (
                    attempt_id not in attempts and len(attempts) >= MOST_SEARCHED
                )
                if attempt_id in attempts or len(attempts) < MOST_SEARCHED:
                    attempts.add(attempt_id)
                    searched.append(node)
        texts = arguments_of(opened, searched, Content(site_of(request).home))
        nodes, summary = matching_nodes(
            view,
            tree,
            fields.get("find", "")[:MOST_CHARACTERS],
            opened.agents,
            only_failed="failed" in fields,
            errors=opened.stored_rows("session_errors"),
            arguments=texts,
        )
    values = {"nodes": nodes, "selected": None, "like": "", "session_id": opened.session_id}
    if left_out:
        summary += f" Arguments were searched in the first {MOST_SEARCHED:,} responses with calls."
    return HTMLResponse(page("tree.html", summary=summary, **values))


def _node(opened: OpenedSession, number: int) -> Node | None:
    try:
        return opened.tree.node(number)
    except LookupError:
        return None


_METHODS: Any = ["GET", "POST"]
routes = [
    Route("/sessions/{id:path}/arguments", on_click(arguments), methods=_METHODS),
    Route("/sessions/{id:path}/matches", on_click(matches), methods=_METHODS),
]
