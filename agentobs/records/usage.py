"""Usage: tokens as the provider counted them, in disjoint buckets.

Anthropic's `input_tokens` leaves cached tokens out, so the buckets add up without overlap. A response
may list `iterations` (server-side compaction, advisor, fallback): those are what is billed, each at its
own model, and the top-level counts are kept beside them for comparison, not billed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Certainty = Literal["exact", "lower_bound"]
"""Whether the counts are the final ones, or those of a stream that never told its last."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one attempt, or of one iteration of it."""

    iteration: int
    """0 for the top-level counts, from 1 for the entries of `iterations`."""
    kind: str
    """What was sampled: `message`, `compaction`, `advisor_message`, `fallback_message` ..."""
    billed: bool
    """Whether this row is what the invoice counts."""
    model: str
    """The model that is billed."""
    input_tokens: int
    """Input that was neither read from nor written to the cache."""
    output_tokens: int
    """Output, reasoning included."""
    reasoning_tokens: int | None
    """The part of output spent on thinking, where the provider says."""
    cache_read_tokens: int
    """Input read from the cache."""
    cache_write_5m_tokens: int
    """Input written to the cache for 5 minutes."""
    cache_write_1h_tokens: int
    """Input written to the cache for 1 hour."""
    web_search_requests: int
    """Web searches that the provider ran, billed each."""
    service_tier: str | None
    """`standard`, `priority` or `batch`."""
    inference_geo: str | None
    """Where inference ran, such as `global` or `us`."""
    speed: str | None
    """`standard` or `fast`."""
    certainty: Certainty


def usage_rows(model: str, usage: dict[str, Any], certainty: Certainty) -> list[Usage]:
    """Return the usage of one response: the top level first, then its iterations.

    `usage` is the provider's object; counts that are missing, null, negative or no integer count as zero.
    """
    listed = usage.get("iterations")
    entries = [e for e in listed if isinstance(e, dict)] if isinstance(listed, list) else []
    top = _row(0, "message", not entries, model, usage, usage, certainty)
    rows = [top]
    for number, entry in enumerate(entries, 1):
        kind = entry.get("type")
        own = entry.get("model")
        rows.append(
            _row(
                number,
                kind if isinstance(kind, str) else "unknown",
                True,
                own if isinstance(own, str) else model,
                entry,
                usage,
                certainty,
            )
        )
    return rows


def _row(
    iteration: int,
    kind: str,
    billed: bool,
    model: str,
    counts: dict[str, Any],
    whole: dict[str, Any],
    certainty: Certainty,
) -> Usage:
    written_5m, written_1h = _cache_writes(counts)
    details = _dict(counts.get("output_tokens_details"))
    server = _dict(whole.get("server_tool_use")) if iteration in (0, 1) else {}
    return Usage(
        iteration=iteration,
        kind=kind,
        billed=billed,
        model=model,
        input_tokens=_count(counts.get("input_tokens")),
        output_tokens=_count(counts.get("output_tokens")),
        reasoning_tokens=_count(details["thinking_tokens"])
        if "thinking_tokens" in details
        else None,
        cache_read_tokens=_count(counts.get("cache_read_input_tokens")),
        cache_write_5m_tokens=written_5m,
        cache_write_1h_tokens=written_1h,
        web_search_requests=_count(server.get("web_search_requests")),
        service_tier=_text(whole.get("service_tier")),
        inference_geo=_text(whole.get("inference_geo")),
        speed=_text(whole.get("speed")),
        certainty=certainty,
    )


def _cache_writes(counts: dict[str, Any]) -> tuple[int, int]:
    """Return (5 m, 1 h): what the split does not name was written for 5 minutes, the default lifetime."""
    split = _dict(counts.get("cache_creation"))
    written_1h = _count(split.get("ephemeral_1h_input_tokens"))
    written_5m = _count(split.get("ephemeral_5m_input_tokens"))
    rest = _count(counts.get("cache_creation_input_tokens")) - written_5m - written_1h
    return written_5m + max(rest, 0), written_1h


def _count(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**63:
        return value
    return 0


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
