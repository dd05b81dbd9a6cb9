"""Usage: tokens as the provider counted them, in disjoint buckets that add up without overlap.

The provider's dialect reads the counts from responses. No count is dropped: unknown kinds of server requests and
unknown counts are kept under their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Certainty = Literal["exact", "lower_bound", "estimated"]
"""`exact`: the counts are final; `lower_bound`: the stream ended before its last counts; `estimated`: a count was
unreadable.
"""

COUNT_MAX = 10**12
"""A larger count is invalid. No context window has even a millionth of this size. [tokens]"""

UNREPORTED = "usage:unreported"
"""The note of a row without counts, because the response broke off or was abandoned before it reported its usage."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one attempt, or of one iteration of it."""

    iteration: int
    """0 for the top-level counts, from 1 for the entries of `iterations`."""
    kind: str
    """The kind of output that the model produced: `message`, `compaction`, `advisor_message`, `fallback_message`, ...
    """
    billed: bool
    """Whether the provider bills this row."""
    model: str
    """The model whose prices apply."""
    input_tokens: int
    """Input that was neither read from nor written to the cache."""
    output_tokens: int
    """Output, including reasoning."""
    reasoning_tokens: int | None
    """The part of the output that is thinking; None if the provider does not report it."""
    cache_read_tokens: int
    """Input read from the cache."""
    cache_write_5m_tokens: int
    """Input written to the cache for 5 minutes."""
    cache_write_1h_tokens: int
    """Input written to the cache for 1 hour."""
    web_search_requests: int
    """Web searches that the provider ran; each is billed."""
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
    """Code executions by the provider. Their time is billed beyond a free allowance, but usage does not report the
    time.
    """
    server_requests: Mapping[str, int] = field(default_factory=dict)
    """Requests of other kinds that the provider ran, under the provider's names; agentobs knows no prices for them."""
    other_counts: Mapping[str, int] = field(default_factory=dict)
    """Counts that this version does not know, by name; a nested count as `<object>.<count>`."""
    note: str | None = None
    """Why the counts are not exact: `<count>:<reason>`, several of them joined by `/`; `usage:unreported` if no counts
    were reported.
    """
    batch_result_id: str | None = None
    """`<batch id>/<custom_id>` of a result of the batch API, which is counted once even if it is fetched several times.
    """

    @property
    def prompt_tokens(self) -> int:
        """The size of the prompt, which determines the price tier."""
        written = self.cache_write_5m_tokens + self.cache_write_1h_tokens
        return self.input_tokens + self.cache_read_tokens + written

    @property
    def has_unpriced_requests(self) -> bool:
        """Whether the provider ran something whose cost cannot be computed from the counts."""
        return self.code_execution_requests > 0 or bool(self.server_requests)


def unreported_usage(model: str) -> Usage:
    """Return the usage row of a response that reported no usage; its counts are zero, as a lower bound."""
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
        note=UNREPORTED,
    )
