"""Options of a replay: one frozen value for the Python API, the pytest marker and the command line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agentobs.determinism.patches import check_patch
from agentobs.errors import UsageError
from agentobs.redaction import Rule
from agentobs.tracing.ambient import Patch
from replay.comparison.normalizers import Rule as NormalizerRule
from replay.scenario.faults import Fault
from replay.scenario.fork_plan import Fork
from replay.scenario.tool_policies import ToolPolicy, check_policy

__all__ = ["STRICT", "ReplayOptions", "ToolPolicy"]


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """The options of a replay; the defaults are the strictest."""

    tools: ToolPolicy = "recorded"
    """Which tools run live, see `replay.scenario.tool_policies`; all other tools answer from the recording."""
    network: bool = False
    """Whether live tools may use the network."""
    redactors: Sequence[Rule] = ()
    """The custom redaction rules of the recording, see `agentobs.Options`."""
    chunks: Literal["whole", "events", "recorded"] | int = "whole"
    """The chunks in which a response arrives: `whole` (one chunk, unless it must wait for another response), `events`
    (one per event), `recorded`, or a number of bytes per chunk.
    """
    pace: Literal["recorded"] | float | None = None
    """The factor by which responses arrive faster than recorded, and by which clients retry sooner; `recorded` means
    1.0. If a pace is set, other waits of the agent take real time. By default, no time passes: waits end as soon as
    nothing else can run, see `replay.virtual_time.time_patches`.
    """
    match: Literal["strict", "spine"] = "strict"
    """How a live request is matched: by its complete body, or by its spine, for foreign clients whose bodies vary. With
    `spine`, other differences are reported in `Replayer.drift`. See `replay.matching.spine`.
    """
    normalizers: Sequence[NormalizerRule] = ()
    """Rules for values that are new in each run, in addition to those of the fixture: names such as `uuid`, custom
    rules, or functions that receive the JSON text of both sides. See `replay.comparison.normalizers`.
    """
    deadline_seconds: float = 30.0
    """The number of seconds after which an agent counts as hanging if it makes no request, records nothing and has
    nothing pending. If it computes or waits for something real, the limit is ten times as long. See
    `replay.playback.hang`.
    """
    patch: Sequence[Patch] | Literal["report"] | None = None
    """The parts of the standard library that return recorded values: `time`, `uuid`, `random`; None means the same as
    in the recording. With `report`, they return real values, and a divergence names the line of code that read a
    differing value.
    """
    serve_rest: bool = False
    """Whether a client may continue to read after the point where the recorded client stopped. If so, it gets the rest
    of the recorded chunks, and then the end of the stream. By default, the client is stopped at that point.
    """

    compare_result: bool = True
    """Whether the result of the session is compared with the recorded result. A normalizer can hide a value that
    differs in each run.
    """

    faults: Sequence[Fault | str] = ()
    """Faults to inject, such as `529 at turn 3`; see `replay.scenario.faults`."""
    accept_from: int | None = None
    """The number of the request in the fixture from which live requests replace recorded requests, if the recorded
    responses fit; None if no recorded request is replaced. See `replay.progress.acceptance`.
    """
    fork: Fork | None = None
    """Where to continue live with the real provider; None to replay to the end."""

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            UsageError: a value is invalid.
        """
        check_policy(self.tools)
        if not (self.chunks in ("whole", "events", "recorded") or _is_count(self.chunks)):
            raise UsageError(
                f"invalid chunks: {self.chunks!r}",
                todo='Use "whole", "events", "recorded" or a number of bytes (1 or more)',
            )
        if not (self.pace in (None, "recorded") or _is_factor(self.pace)):
            raise UsageError(
                f"invalid pace: {self.pace!r}", todo='Use "recorded" or a number above 0'
            )
        if self.patch not in (None, "report"):
            check_patch(self.patch)
        if not self.deadline_seconds > 0:
            raise UsageError(
                f"invalid deadline_seconds: {self.deadline_seconds}", todo="Use a number above 0"
            )


STRICT = ReplayOptions()
"""A replay in which nothing runs live and nothing may differ."""


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_factor(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
