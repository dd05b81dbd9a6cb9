"""Recorded values: the clock, IDs and random numbers of a replay, which are those of the recording."""

from __future__ import annotations

import asyncio

from agentobs import world
from agentobs.tracing.ambient import Ambient
from replay.fixture.format import Fixture
from replay.progress.answer_delivery import factor
from replay.scenario.replay_options import ReplayOptions

UNASKED = {"seed": [0], "utc_offset_s": 0, "patch": [], "started_ns": 0}
"""Values for code that did not read them in the recording: always the same, so that they stand out."""


def ambient_in(fixture: Fixture, options: ReplayOptions) -> Ambient:
    """Return the values for the sessions of a replay."""
    told = {**UNASKED, **(fixture.ambient or {})}
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
        utc_offset_s=int(told["utc_offset_s"]),
        patch=frozenset(() if isinstance(patch, str) else patch),
        sleep=sleep,
        pause=pause,
        moves=False,
    )
