"""Replays generated agents where the process happens to run, and prints what came out as one JSON object.

`python -m tests.replay.elsewhere FOLDER`: the folder holds fixtures named KIND-SEED, as `proving.recorded` makes them.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from replay import Replayer, load
from tests.replay.crowd import Noise
from tests.replay.generated import drawn
from tests.replay.generated_agents import agent_of
from tests.replay.proving import exchanged


def replayed(folder: Path) -> dict[str, list[object]]:
    """Replay each fixture; return what each agent returned, its events, what was asked and answered, and its steps."""
    found: dict[str, list[object]] = {}
    for fixture in sorted(folder.iterdir()):
        kind, _, seed = fixture.name.partition("-")
        script = drawn(int(seed), kind)  # type: ignore[arg-type]
        agent = agent_of(script, None, None, Noise(int(seed)))
        with Replayer(load(fixture)) as replay:
            told = replay.run(agent.answer)
        records = list(replay.records)
        found[fixture.name] = [
            told,
            agent.ran.events,
            repr(exchanged(records)),
            replay.trajectory,
        ]
    return found


def become(user: str) -> None:
    """Be another user from now on, where this one may; all is imported by then, for it may be this one's alone."""
    replayed(Path(sys.argv[1]))
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(int(user))
        os.setuid(int(user))


if __name__ == "__main__":
    become(os.environ["AS_USER"])
    print(json.dumps(replayed(Path(sys.argv[1]))))
