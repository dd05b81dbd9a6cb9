"""How a recording is replayed: one frozen value, the same from Python, from a test's mark and from the command line."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from agentobs.redaction import Rule

ToolPolicy = Literal["recorded", "live"] | Collection[str]
"""Which tools of the agent loop run: none, all, or those of these names."""


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """What may be chosen about a replay; the defaults are the strictest."""

    tools: ToolPolicy = "recorded"
    """Which tools run for real; all others answer from the recording."""
    network: bool = False
    """Whether connections of live tools are let out."""
    redactors: Sequence[Rule] = ()
    """The rules of your own that the session was recorded with, see `agentobs.Options`."""


STRICT = ReplayOptions()
"""A replay in which nothing runs for real and nothing may differ."""
