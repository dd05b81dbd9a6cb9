"""Reports: one HTML file about a session, a range of them, a replay's divergence or two sessions, to be passed on.

Everything that a report needs is in it: it opens from the file system, and its policy forbids it the network. On the
screen plotly draws the figures; on paper, and where no script runs, the same figures stand as static SVG. A light
report has those alone. What was said is in none of them unless it is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache
from importlib.metadata import version
from typing import Any

import duckdb
from markupsafe import Markup

from agentobs.store.analysis.diagnosis import SIGNATURES
from dashboards.content.session_content import Said
from dashboards.drawing import css, svg
from dashboards.figures.phrases import count
from dashboards.panels.panels import InWords, Panel, fleet_panels, rows_of, session_panels
from dashboards.panels.session_outcomes import kept_of, selected, steps_of, verdicts_of
from dashboards.panels.templates import asset, csp_hash, page, plotly_script

Row = Mapping[str, Any]
MOST = 100
"""How many rows a table of a report has at most. Our choice: what is longer nobody reads on paper."""
STEPS = 200
"""How many steps of a session are listed."""
LIGHT = 50
"""How many rows the numbers of a figure, and the steps, have in a light report: its size is bounded."""
EVIDENCE = 5
"""How many rows of evidence are shown of each signature, as in `agentobs diagnose`."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What every report has around it."""

    about: str
    made_ns: int
    """When it was made, in nanoseconds since 1970."""
    light: bool
    """Whether it has no script."""
    style: Markup
    scripts: tuple[Markup, ...]
    policy: str
    """Its Content-Security-Policy: it may run its own scripts, and load nothing."""
    version: str


@dataclass(frozen=True, slots=True)
class Drawn:
    """A panel, with its figure as it stands on paper."""

    panel: Panel
    still: Markup
    more: int
    """How many rows of it are not in its table."""
    command: str
    """What lists all of them."""


@dataclass(frozen=True, slots=True)
class Part:
    """The first of some rows."""

    columns: Sequence[str]
    rows: Sequence[Row]
    more: int
    """How many there are beyond those."""
    command: str
    """What lists all of them."""


def session_report(
    connection: duckdb.DuckDBPyConnection,
    session_id: str,
    *,
    made_ns: int,
    light: bool = False,
    said: Said | None = None,
    in_words: InWords = list,
) -> str:
    """Return the report of one session: what happened, what it cost, where the time went.

    Args:
        connection: to the store.
        session_id: the session.
        made_ns: when the report is made, in nanoseconds since 1970.
        light: without a script, the figures as SVG alone.
        said: what was said, where that shall be in it.
        in_words: puts names and reasons as they were written into rows; default as the facts have them.
    """
    sql = "SELECT * FROM sessions WHERE session_id = ?"
    [about] = in_words(selected(connection, sql, [session_id]))
    steps = steps_of(connection, session_id)
    command = f"agentobs show {session_id}"
    spent = next(iter(rows_of(connection, "cost_by_session", session_id=session_id)), None)
    conversation = in_words(rows_of(connection, "conversation_sessions", session_id=session_id))
    return page(
        "report_session.html",
        frame=_frame("Report of one session", made_ns, light),
        about=about,
        spent=spent,
        sure=_sureness(spent),
        kept=kept_of(connection, session_id),
        losses=rows_of(connection, "losses", session_id=session_id),
        verdicts=verdicts_of(connection, session_id, EVIDENCE),
        panels=_drawn(session_panels(connection, session_id), command, light),
        failed=_part((), [step for step in steps if step["is_failed"]], MOST, command),
        steps=_part((), steps, LIGHT if light else STEPS, command),
        ledger=_ledger(connection, session_id),
        conversation=_part(_SESSIONS, conversation if len(conversation) > 1 else [], MOST, command),
        open=_asked(
            connection, "open_at_death", _OPEN, f"agentobs orphans {session_id}", session_id
        ),
        hooks=_asked(
            connection, "hook_outcomes", _HOOKS, f"agentobs waits {session_id} --hooks", session_id
        ),
        said=said,
    )


def range_report(
    connection: duckdb.DuckDBPyConnection,
    *,
    since_ns: int | None,
    until_ns: int | None,
    made_ns: int,
    light: bool = False,
) -> str:
    """Return the report of all sessions of a range.

    Args:
        connection: to the store.
        since_ns: the start of the range in nanoseconds since 1970; None for all that was recorded.
        until_ns: its end, which is no part of it; None for all that was recorded.
        made_ns: when the report is made.
        light: without a script, the figures as SVG alone.
    """
    bounds = {"since_ns": since_ns, "until_ns": until_ns}
    spent = _whole(rows_of(connection, "cost_by_model", **bounds))
    losses = rows_of(connection, "losses", **bounds)
    totals = selected(connection, _TOTALS, bounds)[0]
    most = {**bounds, "most": MOST}
    dearest, failures = (selected(connection, sql, most) for sql in (_DEAR, _FAILURES))
    listed = "agentobs sql \"FROM sessions WHERE status IN ('failed', 'crashed', 'incomplete')\""
    return page(
        "report_range.html",
        frame=_frame("Report of a range of sessions", made_ns, light),
        range="All sessions" if since_ns is None and until_ns is None else "Sessions of a range",
        **bounds,
        totals=totals,
        spent=spent,
        sure=_sureness(spent),
        panels=_drawn(
            fleet_panels(connection, since_ns=since_ns, until_ns=until_ns), "agentobs sql", light
        ),
        signatures=_fired(rows_of(connection, "signatures_by_day", **bounds)),
        dearest=Part((), dearest, totals["sessions"] - len(dearest), "agentobs cost --by session"),
        failed=Part((), failures, totals["failed"] - len(failures), listed),
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
    """Return a report of something that is not in the store: a template with some figures."""
    frame = _frame(about, made_ns, light)
    return page(template, frame=frame, panels=_drawn(panels, command, light), **values)


def _frame(about: str, made_ns: int, light: bool) -> Frame:
    style = _style()
    scripts = () if light else _scripts()
    hashes = " ".join(csp_hash(script) for script in scripts) or "'none'"
    # Labels of plotly have style attributes; attributes run nothing and, without the network, load nothing.
    inline = "" if light else "style-src-attr 'unsafe-inline'; img-src data: blob:; "
    # A style element that is empty is what plotly puts its rules in.
    styles = f"{csp_hash(style)} {csp_hash('')}"
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src {styles}; {inline}"
        "base-uri 'none'; form-action 'none'"
    )
    own = version("agentobs-kit")
    return Frame(about, made_ns, light, Markup(style), tuple(map(Markup, scripts)), policy, own)


@cache
def _style() -> str:
    return f"{asset('style.css')}{asset('report.css')}{css()}"


@cache
def _scripts() -> tuple[str, ...]:
    """Return the scripts of a report, plotly's first; none can end its element early."""
    scripts = (plotly_script(), asset("figures.js"), asset("report.js"))
    assert not any("</script" in script or "<!--" in script for script in scripts)
    return scripts


def _drawn(panels: Sequence[Panel], command: str, light: bool) -> list[Drawn]:
    made = []
    for each in panels:
        kept = replace(each, rows=each.rows[:LIGHT]) if light else each
        more = each.more + len(each.rows) - len(kept.rows)
        still = Markup(svg(each.figure, title=each.title, says=each.says))
        made.append(Drawn(kept, still, more, command))
    return made


def _part(columns: Sequence[str], rows: Sequence[Row], most: int, command: str) -> Part:
    return Part(columns, rows[:most], max(len(rows) - most, 0), command)


def _asked(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    columns: Sequence[str],
    command: str,
    session_id: str,
) -> Part:
    return _part(columns, rows_of(connection, name, session_id=session_id), MOST, command)


def _ledger(connection: duckdb.DuckDBPyConnection, session_id: str) -> Part:
    rows = selected(connection, _CALLS, [session_id, MOST])
    more = rows[0]["all_calls"] - len(rows) if rows else 0
    sql = f"FROM call_costs WHERE session_id = '{session_id}'"
    return Part((), rows, more, f'agentobs sql "{sql}"')


def _fired(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return each signature that fires in a range, in how many sessions, and what to do."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["signature"]] = counts.get(row["signature"], 0) + row["sessions"]
    told = [
        {
            "name": each.name,
            "sessions": counts[each.name],
            "meaning": each.fires,
            "todo": each.todo,
        }
        for each in SIGNATURES
        if counts.get(each.name)
    ]
    return sorted(told, key=lambda each: -each["sessions"])


_COUNTS = (
    "calls", "input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "exact_calls",
    "lower_bound_calls", "estimated_calls", "unpriced_calls",
)  # fmt: skip
_STATES = ("estimated", "lower_bound")


def _whole(rows: Sequence[Row]) -> dict[str, Any]:
    """Return what rows of costs add up to, and how sure that is."""
    known = [row["cost_usd"] for row in rows if row["cost_usd"] is not None]
    found: dict[str, Any] = {name: sum(row[name] or 0 for row in rows) for name in _COUNTS}
    found["cost_usd"] = sum(known, Decimal(0)) if known else None
    states = {row["cost_status"] for row in rows}
    found["cost_status"] = next((state for state in _STATES if state in states), "exact")
    return found


def _sureness(spent: Row | None) -> str:
    """Return how many calls are how sure, in words."""
    if not spent or not spent["calls"]:
        return ""
    words = (
        ("exact_calls", "exact"),
        ("lower_bound_calls", "at least"),
        ("estimated_calls", "estimated"),
        ("unpriced_calls", "without a price"),
    )
    if spent["exact_calls"] == spent["calls"]:
        return "all calls are exact"
    if spent["unpriced_calls"] == spent["calls"]:
        return f"{count(spent['calls'], 'call')} without a price"
    told = ", ".join(f"{spent[name]:,} {word}" for name, word in words if spent[name])
    return f"of {count(spent['calls'], 'call')}: {told}"


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
_OPEN = ("kind", "name", "label", "lane", "started_ns", "open_ns", "id")
_HOOKS = (
    "hook",
    "outcome",
    "times",
    "rewrites",
    "overtaken",
    "model_requests",
    "p50_ns",
    "p95_ns",
    "max_ns",
)
_LOSSES = ("session_id", "where_lost", "what", "records", "at_ns")
"""The columns of the tables, of those that their queries give."""

_CALLS = """
    SELECT *, count(*) OVER () AS all_calls
    FROM call_costs
    WHERE session_id = ?
    ORDER BY cost_usd DESC NULLS FIRST, at_ns, attempt_id, iteration
    LIMIT ?
"""
_IN_RANGE = """
    ($since_ns::BIGINT IS NULL OR started_ns >= $since_ns::BIGINT)
    AND ($until_ns::BIGINT IS NULL OR started_ns < $until_ns::BIGINT)
"""
_TOTALS = f"""
    SELECT
        count(*) AS sessions,
        count(*) FILTER (WHERE status IN ('failed', 'crashed', 'incomplete')) AS failed,
        count(*) FILTER (WHERE status = 'running') AS running
    FROM sessions
    WHERE {_IN_RANGE}
"""
_LISTED = """
    SELECT sessions.*, costs.* EXCLUDE (session_id)
    FROM sessions
    LEFT JOIN (
        SELECT session_id, cost_status, lower_bound_calls, estimated_calls FROM cost_by_session
    ) AS costs USING (session_id)
"""
_DEAR = f"""
    {_LISTED}
    WHERE {_IN_RANGE}
    ORDER BY cost_usd DESC NULLS LAST, started_ns, session_id
    LIMIT $most
"""
_FAILURES = f"""
    {_LISTED}
    WHERE status IN ('failed', 'crashed', 'incomplete') AND {_IN_RANGE}
    ORDER BY started_ns DESC, session_id
    LIMIT $most
"""
