"""The tabs of a session about its effects: the files that it changed, and the causes of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentobs.store.analysis.cause_texts import CauseTexts, ShownCause
from agentobs.store.analysis.effect_causes import CauseNode
from dashboards.app.content_forms import Fields, content_response, on_click
from dashboards.app.content_reader import CONTENT_SLOTS
from dashboards.app.opened_session import OpenedSession, open_session
from dashboards.app.paging import Pages, page_of
from dashboards.app.site import session_named, site_of
from dashboards.panels.cause_drawing import cause_svg
from dashboards.panels.templates import segment

PAGE_SIZE = 100
"""Changes per page. Our choice: two screens."""
MOST_LINES = 2_000
"""The maximum number of lines of a shown difference. Our choice."""
MOST_CHARACTERS = 300
"""The maximum length of the ID of a step. Our choice."""


@dataclass(frozen=True, slots=True)
class FileChange:
    """A changed file, for its row."""

    shown: ShownCause
    call: CauseNode | None
    """The tool call that changed it; None if it is unknown."""
    call_step: str | None
    """The ID of that call in the tree."""


def file_values(opened: OpenedSession, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of the tab with the changed files."""
    listed = _listed(opened.causes.file_changes, query, "files")
    nodes = [row["node"] for row in listed.rows]
    shown = _by_id(opened, nodes)
    return {
        "changes": listed,
        "rows": [
            FileChange(shown[each.node_id], call, _step_of(call))
            for each in nodes
            for call in (opened.causes.call_of(each.node_id),)
        ],
    }


def why_values(opened: OpenedSession, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of the tab with the causes of a step; without a step, of the list of effects."""
    node_id = query.get("node", "")[:MOST_CHARACTERS]
    if not node_id:
        listed = _listed(opened.causes.effect_nodes, query, "why")
        nodes = [row["node"] for row in listed.rows]
        shown = _by_id(opened, nodes)
        return {
            "chain": (),
            "node_id": "",
            "listed": listed,
            "effects": [shown[e.node_id] for e in nodes],
        }
    graph = opened.causes.graph([node_id])
    return {
        "chain": _texts(opened).shown(graph),
        "node_id": node_id,
        "wanted": graph.wanted,
        "steps": {each.node_id: _step_of(each) for each in graph.nodes},
    }


def _listed(nodes: Sequence[CauseNode], query: Mapping[str, str], tab: str) -> Pages:
    """Return one page of nodes, each in its own row."""
    return page_of([{"node": each} for each in nodes], query.get("page"), {"tab": tab}, PAGE_SIZE)


def _by_id(opened: OpenedSession, nodes: Sequence[CauseNode]) -> dict[str, ShownCause]:
    if not nodes:
        return {}
    graph = opened.causes.graph([each.node_id for each in nodes])
    return {each.node.node_id: each for each in _texts(opened).shown(graph)}


def _texts(opened: OpenedSession) -> CauseTexts:
    return CauseTexts(opened.view.store, opened.session_id, opened.view.texts)


def _step_of(node: CauseNode | None) -> str | None:
    """Return the ID of a step in the tree; None if the tree does not have it."""
    if node is None or node.kind in ("prompt", "unknown"):
        return None
    row = node.row
    if node.kind == "request":
        return str(row["attempt_id"])
    if node.kind == "tool_call":
        return " ".join(str(row[name]) for name in ("attempt_id", "ordinal", "tool_use_id"))
    return node.node_id


def cause_content(request: Request, fields: Fields) -> Response:
    """Show the content of a step: a prompt, an input, the arguments of a command, the changed lines of a file."""
    node_id = fields.get("node", "")[:MOST_CHARACTERS]
    with CONTENT_SLOTS, site_of(request).reader.view() as view:
        opened = open_session(request, view, session_named(request, view))
        node = opened.causes.node(node_id)
        lines = _texts(opened).content(node, MOST_LINES)
    return content_response(
        request,
        "cause_content.html",
        title="Content of a step",
        back=f"/sessions/{segment(opened.session_id)}?tab=why&node={segment(node_id)}",
        lines=lines,
    )


def drawn_causes(request: Request) -> Response:
    """Return the causes of a step as an SVG file without paths and titles."""
    node_id = request.query_params.get("node", "")[:MOST_CHARACTERS]
    with site_of(request).reader.view() as view:
        opened = open_session(request, view, session_named(request, view))
        graph = opened.causes.graph([node_id])
        drawn = cause_svg(_texts(opened).shown(graph, content=False), graph)
    return Response(
        drawn,
        media_type="image/svg+xml",
        headers={
            "content-disposition": 'attachment; filename="causes.svg"',
            "x-content-type-options": "nosniff",
        },
    )


_METHODS: Any = ["GET", "POST"]
routes = [
    Route("/sessions/{id:path}/cause", on_click(cause_content), methods=_METHODS),
    Route("/sessions/{id:path}/causes.svg", drawn_causes),
]
