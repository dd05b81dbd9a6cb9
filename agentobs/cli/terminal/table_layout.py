"""The layout of a table in a terminal: which columns fit, and how wide each one is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

GAP = 2
"""The number of spaces between two columns."""
LEAST_TEXT = 9
"""The minimum width of a column of text that is longer than that. Our choice: `completed` fits."""
LEAST = {
    "title": 24, "model": 18, "name": 14, "tool": 14, "what": 18, "step": 18, "cause": 19, "detail": 18,
    "cost_status": 11, "compared_total": 20,
    "total_of_a": 16, "total_of_b": 16, "b_minus_a": 18,
}  # fmt: skip
"""The minimum width of columns that are useless if they are cut further. Our choice."""
OTHER = 5
"""The priority of a column that is not in `PRIORITY`."""
EMPTY = 9
"""The priority of a column without values."""

PRIORITY = {
    name: priority
    for priority, names in (
        (
            1,
            "session_id status cost_usd cause model turn lane after_ns what outcome step fixture result hook tool "
            "signature about compared_total b_minus_a",
        ),
        (
            2,
            "name title started_ns at_ns duration_ns calls errors p95_ns hit_ratio saved_usd misses wasted_usd "
            "extra_usd error_type wall_ns stored_usd what_if_usd difference_usd day branch commit hour lowest_ratio "
            "cost_status times part kind A B total_of_a total_of_b notable",
        ),
        (
            3,
            "label turns stop_reason tool_errors denied_calls model_ns tool_ns total_ns p50_ns max_ns "
            "usual_reason detail changes limit_name rejected",
        ),
        (
            4,
            "input_tokens output_tokens cache_read_tokens cache_write_tokens tool_use_count tools_ns p99_ns reason "
            "person_ns retry_wait_ns own_ns repository value",
        ),
        (6, "unpriced_calls tool_calls better approval_wait_ns attempt"),
        (
            7,
            "lower_bound_calls estimated_calls first_chunk_ns timed_calls zones_changed reason_source",
        ),
        (
            8,
            "compared_turn changed_message has_ended timing_source under_1s under_10s under_1min under_10min",
        ),
    )
    for name in names.split()
}
"""The priority of columns by name. A column with a small number stays in a narrow terminal."""


@dataclass(frozen=True, slots=True)
class Column:
    """The properties of a column that the layout uses; widths are in terminal cells."""

    priority: int
    """Columns with small numbers stay, the leftmost first."""
    least: int
    """The minimum width. For numbers, times and IDs it is the full width, because they are never cut."""
    natural: int
    """The width of the longest cell."""


def fit(columns: Sequence[Column], width: int) -> dict[int, int]:
    """Return the width of each column that is shown, by its position.

    The columns with the highest priority that fit are shown, at least one. The rest of the width is shared by the
    columns of text.

    Args:
        columns: all columns, in order.
        width: the width of the terminal.
    """
    order = sorted(range(len(columns)), key=lambda at: (columns[at].priority, at))
    widths: dict[int, int] = {}
    left = width + GAP
    for at in order:
        needed = columns[at].least + GAP
        if needed <= left or not widths:
            widths[at] = min(columns[at].least, width)
            left -= needed
    growing = [at for at in order if at in widths]
    while left > 0 and (growing := [at for at in growing if widths[at] < columns[at].natural]):
        for at in growing[:left]:
            widths[at] += 1
        left -= len(growing[:left])
    return dict(sorted(widths.items()))
