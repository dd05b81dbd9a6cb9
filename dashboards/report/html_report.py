"""Reports: one HTML file about a session, a range of sessions, a divergence or two sessions, for sharing.

A report is self-contained: it opens from the file system, and its content security policy forbids network access. On
the screen plotly draws the figures; on paper, and without scripts, the same figures are static SVG. A light report has
only the SVG. Reports contain no content unless it is passed in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache
from importlib.metadata import version
from typing import Any

from markupsafe import Markup

from agentobs.store.analysis.diagnosis import SIGNATURES
from agentobs.store.port import Store
from dashboards.content.session_content import Said
from dashboards.drawing import css, svg
from dashboards.figures.phrases import count
from dashboards.panels.panels import InWords, Panel, fleet_panels, rows_of, session_panels
from dashboards.panels.session_outcomes import kept_of, steps_of, verdicts_of
from dashboards.panels.templates import asset, csp_hash, page, plotly_script

Row = Mapping[str, Any]
MOST = 100
"""The maximum number of rows of a table. Our choice: what is readable on paper."""
STEPS = 200
"""The maximum number of listed steps of a session."""
LIGHT = 50
"""The maximum number of rows of figure data and of steps in a light report, to limit its size."""
EVIDENCE = 5
"""The number of rows of evidence per signature, as in `agentobs diagnose`."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The frame that all reports share."""

    about: str
    made_ns: int
    """The time of the report, in nanoseconds since 1970."""
    light: bool
    """Whether the report has no scripts."""
    style: Markup
    scripts: tuple[Markup, ...]
    policy: str
    """The Content-Security-Policy: only its own scripts may run, and nothing may be loaded."""
    version: str


@dataclass(frozen=True, slots=True)
class Drawn:
    """A panel, with its figure as static SVG."""

    panel: Panel
    still: Markup
    more: int
    """The number of rows that are not in its table."""
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
    said: Said | None = None,
    in_words: InWords = list,
) -> str:
    """Return the report about one session: its steps, cost and time.

    Args:
        store: the store.
        session_id: the session.
        made_ns: the time of the report, in nanoseconds since 1970.
        light: whether to leave out scripts; figures are SVG only.
        said: the content, if the report should contain it.
        in_words: replaces digests in rows by the original names and reasons. Default: rows as stored.
    """
    [about] = in_words(rows_of(store, "internal/session", session_id=session_id))
    steps = steps_of(store, session_id)
    command = f"agentobs show {session_id}"
    spent = next(iter(rows_of(store, "cost_by_session", session_id=session_id)), None)
    conversation = in_words(rows_of(store, "conversation_sessions", session_id=session_id))
    return page(
        "report_session.html",
        frame=_frame("Session report", made_ns, light),
        about=about,
        spent=spent,
        sure=_sureness(spent),
        kept=kept_of(store, session_id),
        losses=rows_of(store, "losses", session_id=session_id),
        verdicts=verdicts_of(store, session_id, EVIDENCE),
        panels=_drawn(session_panels(store, session_id), command, light),
        failed=_part((), [step for step in steps if step["is_failed"]], MOST, command),
        steps=_part((), steps, LIGHT if light else STEPS, command),
        ledger=_ledger(store, session_id),
        conversation=_part(_SESSIONS, conversation if len(conversation) > 1 else [], MOST, command),
        open=_asked(store, "open_at_death", _OPEN, f"agentobs orphans {session_id}", session_id),
        hooks=_asked(
            store, "hook_outcomes", _HOOKS, f"agentobs waits {session_id} --hooks", session_id
        ),
        said=said,
    )


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
    spent = _whole(rows_of(store, "cost_by_model", **bounds))
    losses = rows_of(store, "losses", **bounds)
    totals = rows_of(store, "internal/range_totals", **bounds)[0]
    dearest = rows_of(store, "internal/most_expensive_sessions", **bounds, limit=MOST)
    failures = rows_of(store, "internal/failed_sessions", **bounds, limit=MOST)
    listed = "agentobs sql \"FROM sessions WHERE status IN ('failed', 'crashed', 'incomplete')\""
    return page(
        "report_range.html",
        frame=_frame("Report about a range of sessions", made_ns, light),
        range="All sessions" if since_ns is None and until_ns is None else "Sessions in a range",
        **bounds,
        totals=totals,
        spent=spent,
        sure=_sureness(spent),
        panels=_drawn(
            fleet_panels(store, since_ns=since_ns, until_ns=until_ns), "agentobs sql", light
        ),
        signatures=_fired(rows_of(store, "signatures_by_day", **bounds)),
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
    """Return a report about data outside of the store: a template with figures."""
    frame = _frame(about, made_ns, light)
    return page(template, frame=frame, panels=_drawn(panels, command, light), **values)


def _frame(about: str, made_ns: int, light: bool) -> Frame:
    style = _style()
    scripts = () if light else _scripts()
    hashes = " ".join(csp_hash(script) for script in scripts) or "'none'"
    # Labels of plotly have style attributes, which cannot run code and, without network access, cannot load data.
    inline = "" if light else "style-src-attr 'unsafe-inline'; img-src data: blob:; "
    # Plotly inserts its rules into an empty style element.
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
    """Return the scripts of a report, plotly first; none can close its element early."""
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
    store: Store,
    name: str,
    columns: Sequence[str],
    command: str,
    session_id: str,
) -> Part:
    return _part(columns, rows_of(store, name, session_id=session_id), MOST, command)


def _ledger(store: Store, session_id: str) -> Part:
    rows = rows_of(store, "internal/most_expensive_calls", session_id=session_id, limit=MOST)
    more = rows[0]["all_calls"] - len(rows) if rows else 0
    sql = f"FROM call_costs WHERE session_id = '{session_id}'"
    return Part((), rows, more, f'agentobs sql "{sql}"')


def _fired(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return each signature found in a range, the number of its sessions, and the suggested fix."""
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
    """Return the sum of rows of costs, and its certainty."""
    known = [row["cost_usd"] for row in rows if row["cost_usd"] is not None]
    found: dict[str, Any] = {name: sum(row[name] or 0 for row in rows) for name in _COUNTS}
    found["cost_usd"] = sum(known, Decimal(0)) if known else None
    states = {row["cost_status"] for row in rows}
    found["cost_status"] = next((state for state in _STATES if state in states), "exact")
    return found


def _sureness(spent: Row | None) -> str:
    """Return the numbers of calls by certainty, in words."""
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
    "overridden",
    "model_requests",
    "p50_ns",
    "p95_ns",
    "max_ns",
)
_LOSSES = ("session_id", "where_lost", "what", "records", "at_ns")
"""The columns of the tables."""
