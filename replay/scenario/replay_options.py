"""How a recording is replayed: one frozen value, the same from Python, from a test's mark and from the command line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agentobs.determinism.patches import check_patch
from agentobs.errors import UsageError
from agentobs.redaction import Rule
from agentobs.tracing.ambient import Patch
from replay.comparison.normalizers import Rule as NormaliserRule
from replay.scenario.faults import Fault
from replay.scenario.fork_plan import Fork
from replay.scenario.tool_policies import ToolPolicy, check_policy

__all__ = ["STRICT", "ReplayOptions", "ToolPolicy"]


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """What may be chosen about a replay; the defaults are the strictest."""

    tools: ToolPolicy = "recorded"
    """Which tools run for real, see `replay.scenario.tool_policies`; all others answer from the recording."""
    network: bool = False
    """Whether connections of live tools are let out."""
    redactors: Sequence[Rule] = ()
    """The rules of your own that the session was recorded with, see `agentobs.Options`."""
    chunks: Literal["whole", "events", "recorded"] | int = "whole"
    """In which pieces answers come: whole, unless another one has to end before they do; event by event; in the pieces
    in which they came off the wire when they were recorded; or so many bytes at a time."""
    pace: Literal["recorded"] | float | None = None
    """How many times as fast as recorded the pieces of an answer come, and how long a client waits before it asks
    again: `recorded` is 1.0. With a pace, other waits of the agent take real time. By default no time passes: waits
    end as soon as nothing else can run, see `replay.virtual_time.time_patches`."""
    match: Literal["strict", "spine"] = "strict"
    """How a request is known: by all that it says, or, for clients of others whose bodies vary, by its spine; what
    differs then is told as `Replayer.drift`. See `replay.matching.spine`."""
    normalisers: Sequence[NormaliserRule] = ()
    """Rules for values that are new in each run, besides those that the fixture names: names such as `uuid`, rules of
    your own, or functions that are given the JSON text of both sides. See `replay.comparison.normalizers`."""
    deadline_seconds: float = 30.0
    """The seconds after which an agent hangs if it makes no request, records nothing and has nothing pending. Ten times
    as many apply if it computes or waits for something real. See `replay.playback.hang`."""
    patch: Sequence[Patch] | Literal["report"] | None = None
    """What of the standard library answers from the recording: `time`, `uuid`, `random`; None: what did when it was
    recorded. `report` changes nothing, and names the line where a value was read that a request differs by."""
    serve_rest: bool = False
    """What a client gets that reads on where the recorded one had stopped: all that had come, and then the end of the
    stream. By default it is stopped there."""

    compare_result: bool = True
    """Whether the result of the session is compared with the recorded result. A value that differs in each run can also
    be hidden by a normaliser."""

    faults: Sequence[Fault | str] = ()
    """Failures to be made on demand, such as `529 at turn 3`; see `replay.scenario.faults`."""
    accept_from: int | None = None
    """From which request of the fixture on what is asked now takes the place of what was recorded, as long as the
    recorded answers fit; see `replay.progress.acceptance`. None: nowhere."""
    fork: Fork | None = None
    """Where to go on live with the real provider; None: nowhere."""

    def __post_init__(self) -> None:
        """Refuse sizes and factors that are none.

        Raises:
            UsageError: one of them is.
        """
        check_policy(self.tools)
        if not (self.chunks in ("whole", "events", "recorded") or _is_count(self.chunks)):
            raise UsageError(
                f"pieces of {self.chunks!r} bytes",
                todo='Ask for "whole", "events", "recorded" or 1 and more',
            )
        if not (self.pace in (None, "recorded") or _is_factor(self.pace)):
            raise UsageError(f"a pace of {self.pace!r}", todo='Ask for "recorded" or more than 0')
        if self.patch not in (None, "report"):
            check_patch(self.patch)
        if not self.deadline_seconds > 0:
            raise UsageError(f"a deadline of {self.deadline_seconds} seconds", todo="Ask for more")


STRICT = ReplayOptions()
"""A replay in which nothing runs for real and nothing may differ."""


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_factor(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
