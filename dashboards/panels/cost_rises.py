"""Rises of cost: the requests that cost clearly more than the previous request of their agent, and why, in words.

The causes are facts about both requests: a cache miss, a compaction, a large tool result, a longer output, another
model or another service tier. Several may hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentobs.records.display import has_partial_counts, money, printable, seconds
from dashboards.figures.phrases import count, place_of, times

Row = Mapping[str, Any]

RATIO = 1.5
"""The minimum cost of a request that is listed, relative to the previous one of its agent. Our choice."""
SHARE = 0.005
"""The minimum difference, relative to the cost of the session: low enough for the cache rewrites of a long session.
Our choice.
"""
MOST_RISES = 10
"""The maximum number of requests that are listed. Our choice: one screen."""
LARGE_RESULT = 10_000
"""The minimum size of a tool result that is a cause, in bytes. Our choice: about 2,500 tokens."""
OUTPUT_PART = 0.25
"""The minimum part of a rise that longer output must cause to be named. Our choice."""


@dataclass(frozen=True, slots=True)
class CostRise:
    """A request that cost clearly more than the previous request of its agent."""

    row: Row
    """The row of `internal/cost_rises`, with the display name of its lane."""
    causes: Sequence[str]
    """The known causes in words."""

    @property
    def before(self) -> Row:
        """The cost of the previous request with its certainty."""
        return {
            "cost_usd": self.row["before_usd"],
            "cost_status": self.row["before_cost_status"],
        }

    @property
    def compares_prompts(self) -> bool:
        """Whether only the costs of the prompts were compared, because the output of the previous one is unknown."""
        return str(self.row["before_cost_status"]) == "lower_bound"

    @property
    def why(self) -> str:
        """The causes as a sentence; it also states if none is known."""
        return f"{'; '.join(self.causes) or 'no cause is known from the facts'}."


def cost_rises(
    rows: Sequence[Row], misses: Sequence[Row], contexts: Sequence[Row]
) -> list[CostRise]:
    """Return the rises of cost of a session with their causes.

    Args:
        rows: the rows of `internal/cost_rises`.
        misses: the rows of `cache_misses` of the session.
        contexts: the rows of `context_growth`.
    """
    missed = {row["attempt_id"]: row for row in misses}
    compacted = {row["attempt_id"]: row for row in contexts if row["compacted"]}
    return [
        CostRise(
            row,
            list(_causes(row, missed.get(row["attempt_id"]), compacted.get(row["attempt_id"]))),
        )
        for row in rows
    ]


def slow_rises(rows: Sequence[Row]) -> str:
    """Return a sentence about turns that each cost more than the previous one, as the signature `rising_costs` finds
    them; empty if there are none.

    Args:
        rows: the rows of `rising_costs` of the session, with the display names of their lanes.
    """
    if not rows:
        return ""
    longest = max(rows, key=lambda row: row["value"])
    last = place_of(longest)
    where = f"; the longest of these rises ended at {last}" if len(rows) > 1 else f", up to {last}"
    # The view compares the average of the rise with the turn before it; the last turn may differ for other reasons.
    return (
        f"{times(len(rows)).capitalize()}, five or more turns in a row each cost more than the previous one{where}: "
        f"{longest['detail']}. On average over these turns, {longest['about']} rose most."
    )


def miss_cause(miss: Row) -> str:
    """Return in words that cached tokens were billed again, what that cost, and the likely cause."""
    extra = "" if miss["wasted_usd"] is None else f", about {money(miss['wasted_usd'])} extra"
    again = f"{count(miss['missed_tokens'], 'cached token')} were billed again{extra}"
    if miss["missed_tokens"] == 1:
        again = again.replace(" were ", " was ")
    return f"{again}: {_reason(miss)}"


def _reason(miss: Row) -> str:
    reason = str(miss["reason"])
    if reason == "expired":
        return f"the cache had expired after a pause of {seconds(miss['gap_ns'])}"
    if reason == "unknown":
        return (
            "the cause is unknown: no change of the request is known, and the cache had not expired"
        )
    if reason.endswith("_changed"):
        zone = reason.removesuffix("_changed").replace("_", " ")
        at = f" from message {miss['changed_message']:,} on" if miss["changed_message"] else ""
        return f"changed: {printable(zone)}{at}"
    return printable(reason.replace("_", " "))


def _causes(row: Row, miss: Row | None, compaction: Row | None) -> Iterator[str]:
    if compaction is not None:
        written = compaction["cache_write_tokens"]
        again = f", and {count(written, 'token')} were written to the cache" if written else ""
        yield f"the conversation was compacted before it{again}"
    elif miss is not None:
        yield miss_cause(miss)
    if row["model"] != row["before_model"]:
        yield f"model {printable(str(row['model']))} instead of {printable(str(row['before_model']))}"
    if row["service_tier"] != row["before_service_tier"]:
        now, before = (row[name] or "unknown" for name in ("service_tier", "before_service_tier"))
        yield f"service tier {printable(str(now))} instead of {printable(str(before))}"
    if (row["result_bytes"] or 0) >= LARGE_RESULT:
        yield f"the result of {printable(row['tool'] or 'a tool')} has {row['result_bytes'] / 1000:,.0f} kB"
    longer = (row["output_usd"] or 0) - (row["before_output_usd"] or 0)
    is_known = row["before_cost_status"] != "lower_bound"
    if (
        is_known
        and longer > 0
        and float(longer) >= OUTPUT_PART * float(row["cost_usd"] - row["before_usd"])
    ):
        at_least = "at least " if has_partial_counts(row) else ""
        yield (
            f"{at_least}{row['output_tokens']:,} output tokens instead of {row['before_output_tokens']:,}"
        )
    larger = row["prompt_tokens"] - row["before_prompt_tokens"]
    if larger > 0.2 * row["before_prompt_tokens"]:
        yield f"the prompt is longer by {count(larger, 'token')}"
