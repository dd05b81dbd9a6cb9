"""Figures: one pure function per named query, with the same name, that turns its rows into a plotly figure.

Only figures use floats; the rows keep the exact decimals. The label of a sum shows whether it is exact.
"""

from dashboards.figures.costs import (
    MOST_AGENTS,
    PARTS,
    cache_efficiency,
    cache_waste,
    cost_by_agent,
    cost_by_day,
    cost_by_model,
    cost_by_name,
)
from dashboards.figures.divergence_path import divergence
from dashboards.figures.durations import blocked_on_user, first_token, time_split
from dashboards.figures.session_pair import two_sessions
from dashboards.figures.signatures import failure_signatures
from dashboards.figures.tokens import session_turns
from dashboards.figures.tool_statistics import tool_errors, tool_latency
from dashboards.figures.waterfall import session_waterfall
from dashboards.figures.window_growth import context_growth

__all__ = [
    "MOST_AGENTS",
    "PARTS",
    "blocked_on_user",
    "cache_efficiency",
    "cache_waste",
    "context_growth",
    "cost_by_agent",
    "cost_by_day",
    "cost_by_model",
    "cost_by_name",
    "divergence",
    "failure_signatures",
    "first_token",
    "session_turns",
    "session_waterfall",
    "time_split",
    "tool_errors",
    "tool_latency",
    "two_sessions",
]
