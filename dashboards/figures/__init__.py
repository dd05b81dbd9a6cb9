"""Figures: one function per question, named like its query; rows in, a plotly figure out; pure.

A figure is drawn with floats, which is its only use of them: the rows keep the exact decimals. Where a sum is
not exact its label says so.
"""

from dashboards.figures.money import (
    MOST_AGENTS,
    PARTS,
    cache_efficiency,
    cache_waste,
    cost_by_agent,
    cost_by_day,
    cost_by_model,
    cost_by_session,
)
from dashboards.figures.signatures import failure_signatures

__all__ = [
    "MOST_AGENTS",
    "PARTS",
    "cache_efficiency",
    "cache_waste",
    "cost_by_agent",
    "cost_by_day",
    "cost_by_model",
    "cost_by_session",
    "failure_signatures",
]
