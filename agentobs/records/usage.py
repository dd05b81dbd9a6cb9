"""Usage: tokens as the provider counted them, in disjoint buckets that add up without overlap.

The dialect of a provider reads them from its responses. No count of the provider is dropped: unknown kinds of server
requests and unknown counts are kept by their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Certainty = Literal["exact", "lower_bound", "estimated"]
"""Whether the counts are final, from a stream without its last counts, or partly unreadable."""

MOST = 10**12
"""A larger count is invalid: no context window has even a millionth of it."""

NOT_TOLD = "usage:not_told"
"""The note of a row without counts: the response broke off, or was given up, before it reported any."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one attempt, or of one iteration of it."""

    iteration: int
    """0 for the top-level counts, from 1 for the entries of `iterations`."""
    kind: str
    """What was sampled: `message`, `compaction`, `advisor_message`, `fallback_message` ..."""
    billed: bool
    """Whether the invoice counts this row."""
    model: str
    """The billed model."""
    input_tokens: int
    """Input that was neither read from nor written to the cache."""
    output_tokens: int
    """Output, including reasoning."""
    reasoning_tokens: int | None
    """The part of output spent on thinking, if the provider reports it."""
    cache_read_tokens: int
    """Input read from the cache."""
    cache_write_5m_tokens: int
    """Input written to the cache for 5 minutes."""
    cache_write_1h_tokens: int
    """Input written to the cache for 1 hour."""
    web_search_requests: int
    """Web searches that the provider ran, each billed."""
    service_tier: str | None
    """`standard`, `priority` or `batch`."""
    inference_geo: str | None
    """Where inference ran, such as `global` or `us`."""
    speed: str | None
    """`standard` or `fast`."""
    certainty: Certainty
    web_fetch_requests: int = 0
    """Pages that the provider fetched; only their tokens are billed."""
    code_execution_requests: int = 0
    """Code executions by the provider; their time is billed beyond a free allowance, which usage does not show."""
    server_requests: Mapping[str, int] = field(default_factory=dict)
    """Requests of other kinds that the provider ran, by its name for them; they have no price here."""
    other_counts: Mapping[str, int] = field(default_factory=dict)
    """Counts unknown to this version, by name; nested ones with their object's name and a dot."""
    note: str | None = None
    """Why the counts are not exact: `<count>:<reason>`, several joined by `/`; `usage:not_told`: none were reported.
    """
    batch_result_id: str | None = None
    """`<batch id>/<custom_id>` of a batch API result: it counts once, however often it is fetched."""

    @property
    def prompt_tokens(self) -> int:
        """The size of the prompt, which determines the price tier."""
        written = self.cache_write_5m_tokens + self.cache_write_1h_tokens
        return self.input_tokens + self.cache_read_tokens + written

    @property
    def has_unpriced_requests(self) -> bool:
        """Whether the provider ran something whose price does not follow from the counts."""
        return self.code_execution_requests > 0 or bool(self.server_requests)


def not_told(model: str) -> Usage:
    """Return the row of a response without reported usage: its lower bound is zero."""
    return Usage(
        iteration=0,
        kind="message",
        billed=True,
        model=model,
        input_tokens=0,
        output_tokens=0,
        reasoning_tokens=None,
        cache_read_tokens=0,
        cache_write_5m_tokens=0,
        cache_write_1h_tokens=0,
        web_search_requests=0,
        service_tier=None,
        inference_geo=None,
        speed=None,
        certainty="lower_bound",
        note=NOT_TOLD,
    )
