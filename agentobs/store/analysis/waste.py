"""Waste: what a session paid without a use, by kind, in the same sentences on pages and in the terminal.

The kinds are cache misses, compactions that rewrote the cache, requests that failed, requests whose tool calls failed,
and prefixes that several agents wrote to the cache. A cache miss after a compaction counts only as a compaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from agentobs.records.display import COST_MARKS, money
from agentobs.store.port import Store

Row = Mapping[str, Any]
Rows = Callable[[str], Sequence[Row]]
"""Returns the rows of a named query about the session."""

MOST_TURNS = 3
"""The maximum number of turns that a sentence names. Our choice."""
NOTHING = "Nothing was wasted: no cache misses, compactions, failed requests or failed tool calls were found."
"""What is shown if a session has no waste."""


@dataclass(frozen=True, slots=True)
class Waste:
    """A kind of waste in a session."""

    kind: str
    """`misses`, `compactions`, `failed_requests`, `failed_calls` or `prefixes`."""
    usd: Decimal | None
    """The amount, US dollars; None if it is unknown."""
    amount: str
    """The amount with its certainty: `about $0.3776`."""
    cause: str
    """What it was paid for, in words that follow the amount and `on`."""

    @property
    def words(self) -> str:
        """The amount and what it was paid for, as one sentence without a full stop."""
        return f"{self.amount} on {self.cause}"


def stored_rows(store: Store, session_id: str) -> Rows:
    """Return a function that reads the rows of a named query about a session."""
    return lambda name: list(store.rows(name, session_id=session_id).dicts())


def session_waste(rows: Rows) -> list[Waste]:
    """Return the kinds of waste of a session, the largest amount first, and unknown amounts last.

    Args:
        rows: returns the rows of a named query about the session, as `stored_rows`.
    """
    compacted = rows("internal/compaction_rewrites")
    found = [
        *_misses(rows("cache_misses"), {row["attempt_id"] for row in compacted}),
        *_compactions(compacted, rows("internal/compaction_cost")),
        *_failed_requests(rows("internal/failed_request_costs")),
        *_failed_calls(rows("session_turns")),
        *_prefixes(rows("internal/repeated_prefixes")),
    ]
    return sorted(found, key=lambda each: -(each.usd if each.usd is not None else -1))


def without_usage(rows: Sequence[Row]) -> str:
    """Return a sentence about failed requests whose cost is unknown; empty if there are none.

    Args:
        rows: the rows of `internal/failed_request_costs`.
    """
    number = sum(not row["has_usage"] for row in rows)
    if not number:
        return ""
    return (
        f"{_count(number, 'failed request')} reported no usage. If the provider billed "
        f"{'it' if number == 1 else 'them'}, the total is too low."
    )


def _misses(rows: Sequence[Row], compacted: set[str]) -> Iterator[Waste]:
    counted = [row for row in rows if row["attempt_id"] not in compacted]
    if not counted:
        return
    reasons: dict[str, list[Row]] = {}
    for row in counted:
        reasons.setdefault(str(row["reason"] or "unknown"), []).append(row)
    sums = {reason: _sum(found, "wasted_usd") for reason, found in reasons.items()}
    order = sorted(reasons, key=lambda each: (-(sums[each] or 0), each))
    parts = [
        f"{_reason(each)} {money(sums[each]) or 'an unknown amount'} ({len(reasons[each]):,})"
        for each in order
    ]
    listed = f": {', '.join(parts)}" if len(parts) > 1 else f" ({_reason(order[0])})"
    usd = _sum(counted, "wasted_usd")
    number = _count(len(counted), "cache miss", "cache misses")
    yield Waste("misses", usd, _amount(usd, "about "), f"{number}{listed}")


def _compactions(rows: Sequence[Row], summaries: Sequence[Row]) -> Iterator[Waste]:
    wrote = [row for row in rows if row["written_tokens"]]
    billed = [row for row in summaries if row["calls"]]
    parts = []
    if wrote:
        follower = "the request after it" if len(wrote) == 1 else "the requests after them"
        cost = _amount(_sum(wrote, "cost_usd"), _mark(wrote))
        tokens = _count(sum(row["written_tokens"] for row in wrote), "token")
        parts.append(
            f"{follower} cost {cost}, because {'it' if len(wrote) == 1 else 'they'} wrote {tokens} to the cache "
            "instead of reading from it"
        )
    if billed:
        summary_words = _count(sum(row["calls"] for row in billed), "summary", "summaries")
        parts.append(f"{summary_words} cost {_amount(_sum(billed, 'cost_usd'), _mark(billed))}")
    if not parts:
        return
    number = len(rows) or sum(row["calls"] for row in billed)
    known = [
        each for each in (_sum(wrote, "extra_usd"), _sum(billed, "cost_usd")) if each is not None
    ]
    usd = sum(known, Decimal(0)) if known else None
    mark = "about " if wrote else _mark(billed)
    cause = f"{_count(number, 'compaction')}{_turns(rows) if rows else ''}: {'; '.join(parts)}"
    yield Waste("compactions", usd, _amount(usd, mark), cause)


def _failed_requests(rows: Sequence[Row]) -> Iterator[Waste]:
    priced = [row for row in rows if row["cost_usd"]]
    if priced:
        usd = _sum(priced, "cost_usd")
        one = len(priced) == 1
        cause = (
            "1 request with a failed or cut response"
            if one
            else f"{len(priced):,} requests with failed or cut responses"
        )
        yield Waste("failed_requests", usd, _amount(usd, _mark(priced)), cause)


def _failed_calls(turns: Sequence[Row]) -> Iterator[Waste]:
    made = [row for row in turns if row["tool_errors"]]
    if not made:
        return
    has_prices = all(row["cost_usd"] is not None for row in made)
    usd = _sum(made, "cost_usd") if has_prices else None
    calls = sum(row["tool_errors"] for row in made)
    cause = f"{_count(len(made), 'request')} with {_count(calls, 'failed tool call')}{_turns(made)}"
    yield Waste("failed_calls", usd, _amount(usd, _mark(made)), cause)


def _prefixes(rows: Sequence[Row]) -> Iterator[Waste]:
    if not rows:
        return
    known = [row for row in rows if row["extra_usd"] is not None]
    usd = _sum(known, "extra_usd")
    first = rows[0]
    agents = _count(first["writes"], "agent" if first["has_main"] else "sub-agent")
    cause = (
        f"a prefix of {_count(first['tokens'], 'token')} that {agents} each wrote to the cache, although it was "
        "still cached"
    )
    if len(rows) > 1:
        cause = f"{cause}, and on {_count(len(rows) - 1, 'other prefix', 'other prefixes')}"
    mark = "at least about " if known and len(known) < len(rows) else "about "
    yield Waste("prefixes", usd, _amount(usd, mark), cause)


def _reason(reason: str) -> str:
    return {"unknown": "no known reason", "compaction": "after a compaction"}.get(
        reason, reason.replace("_", " ")
    )


def _turns(rows: Sequence[Row]) -> str:
    """Return the turns of rows in parentheses; empty if one is not a turn of the main agent."""
    turns = [row["turn"] for row in rows if row["lane"] == "main" and row["turn"] is not None]
    if len(turns) < len(rows):
        return ""
    if len(turns) == 1:
        return f" (turn {turns[0]:,})"
    shown = [f"{turn:,}" for turn in turns[:MOST_TURNS]]
    if more := len(turns) - MOST_TURNS if len(turns) > MOST_TURNS else 0:
        return f" (turns {', '.join(shown)} and {more:,} more)"
    return f" (turns {', '.join(shown[:-1])} and {shown[-1]})"


def _sum(rows: Sequence[Row], column: str) -> Decimal | None:
    known = [row[column] for row in rows if row[column] is not None]
    return sum(known, Decimal(0)) if known else None


def _mark(rows: Sequence[Row]) -> str:
    """Return the words before a sum of costs that is not exact."""
    marks = {COST_MARKS.get(str(row["cost_status"]), "") for row in rows}
    return next((each for each in COST_MARKS.values() if each in marks), "")


def _amount(usd: Decimal | None, mark: str) -> str:
    return "an unknown amount" if usd is None else f"{mark}{money(usd)}"


def _count(number: int, noun: str, plural: str = "") -> str:
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
