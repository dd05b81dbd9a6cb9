"""Given: the clock, ids and chance of a replay, which are those of the recording."""

from __future__ import annotations

import asyncio

from agentobs import world
from agentobs.tracing.ambient import Ambient
from replay.fixture.format import Fixture
from replay.progress.answer_delivery import factor
from replay.scenario.replay_options import ReplayOptions

UNASKED = {"seed": [0], "zone_s": 0, "patch": [], "started_ns": 0}
"""What code is given that asks now and did not when it was recorded: always the same, so that it shows."""


def ambient_in(fixture: Fixture, options: ReplayOptions) -> Ambient:
    """Return what the sessions of a replay are given."""
    told = {**UNASKED, **(fixture.given or {})}
    pace = factor(options)

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds / pace if pace else 0)

    def pause(seconds: float) -> None:
        if pace:
            world.pause(seconds / pace)

    patch = told["patch"] if options.patch is None else options.patch
    return Ambient(
        seed=tuple(map(int, told["seed"])),
        started_ns=int(told["started_ns"]),
        zone_s=int(told["zone_s"]),
        patch=frozenset(() if isinstance(patch, str) else patch),
        sleep=sleep,
        pause=pause,
        moves=False,
    )
