"""A recorded session for notebooks: its outcome, its numbers and its failure, without content."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from agentobs.records.display import certain_money, pretty, printable, text
from agentobs.store.analysis.failed_steps import is_denied
from agentobs.store.analysis.failure import explain_failure
from agentobs.store.backend import open_store
from agentobs.store.label_texts import LabelTexts
from agentobs.store.session_lookup import find_session
from dashboards.notebooks.home_figures import Home

_SHOWN = (
    "session_id", "status", "started_ns", "duration_ns", "interactions", "turns", "llm_requests", "tool_calls",
    "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens",
)  # fmt: skip
_STATE_COLORS = {
    "failed": "#c8382e",
    "crashed": "#c8382e",
    "incomplete": "#9a5b00",
    "completed": "#1d7a5c",
}


@dataclass(frozen=True)
class StoredSession:
    """One recorded session. Notebooks show it as a table; pass it to the figures, such as `dashboards.waterfall`."""

    session_id: str
    """Its full ID."""
    facts: Mapping[str, Any]
    """Its row in the view `sessions`: status, times in nanoseconds, counts, tokens and the exact cost."""
    failure: Mapping[str, Any] | None
    """Its row in the view `failures`; None if it did not fail."""
    cost_status: str
    """The certainty of the cost: `exact`, `lower_bound`, `estimated` or `unknown_model`."""

    def _repr_html_(self) -> str:
        """Return the session as an HTML table: the failure first, then the numbers."""
        status = str(self.facts["status"])
        color = _STATE_COLORS.get(status, "inherit")
        name = escape(printable(str(self.facts["name"] or self.session_id)))
        parts = [f"<caption>{name}: <b style='color:{color}'>{escape(status)}</b></caption>"]
        if self.failure is not None:
            parts.append(_row("failure", printable(str(self.failure["summary"]))))
            step = ("step_name", "step_lane", "step_turn")
            known = [text(self.failure[each]) for each in step if self.failure[each] is not None]
            if known:
                # After a result such as `max_turns`, the step is only the last one that failed.
                last = "last " if self.failure["cause"] == "result" else ""
                made = {
                    "kind": self.failure["step_kind"],
                    "outcome": self.failure["step_outcome"],
                }
                word = "denied" if is_denied(made) else "failed"
                parts.append(_row(f"{last}{word} step", ", ".join(known)))
        parts.append(_row("cost", self._cost()))
        for column in _SHOWN:
            label = column.removesuffix("_ns").replace("_", " ")
            label = f"{label} (UTC)" if column == "started_ns" else label
            parts.append(_row(label, text(pretty(column, self.facts[column]))))
        return f"<table>{''.join(parts)}</table>"

    def _cost(self) -> str:
        return certain_money(self.facts["cost_usd"], self.cost_status) or "unknown"


def session(session: object, *, home: Home = None, names: bool = False) -> StoredSession:
    """Return a recorded session, which notebooks show as a table with its failure and its numbers.

    It contains no prompts, responses or titles.

    Args:
        session: an ID, the start or end of one, a name, or an object with the attribute `session_id`.
        home: the home of the session; None for the default home.
        names: whether names and reasons that people wrote are shown instead of their digests.

    Raises:
        UsageError: no session matches, or several do.
        HomeError: there are no recordings.
    """
    wanted = str(getattr(session, "session_id", session))
    with open_store(home) as store:
        session_id = find_session(store, wanted, key=store.home.key())
        rows = store.rows("internal/session", session_id=session_id).dicts()
        failure = explain_failure(store, session_id)
        costs = store.rows("cost_by_session", session_id=session_id).first()
        found = [*rows, *([failure.row] if failure else [])]
        if names:
            found = list(LabelTexts(store).replace_in_dicts(found))
    status = str(costs["cost_status"]) if costs else "exact"
    return StoredSession(session_id, found[0], found[1] if failure else None, status)


def _row(label: str, value: str) -> str:
    cells = (
        f"<{tag} style='text-align:left'>{escape(each)}</{tag}>"
        for tag, each in (("th", label), ("td", value))
    )
    return f"<tr>{''.join(cells)}</tr>"
