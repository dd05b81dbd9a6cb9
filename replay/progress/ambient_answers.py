"""Recorded ambient values: a replay gives the agent the clock, IDs and random numbers of the recording."""

from __future__ import annotations

import asyncio

from agentobs import world
from agentobs.tracing.ambient import Ambient
from replay.fixture.format import Fixture
from replay.progress.answer_delivery import speed_factor
from replay.scenario.replay_options import ReplayOptions

DEFAULTS = {"seed": [0], "utc_offset_s": 0, "patch": [], "started_ns": 0}
"""The ambient values of a replay if the recording contains none. They are constant and easy to recognize."""


def recorded_ambient(fixture: Fixture, options: ReplayOptions) -> Ambient:
    """Return the ambient values for the sessions of a replay."""
    values = {**DEFAULTS, **(fixture.ambient or {})}
    pace = speed_factor(options)

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds / pace if pace else 0)

    def pause(seconds: float) -> None:
        if pace:
            world.pause(seconds / pace)

    patch = values["patch"] if options.patch is None else options.patch
    return Ambient(
        seed=tuple(map(int, values["seed"])),
        started_ns=int(values["started_ns"]),
        utc_offset_s=int(values["utc_offset_s"]),
        patch=frozenset(() if isinstance(patch, str) else patch),
        sleep=sleep,
        pause=pause,
        moves=False,
    )
