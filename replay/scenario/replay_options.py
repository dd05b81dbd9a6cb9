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
from replay.comparison.normalizers import Rule as NormalizerRule
from replay.scenario.faults import Fault
from replay.scenario.fork_plan import Fork
from replay.scenario.tool_policies import ToolPolicy, check_policy

__all__ = ["STRICT", "ReplayOptions", "ToolPolicy"]


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """The options of a replay; the defaults are the strictest."""

    tools: ToolPolicy = "recorded"
    """Which tools run live, see `replay.scenario.tool_policies`; all others answer from the recording."""
    network: bool = False
    """Whether live tools may use the network."""
    redactors: Sequence[Rule] = ()
    """The custom redaction rules of the recording, see `agentobs.Options`."""
    chunks: Literal["whole", "events", "recorded"] | int = "whole"
    """The chunks of responses: whole, unless another one must end first; event by event; in the recorded
    chunks; or a fixed number of bytes.
    """
    pace: Literal["recorded"] | float | None = None
    """How many times as fast as recorded the chunks of a response arrive, and how long a client waits before a
    retry: `recorded` is 1.0. With a pace, other waits of the agent take real time. By default no time passes: waits
    end as soon as nothing else can run, see `replay.virtual_time.time_patches`.
    """
    match: Literal["strict", "spine"] = "strict"
    """How a request is identified: by its complete body, or, for foreign clients with varying bodies, by its spine;
    other differences are then reported as `Replayer.drift`. See `replay.matching.spine`.
    """
    normalizers: Sequence[NormalizerRule] = ()
    """Rules for values that are new in each run, in addition to those of the fixture: names such as `uuid`, custom
    rules, or functions that receive the JSON text of both sides. See `replay.comparison.normalizers`.
    """
    deadline_seconds: float = 30.0
    """The seconds after which an agent counts as hanging if it makes no request, records nothing and has nothing
    pending. Ten times as many apply if it computes or waits for something real. See `replay.playback.hang`.
    """
    patch: Sequence[Patch] | Literal["report"] | None = None
    """Parts of the standard library that answer from the recording: `time`, `uuid`, `random`; None: as in the
    recording. `report` changes nothing, and names the line that read a value by which a request differs.
    """
    serve_rest: bool = False
    """What a client gets that continues to read where the recorded one had stopped: the recorded chunks, and then the
    end of the stream. By default it is stopped there.
    """

    compare_result: bool = True
    """Whether the result of the session is compared with the recorded result. A value that differs in each run can also
    be hidden by a normalizer.
    """

    faults: Sequence[Fault | str] = ()
    """Faults to inject, such as `529 at turn 3`; see `replay.scenario.faults`."""
    accept_from: int | None = None
    """The request of the fixture from which on live requests replace the recorded ones, if the
    recorded responses fit; see `replay.progress.acceptance`. None: never.
    """
    fork: Fork | None = None
    """Where to continue live with the real provider; None: nowhere."""

    def __post_init__(self) -> None:
        """Reject invalid sizes and factors.

        Raises:
            UsageError: one of them is invalid.
        """
        check_policy(self.tools)
        if not (self.chunks in ("whole", "events", "recorded") or _is_count(self.chunks)):
            raise UsageError(
                f"pieces of {self.chunks!r} bytes",
                todo='Choose "whole", "events", "recorded" or 1 and more',
            )
        if not (self.pace in (None, "recorded") or _is_factor(self.pace)):
            raise UsageError(
                f"a pace of {self.pace!r}", todo='Choose "recorded" or a number above 0'
            )
        if self.patch not in (None, "report"):
            check_patch(self.patch)
        if not self.deadline_seconds > 0:
            raise UsageError(f"a deadline of {self.deadline_seconds} seconds", todo="Ask for more")


STRICT = ReplayOptions()
"""A replay in which nothing runs live and nothing may differ."""


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_factor(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
