"""Dashboards: charts and pages of recorded data. Requires the extra `dashboards`.

In notebooks and scripts, `dashboards.waterfall("SESSION")` and the other functions return plotly figures, and
`dashboards.session("SESSION")` returns a session that notebooks show as a table. Two modules are also public: `figures`
(one Plotly figure per named query) and `drawing` (a figure as static SVG). All names are imported at first use. The
application and the reports are commands: `agentobs dashboard`, `agentobs report`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dashboards import drawing as drawing
    from dashboards import figures as figures
    from dashboards.figures.divergence_path import divergence as divergence
    from dashboards.figures.session_pair import two_sessions as two_sessions
    from dashboards.notebooks.home_figures import blocked_on_user as blocked_on_user
    from dashboards.notebooks.home_figures import cache_efficiency as cache_efficiency
    from dashboards.notebooks.home_figures import cache_waste as cache_waste
    from dashboards.notebooks.home_figures import context_growth as context_growth
    from dashboards.notebooks.home_figures import cost_by_agent as cost_by_agent
    from dashboards.notebooks.home_figures import cost_by_day as cost_by_day
    from dashboards.notebooks.home_figures import cost_by_model as cost_by_model
    from dashboards.notebooks.home_figures import cost_by_name as cost_by_name
    from dashboards.notebooks.home_figures import failure_signatures as failure_signatures
    from dashboards.notebooks.home_figures import first_token as first_token
    from dashboards.notebooks.home_figures import session_turns as session_turns
    from dashboards.notebooks.home_figures import time_split as time_split
    from dashboards.notebooks.home_figures import tool_errors as tool_errors
    from dashboards.notebooks.home_figures import tool_latency as tool_latency
    from dashboards.notebooks.home_figures import waterfall as waterfall
    from dashboards.notebooks.stored_session import StoredSession as StoredSession
    from dashboards.notebooks.stored_session import session as session

_PUBLIC_MODULES = ("drawing", "figures")
_MODULES = {
    "dashboards.figures.divergence_path": ("divergence",),
    "dashboards.figures.session_pair": ("two_sessions",),
    "dashboards.notebooks.home_figures": (
        "blocked_on_user",
        "cache_efficiency",
        "cache_waste",
        "context_growth",
        "cost_by_agent",
        "cost_by_day",
        "cost_by_model",
        "cost_by_name",
        "failure_signatures",
        "first_token",
        "session_turns",
        "time_split",
        "tool_errors",
        "tool_latency",
        "waterfall",
    ),
    "dashboards.notebooks.stored_session": ("StoredSession", "session"),
}
"""The public names by the module that defines them; the imports above repeat them for type checkers."""

_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
__all__ = list(_PUBLIC_MODULES) + list(_MODULE_OF)


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name in _PUBLIC_MODULES:
        return importlib.import_module(f"dashboards.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'dashboards' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    """Return the public names, for tab completion."""
    return list(__all__)
