"""A wall clock that jumps by hours and by years, in this process or in the Python programs that it starts."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path

HOUR = 3600 * 10**9
JUMPS = (0, 5 * HOUR, -30 * HOUR, 4 * 8766 * HOUR, -3 * 8766 * HOUR, HOUR)
"""By how much the clock is wrong, one after the other, in nanoseconds."""
READS = 7
"""How often the clock is read between two jumps."""
ABSURD_NS = 10**9 * 600
"""No recorded duration of these tests is as long."""


def jumping(real: Callable[[], int] = time.time_ns) -> Callable[[], int]:
    """Return a clock in nanoseconds that jumps."""
    reads = itertools.count()
    return lambda: real() + JUMPS[next(reads) // READS % len(JUMPS)]


def jumping_variables(folder: Path) -> dict[str, str]:
    """Return environment variables with which the clock of a Python program jumps; `folder` is a new directory."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "import time\nfrom tests.effects.jumping_clock import jumping\ntime.time_ns = jumping()\n"
    )
    paths = (str(folder), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))
    return {"PYTHONPATH": os.pathsep.join(each for each in paths if each)}


__all__ = ["ABSURD_NS", "HOUR", "jumping", "jumping_variables"]
