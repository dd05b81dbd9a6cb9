"""The cached data of a session for its pages: its row, its failure and its tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from agentobs.store.analysis.effect_causes import SessionCauses
from agentobs.store.analysis.failure import Failure, explain_failure
from agentobs.store.analysis.lane_names import names_of_rows, with_agents
from dashboards.app.session_cache import SessionCache
from dashboards.app.site import site_of
from dashboards.app.store_view import Row, View
from dashboards.app.trace import tree_of
from dashboards.panels.failure_groups import add_reasons
from dashboards.panels.panels import rows_of
from dashboards.panels.session_outcomes import steps_of
from dashboards.panels.trace_tree import TraceTree


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """A session as its pages need it."""

    request: Request
    view: View
    session_id: str
    about: Row
    """Its row of `sessions`."""
    cache: SessionCache
    failure: Failure | None
    tree: TraceTree
    causes: SessionCauses
    agents: Mapping[str, str]
    """The display names of its lanes."""

    def restored(self, rows: Sequence[Mapping[str, Any]]) -> list[Row]:
        """Return rows with the original texts and the display names of their lanes."""
        return with_agents(self.view.texts.replace_in_dicts(rows), self.agents)

    def cached_rows(self, name: str) -> list[Row]:
        """Return the rows of a named query about the session, with the original texts.

        Texts are read each time, because they may be deleted while the rows are cached.
        """
        return self.restored(self.stored_rows(name))

    def stored_rows(self, name: str) -> Sequence[Mapping[str, Any]]:
        """Return the rows of a named query about the session as they are stored. Their IDs are those of the tree."""
        return self.cache.get(
            name, lambda: rows_of(self.view.store, name, session_id=self.session_id)
        )


def open_session(request: Request, view: View, session_id: str) -> OpenedSession:
    """Return a session with its tree. A later error page of the request links to this session."""
    request.state.session_id = session_id
    cache = SessionCache.of(site_of(request).home, view, session_id)
    key = {"session_id": session_id}
    rows = cache.get("session", lambda: rows_of(view.store, "internal/session", **key))
    [about] = view.texts.replace_in_dicts(rows)

    def steps() -> list[Row]:
        return cache.get("steps", lambda: steps_of(view.store, session_id))

    failure = None
    if about["status"] != "running":
        failure = cache.get("failure", lambda: explain_failure(view.store, session_id, steps()))
    causes = cache.get("causes", lambda: SessionCauses(view.store, session_id))

    def compute_tree() -> TraceTree:
        name = "session_waterfall"
        waterfall = cache.get(name, lambda: rows_of(view.store, name, **key))
        tree = tree_of(waterfall, steps(), failure, causes)
        if tree.failed:
            errors = cache.get(
                "session_errors", lambda: rows_of(view.store, "session_errors", **key)
            )
            ends = cache.get(
                "internal/agent_ends", lambda: rows_of(view.store, "internal/agent_ends", **key)
            )
            add_reasons(tree, errors, ends)
        return tree

    tree = cache.get("tree", compute_tree)
    lanes = cache.get(
        "lanes", lambda: rows_of(view.store, "internal/lane_names", session_ids=[session_id])
    )
    # Texts are read each time, because they may be deleted while the rows are cached.
    agents = names_of_rows(lanes, view.texts.replace_in_dicts)
    return OpenedSession(request, view, session_id, about, cache, failure, tree, causes, agents)
