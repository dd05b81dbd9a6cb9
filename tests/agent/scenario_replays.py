"""Replay every scenario in the current environment, and print all results as one JSON object.

The world's clock is set ten years ahead, because a replay must not depend on the date.
"""

from __future__ import annotations

import dataclasses
import json

from agentobs import runtime
from agentobs.world import World
from tests.agent.replayed_scenarios import replay
from tests.agent.scenarios import SCENARIOS

TEN_YEARS_NS = 10 * 365 * 24 * 3600 * 1_000_000_000


def later(live: World) -> World:
    """Return the world with a clock that is ten years ahead."""
    return dataclasses.replace(live, now=lambda: live.now() + TEN_YEARS_NS)


if __name__ == "__main__":
    with runtime.replaced(transform=later):
        print(json.dumps({name: replay(name).lines for name in SCENARIOS}))
