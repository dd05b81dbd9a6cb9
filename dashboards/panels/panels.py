"""Panels: a figure with a title, a summary sentence, and its data. Pages and reports share them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache
from types import MappingProxyType
from typing import Any

import plotly.graph_objects as go
from markupsafe import Markup

from agentobs.records.display import has_partial_counts, money, printable, seconds, share
from agentobs.records.words import INCLUDING_WAITS, PARTS_OF_TIME, UNSEEN_WAITS
from agentobs.store.analysis.lane_names import names_in_session, with_agents
from agentobs.store.analysis.wall_time import (
    PARTS,
    Split,
    TimeSlice,
    has_unseen_waits,
    interaction_times,
    outside_words,
    total_by_part,
)
from agentobs.store.port import Store
from dashboards import figures
from dashboards.figures.phrases import (
    address_text,
    certain_money,
    certainty_prefix,
    lane_of,
    times,
)
from dashboards.figures.tokens import with_unfinished
from dashboards.panels.templates import figure_json

Row = Mapping[str, Any]
MOST_TOOLS = 3
"""The number of tools whose total time is named. Our choice: one line of text."""
SHOWN = 200
"""The maximum number of rows in the table of a panel. Our choice: use SQL for more."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A figure with a title, a summary and its data."""

    name: str
    """The name of the figure, and its anchor in the page."""
    title: str
    summary: str
    """A summary of the figure in a sentence; also its text alternative."""
    figure: go.Figure
    columns: Sequence[str]
    rows: Sequence[Row]
    """The data of the figure; at most SHOWN rows."""
    more: int = 0
    """The number of rows that are not included."""
    is_wide: bool = False
    """Whether the figure needs the full width of the page; narrow screens scroll it."""
    filters: Sequence[Mapping[str, str]] = ()
    """For each row, the parameters with which the list of sessions shows its sessions; empty if there are none."""

    def json(self) -> Markup:
        """Return the figure as JSON for a page."""
        return figure_json(self.figure)


def panel(
    name: str,
    title: str,
    summary: str,
    figure: go.Figure,
    columns: Sequence[str],
    rows: Sequence[Row],
    *,
    is_wide: bool = False,
    listed_by: Mapping[str, str] = MappingProxyType({}),
) -> Panel:
    """Return a panel whose table has at most SHOWN rows.

    `listed_by` contains the columns that filter the list of sessions, and the parameter of each; the parameter `day`
    means one day.
    """
    more, shown = max(0, len(rows) - SHOWN), rows[:SHOWN]
    filters = [_filters(row, listed_by) for row in shown] if listed_by else ()
    return Panel(name, title, printable(summary), figure, columns, shown, more, is_wide, filters)


def _filters(row: Row, listed_by: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters of the list of sessions for a row; empty if a value cannot be a filter."""
    found: dict[str, str] = {}
    for column, parameter in listed_by.items():
        if (value := address_text(row[column])) is None:
            return {}
        names = ("day_from", "day_to") if parameter == "day" else (parameter,)
        found |= dict.fromkeys(names, value)
    return found


SESSION_PANELS = (
    "waterfall",
    "turns",
    "context",
    "time",
    "cost-by-agent",
    "cache-waste",
    "tools",
    "tool-errors",
    "waits",
)
"""The panels of a session, in order."""
RestoreNames = Callable[[Sequence[Row]], Sequence[Row]]
"""A function that replaces digests in rows by the original texts."""


def session_panels(
    store: Store,
    session_id: str,
    *,
    window: tuple[int, int] | None = None,
    restore_names: RestoreNames = list,
    names: Collection[str] = SESSION_PANELS,
    known: Mapping[str, Sequence[Row]] = MappingProxyType({}),
    agents: Mapping[str, str] | None = None,
    times: Callable[[], Sequence[Split]] | None = None,
) -> list[Panel]:
    """Return the panels of one session; panels without data are omitted.

    Args:
        store: the store.
        session_id: the session.
        window: the start and end of the waterfall, in nanoseconds since 1970; None for the whole session.
        restore_names: replaces digests in rows by the original names and reasons. Default: rows as stored.
        names: the panels to return, of SESSION_PANELS.
        known: the rows of named queries that were read before, with the original names.
        agents: the display names of the lanes, if they were read before.
        times: returns the times of the interactions, if the caller needs them too.
    """

    @cache
    def lanes() -> Mapping[str, str]:
        return names_in_session(store, session_id, restore_names) if agents is None else agents

    @cache
    def query(name: str) -> Sequence[Row]:
        rows = known.get(name)
        if rows is None:
            rows = restore_names(rows_of(store, name, session_id=session_id))
        return with_agents(rows, lanes())

    @cache
    def splits() -> Sequence[Split]:
        return interaction_times(store, session_id) if times is None else times()

    panels: dict[str, Callable[[], Panel | None]] = {
        "waterfall": lambda: _waterfall(query("session_waterfall"), splits(), window, lanes()),
        "turns": lambda: _turns(query("session_turns"), query("internal/unfinished_turns")),
        "context": lambda: _context(query("context_growth")),
        "time": lambda: _split(splits(), query("internal/session"), lanes()),
        "cost-by-agent": lambda: _agents(query("cost_by_agent")),
        "cache-waste": lambda: _waste(query("cache_waste")),
        "tools": lambda: _latency(query("tool_latency"), len(query("cost_by_agent")) > 1),
        "tool-errors": lambda: _errors(query("tool_latency")),
        "waits": lambda: _waits(query("waits_for_people")),
    }
    made = (panels[name]() for name in SESSION_PANELS if name in names)
    return [each for each in made if each is not None]


def fleet_panels(
    store: Store,
    *,
    since_ns: int | None = None,
    until_ns: int | None = None,
    restore_names: RestoreNames = list,
    known: Mapping[str, Sequence[Row]] = MappingProxyType({}),
) -> list[Panel]:
    """Return the panels of all sessions in a time range; panels without data are omitted.

    Args:
        store: the store.
        since_ns: the start of the range in nanoseconds since 1970, or None for no limit.
        until_ns: the end of the range, exclusive, or None.
        restore_names: replaces digests in rows by the original names. Default: rows as stored.
        known: the rows of named queries about this time range that were read before, as stored.
    """

    def query(name: str) -> list[Row]:
        rows = known.get(name)
        if rows is None:
            rows = rows_of(store, name, since_ns=since_ns, until_ns=until_ns)
        return list(restore_names(rows))

    signatures = known.get("signatures_by_day")
    if signatures is None:
        signatures = signatures_by_day(store, since_ns, until_ns)
    tools = query("tool_latency")
    panels = (
        _days(query("cost_by_day")),
        _signatures(restore_names(signatures), query("sessions_by_day")),
        _models(query("cost_by_model")),
        _names(query("cost_by_name")),
        _efficiency(query("cache_by_name")),
        _waste(query("cache_waste")),
        _latency(tools),
        _errors(tools),
        _first_token(query("first_token_by_model")),
        _waits(query("waits_for_people")),
    )
    return [each for each in panels if each is not None]


def signatures_by_day(store: Store, since_ns: int | None, until_ns: int | None) -> list[Row]:
    """Return the rows of `signatures_by_day` for a time range."""
    # Without these bounds, a query about a week would search for signatures in all earlier years.
    bounds: dict[str, Any] = dict(*rows_of(store, "session_range", since_ns=since_ns))
    name = "signatures_by_day"
    return rows_of(store, name, since_ns=since_ns, until_ns=until_ns, **bounds)


def rows_of(store: Store, name: str, **parameters: Any) -> list[Row]:
    """Return the rows of a named query."""
    return list(store.rows(name, **parameters).dicts())


def _waterfall(
    rows: Sequence[Row],
    splits: Sequence[Split],
    window: tuple[int, int] | None,
    agents: Mapping[str, str],
) -> Panel | None:
    if all(row["kind"] == "session" for row in rows):
        return None
    full_path = [piece for split in splits for piece in split.path]
    path = full_path if window is None else _within(full_path, *window)
    pieces = [
        {"lane": p.lane, "what": p.name, "label": p.label, "time category": _PARTS[p.part],
         "started_ns": p.started_ns, "duration_ns": p.ended_ns - p.started_ns}
        for p in path
    ]  # fmt: skip
    summary = f"{'' if window is None else 'In the selected range: '}{_path_summary(splits, path, window)}"
    columns = ("started_ns", "duration_ns", "time category", "what", "label", "lane")
    figure = figures.session_waterfall(rows, full_path, window=window)
    shown = with_agents(pieces, agents)
    return panel("waterfall", "Waterfall", summary, figure, columns, shown, is_wide=True)


def _within(path: Sequence[TimeSlice], start: int, end: int) -> list[TimeSlice]:
    """Return the segments of a critical path between two times, clipped to this range."""
    clipped = (
        replace(piece, started_ns=max(piece.started_ns, start), ended_ns=min(piece.ended_ns, end))
        for piece in path
    )
    return [piece for piece in clipped if piece.started_ns < piece.ended_ns]


def _path_summary(
    splits: Sequence[Split], path: Sequence[TimeSlice], window: tuple[int, int] | None
) -> str:
    """Return a sentence about the total duration of the interactions and the largest part of it."""
    start, end = window or (-math.inf, math.inf)
    count = sum(s.started_ns < end and s.started_ns + s.wall_ns > start for s in splits)
    if not count:
        return "no interactions, so there is no critical path."
    durations = dict.fromkeys(PARTS, 0)
    for piece in path:
        durations[piece.part] += piece.ended_ns - piece.started_ns
    wall = sum(durations.values())
    largest = max(durations, key=lambda part: durations[part])
    part = (
        f"; {share(durations[largest], wall)} of the critical path is {_PARTS[largest]}"
        if wall
        else ""
    )
    if wall and largest == "tool" and has_unseen_waits(splits):
        part = f"{part}, {UNSEEN_WAITS}"
    return f"{_count(count, 'interaction')} took {seconds(wall)}{part}."


def _turns(complete: Sequence[Row], unfinished: Sequence[Row] = ()) -> Panel | None:
    rows = with_unfinished(complete, unfinished)
    if not rows:
        return None
    tokens = sum(sum(row[name] or 0 for name in _TOKENS) for row in rows)
    at_least = "at least " if any(has_partial_counts(row) for row in rows) else ""
    number = _count(len(complete), "turn")
    if unfinished:
        number = f"{number}, and {len(unfinished):,} without a complete response,"
    used = f"{number} used {at_least}{tokens:,} tokens"
    summary = f"{used} and cost {_sum(rows)}{_most_expensive(rows)}."
    columns = (
        "lane",
        "turn",
        "started_ns",
        "duration_ns",
        "model",
        "stop_reason",
        *_TOKENS,
        "cost_usd",
        "cost_status",
    )
    figure = figures.session_turns(rows)
    return panel("turns", "Tokens and cost per turn", summary, figure, columns, rows, is_wide=True)


def _most_expensive(rows: Sequence[Row]) -> str:
    """Return which turn cost the most, in words; empty if there are few turns or no costs."""
    priced = [row for row in rows if row["cost_usd"]]
    if len(priced) < 3:
        return ""
    most = max(priced, key=lambda row: row["cost_usd"])
    part = share(most["cost_usd"], sum(row["cost_usd"] for row in priced))
    where = f" of {lane_of(most)}" if len({row["lane"] for row in rows}) > 1 else ""
    which = f"turn {most['turn']:,}{where}"
    if certainty_prefix(rows):
        return f"; of the known costs, {which} has the highest: {_sum([most])} ({part})"
    return f"; {which} cost the most, {_sum([most])} ({part})"


def _context(rows: Sequence[Row]) -> Panel | None:
    if not rows:
        return None
    largest = max(row["context_tokens"] or 0 for row in rows)
    compactions = sum(bool(row["compacted"]) for row in rows)
    compacted = "never compacted" if not compactions else f"compacted {times(compactions)}"
    summary = (
        f"The largest prompt has {_count(largest, 'token')}; the conversation was {compacted}."
    )
    columns = ("lane", "turn", "started_ns", "context_tokens", "window_tokens", "compacted")
    figure = figures.context_growth(rows)
    return panel("context", "Context growth", summary, figure, columns, rows)


def _split(
    splits: Sequence[Split], sessions: Sequence[Row], agents: Mapping[str, str]
) -> Panel | None:
    if not splits:
        return None
    rows = with_agents([dataclasses.asdict(split) for split in splits], agents)
    wall = sum(split.wall_ns for split in splits)
    spent = total_by_part(splits)
    notes = {"tool": f", {UNSEEN_WAITS}"} if has_unseen_waits(splits) else {}
    largest_first = sorted((part for part in PARTS if spent[part]), key=lambda each: -spent[each])
    parts = [
        f"{_PARTS[part]} {seconds(spent[part])} ({share(spent[part], wall)}){notes.get(part, '')}"
        for part in largest_first
    ]
    listed = f": {', '.join(parts)}" if parts else ""
    about = sessions[0] if sessions and sessions[0]["duration_ns"] is not None else None
    # Interactions at the same time can take longer in total than the session.
    whole = (
        f"Of {seconds(about['duration_ns'])}, {seconds(wall)} were in interactions"
        if about is not None and wall <= about["duration_ns"]
        else f"Of {seconds(wall)} in interactions"
    )
    summary = (
        f"{whole}{listed}. "
        "Time in which several steps ran is counted once, so the parts add up to the time in interactions."
        f"{_outside(splits, about)}"
    )
    columns = ("started_ns", "lane", "wall_ns", *(f"{part}_ns" for part in PARTS))
    return panel("time", "Time by activity", summary, figures.time_split(rows), columns, rows)


def _outside(splits: Sequence[Split], about: Row | None) -> str:
    """Return the times before, between and after interactions as a sentence; empty if there are none."""
    started = splits[0].started_ns if about is None else about["started_ns"]
    words = outside_words(splits, started, None if about is None else about["duration_ns"])
    return f" Outside of interactions: {words}." if words else ""


def _days(rows: Sequence[Row]) -> Panel | None:
    if not rows:
        return None
    summary = f"Calls on {_count(len(rows), 'day')} cost {_sum(rows)}. Days are in UTC."
    figure = figures.cost_by_day(rows)
    return panel(
        "cost-by-day",
        "Cost by day",
        summary,
        figure,
        _cost_columns("day"),
        rows,
        is_wide=True,
        listed_by={"day": "day"},
    )


def _models(rows: Sequence[Row]) -> Panel | None:
    if not rows:
        return None
    most_expensive = (
        f"; the most expensive is {rows[0]['model']}"
        if len(rows) > 1 and rows[0]["cost_usd"]
        else ""
    )
    summary = f"{_count(len(rows), 'model')} cost {_sum(rows)}{most_expensive}."
    figure = figures.cost_by_model(rows)
    columns = _cost_columns("model")
    return panel(
        "cost-by-model",
        "Cost by model",
        summary,
        figure,
        columns,
        rows,
        listed_by={"model": "model"},
    )


def _agents(rows: Sequence[Row]) -> Panel | None:
    if len(rows) < 2:
        return None
    most = max(rows, key=lambda row: row["cost_usd"] or 0)
    who = "the main agent" if most["lane"] == "main" else lane_of(most)
    summary = (
        f"{_count(len(rows), 'agent')} cost {_sum(rows)}; {who} cost the most, {_sum([most])}. "
        "The most expensive one is first."
    )
    figure = figures.cost_by_agent(rows)
    columns = _cost_columns("name", "lane")
    return panel("cost-by-agent", "Cost by agent", summary, figure, columns, rows)


def _names(rows: Sequence[Row]) -> Panel | None:
    if not rows:
        return None
    sessions = (
        "The sessions all have the same name and"
        if len(rows) == 1
        else f"Sessions with {len(rows):,} different names"
    )
    summary = f"{sessions} cost {_sum(rows)}, including sub-agents."
    columns = _cost_columns("name", "sessions")
    figure = figures.cost_by_name(rows)
    title = "Cost by session name"
    return panel("cost-by-name", title, summary, figure, columns, rows, listed_by={"name": "q"})


def _efficiency(rows: Sequence[Row]) -> Panel | None:
    if not rows:
        return None
    read = sum(row["cache_read_tokens"] or 0 for row in rows)
    total = sum(sum(row[name] or 0 for name in _TOKENS[:3]) for row in rows)
    cached = f"{share(read, total)} of the input was read from the cache" if total else "no input"
    summary = f"{_saved(rows)}: {cached}."
    columns = (
        "name",
        "sessions",
        "calls",
        "hit_ratio",
        "saved_usd",
        *_TOKENS[:3],
        "cost_usd",
        "cost_status",
    )
    figure = figures.cache_efficiency(rows)
    return panel("cache", "Cache savings", summary, figure, columns, rows, listed_by={"name": "q"})


def _waste(rows: Sequence[Row]) -> Panel | None:
    if not rows:
        return None
    misses = [row for row in rows if row["reason"] != "compaction"]
    compacted = [row for row in rows if row["reason"] == "compaction"]
    sentences = []
    if misses:
        calls = sum(row["calls"] for row in misses)
        sentences.append(
            f"In {_count(calls, 'cache miss', 'cache misses')}, cached tokens were billed again, "
            f"at an extra cost of {_wasted(misses)}{_waste_by_reason(misses)}."
        )
    if compacted:
        calls = sum(row["calls"] for row in compacted)
        first = "The first request" if calls == 1 else "The first requests"
        sentences.append(
            f"{first} after {_count(calls, 'compaction')} cost {_wasted(compacted)} more than reads from the cache."
        )
    summary = " ".join(sentences)
    columns = ("reason", "reason_source", "calls", "missed_tokens", "wasted_usd", "unpriced_calls")
    figure = figures.cache_waste(rows)
    return panel("cache-waste", "Cache rewrites", summary, figure, columns, rows)


def _latency(rows: Sequence[Row], has_sub_agents: bool = False) -> Panel | None:
    timed = [row for row in rows if row["timed_calls"]]
    if not timed:
        return None
    most = sorted(timed, key=lambda row: -(row["total_ns"] or 0))[:MOST_TOOLS]
    listed = ", ".join(
        f"{row['name'] or 'an unnamed tool'} {figures.tool_statistics.duration_text(row['total_ns'])} "
        f"({_count(row['timed_calls'], 'call')})"
        for row in most
    )
    nested = (
        " The time of a tool that starts a sub-agent includes the time of the sub-agent."
        if has_sub_agents
        else ""
    )
    waits = f" The times {INCLUDING_WAITS}." if any(row["unseen_waits"] for row in timed) else ""
    summary = f"Total time by tool: {listed}{', and others' if len(timed) > len(most) else ''}.{nested}{waits}"
    columns = ("name", "calls", "timed_calls", "p50_ns", "p90_ns", "p99_ns", "max_ns", "total_ns")
    figure = figures.tool_latency(rows)
    return panel("tools", "Tool latency", summary, figure, columns, rows, listed_by={"name": "q"})


def _errors(rows: Sequence[Row]) -> Panel | None:
    if not rows:
        return None
    calls, errors, denied = (
        sum(row[name] for row in rows) for name in ("calls", "errors", "denied")
    )
    summary = f"{errors:,} of {calls:,} calls failed ({share(errors, calls, digits=1)})."
    if denied:
        summary = f"{summary} {denied:,} {'was' if denied == 1 else 'were'} denied."
    figure = figures.tool_errors(rows)
    columns = ("name", "calls", "errors", "denied") if denied else ("name", "calls", "errors")
    return panel(
        "tool-errors", "Tool error rate", summary, figure, columns, rows, listed_by={"name": "q"}
    )


def _waits(rows: Sequence[Row]) -> Panel | None:
    if not rows:
        return None
    answered, unanswered = (sum(row[name] for row in rows) for name in ("answered", "unanswered"))
    total = sum(row["total_ns"] or 0 for row in rows)
    unanswered_text = f"{_count(unanswered, 'approval request')} {'was' if unanswered == 1 else 'were'} never answered"
    answered_text = f"{_count(answered, 'approval request')} waited {seconds(total)} in total"
    summary = (
        f"{'; '.join([answered_text] * bool(answered) + [unanswered_text] * bool(unanswered))}."
    )
    columns = (
        "about",
        "resolver",
        "answered",
        "unanswered",
        "denied",
        "p50_ns",
        "p90_ns",
        "max_ns",
        "total_ns",
    )
    figure = figures.blocked_on_user(rows)
    return panel("waits", "Waiting for the user", summary, figure, columns, rows)


def _first_token(rows: Sequence[Row]) -> Panel | None:
    if not rows:
        return None
    model = rows[0]["model"] or "an unnamed model"
    summary = f"Half of the responses of {model} started within {seconds(rows[0]['p50_ns'])}."
    columns = ("model", "calls", "p50_ns", "p95_ns", "p99_ns", "max_ns")
    figure = figures.first_token(rows)
    title = "Time to first chunk"
    return panel("first-token", title, summary, figure, columns, rows, listed_by={"model": "model"})


def _signatures(rows: Sequence[Row], days: Sequence[Row]) -> Panel | None:
    if not days:
        return None
    seen = len({row["signature"] for row in rows})
    sessions, failed = (sum(row[name] for row in days) for name in ("sessions", "failed"))
    summary = (
        f"{failed:,} of {sessions:,} sessions failed; {_count(seen, 'failure signature')} found."
    )
    columns = ("day", "signature", "sessions")
    figure = figures.failure_signatures(rows, days)
    title = "Failures by signature"
    listed_by = {"day": "day", "signature": "signature"}
    return panel(
        "signatures", title, summary, figure, columns, rows, is_wide=True, listed_by=listed_by
    )


_TOKENS = ("input_tokens", "cache_read_tokens", "cache_write_tokens", "output_tokens")
_PARTS = {**PARTS_OF_TIME, "model": "the model", "queued": "time in the queue"}
"""The categories of time within a sentence."""


def _cost_columns(*names: str) -> tuple[str, ...]:
    return (*names, "calls", *_TOKENS, "cost_usd", "cost_status", "unpriced_calls")


def _sum(rows: Sequence[Row]) -> str:
    """Return the total cost of rows with its certainty, such as "at least $1.20"."""
    known = [row["cost_usd"] for row in rows if row["cost_usd"] is not None]
    if not known:
        return "an unknown amount"
    return certain_money(sum(known, Decimal(0)), rows)


def _saved(rows: Sequence[Row]) -> str:
    """Return the savings of caching, in words. If calls have no price, the amount is not a lower bound, because they
    may increase or reduce it.
    """
    known = [row["saved_usd"] for row in rows if row["saved_usd"] is not None]
    if not known:
        return "Cache savings are unknown, because prices are missing"
    saved = sum(known, Decimal(0))
    unpriced = sum(row["unpriced_calls"] or 0 for row in rows)
    unpriced_note = (
        f" (not including {_count(unpriced, 'call')} without a price)" if unpriced else ""
    )
    if saved < 0:
        return f"Cache writes cost {money(-saved)} more than cache reads saved{unpriced_note}"
    return f"Caching saved {money(saved)} net of cache writes{unpriced_note}"


def _wasted(rows: Sequence[Row]) -> str:
    """Return the extra cost of cache misses, in words. The amount is always an estimate."""
    known = [row["wasted_usd"] for row in rows if row["wasted_usd"] is not None]
    if not known:
        return "an unknown amount"
    is_low = any(row["unpriced_calls"] for row in rows)
    amount = money(sum(known, Decimal(0)), "lower_bound" if is_low else None)
    return f"{'at least ' if is_low else ''}about {amount}"


def _waste_by_reason(rows: Sequence[Row]) -> str:
    """Return the extra cost by reason, in words, the most expensive first; empty for a single reason."""
    reasons: dict[str, list[Row]] = {}
    for row in rows:
        reasons.setdefault(str(row["reason"] or "unknown"), []).append(row)
    if len(reasons) < 2:
        return ""
    usd = {
        reason: sum((row["wasted_usd"] or Decimal(0) for row in found), Decimal(0))
        for reason, found in reasons.items()
    }
    parts = []
    for reason in sorted(reasons, key=lambda each: (-usd[each], each)):
        found = reasons[reason]
        is_priced = any(row["wasted_usd"] is not None for row in found)
        amount = money(usd[reason]) if is_priced else "an unknown amount"
        calls = sum(row["calls"] for row in found)
        text = printable(figures.costs.miss_reason_text(reason))
        parts.append(f"{text} {amount} ({calls:,})")
    return f": {', '.join(parts)}"


def _count(number: int, noun: str, plural: str = "") -> str:
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
