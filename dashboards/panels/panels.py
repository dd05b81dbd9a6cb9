"""Panels: a figure with a title, a summary sentence, and its data. Pages and reports share them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import plotly.graph_objects as go
from markupsafe import Markup

from agentobs.records.display import money, printable, seconds
from agentobs.store.analysis.wall_time import PARTS, Piece, Split, interaction_times
from agentobs.store.port import Store
from dashboards import figures
from dashboards.figures.phrases import sureness
from dashboards.panels.templates import figure_json

Row = Mapping[str, Any]
SHOWN = 200
"""The maximum number of rows in the table of a panel. Our choice: use SQL for more."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A figure with a title, a summary and its data."""

    name: str
    """The name of the figure, and its anchor in the page."""
    title: str
    says: str
    """A summary of the figure in a sentence; also its text alternative."""
    figure: go.Figure
    columns: Sequence[str]
    rows: Sequence[Row]
    """The data of the figure; at most SHOWN rows."""
    more: int = 0
    """The number of rows that are not included."""
    is_wide: bool = False
    """Whether the figure needs the full width of the page; narrow screens scroll it."""

    def json(self) -> Markup:
        """Return the figure as JSON for a page."""
        return figure_json(self.figure)


def panel(
    name: str,
    title: str,
    says: str,
    figure: go.Figure,
    columns: Sequence[str],
    rows: Sequence[Row],
    *,
    is_wide: bool = False,
) -> Panel:
    """Return a panel with a bounded table."""
    more = max(0, len(rows) - SHOWN)
    return Panel(name, title, printable(says), figure, columns, rows[:SHOWN], more, is_wide)


InWords = Callable[[Sequence[Row]], Sequence[Row]]
"""Replaces digests by the original texts."""


def session_panels(
    store: Store,
    session_id: str,
    *,
    window: tuple[int, int] | None = None,
    in_words: InWords = list,
) -> list[Panel]:
    """Return the panels of one session; panels without data are omitted.

    Args:
        store: the store.
        session_id: the session.
        window: the start and end of the waterfall, in nanoseconds since 1970; None for the whole session.
        in_words: replaces digests in rows by the original names and reasons. Default: rows as stored.
    """

    def asked(name: str, **more: Any) -> list[Row]:
        return list(in_words(rows_of(store, name, session_id=session_id, **more)))

    splits, tools = interaction_times(store, session_id), asked("tool_latency")
    made = (
        _waterfall(asked("session_waterfall"), splits, window),
        _turns(asked("session_turns")),
        _context(asked("context_growth")),
        _split(splits),
        _agents(asked("cost_by_agent")),
        _waste(asked("cache_waste")),
        _latency(tools),
        _errors(tools),
        _waits(asked("waits_for_people")),
    )
    return [each for each in made if each is not None]


def fleet_panels(
    store: Store,
    *,
    since_ns: int | None = None,
    until_ns: int | None = None,
    in_words: InWords = list,
) -> list[Panel]:
    """Return the panels of all sessions in a time range; panels without data are omitted.

    Args:
        store: the store.
        since_ns: the start of the range in nanoseconds since 1970, or None for no limit.
        until_ns: the end of the range, exclusive, or None.
        in_words: replaces digests in rows by the original names. Default: rows as stored.
    """

    def asked(name: str, **more: Any) -> list[Row]:
        return list(in_words(rows_of(store, name, since_ns=since_ns, until_ns=until_ns, **more)))

    # Without these bounds, a query about a week would search for signatures in all earlier years.
    bounds: dict[str, Any] = dict(*rows_of(store, "session_range", since_ns=since_ns))
    tools = asked("tool_latency")
    made = (
        _days(asked("cost_by_day")),
        _signatures(asked("signatures_by_day", **bounds), asked("sessions_by_day")),
        _models(asked("cost_by_model")),
        _names(asked("cost_by_name")),
        _efficiency(asked("cache_by_name")),
        _waste(asked("cache_waste")),
        _latency(tools),
        _errors(tools),
        _first_token(asked("first_token_by_model")),
        _waits(asked("waits_for_people")),
    )
    return [each for each in made if each is not None]


def rows_of(store: Store, name: str, **parameters: Any) -> list[Row]:
    """Return the rows of a named query."""
    return list(store.rows(name, **parameters).dicts())


def _waterfall(
    rows: Sequence[Row], splits: Sequence[Split], window: tuple[int, int] | None
) -> Panel | None:
    if all(row["kind"] == "session" for row in rows):
        return None
    whole = [piece for split in splits for piece in split.path]
    path = whole if window is None else _within(whole, *window)
    pieces = [
        {"lane": p.lane, "what": p.name, "label": p.label, "counts as": _PARTS[p.part],
         "started_ns": p.started_ns, "duration_ns": p.ended_ns - p.started_ns}
        for p in path
    ]  # fmt: skip
    says = f"{'' if window is None else 'In the selected range: '}{_passed(splits, path, window)}"
    columns = ("started_ns", "duration_ns", "counts as", "what", "label", "lane")
    drawn = figures.session_waterfall(rows, whole, window=window)
    return panel("waterfall", "Waterfall", says, drawn, columns, pieces, is_wide=True)


def _within(path: Sequence[Piece], low: int, high: int) -> list[Piece]:
    """Return the pieces of a path between two times, clipped to them."""
    cut = (
        replace(piece, started_ns=max(piece.started_ns, low), ended_ns=min(piece.ended_ns, high))
        for piece in path
    )
    return [piece for piece in cut if piece.started_ns < piece.ended_ns]


def _passed(splits: Sequence[Split], path: Sequence[Piece], window: tuple[int, int] | None) -> str:
    """Return a sentence about the duration of interactions and their largest part."""
    low, high = window or (-math.inf, math.inf)
    count = sum(s.started_ns < high and s.started_ns + s.wall_ns > low for s in splits)
    if not count:
        return "no interactions, so there is no critical path."
    spent = dict.fromkeys(PARTS, 0)
    for piece in path:
        spent[piece.part] += piece.ended_ns - piece.started_ns
    wall = sum(spent.values())
    most = max(spent, key=lambda part: spent[part])
    share = (
        f"; {spent[most] / wall:.0%} of the critical path is spent on {_PARTS[most]}"
        if wall
        else ""
    )
    return f"{_count(count, 'interaction')} took {seconds(wall)}{share}."


def _turns(rows: Sequence[Row]) -> Panel | None:
    if not rows:
        return None
    tokens = sum(sum(row[name] or 0 for name in _TOKENS) for row in rows)
    says = f"{_count(len(rows), 'turn')} used {tokens:,} tokens and cost {_sum(rows)}."
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
    drawn = figures.session_turns(rows)
    return panel("turns", "Tokens and cost per turn", says, drawn, columns, rows, is_wide=True)


def _context(rows: Sequence[Row]) -> Panel | None:
    if not rows:
        return None
    largest = max(row["context_tokens"] or 0 for row in rows)
    times = sum(bool(row["compacted"]) for row in rows)
    compacted = "never compacted" if not times else f"compacted {_times(times)}"
    says = f"The largest prompt has {_count(largest, 'token')}; the conversation was {compacted}."
    columns = ("lane", "turn", "started_ns", "context_tokens", "window_tokens", "compacted")
    drawn = figures.context_growth(rows)
    return panel("context", "Context growth", says, drawn, columns, rows)


def _split(splits: Sequence[Split]) -> Panel | None:
    if not splits:
        return None
    rows = [dataclasses.asdict(split) for split in splits]
    waited = sum(split.person_ns for split in splits)
    people = f" Waiting for user: {seconds(waited)}." if waited else ""
    says = f"Time along the critical path; all parts add up to the wall time.{people}"
    columns = ("started_ns", "lane", "wall_ns", *(f"{part}_ns" for part in PARTS))
    return panel("time", "Time by activity", says, figures.time_split(rows), columns, rows)


def _days(rows: Sequence[Row]) -> Panel | None:
    if not rows:
        return None
    says = f"{_count(len(rows), 'day')} with calls cost {_sum(rows)}. Days are in UTC."
    drawn = figures.cost_by_day(rows)
    return panel(
        "cost-by-day", "Cost by day", says, drawn, _cost_columns("day"), rows, is_wide=True
    )


def _models(rows: Sequence[Row]) -> Panel | None:
    if not rows:
        return None
    first = (
        f"; the most expensive is {rows[0]['model']}"
        if len(rows) > 1 and rows[0]["cost_usd"]
        else ""
    )
    says = f"{_count(len(rows), 'model')} cost {_sum(rows)}{first}."
    drawn = figures.cost_by_model(rows)
    return panel("cost-by-model", "Cost by model", says, drawn, _cost_columns("model"), rows)


def _agents(rows: Sequence[Row]) -> Panel | None:
    if len(rows) < 2:
        return None
    says = f"{_count(len(rows), 'agent')} cost {_sum(rows)}; sub-agents are shown separately."
    drawn = figures.cost_by_agent(rows)
    columns = _cost_columns("name", "lane")
    return panel("cost-by-agent", "Cost by agent", says, drawn, columns, rows)


def _names(rows: Sequence[Row]) -> Panel | None:
    if not rows:
        return None
    says = f"Sessions of {_count(len(rows), 'name')} cost {_sum(rows)}, including their sub-agents."
    columns = _cost_columns("name", "sessions")
    drawn = figures.cost_by_name(rows)
    return panel("cost-by-name", "Cost by session name", says, drawn, columns, rows)


def _efficiency(rows: Sequence[Row]) -> Panel | None:
    if not rows:
        return None
    read = sum(row["cache_read_tokens"] or 0 for row in rows)
    whole = sum(sum(row[name] or 0 for name in _TOKENS[:3]) for row in rows)
    share = f"{read / whole:.0%} of the input was read from the cache" if whole else "no input"
    says = f"{_saved(rows)}: {share}."
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
    drawn = figures.cache_efficiency(rows)
    return panel("cache", "Cache savings", says, drawn, columns, rows)


def _waste(rows: Sequence[Row]) -> Panel | None:
    if not rows:
        return None
    calls = sum(row["calls"] for row in rows)
    says = (
        f"{_count(calls, 'cache miss', 'cache misses')} re-billed tokens that were already cached, "
        f"at an extra cost of {_wasted(rows)}."
    )
    columns = ("reason", "reason_source", "calls", "missed_tokens", "wasted_usd", "unpriced_calls")
    drawn = figures.cache_waste(rows)
    return panel("cache-waste", "Cache rewrites", says, drawn, columns, rows)


def _latency(rows: Sequence[Row]) -> Panel | None:
    timed = [row for row in rows if row["timed_calls"]]
    if not timed:
        return None
    slowest = max(timed, key=lambda row: row["p50_ns"])
    half = figures.tool_statistics.took(slowest["p50_ns"])
    more = "" if half.startswith("less") else " or more"
    says = (
        f"The slowest tool is {slowest['name'] or 'unnamed'}: half of its calls took {half}{more}."
    )
    columns = ("name", "calls", "timed_calls", "p50_ns", "p90_ns", "p99_ns", "max_ns", "total_ns")
    return panel("tools", "Tool latency", says, figures.tool_latency(rows), columns, rows)


def _errors(rows: Sequence[Row]) -> Panel | None:
    if not rows:
        return None
    calls, errors = (sum(row[name] for row in rows) for name in ("calls", "errors"))
    says = f"{errors:,} of {calls:,} calls failed ({errors / calls:.1%})."
    drawn = figures.tool_errors(rows)
    return panel("tool-errors", "Tool error rate", says, drawn, ("name", "calls", "errors"), rows)


def _waits(rows: Sequence[Row]) -> Panel | None:
    if not rows:
        return None
    answered, lost = (sum(row[name] for row in rows) for name in ("answered", "unanswered"))
    total = sum(row["total_ns"] or 0 for row in rows)
    never = f"{_count(lost, 'request')} {'was' if lost == 1 else 'were'} never answered"
    took = f"{_count(answered, 'request')} waited {seconds(total)} in total for an answer"
    says = f"{'; '.join([took] * bool(answered) + [never] * bool(lost))}."
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
    drawn = figures.blocked_on_user(rows)
    return panel("waits", "Waiting for user", says, drawn, columns, rows)


def _first_token(rows: Sequence[Row]) -> Panel | None:
    if not rows:
        return None
    model = rows[0]["model"] or "an unnamed model"
    says = f"Half of the responses of {model} started within {seconds(rows[0]['p50_ns'])}."
    columns = ("model", "calls", "p50_ns", "p95_ns", "p99_ns", "max_ns")
    drawn = figures.first_token(rows)
    return panel("first-token", "Time to first chunk", says, drawn, columns, rows)


def _signatures(rows: Sequence[Row], days: Sequence[Row]) -> Panel | None:
    if not days:
        return None
    seen = len({row["signature"] for row in rows})
    whole, failed = (sum(row[name] for row in days) for name in ("sessions", "failed"))
    says = f"{failed:,} of {whole:,} sessions failed; {_count(seen, 'failure signature')} found."
    columns = ("day", "signature", "sessions")
    drawn = figures.failure_signatures(rows, days)
    title = "Failures by signature"
    return panel("signatures", title, says, drawn, columns, rows, is_wide=True)


_TOKENS = ("input_tokens", "cache_read_tokens", "cache_write_tokens", "output_tokens")
_PARTS = {
    "model": "the model",
    "tool": "tools",
    "queued": "queued",
    "person": "waiting for user",
    "hook": "hooks",
    "retry_wait": "retry backoff",
    "own": "the agent's own code",
}


def _cost_columns(*names: str) -> tuple[str, ...]:
    return (*names, "calls", *_TOKENS, "cost_usd", "cost_status", "unpriced_calls")


def _sum(rows: Sequence[Row]) -> str:
    """Return the total cost of rows with its certainty, such as "at least $1.20"."""
    known = [row["cost_usd"] for row in rows if row["cost_usd"] is not None]
    if not known:
        return "an unknown amount"
    return f"{sureness(rows)}{money(sum(known, Decimal(0)))}"


def _saved(rows: Sequence[Row]) -> str:
    """Return the savings of caching in words. Calls without a price may change the sum either way: not a bound."""
    known = [row["saved_usd"] for row in rows if row["saved_usd"] is not None]
    if not known:
        return "Cache savings are unknown, because prices are missing"
    saved = sum(known, Decimal(0))
    without = sum(row["unpriced_calls"] or 0 for row in rows)
    beside = f" ({_count(without, 'call')} without a price not included)" if without else ""
    if saved < 0:
        return f"Cache writes cost {money(-saved)} more than cache reads saved{beside}"
    return f"Caching saved {money(saved)} net of cache writes{beside}"


def _wasted(rows: Sequence[Row]) -> str:
    """Return the extra cost of cache misses in words. It is always an estimate of an alternative course."""
    known = [row["wasted_usd"] for row in rows if row["wasted_usd"] is not None]
    if not known:
        return "an unknown amount"
    least = "at least " if any(row["unpriced_calls"] for row in rows) else ""
    return f"{least}about {money(sum(known, Decimal(0)))}"


def _count(number: int, what: str, many: str = "") -> str:
    return f"{number:,} {what if number == 1 else many or f'{what}s'}"


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number:,} times")
