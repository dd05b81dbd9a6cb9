"""Exporters: recordings in the formats of other tools.

The public modules are `otlp` and `perfetto`, imported at first use because each needs an optional dependency. All other
exports are commands: `agentobs export`, `agentobs bundle`.
"""

from __future__ import annotations

import importlib
from types import ModuleType

__all__ = ["otlp", "perfetto"]


def __getattr__(name: str) -> ModuleType:
    """Import a public module at its first use."""
    if name not in __all__:
        raise AttributeError(f"module 'exporters' has no attribute {name!r}")
    return importlib.import_module(f"exporters.{name}")


def __dir__() -> list[str]:
    """Return the public modules, for completion."""
    return list(__all__)
