"""Deterministic replay: the same agent code against recorded answers, and the first divergence.

    replayed = Replayer(load("fixtures/refund-loop"))
    with replayed:
        replayed.run()

The names below are imported at first use: the pytest plugin must not cost a test run that replays nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from replay.divergence import Divergence, DivergenceError
    from replay.faults import Fault
    from replay.fixture import Fixture, load
    from replay.forking import Fork
    from replay.normalising import Normaliser
    from replay.options import ReplayOptions
    from replay.replayer import Replayer
    from replay.script import calls, fails, says
    from replay.step import Next, Step

_HOMES = {
    "Divergence": "replay.divergence",
    "DivergenceError": "replay.divergence",
    "Fault": "replay.faults",
    "Fixture": "replay.fixture",
    "Fork": "replay.forking",
    "Normaliser": "replay.normalising",
    "ReplayOptions": "replay.options",
    "Replayer": "replay.replayer",
    "Next": "replay.step",
    "Step": "replay.step",
    "calls": "replay.script",
    "fails": "replay.script",
    "load": "replay.fixture",
    "says": "replay.script",
}

__all__ = [
    "Divergence",
    "DivergenceError",
    "Fault",
    "Fixture",
    "Fork",
    "Next",
    "Normaliser",
    "ReplayOptions",
    "Replayer",
    "Step",
    "calls",
    "fails",
    "load",
    "says",
]


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'replay' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
