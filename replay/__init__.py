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
    from replay.comparison.normalizers import Normaliser
    from replay.divergence.divergence import Divergence, DivergenceError
    from replay.fixture.format import Fixture, load
    from replay.playback.replayer import Replayer
    from replay.scenario.faults import Fault
    from replay.scenario.fork_plan import Fork
    from replay.scenario.next_step import Next, Step
    from replay.scenario.replay_options import ReplayOptions
    from replay.scenario.script import calls, fails, says

_HOMES = {
    "Divergence": "replay.divergence.divergence",
    "DivergenceError": "replay.divergence.divergence",
    "Fault": "replay.scenario.faults",
    "Fixture": "replay.fixture.format",
    "Fork": "replay.scenario.fork_plan",
    "Normaliser": "replay.comparison.normalizers",
    "ReplayOptions": "replay.scenario.replay_options",
    "Replayer": "replay.playback.replayer",
    "Next": "replay.scenario.next_step",
    "Step": "replay.scenario.next_step",
    "calls": "replay.scenario.script",
    "fails": "replay.scenario.script",
    "load": "replay.fixture.format",
    "says": "replay.scenario.script",
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
