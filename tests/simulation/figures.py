"""Appends figures of long runs to the file that collects them for the scorecard."""

from __future__ import annotations

import json
import os
from pathlib import Path

VARIABLE = "AGENTOBS_SCORECARD"
"""The environment variable with the path of the file; without it, nothing is collected."""


def report(name: str, value: float, n: int, command: str = "make soak") -> None:
    """Append one figure as a line of JSON; its target is 0.

    Args:
        name: the name of the figure.
        value: how many cases failed.
        n: how many cases were tried.
        command: the command that measures it.
    """
    if path := os.environ.get(VARIABLE):
        line = {
            "figure": name,
            "value": value,
            "n": n,
            "unit": name,
            "target": 0,
            "command": command,
        }
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(line)}\n")
