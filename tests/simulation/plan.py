"""Plans: the steps of one simulation, which a seed determines completely.

Each step has its own seed, so that a plan without some of its steps still runs the same way.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from tests.simulation.machine import ANYWHERE, POSSIBLE, Fault

Profile = Literal["journal", "store"]
"""Which steps a plan has. `journal`: recorders, readers of the journal and power losses, a few milliseconds a step.
`store`: in addition everything that uses DuckDB, a few tenths of a second a step.
"""
STORE_SHARE = 12
"""One of this many seeds has the profile `store`."""

JOURNAL_STEPS = {
    "record": 30, "sync": 8, "flush": 14, "close": 3, "kill": 4, "follow": 4, "verify": 3, "power": 3, "clock": 2,
}  # fmt: skip
STORE_STEPS = {
    "record": 14, "sync": 3, "flush": 7, "close": 5, "kill": 3, "follow": 1, "verify": 4, "power": 2, "clock": 1,
    "ingest": 8, "query": 4, "prune": 4, "archive": 2, "repair": 2, "import": 1, "damage": 2, "search": 0,
}  # fmt: skip
MEANWHILE = ("record", "record", "flush", "verify", "follow", "sync", "kill", "close")
STORE_MEANWHILE = (*MEANWHILE, "ingest", "query", "repair", "record", "flush", "close")
ALL_FAULTS = sorted({each for faults in POSSIBLE.values() for each in faults} - {"torn"})


@dataclass(frozen=True)
class Step:
    """One step of a plan: what a process does."""

    kind: str
    seed: str
    slot: int = 0
    """Which recorder records."""
    faults: tuple[Fault, ...] = ()

    def __str__(self) -> str:
        who = f" {self.slot}" if self.kind in ("record", "sync", "flush", "close", "kill") else ""
        faults = "".join(f" [{each}]" for each in self.faults)
        return f"{self.kind}{who}{faults}"


def profile_of(seed: int) -> Profile:
    """Return the profile of a seed."""
    return "store" if seed % STORE_SHARE == 0 else "journal"


def plan(seed: int, profile: Profile | None = None) -> list[Step]:
    """Return the steps of a simulation."""
    profile = profile or profile_of(seed)
    chance = random.Random(f"plan {seed}")
    weights = STORE_STEPS if profile == "store" else JOURNAL_STEPS
    count = chance.randint(8, 16) if profile == "store" else chance.randint(10, 40)
    kinds = chance.choices(list(weights), list(weights.values()), k=count)
    share = chance.choice([0.0, 0.2, 0.4])
    return [
        Step(
            kind,
            f"{seed}:{number}",
            chance.randrange(3),
            _faults(chance, profile, f"{seed}:{number}") if chance.random() < share else (),
        )
        for number, kind in enumerate(kinds)
    ]


def _faults(chance: random.Random, profile: Profile, seed: str) -> tuple[Fault, ...]:
    return tuple(_fault(chance, profile, f"{seed}:{n}") for n in range(chance.choice([1, 1, 1, 2])))


def _fault(chance: random.Random, profile: Profile, seed: str) -> Fault:
    at = 1 + int(chance.expovariate(1 / chance.choice([2, 8, 30])))
    kind = chance.choice([*ANYWHERE, "die", "torn", "meanwhile", *ALL_FAULTS])
    if kind == "meanwhile":
        kinds = STORE_MEANWHILE if profile == "store" else MEANWHILE
        return Fault(at, kind, other=Step(chance.choice(kinds), seed, chance.randrange(3)))
    if kind in POSSIBLE["create"] or kind in ("short", "EINTR"):
        return Fault(at, kind, chance.choice([1, 1, 1, 2, 5, 1_000]))
    return Fault(at, kind)
