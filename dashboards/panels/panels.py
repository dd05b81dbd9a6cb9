"""Panels: each question with its figure, the answer in words, and the numbers. Pages and reports show the same ones."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import duckdb
import plotly.graph_objects as go
from markupsafe import Markup

from agentobs.records.display import money, printable, seconds
from agentobs.store.analysis.wall_time import PARTS, Piece, Split, interaction_times
from agentobs.store.named_queries import named
from dashboards import figures
from dashboards.figures.phrases import sureness
from dashboards.panels.templates import figure_json

Row = Mapping[str, Any]
SHOWN = 200
"""How many rows the table of a panel has at most. Our choice: more is a question for SQL."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A question that is answered with a figure."""

    name: str
    """The name of its figure; its place in the page."""
    title: str
    says: str
    """What the figure shows, in words: for whoever cannot see it, and for everybody else."""
    figure: go.Figure
    columns: Sequence[str]
    rows: Sequence[Row]
    """What is drawn, in numbers; at most SHOWN."""
    more: int = 0
    """How many rows there are beyond those."""
    is_wide: bool = False
    """Whether it needs the width of the page; where there is less, it is scrolled."""

    def json(self) -> Markup:
        """Return the figure as it stands in a page."""
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
    """Return a panel whose table is bounded."""
    more = max(0, len(rows) - SHOWN)
    return Panel(name, title, printable(says), figure, columns, rows[:SHOWN], more, is_wide)


InWords = Callable[[Sequence[Row]], Sequence[Row]]
"""Puts texts in the place of the digests that stand for them."""


def session_panels(
    connection: duckdb.DuckDBPyConnection,
    session_id: str,
    *,
    window: tuple[int, int] | None = None,
    in_words: InWords = list,
) -> list[Panel]:
    """Return what there is to see of one session; questions without an answer have no panel.

    Args:
        connection: to the store.
        session_id: the session.
        window: the part of the waterfall that is drawn, in nanoseconds since 1970; None for all.
        in_words: puts names and reasons as they were written into rows; default as the facts have them.
    """

    def asked(name: str, **more: Any) -> list[Row]:
        return list(in_words(rows_of(connection, name, session_id=session_id, **more)))

    splits, tools = interaction_times(connection, session_id), asked("tool_latency")
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
    connection: duckdb.DuckDBPyConnection,
    *,
    since_ns: int | None = None,
    until_ns: int | None = None,
    in_words: InWords = list,
) -> list[Panel]:
    """Return what there is to see of all sessions of a range; questions without an answer have no panel.

    Args:
        connection: to the store.
        since_ns: the start of the range in nanoseconds since 1970, or None for all that was recorded.
        until_ns: its end, which is no part of it, or None.
        in_words: puts names as they were written into rows; default as the facts have them.
    """

    def asked(name: str, **more: Any) -> list[Row]:
        return list(
            in_words(rows_of(connection, name, since_ns=since_ns, until_ns=until_ns, **more))
        )

    # Without them, a question about a week looks for signatures in all the years before.
    bounds: dict[str, Any] = dict(*rows_of(connection, "session_range", since_ns=since_ns))
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


def rows_of(connection: duckdb.DuckDBPyConnection, name: str, **parameters: Any) -> list[Row]:
    """Return the rows of a named query."""
    answered = named(connection, name, **parameters)
    columns = [str(column[0]) for column in answered.description or []]
    return [dict(zip(columns, row, strict=True)) for row in answered.fetchall()]


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
    says = (
        f"{'' if window is None else 'In the part that is drawn: '}{_passed(splits, path, window)}"
    )
    columns = ("started_ns", "duration_ns", "counts as", "what", "label", "lane")
    drawn = figures.session_waterfall(rows, whole, window=window)
    return panel("waterfall", "What happened, and when", says, drawn, columns, pieces, is_wide=True)


def _within(path: Sequence[Piece], low: int, high: int) -> list[Piece]:
    """Return the pieces of a path from one instant to another, cut there."""
    cut = (
        replace(piece, started_ns=max(piece.started_ns, low), ended_ns=min(piece.ended_ns, high))
        for piece in path
    )
    return [piece for piece in cut if piece.started_ns < piece.ended_ns]


def _passed(splits: Sequence[Split], path: Sequence[Piece], window: tuple[int, int] | None) -> str:
    """Return how long interactions took, and what most of it was, in words."""
    low, high = window or (-math.inf, math.inf)
    count = sum(s.started_ns < high and s.started_ns + s.wall_ns > low for s in splits)
    if not count:
        return "no interaction is known, and so no critical path."
    spent = dict.fromkeys(PARTS, 0)
    for piece in path:
        spent[piece.part] += piece.ended_ns - piece.started_ns
    wall = sum(spent.values())
    most = max(spent, key=lambda part: spent[part])
    share = f"; {spent[most] / wall:.0%} of the critical path is {_PARTS[most]}" if wall else ""
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
    return panel(
        "turns", "Tokens and money, turn by turn", says, drawn, columns, rows, is_wide=True
    )


def _context(rows: Sequence[Row]) -> Panel | None:
    if not rows:
        return None
    largest = max(row["context_tokens"] or 0 for row in rows)
    times = sum(bool(row["compacted"]) for row in rows)
    compacted = "never compacted" if not times else f"compacted {_times(times)}"
    says = f"At most {_count(largest, 'token')} went in at once; the conversation was {compacted}."
    columns = ("lane", "turn", "started_ns", "context_tokens", "window_tokens", "compacted")
    drawn = figures.context_growth(rows)
    return panel("context", "How the context grew", says, drawn, columns, rows)


def _split(splits: Sequence[Split]) -> Panel | None:
    if not splits:
        return None
    rows = [dataclasses.asdict(split) for split in splits]
    waited = sum(split.person_ns for split in splits)
    people = f" People were waited for {seconds(waited)}." if waited else ""
    says = f"Along the critical path, so that all parts add up to the time that passed.{people}"
    columns = ("started_ns", "lane", "wall_ns", *(f"{part}_ns" for part in PARTS))
    return panel("time", "Where the time went", says, figures.time_split(rows), columns, rows)


def _days(rows: Sequence[Row]) -> Panel | None:
    if not rows:
        return None
    says = f"{_count(len(rows), 'day')} with calls cost {_sum(rows)}. Days are those of UTC."
    drawn = figures.cost_by_day(rows)
    return panel(
        "cost-by-day", "Cost by day", says, drawn, _cost_columns("day"), rows, is_wide=True
    )


def _models(rows: Sequence[Row]) -> Panel | None:
    if not rows:
        return None
    first = f", the dearest is {rows[0]['model']}" if len(rows) > 1 and rows[0]["cost_usd"] else ""
    says = f"{_count(len(rows), 'model')} cost {_sum(rows)}{first}."
    drawn = figures.cost_by_model(rows)
    return panel("cost-by-model", "Cost by model", says, drawn, _cost_columns("model"), rows)


def _agents(rows: Sequence[Row]) -> Panel | None:
    if len(rows) < 2:
        return None
    says = f"{_count(len(rows), 'agent')} cost {_sum(rows)}, sub-agents by themselves."
    drawn = figures.cost_by_agent(rows)
    columns = _cost_columns("name", "lane")
    return panel("cost-by-agent", "Cost by agent", says, drawn, columns, rows)


def _names(rows: Sequence[Row]) -> Panel | None:
    if not rows:
        return None
    says = f"Sessions of {_count(len(rows), 'name')} cost {_sum(rows)}, their sub-agents included."
    columns = _cost_columns("name", "sessions")
    drawn = figures.cost_by_name(rows)
    return panel("cost-by-name", "Cost by agent", says, drawn, columns, rows)


def _efficiency(rows: Sequence[Row]) -> Panel | None:
    if not rows:
        return None
    read = sum(row["cache_read_tokens"] or 0 for row in rows)
    whole = sum(sum(row[name] or 0 for name in _TOKENS[:3]) for row in rows)
    share = f"{read / whole:.0%} of the input was read from it" if whole else "nothing went in"
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
    return panel("cache", "What caching saved", says, drawn, columns, rows)


def _waste(rows: Sequence[Row]) -> Panel | None:
    if not rows:
        return None
    calls = sum(row["calls"] for row in rows)
    says = f"{_count(calls, 'call')} paid again for what the cache had held: {_wasted(rows)} more."
    columns = ("reason", "said_by", "calls", "missed_tokens", "wasted_usd", "unpriced_calls")
    drawn = figures.cache_waste(rows)
    return panel("cache-waste", "What the cache was paid for twice", says, drawn, columns, rows)


def _latency(rows: Sequence[Row]) -> Panel | None:
    timed = [row for row in rows if row["timed_calls"]]
    if not timed:
        return None
    slowest = max(timed, key=lambda row: row["p50_ns"])
    half = figures.tool_statistics.took(slowest["p50_ns"])
    more = "" if half.startswith("less") else " or more"
    says = f"The slowest is {slowest['name'] or 'unnamed'}: half of its calls took {half}{more}."
    columns = ("name", "calls", "timed_calls", "p50_ns", "p90_ns", "p99_ns", "max_ns", "total_ns")
    return panel("tools", "How long tools take", says, figures.tool_latency(rows), columns, rows)


def _errors(rows: Sequence[Row]) -> Panel | None:
    if not rows:
        return None
    calls, errors = (sum(row[name] for row in rows) for name in ("calls", "errors"))
    says = f"{errors:,} of {calls:,} calls failed ({errors / calls:.1%})."
    drawn = figures.tool_errors(rows)
    return panel(
        "tool-errors", "How often tools fail", says, drawn, ("name", "calls", "errors"), rows
    )


def _waits(rows: Sequence[Row]) -> Panel | None:
    if not rows:
        return None
    answered, lost = (sum(row[name] for row in rows) for name in ("answered", "unanswered"))
    total = sum(row["total_ns"] or 0 for row in rows)
    never = f"{_count(lost, 'question')} {'was' if lost == 1 else 'were'} never answered"
    took = f"{_count(answered, 'question')} took {seconds(total)} to answer"
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
    return panel("waits", "How long people were waited for", says, drawn, columns, rows)


def _first_token(rows: Sequence[Row]) -> Panel | None:
    if not rows:
        return None
    model = rows[0]["model"] or "a model without a name"
    says = f"Half of the answers of {model} began within {seconds(rows[0]['p50_ns'])}."
    columns = ("model", "calls", "p50_ns", "p95_ns", "p99_ns", "max_ns")
    drawn = figures.first_token(rows)
    return panel("first-token", "How soon models answer", says, drawn, columns, rows)


def _signatures(rows: Sequence[Row], days: Sequence[Row]) -> Panel | None:
    if not days:
        return None
    seen = len({row["signature"] for row in rows})
    whole, failed = (sum(row[name] for row in days) for name in ("sessions", "failed"))
    says = (
        f"{failed:,} of {whole:,} sessions failed; {_count(seen, 'signature')} of failure showed."
    )
    columns = ("day", "signature", "sessions")
    drawn = figures.failure_signatures(rows, days)
    title = "What failed, and how"
    return panel("signatures", title, says, drawn, columns, rows, is_wide=True)


_TOKENS = ("input_tokens", "cache_read_tokens", "cache_write_tokens", "output_tokens")
_PARTS = {
    "model": "the model",
    "tool": "tools",
    "queued": "waiting for a turn",
    "person": "waiting for people",
    "hook": "hooks",
    "retry_wait": "waiting to try again",
    "own": "the program's own work",
}


def _cost_columns(*names: str) -> tuple[str, ...]:
    return (*names, "calls", *_TOKENS, "cost_usd", "cost_status", "unpriced_calls")


def _sum(rows: Sequence[Row]) -> str:
    """Return what rows cost together, in words: never less than the truth without a word about it."""
    known = [row["cost_usd"] for row in rows if row["cost_usd"] is not None]
    if not known:
        return "an unknown amount"
    return f"{sureness(rows)}{money(sum(known, Decimal(0)))}"


def _saved(rows: Sequence[Row]) -> str:
    """Return what caching saved, in words; calls without a price may have saved or cost more, so that is no bound."""
    known = [row["saved_usd"] for row in rows if row["saved_usd"] is not None]
    if not known:
        return "What the cache saved is not known, for want of prices"
    saved = sum(known, Decimal(0))
    without = sum(row["unpriced_calls"] or 0 for row in rows)
    beside = f" ({_count(without, 'call')} without a price left out)" if without else ""
    if saved < 0:
        return f"Writing the cache cost {money(-saved)} more than reading it saved{beside}"
    return f"The cache saved {money(saved)} beyond what writing it cost{beside}"


def _wasted(rows: Sequence[Row]) -> str:
    """Return what was paid twice, in words; it is an estimate, as the price of what might have been."""
    known = [row["wasted_usd"] for row in rows if row["wasted_usd"] is not None]
    if not known:
        return "an unknown amount"
    least = "at least " if any(row["unpriced_calls"] for row in rows) else ""
    return f"{least}about {money(sum(known, Decimal(0)))}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number:,} times")
