"""Deterministic replay: runs an agent against its recorded responses and reports the first divergence.

    replayed = Replayer(load("fixtures/refund-loop"))
    with replayed:
        replayed.run()

The public names are imported at first use, so that the pytest plugin does not slow down test runs without replays.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from replay.command.command_replay import CommandDivergenceError as CommandDivergenceError
    from replay.command.command_replay import CommandReplay as CommandReplay
    from replay.command.command_replay import run_command as run_command
    from replay.command.live import Live as Live
    from replay.comparison.normalizers import Normalizer as Normalizer
    from replay.divergence.divergence import Divergence as Divergence
    from replay.divergence.divergence import DivergenceError as DivergenceError
    from replay.fixture.format import Fixture as Fixture
    from replay.fixture.format import load as load
    from replay.playback.replayer import Replayer as Replayer
    from replay.scenario.faults import Fault as Fault
    from replay.scenario.fork_plan import Fork as Fork
    from replay.scenario.next_step import Next as Next
    from replay.scenario.next_step import Step as Step
    from replay.scenario.replay_options import ReplayOptions as ReplayOptions
    from replay.scenario.script import calls as calls
    from replay.scenario.script import fails as fails
    from replay.scenario.script import says as says

_MODULES = {
    "replay.command.command_replay": ("CommandDivergenceError", "CommandReplay", "run_command"),
    "replay.command.live": ("Live",),
    "replay.comparison.normalizers": ("Normalizer",),
    "replay.divergence.divergence": ("Divergence", "DivergenceError"),
    "replay.fixture.format": ("Fixture", "load"),
    "replay.playback.replayer": ("Replayer",),
    "replay.scenario.faults": ("Fault",),
    "replay.scenario.fork_plan": ("Fork",),
    "replay.scenario.next_step": ("Next", "Step"),
    "replay.scenario.replay_options": ("ReplayOptions",),
    "replay.scenario.script": ("calls", "fails", "says"),
}
"""The public names by module; the imports above repeat them for type checkers."""

_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
__all__ = list(_MODULE_OF)


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'replay' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    """Return the public names, for tab completion."""
    return list(__all__)
