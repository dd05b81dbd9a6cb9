"""What the application shows about sessions, read from the store. Nothing here depends on the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from agentobs.recording.journal.home import Home
from agentobs.recording.journal.segments import facts_path, forms
from agentobs.records.exchanges import Recording
from agentobs.store.analysis.attention import by_attention, found_signatures, what_failed
from agentobs.store.analysis.diagnosis import diagnose_all
from agentobs.store.analysis.failed_steps import FailedSteps, failed_calls, group_failed_steps
from agentobs.store.analysis.failure import explain_failure
from agentobs.store.analysis.lane_names import names_in_session, with_agents
from agentobs.store.analysis.session_search import SessionTexts
from agentobs.store.analysis.shown_steps import shown_steps
from agentobs.store.analysis.waste import Waste, session_waste, waste_total
from agentobs.store.backend import open_store
from agentobs.store.label_texts import LabelTexts
from agentobs.store.port import Store
from agentobs.store.session_lookup import find_session

Row = Mapping[str, Any]

LISTED = 500
"""The maximum number of sessions in the list; the newest ones are listed. Our choice: more than a user scrolls
through.
"""
FAILED = ("failed", "crashed", "incomplete")
"""The states of sessions that failed, or whose end is not known."""
_BAD_OUTCOMES = frozenset(
    ("failed", "error", "http_error", "stream_error", "cut", "no_response", "crashed", "invalid", "timeout", "orphaned")
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Listed:
    """One session of the list."""

    session_id: str
    name: str
    title: str
    status: str
    why: str
    """The cause of its failure, or the failed calls and the failure signatures of a session that did not fail."""
    started_ns: int
    cost_usd: Decimal | None
    signatures: int = 0
    cost_status: str | None = None
    """The certainty of the cost, as in `cost_by_session`."""


@dataclass(frozen=True, slots=True)
class Node:
    """One row of the tree of a session."""

    id: str
    kind: str
    text: str
    state: str
    """`failed` or empty."""
    facts: Row
    children: list[Node] = field(default_factory=list)

    @property
    def ids(self) -> frozenset[str]:
        """The IDs of this step and of the steps below it."""
        return frozenset((self.id,)).union(*(each.ids for each in self.children))

    @property
    def has_failed_step(self) -> bool:
        """Whether this step or a step below it failed."""
        return self.state == "failed" or any(each.has_failed_step for each in self.children)


@dataclass(frozen=True, slots=True)
class SessionView:
    """One session."""

    about: Row
    """The row of the query `internal/session`."""
    title: str
    failure: Row | None
    """The row of `failures`; None if the session did not fail."""
    failed_step_id: str | None
    roots: Sequence[Node]
    steps: Sequence[Row]
    """The rows of `session_steps`."""
    turns: Sequence[Row]
    """The rows of `session_turns`."""
    models: Sequence[Row]
    """The rows of `cost_by_model`."""
    cost_status: str
    """The certainty of the cost: `exact`, `lower_bound`, `estimated` or `unknown_model`."""
    waste: Sequence[Waste]
    """The kinds of waste, the largest amount first."""
    waste_total: str
    """Their sum and its part of the cost, in words; empty if there is nothing to sum."""
    agents: Mapping[str, str]
    """The display names of its lanes."""
    failed_steps: Sequence[FailedSteps] = ()
    """Its failed steps in groups."""
    is_imported: bool = False
    """Whether it was imported from the log of another client, which contains no waits for approval."""


class SessionData:
    """Reads sessions of one home. Each method opens the store, so that it sees what was recorded up to now."""

    def __init__(self, home: Home) -> None:
        """Read nothing yet."""
        self._home = home

    def find(self, text: str) -> str:
        """Return the ID of the session that a text denotes.

        Raises:
            UsageError: no session matches, or several do.
        """
        with open_store(self._home, ingest=False) as store:
            return find_session(store, text, key=self._home.key())

    def revision(self) -> tuple[tuple[str, int], ...]:
        """Return a value that changes when something was recorded."""
        sizes = []
        for segment_id, is_compressed in forms(self._home).items():
            try:
                size = -1 if is_compressed else facts_path(self._home, segment_id).stat().st_size
            except OSError:
                size = -1
            sizes.append((segment_id, size))
        return tuple(sorted(sizes))

    def listed(self) -> list[Listed]:
        """Return the newest sessions, those that need attention first; the dashboard has the same order."""
        with open_store(self._home) as store:
            texts = LabelTexts(store)
            rows = texts.replace_in_dicts(store.rows("sessions", limit=LISTED, causes=True).dicts())
            ids = [str(row["session_id"]) for row in rows]
            titles = SessionTexts(store).titles(ids)
            calls = failed_calls(store, ids, texts.replace_in_dicts)
            since_ns = min((row["started_ns"] for row in rows), default=0)
            diagnosed = texts.replace_in_dicts(diagnose_all(store, since_ns).dicts())
            signatures = found_signatures(diagnosed)
            order = by_attention(store, rows, signatures)
            place = {session_id: at for at, session_id in enumerate(order)}
        found = [
            Listed(
                row["session_id"],
                str(row["name"] or ""),
                titles.get(row["session_id"]) or "",
                str(row["status"]),
                what_failed(
                    row["cause"],
                    calls.get(row["session_id"]),
                    signatures.get(row["session_id"], ()),
                )
                or "",
                row["started_ns"],
                row["cost_usd"],
                len(signatures.get(row["session_id"], ())),
                row["cost_status"],
            )
            for row in rows
        ]
        return sorted(found, key=lambda each: place[each.session_id])

    def session(self, session_id: str) -> SessionView:
        """Return one session."""
        with open_store(self._home) as store:
            texts = LabelTexts(store)

            def rows(query: str) -> list[dict[str, Any]]:
                return texts.replace_in_dicts(store.rows(query, session_id=session_id).dicts())

            [about] = rows("internal/session")
            failure = explain_failure(store, session_id)
            failed = texts.replace_in_dicts([failure.row])[0] if failure else None
            costs, waste = rows("cost_by_session"), session_waste(rows)
            agents = names_in_session(store, session_id, texts.replace_in_dicts)
            turns = rows("session_turns")
            return SessionView(
                about,
                SessionTexts(store).titles([session_id]).get(session_id) or "",
                failed,
                str(failed["step_id"]) if failed and failed["step_id"] is not None else None,
                tree(with_agents(rows("session_timeline"), agents)),
                with_agents(rows("session_steps"), agents),
                with_agents(turns, agents),
                rows("cost_by_model"),
                str(costs[0]["cost_status"]) if costs else "exact",
                waste,
                waste_total(waste, costs),
                agents,
                group_failed_steps(rows("session_errors"), turns),
                rows("internal/content_state")[0]["source"] not in (None, "recorded"),
            )

    def recording(self, session_id: str) -> Recording:
        """Return the recording of a session, with its content.

        Raises:
            RecordingError, DamagedError: its content was not recorded, was pruned or is damaged.
        """
        with open_store(self._home, ingest=False) as store:
            return _content(store, session_id)


def _content(store: Store, session_id: str) -> Recording:
    return store.content(session_id)


def tree(rows: Iterable[Row]) -> list[Node]:
    """Return the rows of `session_timeline` as a tree, by their depth."""
    roots: list[Node] = []
    path: list[tuple[int, Node]] = []
    for row in shown_steps(rows):
        label = f" {row['label']}" if row["kind"] == "span" and row["label"] else ""
        node = Node(str(row["id"]), str(row["kind"]), f"{row['what']}{label}", _state(row), row)
        depth = int(row["depth"])
        while path and path[-1][0] >= depth:
            path.pop()
        (path[-1][1].children if path else roots).append(node)
        path.append((depth, node))
    return roots


def _state(row: Row) -> str:
    return "failed" if row["outcome"] in _BAD_OUTCOMES or row["error_type"] else ""
