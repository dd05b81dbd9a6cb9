"""Dashboards: charts and pages of recorded data. Requires the extra `dashboards`.

Two modules are public: `figures` (one Plotly figure per named query) and `drawing` (a figure as static SVG). They are
imported at first use. The application and the reports are commands: `agentobs dashboard`, `agentobs report`.
"""

from __future__ import annotations

import importlib
from types import ModuleType

__all__ = ["drawing", "figures"]


def __getattr__(name: str) -> ModuleType:
    """Import a public module at its first use."""
    if name not in __all__:
        raise AttributeError(f"module 'dashboards' has no attribute {name!r}")
    return importlib.import_module(f"dashboards.{name}")


def __dir__() -> list[str]:
    """Return the public modules, for tab completion."""
    return list(__all__)
