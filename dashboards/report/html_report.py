"""Reports: an HTML file about a session, a range of sessions, a divergence, or two sessions, for sharing.

A report is self-contained: it opens from the file system, and its content security policy forbids network access. On
screen, plotly draws the figures; in print, and without scripts, they are static SVG. A light report contains only the
SVG. Reports contain no content unless it is passed in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache
from importlib.metadata import version
from typing import Any

from markupsafe import Markup

from agentobs.store.analysis.cause_texts import CauseTexts
from agentobs.store.analysis.diagnosis import SIGNATURES
from agentobs.store.analysis.effect_causes import SessionCauses
from agentobs.store.analysis.failure import explain_failure
from agentobs.store.analysis.lane_names import names_in_session, with_agents
from agentobs.store.port import Store
from dashboards.content.session_content import SessionContent
from dashboards.drawing import css, svg
from dashboards.figures.phrases import count
from dashboards.panels.failure_words import failure_reason
from dashboards.panels.panels import (
    Panel,
    RestoreNames,
    fleet_panels,
    rows_of,
    session_panels,
    signatures_by_day,
)
from dashboards.panels.session_outcomes import (
    content_state,
    failed_word,
    shown_failure,
    steps_of,
    verdicts_of,
    with_texts,
)
from dashboards.panels.templates import asset, csp_hash, page, plotly_script

Row = Mapping[str, Any]
MOST = 100
"""The maximum number of rows of a table. Our choice: longer tables are hard to read in print."""
STEPS = 200
"""The maximum number of listed steps of a session."""
LIGHT = 50
"""The maximum number of rows of figure data and of steps in a light report, to limit its size."""
EVIDENCE = 5
"""The number of rows of evidence per signature, as in `agentobs diagnose`."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The parts that all reports share."""

    about: str
    made_ns: int
    """The time of the report, in nanoseconds since 1970."""
    light: bool
    """Whether the report has no scripts."""
    style: Markup
    scripts: tuple[Markup, ...]
    policy: str
    """The Content-Security-Policy: only the scripts of the report may run, and nothing may be loaded."""
    version: str


@dataclass(frozen=True, slots=True)
class DrawnPanel:
    """A panel, with its figure as static SVG."""

    panel: Panel
    image: Markup
    more: int
    """The number of rows that are not in the table."""
    command: str
    """The command that lists all rows."""


@dataclass(frozen=True, slots=True)
class Part:
    """The first rows of a list."""

    columns: Sequence[str]
    rows: Sequence[Row]
    more: int
    """The number of rows that are not shown."""
    command: str
    """The command that lists all rows."""


def session_report(
    store: Store,
    session_id: str,
    *,
    made_ns: int,
    light: bool = False,
    content: SessionContent | None = None,
    restore_names: RestoreNames = list,
) -> str:
    """Return the report about one session: its steps, cost and time.

    Args:
        store: the store.
        session_id: the session.
        made_ns: the time of the report, in nanoseconds since 1970.
        light: whether to leave out scripts; figures are SVG only.
        content: the content of the session; None for a report without content.
        restore_names: a function that replaces digests in rows by the original names and reasons. Default: rows as
            stored.
    """
    stored = rows_of(store, "internal/session", session_id=session_id)
    [about] = restore_names(stored)
    agents = names_in_session(store, session_id, restore_names)
    steps = with_agents(steps_of(store, session_id), agents)
    command = f"agentobs show {session_id}"
    effects = _effects(store, session_id, content=content is not None)
    spent = next(iter(rows_of(store, "cost_by_session", session_id=session_id)), None)
    conversation = restore_names(rows_of(store, "conversation_sessions", session_id=session_id))
    failure = shown_failure(
        explain_failure(store, session_id, steps),
        lambda rows: with_agents(restore_names(rows), agents),
    )
    return page(
        "report_session.html",
        frame=_frame("Session report", made_ns, light),
        about=about,
        agents=agents,
        failure=failure,
        reason=failure_reason(failure.row).text if failure and about["reason"] else about["reason"],
        spent=spent,
        certainty=_certainty(spent),
        content_state=content_state(store, session_id),
        losses=rows_of(store, "losses", session_id=session_id),
        verdicts=with_texts(
            verdicts_of(store, session_id, EVIDENCE), lambda rows: with_agents(rows, agents)
        ),
        panels=_drawn_panels(
            session_panels(store, session_id, known={"internal/session": stored}), command, light
        ),
        failed=_part((), [step for step in steps if step["is_failed"]], MOST, command),
        failed_word=failed_word(steps),
        steps=_part((), steps, LIGHT if light else STEPS, command),
        effects=_part(_EFFECTS, effects, LIGHT if light else STEPS, f"agentobs why {session_id}"),
        ledger=_ledger(store, session_id, agents),
        conversation=_part(_SESSIONS, conversation if len(conversation) > 1 else [], MOST, command),
        unfinished=_query_part(
            store, "open_at_death", _UNFINISHED, f"agentobs orphans {session_id}", session_id
        ),
        hooks=_query_part(
            store, "hook_outcomes", _HOOKS, f"agentobs waits {session_id} --hooks", session_id
        ),
        content=content,
    )


def _effects(store: Store, session_id: str, *, content: bool) -> list[Row]:
    """Return the commands, MCP calls and changed files of a session; without content, files are numbered."""
    causes = SessionCauses(store, session_id)
    if not causes.effect_nodes:
        return []
    graph = causes.graph([each.node_id for each in causes.effect_nodes])
    return [
        {
            "effect": f"{each.kind} {each.name}",
            "lane": each.node.lane,
            "turn": each.node.turn,
            "outcome": each.detail,
            "evidence": each.evidence or "unknown",
        }
        for each in CauseTexts(store, session_id).shown(graph, content=content)
        if each.node.node_id in graph.wanted
    ]


def range_report(
    store: Store,
    *,
    since_ns: int | None,
    until_ns: int | None,
    made_ns: int,
    light: bool = False,
) -> str:
    """Return the report about all sessions of a time range.

    Args:
        store: the store.
        since_ns: the start of the range in nanoseconds since 1970; None for no limit.
        until_ns: the end of the range, exclusive; None for no limit.
        made_ns: the time of the report.
        light: whether to leave out scripts; figures are SVG only.
    """
    bounds = {"since_ns": since_ns, "until_ns": until_ns}
    models = rows_of(store, "cost_by_model", **bounds)
    signatures = signatures_by_day(store, since_ns, until_ns)
    known = {"cost_by_model": models, "signatures_by_day": signatures}
    spent = _cost_total(models)
    losses = rows_of(store, "losses", **bounds)
    totals = rows_of(store, "internal/range_totals", **bounds)[0]
    most_expensive = rows_of(store, "internal/most_expensive_sessions", **bounds, limit=MOST)
    failures = rows_of(store, "internal/failed_sessions", **bounds, limit=MOST)
    command_for_failed = (
        "agentobs sql \"FROM sessions WHERE status IN ('failed', 'crashed', 'incomplete')\""
    )
    return page(
        "report_range.html",
        frame=_frame("Report about a range of sessions", made_ns, light),
        range="All sessions" if since_ns is None and until_ns is None else "Sessions in a range",
        **bounds,
        totals=totals,
        spent=spent,
        certainty=_certainty(spent),
        panels=_drawn_panels(
            fleet_panels(store, since_ns=since_ns, until_ns=until_ns, known=known),
            "agentobs sql",
            light,
        ),
        signatures=_suggested_fixes(signatures),
        most_expensive=Part(
            (),
            most_expensive,
            totals["sessions"] - len(most_expensive),
            "agentobs cost --by session",
        ),
        failed=Part((), failures, totals["failed"] - len(failures), command_for_failed),
        losses=_part(_LOSSES, losses, MOST, "agentobs doctor"),
    )


def panels_report(
    template: str,
    about: str,
    panels: Sequence[Panel],
    *,
    made_ns: int,
    light: bool = False,
    command: str,
    **values: Any,
) -> str:
    """Return a report about data outside of the store: a template with figures."""
    frame = _frame(about, made_ns, light)
    return page(template, frame=frame, panels=_drawn_panels(panels, command, light), **values)


def _frame(about: str, made_ns: int, light: bool) -> Frame:
    style = _style()
    scripts = () if light else _scripts()
    hashes = " ".join(csp_hash(script) for script in scripts) or "'none'"
    # Plotly's labels have style attributes. They cannot run code, and without network access they cannot load data.
    inline_policy = "" if light else "style-src-attr 'unsafe-inline'; img-src data: blob:; "
    # Plotly adds its rules to an empty style element.
    styles = f"{csp_hash(style)} {csp_hash('')}"
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src {styles}; {inline_policy}"
        "base-uri 'none'; form-action 'none'"
    )
    package_version = version("agentobs-kit")
    return Frame(
        about, made_ns, light, Markup(style), tuple(map(Markup, scripts)), policy, package_version
    )


@cache
def _style() -> str:
    return f"{asset('style.css')}{asset('report.css')}{css()}"


@cache
def _scripts() -> tuple[str, ...]:
    """Return the scripts of a report, plotly first. None of them contains text that would end its script element."""
    scripts = (plotly_script(), asset("figures.js"), asset("report.js"))
    assert not any("</script" in script or "<!--" in script for script in scripts)
    return scripts


def _drawn_panels(panels: Sequence[Panel], command: str, light: bool) -> list[DrawnPanel]:
    drawn_panels = []
    for each in panels:
        shortened = replace(each, rows=each.rows[:LIGHT]) if light else each
        more = each.more + len(each.rows) - len(shortened.rows)
        image = Markup(svg(each.figure, title=each.title, says=each.summary))
        drawn_panels.append(DrawnPanel(shortened, image, more, command))
    return drawn_panels


def _part(columns: Sequence[str], rows: Sequence[Row], most: int, command: str) -> Part:
    return Part(columns, rows[:most], max(len(rows) - most, 0), command)


def _query_part(
    store: Store,
    query: str,
    columns: Sequence[str],
    command: str,
    session_id: str,
) -> Part:
    return _part(columns, rows_of(store, query, session_id=session_id), MOST, command)


def _ledger(store: Store, session_id: str, agents: Mapping[str, str]) -> Part:
    rows = with_agents(
        rows_of(store, "internal/most_expensive_calls", session_id=session_id, limit=MOST), agents
    )
    more = rows[0]["all_calls"] - len(rows) if rows else 0
    sql = f"FROM call_costs WHERE session_id = '{session_id}'"
    return Part((), rows, more, f'agentobs sql "{sql}"')


def _suggested_fixes(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the signatures that were found, each with its meaning, suggested fix and number of sessions."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["signature"]] = counts.get(row["signature"], 0) + row["sessions"]
    found = [
        {
            "name": each.name,
            "sessions": counts[each.name],
            "meaning": each.meaning,
            "todo": each.todo,
        }
        for each in SIGNATURES
        if counts.get(each.name)
    ]
    return sorted(found, key=lambda each: -each["sessions"])


_COUNTS = (
    "calls", "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "exact_calls",
    "lower_bound_calls", "estimated_calls", "unpriced_calls",
)  # fmt: skip
_STATES = ("estimated", "lower_bound")


def _cost_total(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the sum of rows of costs, with its certainty."""
    costs = [row["cost_usd"] for row in rows if row["cost_usd"] is not None]
    total: dict[str, Any] = {name: sum(row[name] or 0 for row in rows) for name in _COUNTS}
    total["cost_usd"] = sum(costs, Decimal(0)) if costs else None
    statuses = {row["cost_status"] for row in rows}
    total["cost_status"] = next((state for state in _STATES if state in statuses), "exact")
    return total


def _certainty(spent: Row | None) -> str:
    """Return the numbers of LLM requests by certainty of their cost, in words."""
    if not spent or not spent["calls"]:
        return ""
    labels = (
        ("exact_calls", "exact"),
        ("lower_bound_calls", "lower bound"),
        ("estimated_calls", "estimated"),
        ("unpriced_calls", "without a price"),
    )
    if spent["exact_calls"] == spent["calls"]:
        return "exact for all LLM requests"
    if spent["unpriced_calls"] == spent["calls"]:
        return f"{count(spent['calls'], 'LLM request')} without a price"
    counts = ", ".join(f"{spent[name]:,} {word}" for name, word in labels if spent[name])
    return f"{count(spent['calls'], 'LLM request')}: {counts}"


_SESSIONS = (
    "name",
    "session_id",
    "status",
    "started_ns",
    "turns",
    "calls",
    "cost_usd",
    "cost_status",
)
_UNFINISHED = ("kind", "name", "label", "lane", "started_ns", "open_ns", "id")
_EFFECTS = ("effect", "lane", "turn", "outcome", "evidence")
_HOOKS = (
    "hook",
    "outcome",
    "times",
    "rewrites",
    "overridden",
    "model_requests",
    "p50_ns",
    "p95_ns",
    "max_ns",
)
_LOSSES = ("session_id", "where_lost", "what", "records", "at_ns")
"""The columns of the tables in reports."""
