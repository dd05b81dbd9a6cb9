"""Waste: what a session paid without a use, by kind, in the same sentences on pages and in the terminal.

The kinds are cache misses, requests that failed, requests whose tool calls failed, and equal first prompts that several
agents wrote to the cache. A request may have several kinds of waste; it counts once in the total, with the largest
amount.

The extra cost of compactions is listed as well, but is not waste: the cache cannot contain a shortened conversation
before its first request, so that request is not a cache miss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from agentobs.records.display import COST_MARKS, certain_money, money, share
from agentobs.store.port import Store

Row = Mapping[str, Any]
Rows = Callable[[str], Sequence[Row]]
"""Returns the rows of a named query about the session."""

MOST_TURNS = 3
"""The maximum number of turns that a sentence names. Our choice."""
NOTHING = "Nothing was wasted: no cache misses, failed requests or failed tool calls were found."
"""What is shown if a session has no waste."""


@dataclass(frozen=True, slots=True)
class Waste:
    """A kind of waste in a session, or the extra cost of its compactions."""

    kind: str
    """`misses`, `compactions`, `failed_requests`, `failed_calls` or `prefixes`."""
    usd: Decimal | None
    """The amount, US dollars; None if it is unknown."""
    amount: str
    """The amount with its certainty: `about $0.3776`."""
    cause: str
    """What it was paid for, in words that follow the amount and `on`."""
    by_attempt: Mapping[str, Decimal] = field(default_factory=dict)
    """The part of each request in the amount, US dollars, by the ID of its attempt."""
    share: str = ""
    """What follows the amount if it is all waste of the session: ` (30% of the cost of the session)`; or empty."""

    @property
    def words(self) -> str:
        """The amount and what it was paid for, as one sentence without a full stop."""
        return f"{self.amount}{self.share} on {self.cause}"

    @property
    def is_counted(self) -> bool:
        """Whether the amount is waste. That of compactions is not."""
        return self.kind != "compactions"


def stored_rows(store: Store, session_id: str) -> Rows:
    """Return a function that reads the rows of a named query about a session."""
    return lambda name: list(store.rows(name, session_id=session_id).dicts())


def session_waste(rows: Rows) -> list[Waste]:
    """Return the kinds of waste of a session, the largest amount first, and unknown amounts last; then the extra cost
    of compactions.

    Args:
        rows: returns the rows of a named query about the session, as `stored_rows`.
    """
    compacted = rows("internal/compaction_rewrites")
    found = [
        *_misses(rows("cache_misses")),
        *_compactions(compacted, rows("internal/compaction_cost")),
        *_failed_requests(rows("internal/failed_request_costs")),
        *_failed_calls(rows("session_turns")),
        *_prefixes(rows("internal/repeated_prefixes")),
    ]
    ordered = sorted(
        found, key=lambda each: (not each.is_counted, -(each.usd if each.usd is not None else -1))
    )
    return with_share(ordered, rows("cost_by_session"))


def with_share(waste: Sequence[Waste], costs: Sequence[Row]) -> list[Waste]:
    """Return kinds of waste; if only one of them has an amount other than 0, with its share of the cost of the session.

    Args:
        waste: the kinds of waste. Compactions do not count.
        costs: the row of `cost_by_session`; empty if the session has no calls.
    """
    counted = _counted(waste)
    if len(counted) != 1 or counted[0].usd is None:
        return list(waste)
    _, part = _cost_and_part(counted, counted[0].usd, costs)
    words = f" ({part} of the cost of the session)" if part else ""
    return [replace(each, share=words) if each is counted[0] else each for each in waste]


def waste_facts(waste: Sequence[Waste], total: str) -> list[tuple[str, str]]:
    """Return the lines about waste for the terminal, each with its label: `wasted` or `compacted`.

    Args:
        waste: kinds of waste, as `session_waste` returns them.
        total: their sum in words; may be empty.
    """
    return [
        *(("wasted", each.words) for each in waste if each.is_counted),
        *([("wasted", total)] if total else []),
        *(("compacted", each.words) for each in waste if not each.is_counted),
    ]


def waste_total(waste: Sequence[Waste], costs: Sequence[Row]) -> str:
    """Return a sentence with the sum of the kinds of waste and its part of the cost of the session. Compactions are not
    in it.

    The sentence is empty if no amount is known, and for a single kind, whose line has its amount and its share.

    Args:
        waste: the kinds of waste of the session.
        costs: the row of `cost_by_session`; empty if the session has no calls.
    """
    counted = _counted(waste)
    known = [each for each in counted if each.usd is not None]
    if not known or len(counted) == 1:
        return ""
    union: dict[str, Decimal] = {}
    for each in known:
        for attempt_id, usd in each.by_attempt.items():
            union[attempt_id] = max(usd, union.get(attempt_id, usd))
    total = sum(union.values(), Decimal(0))
    cost, part = _cost_and_part(counted, total, costs)
    is_about = any("about" in each.amount for each in known)
    mark = f"{'at least ' if _is_low(counted) else ''}{'about ' if is_about else ''}"
    words = f"in total {_amount(total, mark)}"
    words += f" of {cost}" if cost else ""
    words += f", {part}" if part else ""
    if total < sum((each.usd for each in known if each.usd), Decimal(0)):
        words = f"{words}; a request with several kinds of waste counts once in this sum"
    return words


def _counted(waste: Sequence[Waste]) -> list[Waste]:
    """Return the kinds of waste that cost something, or whose amount is unknown."""
    return [each for each in waste if each.is_counted and each.usd != 0]


def _is_low(counted: Sequence[Waste]) -> bool:
    return any(each.usd is None or "at least" in each.amount for each in counted)


def _cost_and_part(
    counted: Sequence[Waste], total: Decimal, costs: Sequence[Row]
) -> tuple[str, str]:
    """Return the cost of the session in words, and the part of the total in it; each is empty if unknown."""
    for row in costs:
        if row["cost_usd"]:
            cost = certain_money(row["cost_usd"], row["cost_status"]) or ""
            is_cost_low = row["cost_status"] == "lower_bound"
            return cost, _share(share(total, row["cost_usd"]), _is_low(counted), is_cost_low)
    return "", ""


def _share(percent: str, is_low: bool, is_cost_low: bool) -> str:
    """Return a share whose part, or whose whole, may be a lower bound; empty if nothing is known about it.

    Args:
        percent: the share of the known amounts, such as `40%`, `<1%` or `>99%`.
        is_low: whether the part may be larger, so that the share is at least this one.
        is_cost_low: whether the whole may be larger, so that the share is at most this one.
    """
    if not is_low and not is_cost_low:
        return percent
    if (is_low and is_cost_low) or percent[0] == ("<" if is_low else ">"):
        return ""
    if percent[0] in "<>":
        return percent
    return f"{'at least' if is_low else 'at most'} {percent}"


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


def _misses(rows: Sequence[Row]) -> Iterator[Waste]:
    if not rows:
        return
    reasons: dict[str, list[Row]] = {}
    for row in rows:
        reasons.setdefault(str(row["reason"] or "unknown"), []).append(row)
    sums = {reason: _sum(found, "wasted_usd") for reason, found in reasons.items()}
    order = sorted(reasons, key=lambda each: (-(sums[each] or 0), each))
    parts = [
        f"{_reason(each)} {money(sums[each]) or 'an unknown amount'} ({len(reasons[each]):,})"
        for each in order
    ]
    listed = f": {', '.join(parts)}" if len(parts) > 1 else f" ({_reason(order[0])})"
    usd = _sum(rows, "wasted_usd")
    number = _count(len(rows), "cache miss", "cache misses")
    yield Waste(
        "misses",
        usd,
        _amount(usd, _about(rows, "wasted_usd")),
        f"{number}{listed}",
        _by_attempt(rows, "wasted_usd"),
    )


def _compactions(rows: Sequence[Row], summaries: Sequence[Row]) -> Iterator[Waste]:
    wrote = [row for row in rows if row["missed_tokens"]]
    billed = [row for row in summaries if row["calls"]]
    extra = _sum(wrote, "extra_usd")
    parts = []
    if wrote:
        reason = _rewritten(wrote)
        parts.append(
            f"{_amount(extra, _about(wrote, 'extra_usd'))}, because {reason}" if billed else reason
        )
    if billed:
        summary_words = _count(sum(row["calls"] for row in billed), "summary", "summaries")
        parts.append(f"{summary_words} cost {_amount(_sum(billed, 'cost_usd'), _mark(billed))}")
    if not parts:
        return
    counted = wrote or rows
    number = len(counted) or sum(row["calls"] for row in billed)
    known = [each for each in (extra, _sum(billed, "cost_usd")) if each is not None]
    usd = sum(known, Decimal(0)) if known else None
    mark = _about(wrote, "extra_usd") if wrote else _mark(billed)
    cause = (
        f"{_count(number, 'compaction')}{_turns(counted) if counted else ''}, not counted as waste: "
        f"{'; '.join(parts)}"
    )
    by_attempt = {**_by_attempt(wrote, "extra_usd"), **_by_attempt(billed, "cost_usd")}
    yield Waste("compactions", usd, _amount(usd, mark), cause, by_attempt)


def _rewritten(rows: Sequence[Row]) -> str:
    """Return which tokens the first requests after compactions did not read from the cache, and why, in words."""
    is_one = len(rows) == 1
    follower = "the request after it" if is_one else "the requests after them"
    content = "the shortened conversation" if is_one else "the shortened conversations"
    written = sum(row["written_tokens"] for row in rows)
    uncached = sum(row["missed_tokens"] for row in rows) - written
    parts = [f"wrote {_count(written, 'token')} to the cache"] if written else []
    if uncached:
        sent = f"{uncached:,}" if written else _count(uncached, "token")
        parts.append(f"sent {sent} uncached")
    return f"{follower} {' and '.join(parts)}, as the cache does not contain {content} yet"


def _failed_requests(rows: Sequence[Row]) -> Iterator[Waste]:
    billed = [row for row in rows if row["has_usage"] and row["cost_usd"] != 0]
    if billed:
        usd = _sum(billed, "cost_usd")
        one = len(billed) == 1
        cause = (
            "1 request with a failed or cut response"
            if one
            else f"{len(billed):,} requests with failed or cut responses"
        )
        mark = COST_MARKS["lower_bound"] if _is_partial(billed, "cost_usd") else _mark(billed)
        parts = _by_attempt(billed, "cost_usd")
        yield Waste("failed_requests", usd, _amount(usd, mark), cause, parts)


def _failed_calls(turns: Sequence[Row]) -> Iterator[Waste]:
    made = [row for row in turns if row["tool_errors"] or row["denied_calls"]]
    if not made:
        return
    has_prices = all(row["cost_usd"] is not None for row in made)
    usd = _sum(made, "cost_usd") if has_prices else None
    numbers = (("failed", "tool_errors"), ("denied", "denied_calls"))
    calls = {word: total for word, name in numbers if (total := sum(row[name] for row in made))}
    kinds = " and ".join(f"{total:,} {word}" for word, total in calls.items())
    noun = f"tool call{'s' * (sum(calls.values()) != 1)}"
    cause = f"{_count(len(made), 'request')} with {kinds} {noun}{_turns(made)}"
    yield Waste(
        "failed_calls", usd, _amount(usd, _mark(made)), cause, _by_attempt(made, "cost_usd")
    )


def _prefixes(rows: Sequence[Row]) -> Iterator[Waste]:
    if not rows:
        return
    known = [row for row in rows if row["extra_usd"] is not None]
    usd = _sum(known, "extra_usd")
    first = rows[0]
    agents = _count(first["writes"], "agent" if first["has_main"] else "sub-agent")
    cause = (
        f"a first prompt that {agents} sent with the same model, tools, system prompt and messages: each wrote "
        f"{_count(first['tokens'], 'token')} of it to the cache, {first['writes'] - 1:,} of them while it was still "
        "cached"
    )
    if len(rows) > 1:
        cause = f"{cause}; and on {_count(len(rows) - 1, 'other prompt')} of this kind"
    parts = {
        attempt_id: extra
        for row in known
        for attempt_id, extra in zip(row["attempt_ids"], row["extras"], strict=True)
    }
    yield Waste("prefixes", usd, _amount(usd, _about(rows, "extra_usd")), cause, parts)


def _reason(reason: str) -> str:
    return "no known reason" if reason == "unknown" else reason.replace("_", " ")


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


def _is_partial(rows: Sequence[Row], column: str) -> bool:
    """Return whether the sum of a column is a lower bound, because only some of its amounts are known."""
    return any(row[column] is None for row in rows)


def _about(rows: Sequence[Row], column: str) -> str:
    """Return the words before a sum of estimates."""
    return "at least about " if _is_partial(rows, column) else "about "


def _by_attempt(rows: Sequence[Row], column: str) -> dict[str, Decimal]:
    return {row["attempt_id"]: row[column] for row in rows if row[column] is not None}


def _mark(rows: Sequence[Row]) -> str:
    """Return the words before a sum of costs that is not exact."""
    marks = {COST_MARKS.get(str(row["cost_status"]), "") for row in rows}
    return next((each for each in COST_MARKS.values() if each in marks), "")


def _amount(usd: Decimal | None, mark: str) -> str:
    if usd is None:
        return "an unknown amount"
    return f"{mark}{money(usd, 'lower_bound' if mark.startswith('at least') else None)}"


def _count(number: int, noun: str, plural: str = "") -> str:
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
